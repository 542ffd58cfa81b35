"""Captured packets to replicas: what is addressed to this node, intact, and of a flow that it serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobspec.model import Flow, ShadowNode
from packets.batch import PacketBatch
from packets.compiled import Kernel
from packets.decode import decode
from packets.headers import HEADER, Checksum, Header, Headers, Kind, LinkType
from packets.reference import decode_packet
from placement.discard import Discard
from placement.segments import Replica, Segments

_SYN, _RST = 0x02, 0x04
_IPV4, _PROTOCOL_TCP = 0x0800, 6
_UNUSABLE = (Kind.FRAGMENT, Kind.TRUNCATED, Kind.MALFORMED)
_MODULUS = 1 << 32


def _leave(*_: Any) -> bool:
    """Take nothing: the reference of the kernel, because `ReplicaFilter.select` goes on with whatever a batch holds."""
    return False


def _example() -> tuple[object, ...]:
    none = np.zeros(0, np.int64)
    return np.zeros(0, HEADER), np.uint64(0), np.uint64(0), 0, np.zeros(1, np.uint64), *(none,) * 5


_take_all = Kernel(_leave, "shadow_rx.receive.select_kernel:take_all", _example)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A frame that is not placed."""

    cause: Discard
    """Why."""
    replica: Replica | None = None
    """What it would have been if its fields can be trusted, for damaged ones."""


class ReplicaFilter:
    """Turns captured packets into replicas for one shadow node.

    TCP checksums are verified, on the bytes that the network delivered: the switch updates them incrementally, so that
    a payload that was damaged before the switch still fails.
    """

    def __init__(self, node: ShadowNode, flows: Iterable[Flow]) -> None:
        """Accept replicas of `flows` that are addressed to `node`."""
        self._mac = int(node.mac.replace(":", ""), 16)
        self._ip = int(node.ip)
        self._base_port = node.base_port
        self._sources = {flow.id: int(flow.source.ip) for flow in flows}
        # By destination port, 0 where there is none: no rank has the address 0.0.0.0.
        self._source_of_port = np.zeros(1 << 16, np.uint64)
        for flow_id, source in self._sources.items():
            self._source_of_port[self._base_port + flow_id] = source

    def take(self, frame: bytes) -> Replica | Rejected:
        """Return the replica in `frame` (Ethernet, from the destination MAC on), or why it is none."""
        view, size = memoryview(frame), len(frame)
        header = decode_packet(view, 0, size, size, LinkType.ETHERNET, True)
        ours = header.ethernet_destination == self._mac
        if not ours or header.kind != Kind.TCP or header.ip_version != 4 or header.destination_low != self._ip:
            return Rejected(Discard.TRUNCATED if ours and _unusable(header) else Discard.NOT_FOR_US)
        cause = self._why_not(header)
        flow_id = header.destination_port - self._base_port
        if flow_id not in self._sources:
            return Rejected(cause or Discard.UNKNOWN_FLOW)
        payload = view[header.payload : header.payload + header.payload_length]
        # A SYN takes one sequence number of its own, before any payload (RFC 9293, section 3.4).
        sequence = (header.seq + bool(header.flags & _SYN)) % _MODULUS
        replica = Replica(flow_id, header.source_port, sequence, payload)
        if cause is None:
            return replica
        return Rejected(cause, replica if _is_damage(cause) else None)

    def _why_not(self, header: Header) -> Discard | None:
        """Return why a segment that is addressed to this node is not usable, None where it is."""
        if header.ip_checksum != Checksum.OK:
            return Discard.BAD_IP_CHECKSUM
        if header.short:
            return Discard.TRUNCATED
        if header.checksum != Checksum.OK:
            return Discard.BAD_TCP_CHECKSUM
        flow_id = header.destination_port - self._base_port
        if flow_id < 0:
            return Discard.NOT_FOR_US
        if flow_id not in self._sources:
            return Discard.UNKNOWN_FLOW
        if header.source_low != self._sources[flow_id]:
            return Discard.WRONG_SOURCE
        return Discard.RESET if header.flags & _RST else None

    def select(self, batch: PacketBatch, discarded: Counter[Discard]) -> Segments:
        """Return the replicas in a batch, and the damaged ones; count what is neither, and the damage, by cause."""
        rows = decode(batch)
        mac, ip = np.uint64(self._mac), np.uint64(self._ip)
        starts, lengths, sequences, flows, source_ports = np.empty((5, len(rows)), np.int64)
        found = starts, lengths, sequences, flows, source_ports
        if _take_all(rows, mac, ip, self._base_port, self._source_of_port, *found):
            return Segments(batch.data, *found, np.zeros(len(rows), np.bool_))
        ours = rows["ethernet_destination"] == self._mac
        segment = (rows["kind"] == Kind.TCP) & (rows["ip_version"] == 4) & (rows["destination_low"] == self._ip) & ours
        ports, sources, flags = rows["destination_port"], rows["source_low"], rows["flags"]
        good = segment & (rows["ip_checksum"] == Checksum.OK) & (rows["checksum"] == Checksum.OK)
        # What has no checksum verified, because the capture cut it, is not good either.
        good &= (sources == self._source_of_port[ports]) & (sources != 0) & (flags & _RST == 0)
        damaged: list[int] = []
        if not good.all():
            foreign = np.flatnonzero(~segment)
            cut = sum(_unusable(_header(rows, index)) for index in foreign[ours[foreign]])
            discarded[Discard.TRUNCATED] += cut
            discarded[Discard.NOT_FOR_US] += len(foreign) - cut
            for index in np.flatnonzero(segment & ~good).tolist():
                cause = self._why_not(_header(rows, index))
                assert cause is not None
                discarded[cause] += 1
                if _is_damage(cause) and int(ports[index]) - self._base_port in self._sources:
                    damaged.append(index)
            good[damaged] = True
        taken = np.flatnonzero(good)
        return Segments(
            batch.data,
            rows["payload"][taken],
            rows["payload_length"][taken].astype(np.int64),
            (rows["seq"][taken].astype(np.int64) + (flags[taken] >> 1 & 1)) % _MODULUS,
            ports[taken].astype(np.int64) - self._base_port,
            rows["source_port"][taken].astype(np.int64),
            _marked(taken, damaged),
        )


def _header(rows: Headers, index: int) -> Header:
    header = Header()
    for name, value in zip(HEADER.names or (), rows[index].item(), strict=True):
        setattr(header, name, value)
    return header


def _unusable(header: Header) -> bool:
    """Tell whether what may have been a TCP segment over IPv4 is not a whole one."""
    return (
        header.kind in _UNUSABLE
        and header.ethertype in (0, _IPV4)
        and (not header.ip_version or header.protocol == _PROTOCOL_TCP)
    )


def _is_damage(cause: Discard) -> bool:
    return cause in (Discard.BAD_IP_CHECKSUM, Discard.BAD_TCP_CHECKSUM)


def _marked(taken: NDArray[np.int64], damaged: list[int]) -> NDArray[np.bool_]:
    marks = np.zeros(len(taken), np.bool_)
    marks[np.searchsorted(taken, damaged)] = True
    return marks
