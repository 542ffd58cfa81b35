"""How fast the embedded switch processes packets: the compiled data plane, one thread, no sockets.

Each tagged packet is multicast to its destination and to one shadow node (checksums updated), as in a
training run. Run `python bench/bench_softswitch.py --json` for machine-readable results.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from struct import pack

from p4src.artifacts import device_config
from p4src.names import Action, Table
from softswitch.core import SwitchCore
from softswitch.state import ActionCall, Exact, TableEntry

RANK, SUCCESSOR, SHADOW = 1, 2, 3
DSCP, FLOW_PORT, GROUP, FLOW = 0x03, 29500, 1, 0
SYN, ACK = 0x02, 0x10


@dataclass(frozen=True)
class Result:
    """One measurement.

    Attributes:
        case: what kind of packet.
        frame_bytes: size of each frame.
        packets_per_s: received frames per second.
        gbit_per_s: received bits per second, in 10**9.
        microseconds: time per received frame.
        copies: frames sent per received frame.
    """

    case: str
    frame_bytes: int
    packets_per_s: float
    gbit_per_s: float
    microseconds: float
    copies: float


def tcp_frame(length: int, sequence: int, flags: int, dscp: int) -> bytes:
    """Return an Ethernet/IPv4/TCP frame of `length` bytes from the rank to its successor."""
    ethernet = pack("!6s6sH", bytes([2, 0, 0, 0, 0, SUCCESSOR]), bytes([2, 0, 0, 0, 0, RANK]), 0x0800)
    ip = pack("!BBHHHBBH", 0x45, dscp << 2, length - 14, 0, 0x4000, 64, 6, 0) + bytes(
        [10, 0, 0, RANK, 10, 0, 0, SUCCESSOR]
    )
    tcp = pack("!HHIIBBHHH", 40000, FLOW_PORT, sequence, 1, 0x50, flags, 65535, 0, 0)
    return (ethernet + ip + tcp).ljust(length, b"\xa5")


def configured_switch() -> SwitchCore:
    """Return a switch that forwards between two ranks and replicates one flow to one shadow node."""
    core = SwitchCore(device_config())
    for port in (RANK, SUCCESSOR, SHADOW):
        match = (Exact(0x020000000000 + port),)
        core.tables[Table.L2_FORWARD].insert(TableEntry(match, 0, ActionCall(Action.SET_PORT, (port,))))
    flow = (Exact(0x0A000000 + RANK), Exact(0x0A000000 + SUCCESSOR), Exact(FLOW_PORT), Exact(DSCP))
    core.tables[Table.REPLICATE].insert(TableEntry(flow, 0, ActionCall(Action.REPLICATE_FLOW, (FLOW, GROUP))))
    to_shadow = ActionCall(Action.TO_SHADOW, (0x020000000000 + SHADOW, 0x0A000100, 40000))
    core.tables[Table.SHADOW].insert(TableEntry((Exact(1),), 0, to_shadow))
    core.set_multicast_group(GROUP, [(SUCCESSOR, 0), (SHADOW, 1)])
    core.process(RANK, tcp_frame(60, 999, SYN, DSCP))
    return core


def measure(case: str, frames: Sequence[bytes], seconds: float) -> Result:
    """Process `frames` over and over for about `seconds`, and return the mean over all rounds."""
    core = configured_switch()
    process = core.process
    sent = sum(len(process(RANK, frame).packets) for frame in frames)
    rounds, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        for frame in frames:
            process(RANK, frame)
        rounds += 1
    count, octets = rounds * len(frames), rounds * sum(map(len, frames))
    return Result(
        case=case,
        frame_bytes=len(frames[0]),
        packets_per_s=count / elapsed,
        gbit_per_s=8 * octets / elapsed / 1e9,
        microseconds=1e6 * elapsed / count,
        copies=sent / len(frames),
    )


def main() -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each measurement")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    results: list[Result] = []
    for length in (9014, 1514, 60):
        for case, dscp in (("replicated", DSCP), ("forwarded", 0)):
            frames = [tcp_frame(length, 1000 + n * length, ACK, dscp) for n in range(64)]
            results.append(measure(case, frames, options.seconds))
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    print(f"{'case':<11}{'bytes':>6}{'packets/s':>12}{'Gbit/s':>9}{'us/packet':>11}{'copies':>8}")
    for r in results:
        print(
            f"{r.case:<11}{r.frame_bytes:>6}{r.packets_per_s:>12.0f}{r.gbit_per_s:>9.2f}"
            f"{r.microseconds:>11.2f}{r.copies:>8.1f}"
        )


if __name__ == "__main__":
    main()
