"""The decoder: packets in, tensors out.

Packets are assigned to flows in batches, as they come. Everything else happens at the end of the capture, and depends
on PSNs, addresses and flags only, not on the order of packets. Memory: the LL messages, up to 256 MiB of other
messages, and a row of `FRAME` for each packet of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from capture.model import Packet
from packets.batch import Bytes, PacketBatch
from packets.decode import decode
from packets.headers import Headers, Kind
from packets.names import packet_name
from rocev2.dtypes import canonical, itemsize
from rocev2.flow import Flow, FlowKey, PacketLog, Promise
from rocev2.found import Findings, find
from rocev2.headers import Frames, Verdict, read
from rocev2.opcodes import ACKNOWLEDGE, CNP, NAMES, RD, UD, unknown
from rocev2.p2p import PlainMessage, match, plain_message, report
from rocev2.place import LINE, Tensor, place
from rocev2.protocols import LL
from rocev2.results import AllReduce, DecodedCapture, P2pMessage
from rocev2.ring import find_rings

_BATCH = 1024  # packets, where they come one by one
_MOST_FLOWS = 65536
_MOST_PLAIN_BYTES = 256 << 20
_SYNDROMES = {1: "rnr_nak", 3: "nak"}  # AETH, upper three bits: 0 is an ACK, 2 is reserved
_BROKEN = {Verdict.CUT: "cut by snaplen", Verdict.LENGTH: "wrong length", Verdict.ICRC: "wrong iCRC"}
_FLOW = ("source_high", "source_low", "destination_high", "destination_low", "dest_qp", "ip_version")
_PTP_PORTS = (319, 320)
_SPANNING_TREE = b"\x42\x42"
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
        self._few: list[Packet] = []

    def add(self, packet: Packet) -> None:
        """Add the next packet of the capture, if packets come one by one."""
        self._few.append(packet)
        if len(self._few) == _BATCH:
            self._feed_few()

    def _feed_few(self) -> None:
        few, self._few = self._few, []
        batch = PacketBatch.of([packet.data for packet in few], 1, [packet.original_length for packet in few])
        batch = replace(batch, link_types=np.array([packet.link_type for packet in few], np.uint16))
        self.feed(batch, np.array([packet.number for packet in few], np.int64))

    def feed(self, batch: PacketBatch, numbers: NDArray[np.int64] | None = None) -> None:
        """Add the next packets of the capture.

        Args:
            batch: the packets.
            numbers: their positions in the capture, from 1; None if they follow the packets before.
        """
        if numbers is None:
            numbers = np.arange(self._packets + 1, self._packets + 1 + len(batch))
        self._packets += len(batch)
        headers = decode(batch, verify=False)
        frames = read(batch, headers, numbers)
        verdicts = frames["verdict"]
        self._roce += int((verdicts != Verdict.FOREIGN).sum())
        for verdict, mark in _BROKEN.items():
            self._count(mark, verdicts == verdict)
        for opcode in headers["opcode"][verdicts == Verdict.OPCODE].tolist():
            self._marks[unknown(opcode)] += 1
        self._foreign(batch, headers, np.flatnonzero(verdicts == Verdict.FOREIGN))
        good = verdicts == Verdict.GOOD
        opcodes = frames["opcode"]
        self._count("ecn_ce", good & (headers["tos"] & 3 == 3))
        self._count("cnp", good & (opcodes == CNP))
        for row in np.flatnonzero(good & (opcodes >= RD) & (opcodes != CNP)).tolist():
            # Datagrams: their PSNs are not those of a pair of queue pairs.
            self._marks[_datagram(batch.data, frames[row], int(headers["dest_qp"][row]))] += 1
        for syndrome, mark in _SYNDROMES.items():
            self._count(mark, good & (opcodes == ACKNOWLEDGE) & (frames["syndrome"] >> 5 == syndrome))
        rows = np.flatnonzero(good & (opcodes < RD))
        for group in _by_flow(headers[rows]):
            self._flow(headers[rows[group[0]]], frames[rows[group]], batch.data)

    def _count(self, mark: str, rows: NDArray[np.bool_]) -> None:
        if count := int(np.count_nonzero(rows)):
            self._marks[mark] += count

    def _foreign(self, batch: PacketBatch, headers: Headers, rows: NDArray[np.int64]) -> None:
        self._count("ptp", (headers["kind"] == Kind.UDP) & np.isin(headers["destination_port"], _PTP_PORTS))
        ethertypes = headers["ethertype"][rows]
        lengths = rows[(ethertypes > 0) & (ethertypes < 0x600)]
        trees = [row for row in lengths.tolist() if _link_header(batch, row)[14:] == _SPANNING_TREE]
        if trees:
            self._other["802.3/llc (stp)"] += len(trees)
            rows = np.setdiff1d(rows, trees)
        columns = [headers[name][rows].tolist() for name in ("kind", "ip_version", "protocol", "ethertype")]
        for of, count in Counter(zip(*columns, batch.link_types[rows].tolist(), strict=True)).items():
            self._other[packet_name(*of)] += count

    def _flow(self, header: Headers, frames: Frames, data: Bytes) -> None:
        """Add packets of one flow; `header` is that of the first."""
        key = FlowKey(_address(header, "source"), _address(header, "destination"), int(header["dest_qp"]))
        log = self._logs.get(key)
        if log is None:
            if len(self._logs) >= _MOST_FLOWS:
                self._marks["beyond the most flows"] += len(frames)
                return
            log = self._logs[key] = PacketLog(key, int(header["source_port"]))
        self._room -= log.add(frames, data, self._room)

    def finish(self, file: str) -> DecodedCapture:
        """Decode everything that was added. The decoder cannot be used afterwards."""
        self._feed_few()
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
        data = (tensor.lines * tensor.covered).view(np.uint8)
        by_element: NDArray[np.bool_] = np.repeat(tensor.covered, LINE // size)
        supplied = 0
        if tensor.from_p2p is not None and tensor.extra is not None:
            data = np.where(tensor.from_p2p, np.frombuffer(tensor.extra, np.uint8), data)
            supplied = int(tensor.from_p2p.sum()) // size
            by_element |= np.logical_and.reduce(tensor.from_p2p.reshape(-1, size), axis=1)
            data *= np.repeat(by_element, size)
        elements = total // size
        conflicts = int(tensor.disputed.sum()) * LINE + tensor.p2p_conflicts
        first, last = tensor.found.orders()
        return AllReduce(
            index=index,
            ranks=tensor.found.ranks,
            channels=tensor.found.channels,
            protocol=LL.name,
            dtype=self._dtype_name,
            elements=elements,
            covered=by_element[:elements],
            data=data[: elements * size].tobytes(),
            missing_psn=tuple(sorted(tensor.missing_psn, key=lambda m: m.dest_qp)),
            conflicts=-(-conflicts // size),
            from_p2p=supplied,
            first_packet=first,
            last_packet=last,
        )


def _by_flow(headers: Headers) -> list[NDArray[np.int64]]:
    """Return the rows of each flow in ascending order, flows ordered by their first row."""
    if not len(headers):
        return []
    columns = [np.ascontiguousarray(headers[name]) for name in _FLOW]
    order = np.lexsort([column for column in columns if (column != column[0]).any()] or columns[:1])
    changes = np.logical_or.reduce([column[order][1:] != column[order][:-1] for column in columns])
    return sorted(np.split(order, np.flatnonzero(changes) + 1), key=lambda rows: int(rows[0]))


def _link_header(batch: PacketBatch, row: int) -> bytes:
    start = int(batch.starts[row])
    return batch.data[start : start + min(16, int(batch.lengths[row]))].tobytes()


def _address(header: Headers, end: str) -> bytes:
    high, low = (int(header[f"{end}_{half}"]) for half in ("high", "low"))
    return low.to_bytes(4, "big") if header["ip_version"] == 4 else (high << 64 | low).to_bytes(16, "big")


def _datagram(data: Bytes, frame: Frames, dest_qp: int) -> str:
    """Return what to call a datagram."""
    opcode, at = int(frame["opcode"]), int(frame["payload"])
    if opcode >= UD and dest_qp == _MANAGEMENT_QP:
        mad = data[at : at + min(2, int(frame["size"]))].tobytes() == _CONNECTION_MANAGER
        return "connection_manager" if mad else "ud_qp1"
    return NAMES[opcode].lower()


def _flows(logs: dict[FlowKey, PacketLog]) -> list[Flow]:
    """Return all flows, each with the evidence from the other direction of its connection."""
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
    """Return the plain messages that hosts of a ring send, a list for each queue pair, in PSN order."""
    hosts = set(finding.ring.hosts)
    rows = []
    for flow in flows:
        if flow.key.source in hosts and flow.plain and not flow.dropped:
            row = [plain_message(flow.key, write, flow.mtu) for write in flow.plain if write.bytes]
            rows.append([message for message in row if message is not None])
    return [row for row in rows if row]
