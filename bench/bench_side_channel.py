"""What mutual TLS costs on the side channel: latency of a step record, and of a new connection, with and without.

Real gRPC over loopback TCP, client and server in this process, one call at a time; plain text and TLS take turns, so
that both meet the same load of the machine. Ranks do not wait for records: this is time of the shadow node and of a
thread beside training.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from bench.bench_shadow import attach, make_job, make_layout
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.tls import ClientTls, Identity, Role, server_name
from jobspec.certificates import CertificateSet, make_certificates
from jobspec.model import Job
from nccl_emu.shadow_client.side_channel import GrpcSideChannel
from shadow_rx.core import ShadowCore
from shadow_rx.node import ShadowNode
from shadow_rx.serve.guard import Admission
from shadow_rx.serve.service import ShadowServer

OBJECT_BYTES = 5056
"""State of torch's random number generator, which each record carries."""


@dataclass(frozen=True)
class Result:
    """One measurement.

    Attributes:
        case: what was measured.
        plain_us: median in plain text, in microseconds.
        tls_us: median under mutual TLS.
        ratio: the second by the first.
    """

    case: str
    plain_us: float
    tls_us: float
    ratio: float


def start(stack: ExitStack, job: Job, files: CertificateSet | None) -> tuple[str, ClientTls | None, str]:
    """Serve a shadow node; return its address, the credentials of rank 0, and the options of the optimizer."""
    core = ShadowCore(job, "sh0")
    told = attach(core, make_layout(1))
    node = ShadowNode(core, time.monotonic)
    stack.callback(node.close)
    own = files.options(Identity(Role.SHADOW, job.name, "sh0")).credentials() if files is not None else None
    server = ShadowServer(node, "127.0.0.1:0", Admission(own))
    stack.callback(server.stop)
    client = None
    if files is not None:
        client = files.options(Identity(Role.RANK, job.name, "r0")).client(server_name(Role.SHADOW, job.name))
    return server.address, client, told.options


def measure(calls: int, connections: int) -> list[Result]:
    """Make so many calls and connections, with and without TLS."""
    job = make_job(9000)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "certificates"
        make_certificates(folder, [job], datetime.now(UTC), days=1)
        ends = [start(stack, job, files) for files in (None, CertificateSet(folder))]
        records: list[list[float]] = [[], []]
        dials: list[list[float]] = [[], []]
        channels = [GrpcSideChannel(address, tls=tls) for address, tls, _ in ends]
        for channel in channels:
            stack.callback(channel.close)
        record = pb.StepRecord(group="dp0", epoch=1, step=1, rank=0, layout_version=1, loss=1.0)
        record.group_options_json.append(ends[0][2])
        record.objects["rng.torch"].raw = bytes(OBJECT_BYTES)
        for number in range(calls + 10):
            for times, channel in zip(records, channels, strict=True):
                begun = time.perf_counter()
                channel.record_step(record)  # repeated records are equal, and count once
                if number >= 10:
                    times.append(time.perf_counter() - begun)
        for _ in range(connections):
            for times, (address, tls, _) in zip(dials, ends, strict=True):
                begun = time.perf_counter()
                fresh = GrpcSideChannel(address, tls=tls)
                fresh.status("dp0")
                times.append(time.perf_counter() - begun)
                fresh.close()
    cases = (("step record", records), ("connect, first call", dials))
    medians = [(case, *(statistics.median(times) * 1e6 for times in both)) for case, both in cases]
    return [Result(case, plain, secured, secured / plain) for case, plain, secured in medians]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="records")
    parser.add_argument("--connections", type=int, default=30, help="new connections")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = measure(options.calls, options.connections)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
        return
    print(f"{'case':<22}{'plain, us':>11}{'TLS, us':>11}{'ratio':>8}")
    for result in results:
        print(f"{result.case:<22}{result.plain_us:>11.0f}{result.tls_us:>11.0f}{result.ratio:>8.2f}")


if __name__ == "__main__":
    main()
