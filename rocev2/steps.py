"""The steps of one LL flow: which message belongs to which step, and where its packets lie in it.

The flag of a line is the step plus one and the slot of the receive buffer is the step modulo 8, so that a packet says
itself which step it belongs to. Its offset in the step is proven by its address, by the first or the last packet of its
message, or by the end of the step before; a packet with none of these stays unplaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packets.batch import Bytes
from rocev2.messages import Write
from rocev2.protocols import LL, STEPS

ADAPTIVE_ROUTING_BYTES = 8192
"""Messages beyond this many bytes may be sent without immediate, which then follows alone (NCCL_IB_AR_THRESHOLD)."""
_UNSET = -1
_MOST_AWAY = 1 << 40  # bytes; an offset is far less


class Placed(NamedTuple):
    """A message and where its packets lie."""

    write: Write
    psn: int
    """PSN of one of its packets."""
    origin: int
    """Where that packet lies."""
    addressed: bool
    """Whether `origin` is an address, rather than an offset in the step."""


@dataclass(slots=True)
class Step:
    """One step of a flow: what one message carries."""

    index: int
    size: int | None = None
    """Bytes on the wire."""
    first: int | None = None
    """PSN of its first packet."""
    end: int | None = None
    """PSN of its last packet, with the one that carries only the size."""
    data_last: int | None = None
    """PSN of its last packet with data."""
    order: int = _UNSET
    """Position in the capture of its first packet, -1 when none was seen."""
    last_order: int = _UNSET
    placed: list[Placed] = field(default_factory=list)
    """Messages whose offset in the step is proven, by the last packet or by the address in the receive buffer."""
    floating: list[Write] = field(default_factory=list)
    """Messages whose offset is not known yet."""
    seen: list[tuple[int, int]] = field(default_factory=list)
    """PSNs of all its packets that are there, as ascending ranges, inclusive."""
    bad: bool = False
    """What is known of it does not agree with itself: nothing of it is used."""

    @property
    def writes(self) -> list[Write]:
        """Its messages with data."""
        return [*(item.write for item in self.placed), *self.floating]

    def note(self, write: Write) -> None:
        """Count the packets of a message as seen."""
        self.seen += write.runs()
        self.order = write.order if self.order == _UNSET else min(self.order, write.order)
        self.last_order = max(self.last_order, write.last_order)

    def set_size(self, size: int) -> None:
        """Take a size that a packet states."""
        if size % LL.line_bytes or size > LL.slot_bytes or self.size not in (None, size):
            self.bad = True
        self.size = size

    def set_first(self, psn: int) -> None:
        """Take the PSN of the first packet."""
        if self.first not in (None, psn):
            self.bad = True
        self.first = psn

    def set_end(self, psn: int) -> None:
        """Take the PSN of the last packet."""
        if self.end not in (None, psn):
            self.bad = True
        self.end = psn

    def bounds(self, mtu: int | None) -> tuple[int, int]:
        """Return the least and greatest size that its packets allow."""
        if self.size is not None:
            return self.size, self.size
        least = sum(write.bytes for write in self.writes)
        if mtu and self.first is not None and self.data_last is not None:
            packets = self.data_last - self.first + 1
            return max(least, (packets - 1) * mtu + LL.line_bytes), packets * mtu
        return least, LL.slot_bytes


def packets_of(size: int, mtu: int | None) -> int | None:
    """Return how many packets a message of `size` bytes takes, None where the MTU is not known and matters."""
    if size == 0:
        return 1
    if mtu is None:
        return 1 if size <= 256 else None
    return -(-size // mtu)


@dataclass(slots=True)
class StepTable:
    """Sorts the messages of one flow into steps."""

    mtu: int | None = None
    base: int | None = None
    """Address of the receive buffer's slot 0."""
    late_sizes: bool | None = None
    """Whether large messages are followed by an empty one that carries their size (adaptive routing)."""
    steps: dict[int, Step] = field(default_factory=dict)
    newest: int = -1
    """Newest step with a flag."""
    _pending: list[Write] = field(default_factory=list)
    """Messages without a flag since the newest step: empty ones, and sizes of messages that are lost."""
    rebased: int = 0
    """Messages whose address does not fit the receive buffer."""
    unordered: int = 0
    """Messages whose flag goes back: not those of a flow of steps."""

    def add(self, write: Write, flag: int | None) -> bool:
        """Take the next message in PSN order; return False if it cannot belong to a flow of steps.

        Args:
            write: the message, complete or not.
            flag: flag of its lines; None for a message without data.
        """
        if flag is None:
            if not self._completes_previous(write):
                self._pending.append(write)
            return True
        index = flag - 1
        if index < self.newest:
            self.unordered += 1
            return False
        step = self.steps.get(index)
        if step is None:
            step = self.steps[index] = Step(index)
        elif write.first is not None and write.length == step.size and step.first not in (None, write.first):
            self.unordered += 1  # the same flag in another message
            return False
        self._data(step, write)
        if index > self.newest:
            self._settle(self.newest, step)
            self.newest = index
        return True

    def finish(self) -> None:
        """Settle what has no later step."""
        self._settle(self.newest, None)

    @property
    def last(self) -> int:
        """Newest step that is known, -1 without any."""
        return max(self.steps, default=-1)

    def _data(self, step: Step, write: Write) -> None:
        step.note(write)
        start = write.address
        if write.immediate >= 0:
            step.set_size(write.immediate)
            step.set_end(write.last_psn)
            if write.immediate > ADAPTIVE_ROUTING_BYTES:
                self.late_sizes = False
        elif write.ended:
            self.late_sizes = True
            if not write.single:
                step.set_end(write.last_psn + 1)  # NCCL always says the size: it follows
        whole = not write.single or write.immediate >= 0
        if write.first is not None:
            if whole and write.length is not None:  # a message that starts a slot, as NCCL sends one per step
                step.set_size(write.length)
                step.set_first(write.first)
                step.data_last = write.last
                self._rebase(step, start)
            step.placed.append(Placed(write, write.first, start, addressed=True))
        elif write.ended and write.immediate >= 0:
            step.data_last = write.last
            self._from_end(step, write)
        else:
            if write.ended:
                step.data_last = write.last
            step.floating.append(write)

    def _from_end(self, step: Step, write: Write) -> None:
        """Place packets by the size of the message and its last packet."""
        assert step.size is not None
        step.placed.append(Placed(write, write.last_psn, step.size - len(write.packet(-1)), addressed=False))
        packets = packets_of(step.size, self.mtu)
        if packets is not None:
            step.set_first(write.last_psn - packets + 1)

    def _rebase(self, step: Step, address: int) -> None:
        base = address - step.index % STEPS * LL.slot_bytes
        if self.base is None:
            self.base = base
        elif self.base != base:
            self.rebased += 1
            step.bad = True

    def _completes_previous(self, write: Write) -> bool:
        """Take an empty message with a size as the end of the newest step, if it is."""
        if write.address or write.immediate < 0 or self.newest < 0 or self._pending:
            return False
        step = self.steps[self.newest]
        size, psn = write.immediate, write.last_psn
        packets = packets_of(size, self.mtu)
        if size == 0 or packets is None or not step.seen or step.end not in (None, psn):
            return False
        if not step.seen[-1][1] >= psn - packets:
            return False  # another step lies between, lost as a whole
        self._complete(step, write, packets)
        return True

    def _complete(self, step: Step, write: Write, packets: int) -> None:
        psn = write.last_psn
        step.set_size(write.immediate)
        step.set_first(psn - packets)
        step.data_last = psn - 1
        step.set_end(psn)
        step.note(write)
        self.late_sizes = True

    def _settle(self, before: int, after: Step | None) -> None:
        """Give the pending messages without flag their steps, where there is only one possibility."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        start = before
        room = None if after is None else after.index - start - 1
        for place, write in enumerate(pending):
            index = start + 1 + place if len(pending) == room else self._only_step(write, before, after)
            if write.immediate > 0 and not write.address:
                self._settle_size(write, before, index)
            elif index is not None and index not in self.steps and write.immediate == 0 and write.address:
                step = self.steps[index] = Step(index)
                psn = write.last_psn
                step.note(write)
                step.set_size(0)
                step.set_first(psn)
                step.set_end(psn)
                step.data_last = psn
                self._rebase(step, write.address)
            before = before if index is None else max(before, index)
        if after is None and self.steps:
            self.newest = max(self.newest, self.last)

    def _settle_size(self, write: Write, before: int, index: int | None) -> None:
        """Take a message that only states a size: of the step before, or of one whose data are lost as a whole."""
        psn = write.last_psn
        packets = packets_of(write.immediate, self.mtu)
        previous = self.steps.get(before)
        if packets is None:
            return
        if previous is not None and previous.seen and previous.seen[-1][1] >= psn - packets:
            if previous.end in (None, psn):
                self._complete(previous, write, packets)
        elif index is not None and index not in self.steps:
            step = self.steps[index] = Step(index)
            self._complete(step, write, packets)

    def _only_step(self, write: Write, before: int, after: Step | None) -> int | None:
        """Return the step of a message without flag, None unless it is certain."""
        previous = self.steps.get(before)
        psn = write.last_psn
        if write.immediate == 0 and previous is not None and previous.end == psn - 1:
            return before + 1
        if after is not None and after.first == psn + 1:
            return after.index - 1
        if not write.address or self.base is None:
            return None
        slot, rest = divmod(write.address - self.base, LL.slot_bytes)
        upper = before + STEPS if after is None else after.index - 1
        if previous is not None and previous.data_last is not None:
            upper = min(upper, before + psn - previous.data_last)  # a step takes one packet at least
        elif after is None and previous is not None:
            return None
        first = before + 1 + (slot - before - 1) % STEPS
        return first if rest == 0 and 0 <= slot < STEPS and first <= upper < first + STEPS else None


def offsets(table: StepTable, step: Step) -> Iterator[tuple[int, Bytes]]:
    """Yield the payloads of a step whose offset in its message is proven, with that offset.

    The size of the step must be known. Packets that do not fit it are left out.
    """
    size, mtu = step.size, table.mtu
    if size is None or step.bad:
        return
    found = [(item.write, item.psn, item.origin) for item in step.placed if not item.addressed]
    if table.base is not None:
        start = table.base + step.index % STEPS * LL.slot_bytes
        found += [(item.write, item.psn, item.origin - start) for item in step.placed if item.addressed]
    if step.first is not None:
        found += [(write, step.first, 0) for write in step.floating]
    for write, psn, origin in found:
        if abs(origin) > _MOST_AWAY:
            continue
        # Without an MTU no message has two packets, and a floating one is where the step begins.
        away = write.offsets(origin, psn, mtu or LL.slot_bytes)
        sizes = write.frames["size"]
        fits: NDArray[np.bool_] = (away >= 0) & (away + sizes <= size) & (away % LL.line_bytes == 0)
        if mtu is not None:
            fits &= sizes == np.minimum(mtu, size - away)
        for offset, place, length in write.pieces(origin, psn, mtu or LL.slot_bytes, fits):
            yield offset, write.data[place : place + length]


def connect(table: StepTable, row: list[Step]) -> None:
    """Derive the PSNs where steps of known size begin and end from their neighbours.

    Args:
        table: table of the flow.
        row: consecutive steps.
    """
    end = None
    for place, step in enumerate(row):
        following = row[place + 1].first if place + 1 < len(row) else None
        if step.first is None and end is not None:
            step.first = end + 1
        if step.end is None:
            step.end = _end(table, step, following)
        end = None if step.bad else step.end
    for place in range(len(row) - 1, -1, -1):
        step = row[place]
        following = row[place + 1].first if place + 1 < len(row) else None
        if step.end is None and following is not None:
            step.end = following - 1
        packets = None if step.size is None else packets_of(step.size, table.mtu)
        if step.first is None and step.end is not None and packets is not None and _late(table, step) is False:
            step.first = step.end - packets + 1


def _late(table: StepTable, step: Step) -> bool | None:
    """Return whether the size of a step travels in a packet of its own, None if not known."""
    if step.size is not None and step.size <= ADAPTIVE_ROUTING_BYTES:
        return False
    return table.late_sizes


def _end(table: StepTable, step: Step, following: int | None) -> int | None:
    packets = None if step.size is None else packets_of(step.size, table.mtu)
    if step.first is None or packets is None:
        return None
    data_last = step.first + packets - 1
    late = _late(table, step)
    if following is not None:
        if following - 1 - data_last not in ((0,) if late is False else (0, 1)):
            step.bad = True
            return None
        return following - 1
    if late is None and step.seen and step.seen[-1][1] <= data_last and table.late_sizes is None:
        return data_last  # nothing in this flow hints at separate sizes
    return data_last + (1 if late else 0)
