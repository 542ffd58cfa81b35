"""One entry or more for every table of our program, in plain numbers that every client can turn into its own form.

Together they replicate the flow 10.0.0.10 -> 10.0.0.11:4000 from port 1 to port 2, with a shadow node at port 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

from p4src import artifacts
from p4src.names import Table

P4INFO = artifacts.BUILD / artifacts.P4INFO_FILE
DEVICE_CONFIG = artifacts.BUILD / artifacts.CONFIG_FILE
SAMPLE = Path(__file__).parents[1] / "softswitch" / "programs"
"""Folder of a small program with constant entries and defaults that can be changed."""

A_MAC, B_MAC, SHADOW_MAC = 0x020000000100, 0x020000000101, 0x020000000200
A_IP, B_IP, SHADOW_IP = (int(IPv4Address(text)) for text in ("10.0.0.10", "10.0.0.11", "10.0.1.100"))
A_IP6, B_IP6 = (int(IPv6Address(text)) for text in ("fd00::a", "fd00::b"))
A_PORT, B_PORT, SHADOW_PORT = 1, 2, 3
FLOW, GROUP, RID, BASE_PORT, DSCP = 5, 6, 1, 20000, 3
SRC_PORT, DST_PORT = 40000, 4000
GROUPS: Mapping[int, tuple[tuple[int, int], ...]] = {
    GROUP: ((B_PORT, 0), (SHADOW_PORT, RID)),
    32766: ((A_PORT, 0), (B_PORT, 0)),
    300: (),
}
"""Multicast group -> (port, replica id) pairs."""


@dataclass(frozen=True)
class Example:
    """An entry of a table."""

    table: str
    match: dict[str, int]
    action: str
    params: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    """Other parameters, for MODIFY."""

    def plain(self) -> dict[str, Any]:
        """Return the entry for JSON."""
        return asdict(self)


EXAMPLES = [
    Example("shadow_ports", {"ingress_port": SHADOW_PORT}, "drop_from_shadow"),
    Example("l2_forward", {"dst_addr": A_MAC}, "set_port", {"port": A_PORT}, {"port": 511}),
    Example("l2_forward", {"dst_addr": B_MAC}, "set_port", {"port": B_PORT}, {"port": 0}),
    Example(
        "replicate",
        {"src_addr": A_IP, "dst_addr": B_IP, "dst_port": DST_PORT, "dscp": DSCP},
        "replicate_flow",
        {"flow_id": FLOW, "group": GROUP},
        {"flow_id": 1023, "group": 0},
    ),
    # Another flow, with no group.
    Example(
        "replicate",
        {"src_addr": B_IP, "dst_addr": A_IP, "dst_port": 0, "dscp": 63},
        "replicate_flow",
        {"flow_id": 0, "group": 0},
        {"flow_id": 256, "group": 300},
    ),
    Example("flow_base", {"flow_id": FLOW, "src_port": SRC_PORT}, "set_isn", {"isn": 0xFFFFFFFF}, {"isn": 0x00010000}),
    Example(
        "replicate_rdma_ipv4",
        {"src_addr": A_IP, "dst_addr": B_IP, "destination_qp": 0x000100},
        "replicate_qp_ipv4",
        {"group": GROUP},
        {"group": 300},
    ),
    Example(
        "replicate_rdma_ipv6",
        {"src_addr": A_IP6, "dst_addr": B_IP6, "destination_qp": 0xFFFFFF},
        "replicate_qp_ipv6",
        {"group": GROUP},
        {"group": 65535},
    ),
    Example(
        "shadow",
        {"rid": RID},
        "to_shadow",
        {"mac": SHADOW_MAC, "ip": SHADOW_IP, "base_port": BASE_PORT},
        {"mac": 1, "ip": 0, "base_port": 65535},
    ),
]
assert {example.table for example in EXAMPLES} == set(Table)
