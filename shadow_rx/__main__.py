"""A shadow node as a process: ``python -m shadow_rx --job FILE --shadow NAME --iface NAME --listen ADDRESS``.

Prints one JSON line on standard output when it listens and captures (``"event": "ready"``) and one with the
final status after SIGTERM or SIGINT (``"event": "final"``). Problems go to standard error, with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from google.protobuf.json_format import MessageToDict

from jobspec.errors import JobError
from jobspec.loader import load_job
from shadow_rx.core import ShadowCore
from shadow_rx.description import state_keys
from shadow_rx.errors import ShadowError
from shadow_rx.event_log import EventLog
from shadow_rx.live import LiveCapture
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.publisher import BackgroundPublisher
from shadow_rx.service import serve, status_message
from shadow_rx.store import RecoveryStore

_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def _parser() -> argparse.ArgumentParser:
    defaults = ShadowOptions()
    parser = argparse.ArgumentParser(prog="python -m shadow_rx", description="Run one shadow node of a job.")
    parser.add_argument("--job", required=True, type=Path, help="job file (YAML)")
    parser.add_argument("--shadow", required=True, help="name of this node in the job file")
    parser.add_argument(
        "--iface", required=True, action="append", help="interface that replicas arrive on; repeated for several"
    )
    parser.add_argument("--listen", required=True, help="side channel: host:port or unix:/path")
    parser.add_argument("--store", type=Path, help="directory for recovery points; without it they stay in memory")
    parser.add_argument("--events", type=Path, help="append one JSON line for every step gained or lost")
    parser.add_argument("--keep", type=int, help="newest recovery points to keep on storage (default: all)")
    parser.add_argument("--queue", type=int, default=4, help="recovery points that may wait for storage")
    parser.add_argument("--hold", type=int, default=defaults.hold, help="recovery points kept in memory")
    parser.add_argument("--window", type=int, default=defaults.window, help="steps collected at a time")
    parser.add_argument("--memory-limit", type=int, default=defaults.memory_limit, help="bytes for each group")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; 1 as the ranks have")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a shadow node until SIGTERM or SIGINT; return the exit code."""
    arguments = _parser().parse_args(argv)
    # Blocked before any thread starts, so that all threads inherit it and sigwait is the only receiver.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        return _run(arguments)
    except (JobError, ShadowError, ValueError, OSError) as error:
        print(f"shadow {arguments.shadow}: {error}", file=sys.stderr)
        return 2
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _run(arguments: argparse.Namespace) -> int:
    options = ShadowOptions(arguments.window, arguments.hold, memory_limit=arguments.memory_limit)
    core = ShadowCore(load_job(arguments.job), arguments.shadow, options)
    publisher = None
    if arguments.store is not None:
        publisher = BackgroundPublisher(RecoveryStore(arguments.store, arguments.keep), arguments.queue)
    torch.set_num_threads(arguments.threads)
    # torch imports its compiler with the first optimizer step, which takes seconds: not while a rank waits.
    state_keys("SGD", {}, torch.float32)
    with ExitStack() as stack:
        events = None
        if arguments.events is not None:
            events = EventLog(arguments.events)
            stack.callback(events.close)
        node = ShadowNode(core, time.monotonic, publisher, events)
        stack.callback(node.close)
        capture = LiveCapture(node, arguments.iface)
        stack.callback(capture.stop)
        server = serve(node, arguments.listen)
        stack.callback(server.stop)
        capture.start()
        _tell(
            event="ready",
            job=core.job.name,
            shadow=core.shadow,
            groups=list(core.groups),
            interfaces=arguments.iface,
            listen=server.address,
            pid=os.getpid(),
        )
        signal.sigwait(_SIGNALS)
    statuses = {group: MessageToDict(status_message(node.status(group))) for group in core.groups}
    _tell(event="final", shadow=core.shadow, capture_error=capture.error, groups=statuses)
    return 0


def _tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.exit(main())
