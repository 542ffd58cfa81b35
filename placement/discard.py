"""Why a packet, or bytes of it, were not placed."""

from __future__ import annotations

from enum import StrEnum


class Discard(StrEnum):
    """Why a captured packet, or bytes of it, were not placed."""

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
