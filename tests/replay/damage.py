"""Changing captured packets the way networks and captures do."""

from __future__ import annotations

from dataclasses import replace

from capture.model import Packet
from checkmate_common.stream.frame import HEADER_BYTES, FrameHeader, crc32c
from checkmate_common.stream.layout import Layout
from checkmate_common.stream.ring import Phase
from checkmate_common.stream.schedule import step_plan
from jobspec.model import Job
from packets.frame import ParsedFrame, parse_frame
from packets.template import FrameTemplate
from replay.records import Records


def parsed(packet: Packet) -> ParsedFrame:
    found = parse_frame(packet.data)
    assert found is not None
    return found


def with_payload(packet: Packet, payload: bytes) -> Packet:
    """Return the packet with another payload, and checksums that fit."""
    old = parsed(packet)
    template = FrameTemplate(old.src_mac, old.dst_mac, old.src_ip, old.dst_ip, ttl=old.ttl)
    segment = replace(old.segment, payload=payload)
    return replace(packet, data=template.build(segment, old.ident))


def flipped(packet: Packet, at: int) -> Packet:
    """Return the packet with a bit of its payload flipped, and its checksums as they were."""
    data = bytearray(packet.data)
    data[len(data) - len(parsed(packet).segment.payload) + at] ^= 0x10
    return replace(packet, data=bytes(data))


def is_syn(packet: Packet) -> bool:
    return bool(int(parsed(packet).segment.flags) & 2)


def layout_of(job: Job, records: Records, epoch: int = 1) -> Layout:
    told = records.epoch(job.groups[0].name, epoch)
    assert told is not None
    return Layout.from_json(told.attach.layout_json)


def step_lengths(job: Job, records: Records) -> dict[int, int]:
    """Return the stream bytes of a step by flow id."""
    layout = layout_of(job, records)
    return {flow.id: step_plan(flow.shape, layout).length for flow in job.flows}


def replicas_of_step(job: Job, records: Records, packets: list[Packet], step: int) -> list[tuple[int, int, int]]:
    """Return (index, flow, first byte relative to the step) of the replicas in epoch 1 with bytes of `step`."""
    told = records.epoch(job.groups[0].name, 1)
    assert told is not None
    base_port = job.shadows[0].base_port
    lengths = step_lengths(job, records)
    found = []
    for index, packet in enumerate(packets):
        segment = parsed(packet).segment
        flow = segment.dst_port - base_port
        if segment.payload and told.ports[flow] == segment.src_port:
            at, offset = divmod(segment.seq - 1, lengths[flow])
            if at + told.attach.first_step == step:
                found.append((index, flow, offset))
    return found


def rewritten_frame(packet: Packet) -> Packet | None:
    """Return a packet whose first frame, a whole one of all-gather hop 1, has other bytes and a CRC that fits."""
    payload = parsed(packet).segment.payload
    if not payload.startswith(b"CKMT"):
        return None
    header = FrameHeader.unpack(payload)
    end = HEADER_BYTES + header.payload_bytes
    if (header.phase, header.hop) != (Phase.ALL_GATHER, 1) or len(payload) < end:
        return None
    body = bytearray(payload[HEADER_BYTES:end])
    body[5] ^= 0x40
    return with_payload(packet, replace(header, payload_crc=crc32c(body)).pack() + bytes(body) + payload[end:])
