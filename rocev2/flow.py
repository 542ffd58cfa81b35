"""Everything that one host sends to one queue pair of another: the packets, then the evidence in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packets.batch import Bytes
from rocev2.control import MOST_BYTES, Announcement, announcements
from rocev2.headers import Frames
from rocev2.messages import Write, cut
from rocev2.opcodes import (
    ENDS,
    FIRSTS,
    NAMES,
    READ_FIRST,
    REQUESTS,
    WRITE_FIRST,
    WRITE_ONLY,
    WRITE_ONLY_IMM,
    WRITES,
)
from rocev2.protocols import LL, STEPS
from rocev2.queue_pair import QueuePair
from rocev2.results import MessageSummary, QueuePairSummary
from rocev2.steps import Step, StepTable

_MOST_AHEAD = 256  # requests that a connection can have open (NCCL_NET_MAX_REQUESTS * NCCL_NET_IB_MAX_RECVS)


def _table(opcodes: frozenset[int]) -> NDArray[np.bool_]:
    return np.isin(np.arange(256), list(opcodes))


_ENDS, _FIRSTS, _REQUESTS, _WRITES = (_table(opcodes) for opcodes in (ENDS, FIRSTS, REQUESTS, WRITES))


class FlowKey(NamedTuple):
    """Identity of a flow."""

    source: bytes
    """IP address of the sender: 4 or 16 bytes."""
    destination: bytes
    """IP address of the receiver: 4 or 16 bytes."""
    dest_qp: int
    """Queue pair number at the receiver."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What the receiver of a flow announced, in control writes of the other direction of the connection."""

    steps: int
    """Number of steps, from the first one, for which it announced a buffer."""
    base: int | None
    """Address of the buffer of step 0; None unless all announcements agree."""


