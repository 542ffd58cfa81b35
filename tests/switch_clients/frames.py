"""Frames of the flow that the example entries replicate, and what becomes of them."""

from __future__ import annotations

from ipaddress import IPv4Address

from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from tests.switch_clients import entries as e

ISN = 0xFFFF_FFF0


def mac_text(number: int) -> str:
    return ":".join(f"{byte:02x}" for byte in number.to_bytes(6, "big"))


def segment(
    seq: int, payload: bytes = b"", *, flags: str = "A", src_port: int = e.SRC_PORT, dscp: int = e.DSCP
) -> bytes:
    """Return a TCP segment from host 1 to host 2 as a frame."""
    return bytes(
        Ether(src=mac_text(e.A_MAC), dst=mac_text(e.B_MAC))
        / IP(src=str(IPv4Address(e.A_IP)), dst=str(IPv4Address(e.B_IP)), tos=dscp << 2, id=7)
        / TCP(sport=src_port, dport=e.DST_PORT, seq=seq % 2**32, ack=99, flags=flags)
        / Raw(payload)
    )


SYN = segment(ISN, flags="S")
DATA = segment(ISN + 1, bytes(range(200)))
UNTAGGED = segment(ISN + 1, bytes(60), dscp=0)
LATE = segment(ISN + 1, bytes(60), src_port=e.SRC_PORT + 1)
FLOW_START = {
    "flow_id": e.FLOW,
    "isn": ISN,
    "src_addr": e.A_IP,
    "dst_addr": e.B_IP,
    "src_port": e.SRC_PORT,
    "dst_port": e.DST_PORT,
}
"""The digest that `SYN` causes."""
