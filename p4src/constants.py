"""Constants of the data plane: `p4src/include/constants.p4` is generated from this file."""

from __future__ import annotations

from enum import IntEnum

MAX_FLOWS = 1024
"""Flows that a switch can replicate: size of the register arrays and of the `replicate` table."""
MAX_HOSTS = 1024
"""MAC addresses that a switch can forward to."""
MAX_SHADOWS = 256
"""Shadow nodes (replica ids) that a switch can serve."""
MAX_RDMA_FLOWS = 1024
"""RoCEv2 queue pairs that a switch can replicate, each for IPv4 and IPv6."""
FLOOD_GROUP = 0x7FFE
"""Multicast group of broadcast and multicast frames: every host port, no shadow port.

BMv2 reserves groups from 0x8000 up for clone sessions.
"""
FIRST_RID = 1
"""First replica id of a shadow node; 0 is the original packet."""


class NotReplicated(IntEnum):
    """Why a packet was not replicated, or was dropped: index of the `not_replicated` counter."""

    NONE = 0
    """Replicated, flooded, or not a candidate (not TCP and no RoCEv2 entry)."""
    UNTAGGED = 1
    """A TCP packet that no `replicate` entry matches (other traffic, reduce-scatter, later hops): the normal case."""
    UNKNOWN_ISN = 2
    """Tagged, but neither the registers nor `flow_base` know the connection's initial sequence number."""
    LATE_CONNECTION = 3
    """Tagged, from another source port than the flow's newest connection: a late segment of an old one."""
    NO_GROUP = 4
    """The flow's entry names no multicast group."""
    UNSUPPORTED_HEADER = 5
    """TCP after IPv4 options, in a fragment or cut short: the data plane does not parse its ports."""
    FROM_SHADOW = 6
    """Received on a shadow node's port: dropped, so that nothing a shadow sends reaches a rank."""
    UNKNOWN_DESTINATION = 7
    """Unknown unicast MAC address: dropped."""


P4_CONSTANTS: dict[str, tuple[str, int]] = {
    "MAX_FLOWS": ("", MAX_FLOWS),
    "MAX_HOSTS": ("", MAX_HOSTS),
    "MAX_SHADOWS": ("", MAX_SHADOWS),
    "MAX_RDMA_FLOWS": ("", MAX_RDMA_FLOWS),
    "FLOOD_GROUP": ("group_id_t", FLOOD_GROUP),
    "REASONS": ("", len(NotReplicated)),
    **{f"REASON_{reason.name}": ("reason_t", int(reason)) for reason in NotReplicated},
}
"""Contents of `constants.p4`: name -> (P4 type, value); values without a type are sizes and become macros."""
