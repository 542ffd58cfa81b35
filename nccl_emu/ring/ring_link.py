"""One ring connection as one of its two ends sees it: TCP endpoint, frame template, accounting."""

from __future__ import annotations

from dataclasses import dataclass

from jobspec.model import Flow, Host
from nccl_emu.errors import LinkError
from nccl_emu.tcp import Segment, TcpEndpoint, TcpState, seq_add, seq_diff
from packets.template import FrameTemplate

_WORKING = frozenset(
    {TcpState.ESTABLISHED, TcpState.FIN_WAIT_1, TcpState.FIN_WAIT_2, TcpState.CLOSE_WAIT, TcpState.CLOSING}
    | {TcpState.LAST_ACK, TcpState.TIME_WAIT}
)
"""States after the handshake; CLOSED is not among them, it says nothing of what was before."""


@dataclass(slots=True)
class RankStats:
    """What one rank sent and received over all its connections; bytes."""

    frames_sent: int = 0
    """Frames given to `take_frames`."""
    frame_bytes: int = 0
    """Bytes of `frames_sent`, from the destination MAC to the last payload byte."""
    frames_received: int = 0
    """Frames that belong to a connection of this rank."""
    payload_bytes: int = 0
    """TCP payload sent, each stream byte once."""
    sent_payload_bytes: int = 0
    """TCP payload sent, retransmissions included."""
    tagged_payload_bytes: int = 0
    """`payload_bytes` with a codepoint, which are replicated."""
    sent_tagged_bytes: int = 0
    """`sent_payload_bytes` with a codepoint."""
    retransmits: int = 0
    """Segments with payload whose first byte had been sent before."""
    not_ours: int = 0
    """Frames for others: another MAC address, address, port, or no TCP."""
    malformed: int = 0
    """Frames that are no whole packet."""
    bad_checksums: int = 0
    """Frames dropped for a wrong IPv4 or TCP checksum."""
    old_connections: int = 0
    """Segments of no present connection, ignored or answered with a RST."""


class RingLink:
    """Joins an endpoint to its peer's addresses, and counts what it sends."""

    def __init__(self, flow: Flow, peer: Host, endpoint: TcpEndpoint, template: FrameTemplate) -> None:
        """Take the parts; the caller opens the endpoint.

        Args:
            flow: the flow that the connection carries.
            peer: the other end.
            endpoint: this end.
            template: builds frames to the peer.
        """
        self.flow = flow
        self.peer = peer
        self.peer_ip = str(peer.ip)
        self.endpoint = endpoint
        self.was_connected = False
        """Whether the handshake was ever completed."""
        self._template = template
        self._sent = 1  # stream position (1 is the first byte) after the last byte ever sent

    def take_frames(self, now: float, first_ident: int, stats: RankStats) -> list[bytes]:
        """Return the frames that are due at `now` and count them; IPv4 identifications count up."""
        frames: list[bytes] = []
        for segment in self.endpoint.take_output(now):
            if segment.payload:
                self._account(segment, stats)
            frame = self._template.build(segment, (first_ident + len(frames)) & 0xFFFF)
            stats.frame_bytes += len(frame)
            frames.append(frame)
        stats.frames_sent += len(frames)
        self.was_connected = self.was_connected or self.endpoint.state in _WORKING
        return frames

    @property
    def connected(self) -> bool:
        """Whether both directions work."""
        return self.endpoint.state is TcpState.ESTABLISHED

    @property
    def error(self) -> LinkError | None:
        """Why the connection failed, None while it works."""
        error = self.endpoint.error
        if error is None:
            return None
        return LinkError(error.kind.value, str(error), flow=self.flow.id, peer=self.peer.name)

    def closed_early(self, what: str) -> LinkError:
        """Return the error for a peer that closed while `what` was still to be done."""
        message = f"the peer closed the connection before {what}"
        return LinkError("closed_early", message, flow=self.flow.id, peer=self.peer.name)

    def _account(self, segment: Segment, stats: RankStats) -> None:
        # The ring runner writes with the codepoints of replicated hops, and with 0.
        size = len(segment.payload)
        start = self._sent + seq_diff(segment.seq, seq_add(self.endpoint.isn, self._sent))
        fresh = max(0, start + size - max(start, self._sent))
        stats.retransmits += start < self._sent
        self._sent += fresh
        stats.payload_bytes += fresh
        stats.sent_payload_bytes += size
        if segment.dscp:
            stats.tagged_payload_bytes += fresh
            stats.sent_tagged_bytes += size
