"""Everything that one host sends to one queue pair of another: requests, acknowledgements, and what they are for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import NamedTuple

from rocev2.control import Announcement, announcements
from rocev2.headers import RoceFrame
from rocev2.messages import MessageBuilder, Write
from rocev2.opcodes import ACKNOWLEDGE, NAMES, REQUESTS, WRITE_ONLY
from rocev2.protocols import LL
from rocev2.queue_pair import QueuePair
from rocev2.results import MessageSummary, QueuePairSummary
from rocev2.steps import StepTable

_MOST_VALUES = 64
_SURE = 2
_MOST_ORDERS = 65536


class FlowKey(NamedTuple):
    """Identity of a flow."""

    source: bytes
    destination: bytes
    dest_qp: int


@dataclass(slots=True, eq=False)
class Flow:
    """One direction of a connection."""

    key: FlowKey
    udp_source: int
    queue: QueuePair = field(default_factory=QueuePair)
    builder: MessageBuilder = field(default_factory=MessageBuilder)
    table: StepTable = field(default_factory=StepTable)
    plain: list[Write] = field(default_factory=list)
    """Messages without flags that are not yet accounted for."""
    tags: Counter[int] = field(default_factory=Counter)
    """Tags of the control writes: the rank of the host that they are sent to."""
    rooms: Counter[int] = field(default_factory=Counter)
    """Sizes of the receive buffers that were announced in this flow."""
    orders: list[int] = field(default_factory=list)
    """Positions in the capture of packets that show that the sender receives: control writes and acknowledgements."""
    kinds: Counter[str] = field(default_factory=Counter)
    bytes_by_kind: Counter[str] = field(default_factory=Counter)
    opcodes: Counter[int] = field(default_factory=Counter)
    announced: bool = False
    """Whether its receiver announced buffers of the size of LL slots."""
    requests: int = 0
    """Request packets."""
    controls: int = 0
    """Those that look like control writes."""
    packets: int = 0
    payload_bytes: int = 0
    first_psn: int | None = None
    """PSN of its first request in the capture."""
    consumed: int = 0
    """First step that no collective has taken yet."""
    chained: bool = True
    """Whether every step from the first on is accounted for, so that the phase is certain."""
    after_all_reduce: bool = False
    """Whether the step before `consumed` ended an all-reduce."""
    started: bool = False
    """Whether a collective has taken or passed a step."""
    previous_end: int | None = None
    """Last PSN of the step before `consumed`, if known."""
    contested: int = 0
    """First step that no doubtful reading of the steps before reaches."""
    last_seen: int = -1
    """Position in the capture of the last packet of the steps before `consumed`."""
    rank: int | None = None
    channel: int | None = None
    _last_single: Write | None = None
    _taken: list[Write] = field(default_factory=list)
    """The first messages that were taken for LL, until there are enough of them to be sure."""

    def add(self, frame: RoceFrame, order: int) -> list[Announcement]:
        """Take a packet of this flow; return the receive buffers that it announces."""
        entries: list[Announcement] = []
        self.packets += 1
        self.payload_bytes += len(frame.payload)
        self.opcodes[frame.opcode] += 1
        if frame.opcode in REQUESTS:
            self.requests += 1
            if frame.opcode == WRITE_ONLY and frame.length == len(frame.payload):
                entries = announcements(frame.payload)
                self._announced(entries, order)
            if self.first_psn is None:
                self.first_psn = frame.psn
            for request in self.queue.add(frame, order):
                for write in self.builder.feed(request):
                    self._message(write)
        elif frame.opcode == ACKNOWLEDGE:
            self._receives(order)
        return entries

    def age(self, before: int) -> None:
        """Take that packets from before position `before` of the capture are not waited for any longer."""
        for request in self.queue.age(before):
            for write in self.builder.feed(request):
                self._message(write)

    @property
    def classified(self) -> bool:
        """Whether it is known what it carries."""
        return bool(self.kinds) or self.requests == self.controls

    def finish(self) -> None:
        """Take the end of the capture."""
        done: list[Write] = []
        for request in self.queue.flush():
            done += self.builder.feed(request)
        self.builder.flush_into(done)
        for write in done:
            self._message(write)
        self.table.finish()

    @property
    def is_ll(self) -> bool:
        """Whether its data messages are of protocol LL."""
        if self.kinds["plain"] or self.table.unordered:
            return False
        if not self.kinds["LL"]:  # empty chunks only, into a buffer for LL
            return self.kinds["empty"] > 0 and self.announced
        if self.started or self.announced:
            return True
        return not self.table.rebased and not self.doubtful

    @property
    def doubtful(self) -> bool:
        """Whether its only message may be plain data of one value, which look like lines with a flag.

        As a flag it would say a step that is higher than the PSN allows. (The PSN may have wrapped, though.)
        """
        if self.announced or self.started or self.kinds["LL"] != 1 or self.kinds["empty"]:
            return False
        return min(self.table.steps, default=0) > (self.first_psn or 0)

    @property
    def is_control(self) -> bool:
        """Whether it carries control writes and no data."""
        return bool(self.tags) and not self.kinds["LL"] and not self.kinds["empty"]

    @property
    def announces_ll(self) -> bool:
        """Whether it announces receive buffers of the size of LL slots."""
        return self.rooms[LL.slot_bytes] > 0

    @property
    def tag(self) -> int | None:
        """Rank that the control writes name, None without any."""
        return self.tags.most_common(1)[0][0] if self.tags else None

    def disown(self) -> list[Write]:
        """Return the messages that were taken for LL but cannot be, as plain ones."""
        writes, self._taken = self._taken, []
        self.kinds["plain"] += self.kinds.pop("LL")
        self.bytes_by_kind["plain"] += self.bytes_by_kind.pop("LL")
        self.table = StepTable()
        return writes

    def _announced(self, entries: list[Announcement], order: int) -> None:
        for entry in entries:
            if len(self.tags) < _MOST_VALUES:
                self.tags[entry.tag] += 1
            if len(self.rooms) < _MOST_VALUES:
                self.rooms[entry.size] += 1
        if entries:
            self.controls += 1
            self._receives(order)

    def _receives(self, order: int) -> None:
        self.orders.append(order)
        if len(self.orders) > _MOST_ORDERS:  # a flow that is no part of a ring: what it showed first does not matter
            del self.orders[: _MOST_ORDERS // 2]

    def _message(self, write: Write) -> None:
        if write.single and write.immediate < 0 and announcements(write.pieces[0].payload):
            self._count("control", write)
            return
        if write.bytes == 0:
            self._count("completion" if write.immediate > 0 else "empty", write)
            self.table.mtu = self.builder.mtu or self.table.mtu
            self.table.add(write, None)
            return
        flag = _flag(write)
        if flag is not None and not self.kinds["plain"]:
            self._learn_mtu(write)
            if self.table.add(write, flag):
                self._count("LL", write)
                if self.kinds["LL"] <= _SURE:
                    self._taken.append(write)
                return
        self._count("plain" if write.first is not None else "fragment", write)
        self.plain.append(write)

    def _learn_mtu(self, write: Write) -> None:
        """Learn the MTU where a NIC sends every packet as a message of its own: the address steps by it."""
        self.table.mtu = self.builder.mtu or self.table.mtu
        previous, self._last_single = self._last_single, write if write.single and write.immediate < 0 else None
        if self.table.mtu is None and previous is not None and self._last_single is not None:
            size = previous.length or 0
            if size in (256, 512, 1024, 2048, 4096) and previous.address + size == write.address:
                self.table.mtu = size

    def _count(self, kind: str, write: Write) -> None:
        self.kinds[kind] += 1
        self.bytes_by_kind[kind] += write.bytes

    def message_summaries(self) -> list[MessageSummary]:
        """Return how many messages of each kind there were."""
        return [
            MessageSummary(self.key.dest_qp, kind, count, self.bytes_by_kind[kind])
            for kind, count in sorted(self.kinds.items())
        ]

    def summary(self) -> QueuePairSummary:
        """Return what `checkmate inspect` shows of it."""
        roles = [kind for kind in ("LL", "control", "plain") if self.kinds[kind]]
        role = roles[0] if len(roles) == 1 else "mixed" if roles else "acknowledgements"
        return QueuePairSummary(
            source=str(ip_address(self.key.source)),
            destination=str(ip_address(self.key.destination)),
            udp_source=self.udp_source,
            dest_qp=self.key.dest_qp,
            packets=self.packets,
            payload_bytes=self.payload_bytes,
            opcodes={NAMES[opcode]: count for opcode, count in sorted(self.opcodes.items())},
            lost=tuple(self.queue.lost),
            duplicates=self.queue.duplicates,
            conflicting=self.queue.conflicting,
            stale=self.queue.stale,
            reordered=self.queue.reordered,
            role=role,
            rank=self.rank,
            channel=self.channel,
        )


def _flag(write: Write) -> int | None:
    """Return the flag of a message, None unless all its packets carry the same."""
    flag = LL.flag(write.pieces[0].payload)
    if flag is None:
        return None
    for piece in write.pieces[1:]:
        if LL.flag(piece.payload) != flag:
            return None
    return flag
