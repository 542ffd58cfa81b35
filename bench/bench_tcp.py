"""How fast two endpoints move a stream in memory, one thread, no sockets: alone, and with frames in between.

`endpoints` hands segments over as objects; `frames` also builds and parses (with both checksums) every frame,
as a rank on a network does. Times are CPU times, so that other load on the machine does not count.
Run `python bench/bench_tcp.py --json` for machine-readable results.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from nccl_emu.tcp import Segment, TcpConfig, TcpEndpoint, TcpState
from packets.frame import parse_frame
from packets.template import FrameTemplate

MTUS = (1500, 9000)
STREAM_BYTES = 16 << 20
WRITE_BYTES = 1 << 20
DSCPS = (0, 3)
STEP = 0.0001


@dataclass(frozen=True)
class Result:
    """One measurement.

    Attributes:
        case: what lies between the endpoints.
        mtu: largest IPv4 packet in bytes.
        megabytes_per_s: stream bytes per second, in 10**6.
        gbit_per_s: stream bits per second, in 10**9.
        microseconds: time per data segment, its share of the ACKs and both endpoints included.
        segments: data segments sent.
        acks: segments that the receiver sent.
    """

    case: str
    mtu: int
    megabytes_per_s: float
    gbit_per_s: float
    microseconds: float
    segments: int
    acks: int


def through_frames() -> Callable[[Segment], Segment]:
    """Return a link that turns each segment into a frame and back."""
    template = FrameTemplate("02:00:00:00:00:01", "02:00:00:00:00:02", "10.0.0.1", "10.0.0.2")

    def link(segment: Segment) -> Segment:
        parsed = parse_frame(template.build(segment))
        if parsed is None or not parsed.checksums_ok:
            raise RuntimeError("a frame did not survive its own codec")
        return parsed.segment

    return link


def measure(case: str, mtu: int, link: Callable[[Segment], Segment]) -> Result:
    """Send a stream with alternating codepoints from one endpoint to the other."""
    config = TcpConfig(mss=mtu - 40)
    sender, receiver = TcpEndpoint(config, 1, 2, 0), TcpEndpoint(config, 2, 1, 0)
    sender.open(0.0)
    receiver.listen()
    chunk = memoryview(bytes(WRITE_BYTES))
    writes = [(chunk, DSCPS[index % len(DSCPS)]) for index in range(STREAM_BYTES // WRITE_BYTES)]
    writes.reverse()
    received = data_segments = 0
    now = 0.0
    start = time.process_time()
    while received < STREAM_BYTES:
        while writes and sender.writable and sender.state is TcpState.ESTABLISHED:
            sender.write(*writes.pop())
        for segment in sender.take_output(now):
            data_segments += bool(segment.payload)
            receiver.on_segment(link(segment), now)
        received += len(receiver.read())
        for segment in receiver.take_output(now):
            sender.on_segment(link(segment), now)
        now += STEP
        sender.on_timer(now)
        receiver.on_timer(now)
    seconds = time.process_time() - start
    if sender.stats.retransmits:
        raise RuntimeError("a perfect link needed retransmissions")
    return Result(
        case=case,
        mtu=mtu,
        megabytes_per_s=round(STREAM_BYTES / seconds / 1e6, 1),
        gbit_per_s=round(STREAM_BYTES * 8 / seconds / 1e9, 3),
        microseconds=round(seconds / data_segments * 1e6, 2),
        segments=data_segments,
        acks=receiver.stats.segments_sent,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    links: tuple[tuple[str, Callable[[Segment], Segment]], ...] = (
        ("endpoints", lambda segment: segment),
        ("frames", through_frames()),
    )
    results = [measure(case, mtu, link) for case, link in links for mtu in MTUS]
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    print(f"{'case':<10} {'MTU':>5} {'MB/s':>8} {'Gbit/s':>8} {'us/segment':>11} {'segments':>9} {'ACKs':>6}")
    for r in results:
        row = f"{r.case:<10} {r.mtu:>5} {r.megabytes_per_s:>8} {r.gbit_per_s:>8} {r.microseconds:>11}"
        print(f"{row} {r.segments:>9} {r.acks:>6}")


if __name__ == "__main__":
    main()
