"""RoCEv2 packets to frames: what `rocev2.headers` reads, written."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from packets.checksum import internet_checksum
from packets.headers import ROCE_PORT
from rocev2.icrc import icrc_bytes
from rocev2.opcodes import AETH, DETH, IETH, IMM, KNOWN, RDETH, RETH


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of a connection."""

    mac: bytes
    ip: bytes
    """IP address, 4 or 16 bytes."""


@dataclass(frozen=True, slots=True)
class Transport:
    """What a packet carries above UDP."""

    opcode: int
    dest_qp: int
    psn: int
    payload: bytes = b""
    address: int = 0
    rkey: int = 0
    length: int = 0
    immediate: int = 0
    """Immediate data as NCCL means it (little endian on the wire)."""
    syndrome: int = 0
    """AETH syndrome."""
    message_number: int = 0
    """AETH message sequence number."""
    ack_requested: bool = False


def body(packet: Transport) -> bytes:
    """Return the packet from the BTH on, with pad bytes, without iCRC."""
    parts = KNOWN[packet.opcode]
    pad = -len(packet.payload) % 4
    out = [
        struct.pack(
            "!BBHII",
            packet.opcode,
            0x40 | pad << 4,  # migration state, pad count, header version 0
            0xFFFF,
            packet.dest_qp,
            packet.ack_requested << 31 | packet.psn,
        )
    ]
    if parts & RDETH:
        out.append(bytes(4))
    if parts & DETH:
        out.append(struct.pack("!II", 0x80010000, 1))
    if parts & RETH:
        out.append(struct.pack("!QII", packet.address, packet.rkey, packet.length))
    if parts & AETH:
        out.append(struct.pack("!I", packet.syndrome << 24 | packet.message_number & 0xFFFFFF))
    if parts & IMM:
        out.append(struct.pack("<I", packet.immediate))
    if parts & IETH:
        out.append(struct.pack("!I", packet.rkey))
    return b"".join((*out, packet.payload, bytes(pad)))


def frame(
    source: Endpoint,
    destination: Endpoint,
    udp_source: int,
    packet: Transport,
    *,
    vlans: tuple[int, ...] = (),
    congested: bool = False,
) -> bytes:
    """Return the Ethernet frame of a packet, with a right iCRC; UDP checksum 0, as NICs send it.

    Args:
        source: the sender.
        destination: the receiver, of the same IP version.
        udp_source: UDP source port.
        packet: what it carries.
        vlans: VLAN identifiers, outermost first; two or more make QinQ.
        congested: set ECN to "congestion experienced".
    """
    inner = body(packet)
    length = 8 + len(inner) + 4
    udp = struct.pack("!HHHH", udp_source, ROCE_PORT, length, 0)
    traffic_class = 0x68 | (3 if congested else 2)
    if len(source.ip) == 4:
        kind = 0x0800
        head = struct.pack("!BBHHHBBH", 0x45, traffic_class, 20 + length, 0, 0x4000, 64, 17, 0)
        network = head + source.ip + destination.ip
        network = network[:10] + struct.pack("!H", internet_checksum(network)) + network[12:]
    else:
        kind = 0x86DD
        network = struct.pack("!IHBB", 0x60000000 | traffic_class << 20, length, 17, 64) + source.ip + destination.ip
    tags = [0x88A8 if place + 1 < len(vlans) else 0x8100 for place in range(len(vlans))]
    link = b"".join(struct.pack("!HH", tag, vlan) for tag, vlan in zip(tags, vlans, strict=True))
    return b"".join(
        (
            destination.mac,
            source.mac,
            link,
            struct.pack("!H", kind),
            network,
            udp,
            inner,
            icrc_bytes(network, udp, inner),
        )
    )
