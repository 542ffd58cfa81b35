"""Counters of one endpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TcpStats:
    """Counts since the endpoint was made; bytes are payload bytes."""

    segments_sent: int = 0
    """Segments of every kind given to `take_output`."""
    segments_received: int = 0
    """Segments given to `on_segment`."""
    bytes_sent: int = 0
    """Payload sent, retransmissions included."""
    bytes_acked: int = 0
    """Payload that the peer acknowledged."""
    bytes_received: int = 0
    """Payload delivered in order, each byte once."""
    retransmits: int = 0
    """Segments sent whose first byte (or SYN, FIN) had been sent before."""
    fast_retransmits: int = 0
    """Losses found by duplicate ACKs."""
    timeouts: int = 0
    """Expiries of the retransmission timer, zero-window probes not included."""
    zero_window_probes: int = 0
    """Probes sent into a closed window."""
    dup_acks: int = 0
    """Duplicate ACKs received (RFC 5681 section 2)."""
    out_of_order: int = 0
    """Segments with payload that arrived before a predecessor."""
    unacceptable: int = 0
    """Segments outside the receive window (old duplicates among them)."""
    challenge_acks: int = 0
    """Challenge ACKs sent (RFC 5961)."""
    other_connection: int = 0
    """Segments of other ports, ignored."""
