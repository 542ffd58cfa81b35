"""What a replica must be, byte for byte, and whether checksums are right: computed here from the RFCs alone."""

from __future__ import annotations

import struct

from jobspec.model import ShadowNode


def ip_offset(frame: bytes) -> int:
    """Return where the IPv4 header of a frame with at most one VLAN tag begins."""
    return 18 if frame[12:14] == b"\x81\x00" else 14


def replica(frame: bytes, shadow: ShadowNode, flow_id: int, position: int) -> bytes:
    """Return the replica of a TCP segment (IPv4 without options) that stands at `position` of its flow's stream.

    Both checksums are those of `frame`, brought up to date by RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
    """
    ip = ip_offset(frame)
    tcp = ip + 20
    port = (shadow.base_port + flow_id) % 2**16
    made = bytearray(frame)
    made[:6] = bytes.fromhex(shadow.mac.replace(":", ""))
    made[ip + 16 : ip + 20] = int(shadow.ip).to_bytes(4, "big")
    made[tcp + 2 : tcp + 4] = port.to_bytes(2, "big")
    made[tcp + 4 : tcp + 8] = position.to_bytes(4, "big")
    address = slice(ip + 16, ip + 20)
    changed = [slice(tcp + 2, tcp + 4), slice(tcp + 4, tcp + 8)]
    _update(made, frame, ip + 10, [address])
    _update(made, frame, tcp + 16, [address, *changed])
    return bytes(made)


def rdma_replica(frame: bytes, shadow: ShadowNode) -> bytes:
    """Return the replica of a RoCEv2 packet: only the MAC address is another."""
    return bytes.fromhex(shadow.mac.replace(":", "")) + frame[6:]


def checksums_hold(frame: bytes) -> tuple[bool, bool]:
    """Return whether the IPv4 and the TCP checksum of a frame (IPv4 without options) are right, computed in full."""
    ip = ip_offset(frame)
    total = int.from_bytes(frame[ip + 2 : ip + 4], "big")
    tcp = frame[ip + 20 : ip + total]
    pseudo_header = frame[ip + 12 : ip + 20] + bytes([0, 6]) + len(tcp).to_bytes(2, "big")
    # RFC 1071: with the right checksum in its place the sum is -0.
    return _sum(frame[ip : ip + 20]) == 0xFFFF, _sum(pseudo_header + tcp) == 0xFFFF


def _update(made: bytearray, frame: bytes, place: int, changed: list[slice]) -> None:
    total = 0xFFFF - int.from_bytes(frame[place : place + 2], "big")
    for field in changed:
        for old, new in zip(_words(frame[field]), _words(bytes(made[field])), strict=True):
            total += 0xFFFF - old + new
    made[place : place + 2] = (0xFFFF - _folded(total)).to_bytes(2, "big")


def _sum(data: bytes) -> int:
    return _folded(sum(_words(data + b"\0" * (len(data) % 2))))


def _words(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"!{len(data) // 2}H", data)


def _folded(total: int) -> int:
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total
