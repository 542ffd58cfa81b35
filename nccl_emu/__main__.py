"""``python -m nccl_emu``: one rank as a process."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from checkmate_common.recovery.point import RecoveryPointError
from checkmate_common.tls.errors import TlsError
from checkmate_common.tls.options import add_tls_options, tls_options
from jobspec.errors import JobError
from nccl_emu.driver import RankDriver, RankOptions
from nccl_emu.errors import EmulatorError
from nccl_emu.shadow_client.reporter import Reporter
from nccl_emu.signals import Stopped, StopSignals


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}, expected 1 or more")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}, expected a positive number of seconds")
    return value


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"{text!r}, expected names of interfaces, each once")
    return names


def parse_options(arguments: Sequence[str]) -> RankOptions:
    """Read the command line; prints a message and exits with status 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m nccl_emu", description="Train one data-parallel rank.")
    parser.add_argument("--job", type=Path, required=True, help="job file")
    parser.add_argument("--group", required=True, help="DP group of the job")
    parser.add_argument("--rank", type=int, required=True, help="position in the group's ring, from 0")
    parser.add_argument(
        "--iface", type=_names, required=True, help="network interface of the rank; NAME,NAME is one and its backup"
    )
    parser.add_argument("--side-channel", required=True, action="append", metavar="ADDRESS",
                        help="a shadow node: host:port or unix:/path; once for each node of the group")  # fmt: skip
    parser.add_argument("--epoch", type=_positive, default=1, help="incarnation of the communicator (1)")
    parser.add_argument("--iterations", type=_positive, required=True, help="last step to train")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (0)")
    parser.add_argument("--resume-from", type=Path, help="directory of a published recovery point")
    parser.add_argument("--out", type=Path, required=True, help="directory for results")
    parser.add_argument("--timeout", type=_seconds, default=60.0, help="seconds without progress to give up (60)")
    parser.add_argument("--no-resync", dest="resync", action="store_false",
                        help="do not upload the state to a shadow that has lost a step")  # fmt: skip
    add_tls_options(parser)
    a = parser.parse_args(arguments)
    return RankOptions(
        job=a.job,
        group=a.group,
        rank=a.rank,
        interfaces=a.iface,
        side_channels=tuple(a.side_channel),
        epoch=a.epoch,
        iterations=a.iterations,
        seed=a.seed,
        resume_from=a.resume_from,
        out=a.out,
        timeout=a.timeout,
        resync=a.resync,
        tls=tls_options(a, os.environ),
    )


def main(arguments: Sequence[str]) -> int:
    """Train one rank; return the exit status: 0, 1 after an error, 128 + n after signal n."""
    options = parse_options(arguments)
    torch.set_num_threads(1)  # ranks share processors, and the split of a sum among threads would change its rounding
    try:
        reporter = Reporter(options.out, options.rank, options.epoch, sys.stdout)
    except OSError as error:
        print(f"rank {options.rank}: {options.out} cannot be written: {error}", file=sys.stderr)
        return 1
    with StopSignals() as signals:
        try:
            RankDriver(options, reporter, signals).run()
        except (JobError, RecoveryPointError, EmulatorError, TlsError, OSError) as error:
            reporter.error(str(error))
            print(f"rank {options.rank}: {error}", file=sys.stderr)
            return 128 + error.number if isinstance(error, Stopped) else 1
        finally:
            reporter.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
