"""What a switch would emit: the streams of a ring's flows, written from the design's words, and replica packets.

Independent of the code under test and of the emulated ranks: it shares only the frame header's codec with
them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.frame import FrameHeader, crc32c
from checkmate_common.stream.layout import Layout
from checkmate_common.stream.ring import Phase
from jobspec.model import Flow, Job

SYN, FIN, RST, ACK = 0x02, 0x01, 0x04, 0x10


def make_job(
    ranks: int = 3,
    channels: int = 1,
    frame_payload: int = 512,
    digests: bool = False,
    shadows: int = 1,
    hops: Sequence[int] = (0,),
) -> Job:
    """Return a job of one group (``dp0``) whose replicas go to shadow ``sh0``."""
    hosts = [
        {"name": f"r{i}", "port": i + 1, "mac": f"02:00:00:00:01:{i:02x}", "ip": f"10.0.0.{10 + i}"}
        for i in range(ranks)
    ]
    nodes = [
        {"name": f"sh{i}", "port": 100 + i, "mac": f"02:00:00:00:02:{i:02x}", "ip": f"10.0.1.{100 + i}", "rid": i + 1}
        for i in range(shadows)
    ]
    group = {"name": "dp0", "id": 5, "ring": [h["name"] for h in hosts], "channels": channels, "shadows": ["sh0"]}
    return Job.model_validate(
        {
            "version": 1,
            "name": "test",
            "id": 9,
            "first_flow_id": 3,
            "switch": {"ports": 200},
            "hosts": hosts,
            "shadows": nodes,
            "groups": [group],
            "framing": {"payload_bytes": frame_payload},
            "digests": digests,
            "redundancy": {"hops": list(hops)},
        }
    )


@dataclass(frozen=True)
class Stretch:
    """Consecutive replicated bytes of one flow's stream."""

    flow: Flow
    position: int
    """Stream position of the first byte, from 0."""
    data: bytes


def _part(start: int, stop: int, parts: int, index: int) -> tuple[int, int]:
    return start + index * (stop - start) // parts, start + (index + 1) * (stop - start) // parts


def _frames(flow: Flow, layout: Layout) -> Iterator[tuple[int, Phase, int, int, int, int]]:
    """Yield (bucket, phase, hop, chunk, first element, last element) in stream order."""
    ranks, channels = len(flow.group.ring), flow.group.channels
    for bucket in layout.buckets:
        per_frame = flow.frame_payload // bucket.dtype.itemsize
        first, last = _part(0, bucket.elements, channels, flow.channel)
        for phase in (Phase.REDUCE_SCATTER, Phase.ALL_GATHER):
            for hop in range(ranks - 1):
                chunk = (flow.rank - hop) % ranks if phase == 0 else (flow.rank + 1 - hop) % ranks
                low, high = _part(first, last, ranks, chunk)
                for start in range(low, high, per_frame):
                    yield bucket.index, phase, hop, chunk, start, min(start + per_frame, high)


def step_length(flow: Flow, layout: Layout) -> int:
    """Return the stream bytes of one step."""
    sizes = [bucket.dtype.itemsize for bucket in layout.buckets]
    return sum(64 + (high - low) * sizes[bucket] for bucket, _, _, _, low, high in _frames(flow, layout))


def primary_stretches(
    job: Job,
    flow: Flow,
    layout: Layout,
    epoch: int,
    first_step: int,
    step: int,
    gradient: Sequence[bytes],
    hops: Sequence[int] = (0,),
) -> list[Stretch]:
    """Return what the flow carries of `gradient` (one bytes a bucket) in `hops` of the all-gather of `step`."""
    position = (step - first_step) * step_length(flow, layout)
    found: list[Stretch] = []
    for bucket, phase, hop, chunk, low, high in _frames(flow, layout):
        dtype: DType = layout.buckets[bucket].dtype
        payload = gradient[bucket][low * dtype.itemsize : high * dtype.itemsize]
        header = FrameHeader(
            job.id, flow.group.id, epoch, flow.channel, step, layout.version, bucket, phase, hop, chunk, flow.rank,
            dtype, low, len(payload), crc32c(payload),
        )  # fmt: skip
        frame = header.pack() + payload
        if phase is Phase.ALL_GATHER and hop in hops:
            if found and found[-1].position + len(found[-1].data) == position:
                found[-1] = Stretch(flow, found[-1].position, found[-1].data + frame)
            else:
                found.append(Stretch(flow, position, frame))
        position += len(frame)
    return found


def cut(stretch: Stretch, sizes: Iterator[int]) -> Iterator[Stretch]:
    """Yield the stretch as segments of the given sizes."""
    start = 0
    while start < len(stretch.data):
        size = max(1, next(sizes))
        yield Stretch(stretch.flow, stretch.position + start, stretch.data[start : start + size])
        start += size


def _checksum(data: bytes) -> int:
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def replica(
    job: Job,
    flow: Flow,
    source_port: int,
    seq: int,
    payload: bytes,
    flags: int = ACK,
    *,
    vlan: int | None = None,
    shadow: str = "sh0",
    pad: bool = True,
    dst_port: int | None = None,
    src_ip: bytes | None = None,
) -> bytes:
    """Return the Ethernet frame of a replica with right checksums."""
    node = job.shadow(shadow)
    port = node.base_port + flow.id if dst_port is None else dst_port
    src = flow.source.ip.packed if src_ip is None else src_ip
    tcp = struct.pack("!HHIIBBHHH", source_port, port, seq % (1 << 32), 77, 5 << 4, flags, 500, 0, 0)
    pseudo = src + node.ip.packed + struct.pack("!BBH", 0, 6, len(tcp) + len(payload))
    check = _checksum(pseudo + tcp + payload)
    tcp = tcp[:16] + struct.pack("!H", check) + tcp[18:]
    ip = struct.pack("!BBHHHBBH", 0x45, 3 << 2, 40 + len(payload), 1, 0x4000, 64, 6, 0) + src + node.ip.packed
    ip = ip[:10] + struct.pack("!H", _checksum(ip)) + ip[12:]
    tag = b"" if vlan is None else struct.pack("!HH", 0x8100, vlan)
    macs = bytes.fromhex((node.mac + flow.source.mac).replace(":", ""))
    frame = macs + tag + b"\x08\x00" + ip + tcp + payload
    return frame.ljust(60, b"\0") if pad else frame


def segment(job: Job, piece: Stretch, source_port: int) -> bytes:
    """Return the replica of a piece of a stream: its sequence number is the position plus the SYN's one."""
    return replica(job, piece.flow, source_port, piece.position + 1, piece.data)


def fix_tcp_checksum(frame: bytes) -> bytes:
    """Return an untagged frame with its TCP checksum made right again, as a device that blesses corruption would."""
    length = struct.unpack_from("!H", frame, 16)[0]
    ip, tcp = frame[14:34], frame[34 : 14 + length]
    pseudo = ip[12:20] + struct.pack("!BBH", 0, 6, len(tcp))
    check = _checksum(pseudo + tcp[:16] + b"\0\0" + tcp[18:])
    return frame[:50] + struct.pack("!H", check) + frame[52:]
