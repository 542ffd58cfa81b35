"""Controller packets: conversion between P4Runtime metadata and the program's `@controller_header` headers.

P4Runtime specification, sections "ControllerPacketMetadata" and "Packet I/O".
"""

from __future__ import annotations

from collections.abc import Sequence

from finsy.proto import p4r

from softswitch.p4rt.bytestrings import decode_unsigned, encode_unsigned
from softswitch.p4rt.errors import invalid
from softswitch.p4rt.schema import Field


def header_bytes(fields: Sequence[Field]) -> int:
    """Return the length in bytes of a controller header with these fields."""
    return (sum(field.width for field in fields) + 7) // 8


def parse_packet_in(fields: Sequence[Field] | None, frame: bytes) -> p4r.PacketIn | None:
    """Return the packet-in for a frame that the program sent to the CPU port.

    Args:
        fields: the packet-in header, None if the program has none (the whole frame is then the payload).
        frame: header and payload.

    Returns:
        None if the frame is shorter than the header.
    """
    if fields is None:
        return p4r.PacketIn(payload=frame)
    size = header_bytes(fields)
    if len(frame) < size:
        return None
    bits = int.from_bytes(frame[:size], "big")
    shift = size * 8
    packet = p4r.PacketIn(payload=frame[size:])
    for field in fields:
        shift -= field.width
        value = bits >> shift & ((1 << field.width) - 1)
        packet.metadata.add(metadata_id=field.id, value=encode_unsigned(value))
    return packet


def build_packet_out(fields: Sequence[Field] | None, packet: p4r.PacketOut) -> bytes:
    """Return the frame that enters the pipeline at the CPU port for a packet-out.

    Args:
        fields: the packet-out header, None if the program has none.
        packet: payload, with one metadata per field; fields marked `@padding` may be omitted.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT for metadata that is missing, unknown, duplicate or too wide.
    """
    known = {field.id for field in fields or ()}
    values: dict[int, bytes] = {}
    for metadata in packet.metadata:
        if metadata.metadata_id not in known:
            raise invalid(f"packet-out: metadata id {metadata.metadata_id} is not in the packet_out header")
        if metadata.metadata_id in values:
            raise invalid(f"packet-out: metadata id {metadata.metadata_id} is given twice")
        values[metadata.metadata_id] = metadata.value
    if fields is None:
        return packet.payload
    size = header_bytes(fields)
    bits, shift = 0, size * 8
    for field in fields:
        shift -= field.width
        data = values.get(field.id)
        if data is None:
            if field.padding:
                continue
            raise invalid(f"packet-out: metadata {field.name} (id {field.id}) is missing")
        bits |= decode_unsigned(data, field.width, f"packet-out: metadata {field.name}") << shift
    return bits.to_bytes(size, "big") + packet.payload
