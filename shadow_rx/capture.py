"""Raw frames to replicas: what is addressed to this node, intact, and of a flow that it serves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from jobspec.model import Flow, ShadowNode
from packets.frame import ParsedFrame, parse_frame
from packets.template import PacketError

_RST = 0x04


class Discard(StrEnum):
    """Why a captured frame, or bytes of it, were not placed."""

    NOT_FOR_US = "not_for_us"
    """Other traffic: another destination address, a port below the replica ports, or no TCP over IPv4."""
    TRUNCATED = "truncated"
    """Addressed to this node, but not a whole Ethernet/IPv4/TCP packet."""
    BAD_IP_CHECKSUM = "bad_ip_checksum"
    """The IPv4 header is damaged."""
    BAD_TCP_CHECKSUM = "bad_tcp_checksum"
    """The TCP header or the payload is damaged."""
    UNKNOWN_FLOW = "unknown_flow"
    """No flow that this node serves has the destination port."""
    WRONG_SOURCE = "wrong_source"
    """The source address is not that of the flow's sending rank."""
    RESET = "reset"
    """A RST segment; what it carries is not part of the stream (RFC 9293, section 3.5.3)."""
    UNKNOWN_CONNECTION = "unknown_connection"
    """The source port is of no connection of the present epoch: a late segment, or not announced."""
    BAD_POSITION = "bad_position"
    """The sequence number lies before the stream's first byte."""
    MISPLACED = "misplaced"
    """At least one byte is not reduced gradient of an all-gather hop that is replicated."""
    DUPLICATE = "duplicate"
    """At least one byte of the primary hop is there already, or belongs to a step that is done."""
    REDUNDANT = "redundant"
    """At least one byte of a redundant hop was not needed: the normal case where nothing was lost."""
    COPIES_DIFFER = "copies_differ"
    """At least one byte differs from what another copy of it had told; the frame's CRC decides which is right."""
    BEYOND_WINDOW = "beyond_window"
    """At least one byte is of a step without a buffer: the shadow is behind, or an older step has a hole."""
    RESYNC_PENDING = "resync_pending"
    """An earlier step was lost; nothing is placed until the group attaches again."""
    KERNEL_DROP = "kernel_drop"
    """The capture socket's buffer was full."""


@dataclass(frozen=True, slots=True)
class Replica:
    """An intact replica of one packet of a flow."""

    flow_id: int
    """The flow."""
    source_port: int
    """TCP source port: identifies the connection of the flow."""
    sequence: int
    """Number of the first payload byte minus the connection's ISN, mod 2^32: stream position + 1."""
    payload: memoryview
    """TCP payload."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A frame that is not placed."""

    cause: Discard
    """Why."""
    replica: Replica | None = None
    """What it would have been if its fields can be trusted, for damaged ones."""


class ReplicaFilter:
    """Turns captured frames into replicas for one shadow node."""

    def __init__(self, node: ShadowNode, flows: Iterable[Flow]) -> None:
        """Accept replicas of `flows` that are addressed to `node`."""
        self._mac = node.mac
        self._ip = str(node.ip)
        self._base_port = node.base_port
        self._sources = {flow.id: str(flow.source.ip) for flow in flows}
        self._mac_bytes = bytes.fromhex(node.mac.replace(":", ""))

    def take(self, frame: bytes) -> Replica | Rejected:
        """Return the replica in `frame` (Ethernet, from the destination MAC on), or why it is none.

        The TCP checksum is verified here, on the bytes that the network delivered: the switch updates it
        incrementally, so that a payload that was damaged before the switch still fails.
        """
        try:
            parsed = parse_frame(frame)
        except PacketError:
            ours = bytes(frame[:6]) == self._mac_bytes
            return Rejected(Discard.TRUNCATED if ours else Discard.NOT_FOR_US)
        if parsed is None or parsed.dst_mac != self._mac or parsed.dst_ip != self._ip:
            return Rejected(Discard.NOT_FOR_US)
        return self._check(parsed)

    def _check(self, parsed: ParsedFrame) -> Replica | Rejected:
        segment = parsed.segment
        flow_id = segment.dst_port - self._base_port
        if not parsed.ip_checksum_ok:
            return Rejected(Discard.BAD_IP_CHECKSUM, self._replica(parsed, flow_id))
        if not parsed.tcp_checksum_ok:
            return Rejected(Discard.BAD_TCP_CHECKSUM, self._replica(parsed, flow_id))
        if flow_id < 0:
            return Rejected(Discard.NOT_FOR_US)
        replica = self._replica(parsed, flow_id)
        if replica is None:
            return Rejected(Discard.UNKNOWN_FLOW)
        if parsed.src_ip != self._sources[flow_id]:
            return Rejected(Discard.WRONG_SOURCE)
        if int(segment.flags) & _RST:
            return Rejected(Discard.RESET)
        return replica

    def _replica(self, parsed: ParsedFrame, flow_id: int) -> Replica | None:
        if flow_id not in self._sources:
            return None
        segment = parsed.segment
        # A SYN takes one sequence number of its own, before any payload (RFC 9293, section 3.4).
        sequence = (segment.seq + (int(segment.flags) >> 1 & 1)) % (1 << 32)
        return Replica(flow_id, segment.src_port, sequence, memoryview(segment.payload))
