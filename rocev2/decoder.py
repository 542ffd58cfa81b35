"""The decoder: packets in, tensors out.

Packets are sorted into flows as they come. All else waits for the end of the capture, because it rests on PSNs,
addresses and flags alone: in which order the packets came changes nothing. Memory: the LL messages, up to 256 MiB
of other messages, and a few numbers for each packet of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from capture.model import Packet
from rocev2.dtypes import canonical, itemsize
from rocev2.flow import Flow, FlowKey, PacketLog, Promise
from rocev2.found import Findings, find
from rocev2.headers import Broken, Foreign, RoceFrame, parse
from rocev2.opcodes import ACKNOWLEDGE, CNP, NAMES, RD, UD
from rocev2.p2p import PlainMessage, match, plain_message, report
from rocev2.place import LINE, Tensor, place
from rocev2.protocols import LL
from rocev2.results import AllReduce, DecodedCapture, P2pMessage
from rocev2.ring import find_rings

_MOST_FLOWS = 65536
_MOST_PLAIN_BYTES = 256 << 20
_SYNDROMES = {1: "rnr_nak", 3: "nak"}  # AETH, upper three bits: 0 is an ACK, 2 is reserved
_MANAGEMENT_QP = 1
_CONNECTION_MANAGER = b"\x01\x07"  # version and class of a management datagram (IBTA 13.4.2)


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
        self._packets = self._roce = 0
        self._other: Counter[str] = Counter()
        self._marks: Counter[str] = Counter()
        self._logs: dict[FlowKey, PacketLog] = {}
        self._room = _MOST_PLAIN_BYTES

    def feed(self, packet: Packet) -> None:
        """Take the next packet of the capture."""
        self._packets += 1
        parsed = parse(packet.data, packet.original_length, packet.link_type)
        if isinstance(parsed, RoceFrame):
            self._roce += 1
            self._frame(parsed, packet.number)
        elif isinstance(parsed, Foreign):
            self._other[parsed.name] += 1
            if parsed.mark is not None:
                self._marks[parsed.mark] += 1
        else:
            assert isinstance(parsed, Broken)
            self._roce += 1
            self._marks[parsed.mark] += 1

    def _frame(self, frame: RoceFrame, order: int) -> None:
        if frame.congested:
            self._marks["ecn_ce"] += 1
        if frame.opcode == CNP:
            self._marks["cnp"] += 1
            return
        if frame.opcode >= RD:  # datagrams: their PSNs are not those of a pair of queue pairs
            self._marks[_datagram(frame)] += 1
            return
        if frame.opcode == ACKNOWLEDGE and (mark := _SYNDROMES.get(frame.syndrome >> 5)):
            self._marks[mark] += 1
        key = FlowKey(frame.source, frame.destination, frame.dest_qp)
        log = self._logs.get(key)
        if log is None:
            if len(self._logs) >= _MOST_FLOWS:
                self._marks["beyond the most flows"] += 1
                return
            log = self._logs[key] = PacketLog(key, frame.udp_source)
        self._room -= log.add(frame, order, self._room)

    def finish(self, file: str) -> DecodedCapture:
        """Take the end of the capture; return all that was found. The decoder is used up."""
        flows = _flows(self._logs)
        rings, notes = find_rings(flows)
        places: dict[FlowKey, tuple[int | None, int]] = {}
        results: list[AllReduce] = []
        messages: list[P2pMessage] = []
        findings = [find(ring, self._totals) for ring in rings]
        for finding in findings:
            for rank, row in finding.ring.flows.items():
                for channel, flow in enumerate(row):
                    if flow is not None:
                        places[flow.key] = (rank if finding.ring.indexed else None, channel)
            tensors = place(finding.all_reduces)
            plain = _plain(flows, finding)
            matched = match(plain, tensors, finding.whole, self._use_p2p)
            numbers = {id(tensor): len(results) + number for number, tensor in enumerate(tensors)}
            for message, position, tensor in matched:
                index = None if tensor is None else numbers[id(tensor)]
                messages.append(report(message, position, index, itemsize(self._dtype)))
            results += [self._result(numbers[id(tensor)], tensor) for tensor in tensors]
        if any(flow.dropped for flow in flows):
            self._marks["plain messages not compared"] += sum(flow.dropped for flow in flows)
        return DecodedCapture(
            file=file,
            packets=self._packets,
            rocev2_packets=self._roce,
            other=dict(self._other),
            marks=dict(self._marks),
            all_reduces=tuple(results),
            p2p=tuple(sorted(messages, key=lambda message: message.first_packet)),
            messages=tuple(summary for flow in flows for summary in flow.messages),
            queue_pairs=tuple(flow.summary(*places.get(flow.key, (None, None))) for flow in flows),
            unresolved=sum(finding.unresolved for finding in findings)
            + sum(len(flow.steps) for flow in flows if flow.key not in places),
            open=sum(finding.open for finding in findings),
            notes=(*notes, *(note for finding in findings for note in finding.notes)),
        )

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
        first, last = tensor.found.orders()
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
            first_packet=first,
            last_packet=last,
        )


def _datagram(frame: RoceFrame) -> str:
    """Return what to call a datagram."""
    if frame.opcode >= UD and frame.dest_qp == _MANAGEMENT_QP:
        return "connection_manager" if frame.payload[:2] == _CONNECTION_MANAGER else "ud_qp1"
    return NAMES[frame.opcode].lower()


def _flows(logs: dict[FlowKey, PacketLog]) -> list[Flow]:
    """Return what the packets of all flows prove, each with what the other direction of its connection says."""
    promises: dict[tuple[bytes, bytes, int], list[Promise]] = {}
    mtus: dict[tuple[bytes, bytes], dict[int, int]] = {}
    for log in logs.values():
        mtus.setdefault((log.key.destination, log.key.source), {}).update(log.read_mtus)
        if (said := log.promises()) is not None:
            promises.setdefault((log.key.destination, log.key.source, log.udp_source), []).append(said[1])
    flows = []
    for key, log in logs.items():
        answers = promises.get((key.source, key.destination, log.udp_source), [])
        promise = answers[0] if len(answers) == 1 else None
        flows.append(log.finish(promise, mtus.get((key.source, key.destination), {})))
    return flows


def _plain(flows: Sequence[Flow], finding: Findings) -> list[list[PlainMessage]]:
    """Return the plain messages that hosts of a ring send, by queue pair, in PSN order."""
    hosts = set(finding.ring.hosts)
    rows = []
    for flow in flows:
        if flow.key.source in hosts and flow.plain and not flow.dropped:
            row = [plain_message(flow.key, write, flow.mtu) for write in flow.plain if write.bytes]
            rows.append([message for message in row if message is not None])
    return [row for row in rows if row]