class PacketLog:
    """Collects the packets of one flow, in any order."""

    def __init__(self, key: FlowKey, udp_source: int) -> None:
        """Start empty."""
        self.key = key
        self.udp_source = udp_source
        self.queue = QueuePair()
        self.entries: list[Announcement] = []
        """Receive buffers that this direction announces."""
        self.read_mtus: dict[int, int] = {}
        """PSN of the first packet of each READ response -> path MTU."""
        self.mtu: int | None = None
        """Payload bytes of packets that are not the last of a message: None before the first one, 0 if they differ."""
        self._opcodes: Counter[int] = Counter()
        self._payload_bytes = 0
        self._base: int | None = None
        self._foreign = False
        self._dropped: Counter[str] = Counter()

    def add(self, frames: Frames, data: Bytes, room: int) -> int:
        """Add packets.

        Args:
            frames: the packets, in the order of the capture.
            data: bytes that `frames["payload"]` indexes.
            room: how many bytes of payloads that are not of protocol LL may still be kept.

        Returns:
            How many bytes of such payloads were kept.
        """
        opcodes = frames["opcode"]
        counts = np.bincount(opcodes)
        self._opcodes.update({opcode: int(counts[opcode]) for opcode in np.flatnonzero(counts).tolist()})
        self._payload_bytes += int(frames["size"].sum())
        firsts = frames["size"][_FIRSTS[opcodes]]
        for size in (int(firsts.min()), int(firsts.max())) if len(firsts) else ():
            self.mtu = size if self.mtu in (None, size) else 0
        responses = frames[opcodes == READ_FIRST]
        self.read_mtus.update(zip(responses["psn"].tolist(), responses["size"].tolist(), strict=True))
        frames = frames[_REQUESTS[opcodes]]
        if not len(frames):
            return 0
        opcodes, sizes = frames["opcode"], frames["size"]
        control = np.zeros(len(frames), np.bool_)
        for row in np.flatnonzero((opcodes == WRITE_ONLY) & (frames["length"] == sizes) & (sizes <= MOST_BYTES)):
            place = frames["payload"][row]
            entries = announcements(data[place : place + sizes[row]].tobytes())
            control[row] = bool(entries)
            self.entries += entries
        writes = _WRITES[opcodes]
        plain = writes & ~control & ~self._like_lines(frames, writes & ~control)
        dropped = plain & (np.cumsum(sizes * plain) > room)
        if dropped.any():
            self._dropped.update(messages=int(_ENDS[opcodes[dropped]].sum()), bytes=int(sizes[dropped].sum()))
        self.queue.add(frames, writes & ~dropped, data)
        return int(sizes[plain & ~dropped].sum())

    def _like_lines(self, frames: Frames, data: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return whether each packet of `data`, and all before it, can be of protocol LL."""
        flags = frames["flag"]
        bad = data & (frames["size"] > 0) & (flags == 0)
        starts = data & (flags > 0) & ((frames["opcode"] == WRITE_FIRST) | (frames["opcode"] == WRITE_ONLY_IMM))
        bases = frames["address"] - (flags - np.uint32(1)) % STEPS * np.uint64(LL.slot_bytes)  # modulo 2^64
        if starts.any():
            if self._base is None:
                self._base = int(bases[starts][0])
            bad |= starts & (bases != self._base)
        foreign: NDArray[np.bool_] = np.logical_or.accumulate(bad) | self._foreign
        self._foreign = bool(foreign[-1])
        return ~foreign

    def promises(self) -> tuple[int, Promise] | None:
        """Return the tag and the announcements for the opposite flow; None if there are none for LL."""
        slots = [entry for entry in self.entries if entry.size == LL.slot_bytes]
        if not slots:
            return None
        bases = {entry.address - entry.step % STEPS * LL.slot_bytes for entry in slots}
        tag = Counter(entry.tag for entry in slots).most_common(1)[0][0]
        return tag, Promise(max(entry.step for entry in slots) + 1, bases.pop() if len(bases) == 1 else None)

    def finish(self, promise: Promise | None, read_mtus: Mapping[int, int]) -> Flow:
        """Return the evidence in the packets.

        Args:
            promise: what the receiver announced; None if that was not captured.
            read_mtus: path MTU by PSN of READ requests, taken from their responses.
        """
        frames, data = self.queue.requests()
        writes, mtu = cut(frames, data)
        control = [write for write in writes if _is_control(write)]
        rest = [write for write in writes if not _is_control(write)]
        first_psn = int(frames["psn"][0]) if len(frames) else 0
        table = None
        if not (self._foreign and self._dropped):
            table = steps_of(rest, mtu or _split_mtu(rest), promise, first_psn)
        kinds = _kinds(control, rest, table is not None)
        if self._dropped:
            kinds.setdefault("plain", Counter()).update(self._dropped)
        return Flow(
            self.key,
            self.udp_source,
            _role(kinds, self._opcodes),
            promise,
            self.promises(),
            table,
            tuple(rest) if table is None else (),
            mtu,
            bool(self._dropped),
            tuple(
                MessageSummary(self.key.dest_qp, kind, count["messages"], count["bytes"])
                for kind, count in sorted(kinds.items())
            ),
            dict(self._opcodes),
            self._payload_bytes,
            self.queue.lost(self.mtu, read_mtus),
            (self.queue.duplicates, self.queue.conflicting, self.queue.reordered),
            table.last + 1 if table is not None else 0,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The evidence in one direction of a connection."""

    key: FlowKey
    """Its identity."""
    udp_source: int
    """UDP source port, which both directions of a connection share."""
    role: str
    """LL, control, plain, mixed, requests or acknowledgements."""
    promise: Promise | None
    """What its receiver announced."""
    promises: tuple[int, Promise] | None
    """Tag and announcements for the opposite flow."""
    table: StepTable | None
    """Its steps; None if it does not carry LL data."""
    plain: tuple[Write, ...]
    """Its other messages, in PSN order."""
    mtu: int | None
    """Path MTU in bytes, None if unknown."""
    dropped: bool
    """Whether there were more plain messages than are kept."""
    messages: tuple[MessageSummary, ...]
    """Number and bytes of its messages, by kind."""
    opcodes: Mapping[int, int]
    """Opcode -> number of packets."""
    payload_bytes: int
    """Payload bytes of all its packets."""
    lost: tuple[tuple[int, int], ...]
    """Ranges of lost PSNs (first, last), inclusive."""
    copies: tuple[int, int, int]
    """Numbers of duplicates, of copies that differ, and of packets out of order in the capture."""
    sent: int
    """Number of steps up to the last captured one."""

    @property
    def steps(self) -> Mapping[int, Step]:
        """Its LL steps by number."""
        return self.table.steps if self.table is not None else {}

    @property
    def total(self) -> int:
        """Number of steps that were begun: sent, or announced."""
        announced = self.promise.steps if self.promise is not None else 0
        return max(self.sent, min(announced, self.sent + _MOST_AHEAD))

    def summary(self, rank: int | None, channel: int | None) -> QueuePairSummary:
        """Return what `checkmate inspect` shows of it."""
        duplicates, conflicting, reordered = self.copies
        return QueuePairSummary(
            source=str(ip_address(self.key.source)),
            destination=str(ip_address(self.key.destination)),
            udp_source=self.udp_source,
            dest_qp=self.key.dest_qp,
            packets=sum(self.opcodes.values()),
            payload_bytes=self.payload_bytes,
            opcodes={NAMES[opcode]: count for opcode, count in sorted(self.opcodes.items())},
            lost=self.lost,
            duplicates=duplicates,
            conflicting=conflicting,
            reordered=reordered,
            role=self.role,
            rank=rank,
            channel=channel,
        )


def steps_of(writes: list[Write], mtu: int | None, promise: Promise | None, first_psn: int) -> StepTable | None:
    """Return the steps of messages in PSN order; None unless all are of protocol LL."""
    table = StepTable(mtu, promise.base if promise is not None else None)
    lines = 0
    for write in writes:
        if (write.bytes and write.flag is None) or not table.add(write, write.flag):
            return None
        lines += write.bytes > 0
    table.finish()
    if promise is None:
        # One message of plain data of one value looks like lines with a flag: that would be a step that is higher than
        # the PSN allows. (The PSN may have wrapped, though.)
        doubtful = lines == len(writes) == 1 and min(table.steps, default=0) > first_psn % (1 << 24)
        if not lines or table.rebased or doubtful:
            return None
    return table if table.steps else None


def _is_control(write: Write) -> bool:
    known = write.single and write.immediate < 0 and write.bytes <= MOST_BYTES
    return known and bool(announcements(write.packet(0).tobytes()))


def _kinds(control: list[Write], rest: list[Write], lines: bool) -> dict[str, Counter[str]]:
    kinds: dict[str, Counter[str]] = {kind: Counter() for kind in ("control",) if control}
    for write in control:
        kinds["control"].update(messages=1, bytes=write.bytes)
    for write in rest:
        if write.bytes == 0:
            kind = "completion" if write.immediate > 0 else "empty"
        else:
            kind = "LL" if lines else "plain" if write.first is not None else "fragment"
        kinds.setdefault(kind, Counter()).update(messages=1, bytes=write.bytes)
    return kinds


def _role(kinds: Mapping[str, Counter[str]], opcodes: Mapping[int, int]) -> str:
    roles = [kind for kind in ("LL", "control", "plain") if kinds.get(kind)]
    if not roles:
        return "requests" if opcodes.keys() & REQUESTS else "acknowledgements"
    return roles[0] if len(roles) == 1 else "mixed"


def _split_mtu(writes: list[Write]) -> int | None:
    """Return the MTU if a NIC sends each packet as its own message: the address increases by it."""
    for before, after in pairwise(writes):
        if before.single and after.single and before.immediate < 0 and after.immediate < 0:
            size = before.length or 0
            if size in (256, 512, 1024, 2048, 4096) and before.address + size == after.address:
                return size
    return None
