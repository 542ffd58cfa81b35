"""The decoder: packets in, tensors out, one packet at a time.

It holds what is not resolved yet: packets that may still be reordered, messages that no collective has taken, and the
tensors found.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from capture.model import LINKTYPE_ETHERNET, Packet
from rocev2.collect import Collector
from rocev2.dtypes import canonical, itemsize
from rocev2.flow import Flow, FlowKey
from rocev2.headers import Broken, Foreign, RoceFrame, parse
from rocev2.messages import Write
from rocev2.opcodes import ACKNOWLEDGE, CNP, UD_SEND_ONLY
from rocev2.p2p import PlainMessage, Position, locate, plain_message, report, supply
from rocev2.place import LINE, Tensor, place
from rocev2.protocols import LL, STEPS
from rocev2.results import AllReduce, DecodedCapture, P2pMessage
from rocev2.ring import Ring, find_rings

_PUMP_PACKETS = 16384
_MOST_FLOWS = 65536
_MOST_PLAIN_BYTES = 16 << 20
_OVERHEAD = 512  # what a message takes beside its bytes
_AGE = 32768  # packets of the capture after which nothing older is waited for
_MOST_OPEN = 16  # all-reduces that a p2p message may still belong to
_NAK = 3  # AETH syndrome, upper three bits: 0 ACK, 1 RNR NAK, 3 NAK
_RNR = 1


class Decoder:
    """Decodes one capture."""

    def __init__(self, *, use_p2p: bool, dtype: str | None, bucket_elements: Sequence[int] | None = None) -> None:
        """Start; the arguments are those of `rocev2.report.decode`."""
        self._use_p2p = use_p2p
        self._dtype_name = dtype
        self._dtype = canonical(dtype)
        size = itemsize(self._dtype)
        self._exact = {count * size for count in bucket_elements or ()}
        self._totals = frozenset(-(-total // LINE) * LINE for total in self._exact)
        self._packets = self._roce = self._order = 0
        self._other: Counter[str] = Counter()
        self._marks: Counter[str] = Counter()
        self._flows: dict[FlowKey, Flow] = {}
        self._bases: dict[tuple[bytes, bytes, int], int] = {}
        self._collectors: dict[tuple[bytes, ...], Collector] = {}
        self._tensors: list[Tensor] = []
        self._plain: deque[tuple[Flow, Write]] = deque()
        self._plain_bytes = 0
        self._p2p: list[P2pMessage] = []
        self._notes: list[str] = []

    def feed(self, packet: Packet) -> None:
        """Take the next packet of the capture."""
        self._packets += 1
        if packet.link_type != LINKTYPE_ETHERNET:
            self._other[f"link type {packet.link_type}"] += 1
            return
        parsed = parse(packet.data, packet.original_length)
        if isinstance(parsed, RoceFrame):
            self._roce += 1
            self._order = packet.number
            self._frame(parsed, packet.number)
        elif isinstance(parsed, Foreign):
            self._other[parsed.name] += 1
            if parsed.mark is not None:
                self._marks[parsed.mark] += 1
        else:
            assert isinstance(parsed, Broken)
            self._roce += 1
            self._marks[parsed.mark] += 1
        if self._packets % _PUMP_PACKETS == 0:
            self._pump(final=False)

    @property
    def found(self) -> int:
        """All-reduces found so far."""
        return len(self._tensors)

    def finish(self, file: str) -> DecodedCapture:
        """Take the end of the capture; return all that was found. The decoder is used up."""
        for flow in self._flows.values():
            flow.finish()
        self._pump(final=True)
        ordered = sorted(self._tensors, key=lambda tensor: tensor.found.first_order)
        unresolved = sum(collector.passed for collector in self._collectors.values())
        return DecodedCapture(
            file=file,
            packets=self._packets,
            rocev2_packets=self._roce,
            other=dict(self._other),
            marks=dict(self._marks),
            all_reduces=tuple(self._result(index, tensor) for index, tensor in enumerate(ordered)),
            p2p=tuple(sorted(self._p2p, key=lambda message: message.first_packet)),
            messages=tuple(summary for flow in self._flows.values() for summary in flow.message_summaries()),
            queue_pairs=tuple(flow.summary() for flow in self._flows.values()),
            unresolved=unresolved,
            notes=tuple(self._notes),
        )

    def _frame(self, frame: RoceFrame, order: int) -> None:
        if frame.congested:
            self._marks["ecn_ce"] += 1
        if frame.opcode == CNP:
            self._marks["cnp"] += 1
            return
        if frame.opcode in (UD_SEND_ONLY, UD_SEND_ONLY + 1):
            self._marks["rtt_probe_ud_qp1" if frame.dest_qp == 1 else "ud"] += 1
            return
        if frame.opcode == ACKNOWLEDGE and frame.syndrome >> 5 in (_NAK, _RNR):
            self._marks["nak" if frame.syndrome >> 5 == _NAK else "rnr_nak"] += 1
        key = FlowKey(frame.source, frame.destination, frame.dest_qp)
        flow = self._flows.get(key)
        if flow is None:
            if len(self._flows) >= _MOST_FLOWS:
                self._marks["beyond the most flows"] += 1
                return
            flow = self._flows[key] = Flow(key, frame.udp_source)
            self._expect(flow, self._bases.get((frame.source, frame.destination, frame.udp_source)))
        for entry in flow.add(frame, order):
            if entry.size != LL.slot_bytes:
                continue
            base = entry.address - entry.step % STEPS * LL.slot_bytes
            connection = (frame.destination, frame.source, frame.udp_source)
            if connection not in self._bases:
                self._bases[connection] = base
                self._announce(connection, base)

    def _announce(self, connection: tuple[bytes, bytes, int], base: int) -> None:
        for key, flow in self._flows.items():
            if not flow.announced and (key.source, key.destination, flow.udp_source) == connection:
                self._expect(flow, base)

    @staticmethod
    def _expect(flow: Flow, base: int | None) -> None:
        """Take where the receiver of a flow expects slot 0, if it is known."""
        if base is not None:
            flow.announced = True
            flow.table.base = flow.table.base or base

    def _pump(self, final: bool) -> None:
        if not final:
            for flow in self._flows.values():
                flow.age(self._order - _AGE)
        rings, notes = find_rings(self._flows.values())
        frontiers: list[int | None] = []
        for ring in rings:
            if not final and not self._settled(ring):
                frontiers.append(0)
                continue
            collector = self._collector(ring)
            self._tensors += [place(found) for found in collector.collect(final)]
            frontiers.append(collector.frontier())
        if final:
            self._notes += notes
        self._take_plain()
        known = [frontier for frontier in frontiers if frontier is not None]
        self._match(None if final else min(known, default=0), final)

    def _settled(self, ring: Ring) -> bool:
        """Return whether it is known of every flow between the hosts of a ring what it carries."""
        if any(flow is None for row in ring.flows.values() for flow in row):
            return False
        hosts = set(ring.hosts)
        return all(
            flow.classified for key, flow in self._flows.items() if key.source in hosts and key.destination in hosts
        )

    def _collector(self, ring: Ring) -> Collector:
        collector = self._collectors.get(key := tuple(sorted(ring.hosts)))
        if collector is None:
            collector = self._collectors[key] = Collector(ring, self._totals)
        collector.ring = ring
        return collector

    def _take_plain(self) -> None:
        """Take the messages of flows that carry no lines with flags."""
        for flow in self._flows.values():
            writes, flow.plain = flow.plain, []
            if flow.kinds["LL"] and not flow.is_ll and not flow.started:
                writes = flow.disown() + writes
            for write in writes:
                self._plain.append((flow, write))
                self._plain_bytes += write.bytes + _OVERHEAD
        while self._plain_bytes > _MOST_PLAIN_BYTES:
            _, dropped = self._plain.popleft()
            self._plain_bytes -= dropped.bytes + _OVERHEAD
            self._marks["plain messages not compared"] += 1

    def _match(self, frontier: int | None, final: bool) -> None:
        """Match plain messages with the all-reduces before them, where those are all known."""
        ready: list[tuple[Flow, Write]] = []
        waiting: list[tuple[Flow, Write]] = []
        hosts = {host for tensor in self._tensors for host in tensor.found.ring.hosts}
        for flow, write in self._plain:
            last = max(piece.order for piece in write.pieces)
            (ready if final or last < (frontier or 0) else waiting).append((flow, write))
        self._plain = deque(waiting)
        self._plain_bytes = sum(write.bytes + _OVERHEAD for _, write in waiting)
        for flow, write in sorted(ready, key=lambda item: item[1].order):
            message = plain_message(flow.key, write, flow.builder.mtu) if flow.key.source in hosts else None
            if message is not None:
                self._match_one(message)

    def _match_one(self, message: PlainMessage) -> None:
        before = [
            tensor
            for tensor in self._tensors
            if tensor.found.last_order < message.first_order and message.source in tensor.found.ring.hosts
        ]
        size = itemsize(self._dtype)
        open_ones = [tensor for tensor in before if not tensor.supplied][-_MOST_OPEN:]
        positions = [(tensor, locate(message, tensor)) for tensor in open_ones]
        fits = [(tensor, position) for tensor, position in positions if position.outcome in ("agrees", "supplies")]
        newest = max(before, key=lambda tensor: tensor.found.last_order, default=None)
        if len(fits) == 1:
            tensor, position = fits[0]
            if self._use_p2p and position.start is not None:
                supply(message, tensor, position.start)
            tensor.supplied |= position.outcome == "supplies"
        elif fits:
            tensor, position = None, Position("ambiguous", None)
        else:
            tensor = newest
            position = next((p for t, p in positions if t is newest), Position("unrelated", None))
        if tensor is not None and position.outcome == "conflict":
            tensor.p2p_conflicts += position.differing
        self._p2p.append(report(message, position, self._index_of(tensor), size))

    def _index_of(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        return sum(other.found.first_order < tensor.found.first_order for other in self._tensors)

    def _result(self, index: int, tensor: Tensor) -> AllReduce:
        size = itemsize(self._dtype)
        total = tensor.bytes
        exact = {t for t in self._exact if total - LINE < t <= total}
        if len(exact) == 1:
            total = exact.pop()
        data: NDArray[np.uint8] = np.where(tensor.covered, tensor.lines, 0).astype(np.uint64).view(np.uint8)
        covered: NDArray[np.bool_] = np.repeat(tensor.covered, LINE)
        supplied = 0
        if tensor.from_p2p is not None and tensor.extra is not None:
            data = np.where(tensor.from_p2p, np.frombuffer(tensor.extra, np.uint8), data)
            supplied = int(tensor.from_p2p.sum()) // size
            covered |= tensor.from_p2p
        usable = total - total % size
        by_element: NDArray[np.bool_] = np.logical_and.reduce(covered[:usable].reshape(-1, size), axis=1)
        values = data[:usable].reshape(-1, size)
        values = np.where(by_element[:, None], values, 0).astype(np.uint8)
        conflicts = int(np.repeat(tensor.disputed, LINE).sum() + tensor.p2p_conflicts)
        return AllReduce(
            index=index,
            ranks=tensor.found.ranks,
            channels=tensor.found.channels,
            protocol=LL.name,
            dtype=self._dtype_name,
            elements=usable // size,
            covered=by_element,
            data=values.tobytes(),
            missing_psn=tuple(sorted(tensor.missing_psn, key=lambda m: m.dest_qp)),
            conflicts=-(-conflicts // size),
            from_p2p=supplied,
            first_packet=tensor.found.first_order,
            last_packet=tensor.found.last_order,
        )
