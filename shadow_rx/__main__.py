"""A shadow node as a process: ``python -m shadow_rx --job FILE --shadow NAME --iface NAME --listen ADDRESS``.

Prints one JSON line on standard output when it listens and captures (``"event": "ready"``) and one with the
final status after SIGTERM or SIGINT (``"event": "final"``). Problems go to standard error, with exit code 2. Should
the thread that captures or the one that stores die, the process ends by itself, with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from google.protobuf.json_format import MessageToDict

from checkmate_common.files.rotating_file import LogLimits
from checkmate_common.tls import ClientTls, Role, server_name
from checkmate_common.tls.options import add_tls_options, tls_options
from jobspec.errors import JobError
from jobspec.loader import load_job
from shadow_rx.assembly import LogFiles, ShadowAssembly
from shadow_rx.core import ShadowCore
from shadow_rx.errors import ShadowError
from shadow_rx.options import ShadowOptions
from shadow_rx.peers.connections import GrpcPeer
from shadow_rx.peers.driver import PeerDriver
from shadow_rx.peers.repair import check_peers
from shadow_rx.publish.publisher import BackgroundPublisher
from shadow_rx.publish.store_queue import STORE_COPIES
from shadow_rx.receive.live import LiveCapture
from shadow_rx.serve.status_message import status_message
from shadow_rx.store.storage.crypto import find_keys
from shadow_rx.store.writer import RecoveryStore
from shadow_rx.trainer.description import state_keys

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
    parser.add_argument("--store", help="directory or fsspec URL for recovery points; without it they stay in memory")
    parser.add_argument("--store-key-file", type=Path, help="encrypt them; default: the keys of $CHECKMATE_STORE_KEY")
    parser.add_argument("--resume", action="store_true", help="go on with what this run stored before a restart")
    parser.add_argument(
        "--allow-open-permissions", action="store_true", help="store in a directory that others can read, too"
    )
    parser.add_argument(
        "--peer", action="append", default=[], type=_peer, metavar="NAME=ADDRESS",
        help="side channel of another shadow node of this job, to fill holes from, and with --resume to take a state "
        "from that is newer than what is stored; repeated for several",
    )  # fmt: skip
    parser.add_argument("--events", type=Path, help="append one JSON line for everything that happens to a step")
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve Prometheus metrics at http://HOST:PORT/metrics; with TLS at https"
    )
    parser.add_argument("--side-channel-log", type=Path, help="keep what the ranks tell in this file, for replays")
    parser.add_argument(
        "--stored-steps",
        type=int,
        metavar="N",
        help="newest steps to keep on storage (default: as the job says)",
    )
    parser.add_argument(
        "--waiting-points",
        type=int,
        default=4,
        metavar="N",
        help="recovery points that may wait for storage (4)",
    )
    parser.add_argument(
        "--memory-points",
        type=int,
        default=defaults.hold,
        metavar="N",
        help="recovery points kept in memory (2)",
    )
    parser.add_argument("--window", type=int, default=defaults.window, help="steps collected at a time")
    parser.add_argument("--memory-limit", type=int, default=defaults.memory_limit, help="bytes for each group")
    parser.add_argument("--access-log", type=Path, help="append one JSON line for every call of the side channel")
    parser.add_argument(
        "--log-bytes", type=int, default=LogLimits.nbytes, metavar="N",
        help="size at which a file of --events, --side-channel-log or --access-log is renamed to FILE.1, and a new "
        f"one begun ({LogLimits.nbytes})",
    )  # fmt: skip
    parser.add_argument(
        "--log-files", type=int, default=LogLimits.files, metavar="N", help=f"older ones to keep ({LogLimits.files})"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads; 1 as the ranks have")
    add_tls_options(parser)
    parser.add_argument(
        "--tls-any-client", action="store_true",
        help="with TLS: let every client do everything whose certificate an authority of --tls-ca has signed",
    )  # fmt: skip
    return parser


def _peer(text: str) -> tuple[str, str]:
    name, _, address = text.partition("=")
    if not name or not address:
        raise argparse.ArgumentTypeError(f"{text!r}, expected NAME=HOST:PORT or NAME=unix:/path")
    return name, address


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
    options = ShadowOptions(
        arguments.window, arguments.memory_points, memory_limit=arguments.memory_limit,
        store_copies=0 if arguments.store is None else STORE_COPIES,
    )  # fmt: skip
    core = ShadowCore(load_job(arguments.job), arguments.shadow, options)
    check_peers(core, [name for name, _ in arguments.peer])
    tls = tls_options(arguments, os.environ)
    own = tls.credentials()
    named = ClientTls(own, tls.server_name or server_name(Role.SHADOW, core.job.name)) if own is not None else None
    dead: list[str] = []
    waiting = threading.get_ident()

    def died(name: str, trouble: str) -> None:
        # Without this thread nothing more is replicated, or stored: whoever watches the process starts it again.
        dead.append(f"thread {name} {trouble}")
        # To the thread that waits for it: others, of libraries, may not block the signal.
        signal.pthread_kill(waiting, signal.SIGTERM)

    store = None
    if arguments.store is not None:
        store = RecoveryStore(
            arguments.store, arguments.stored_steps, policy=core.job.store,
            ring=find_keys(arguments.store_key_file, os.environ), resume=arguments.resume,
            allow_open=arguments.allow_open_permissions,
        )  # fmt: skip
        store.open()  # what is wrong with it shows now, and not with the first step
    torch.set_num_threads(arguments.threads)
    # torch imports its compiler with the first optimizer step, which takes seconds: not while a rank waits.
    state_keys("SGD", {}, torch.float32)
    limits = LogLimits(arguments.log_bytes, arguments.log_files)
    files = LogFiles(arguments.events, arguments.side_channel_log, arguments.access_log, limits)
    with ExitStack() as stack:
        publisher = partial(BackgroundPublisher, depth=arguments.waiting_points, on_death=died)
        assembly = ShadowAssembly(
            core, time.monotonic, files, store, publisher, wall=time.time, resume=arguments.resume,
            tls=own, any_client=arguments.tls_any_client,
        )  # fmt: skip
        stack.callback(assembly.close)
        node = assembly.node
        if arguments.resume and arguments.peer:
            with ExitStack() as opened:
                peers = {name: GrpcPeer(address, named) for name, address in arguments.peer}
                for peer in peers.values():
                    opened.callback(peer.close)
                for resumed in assembly.take_newer_points(peers):
                    print(resumed, file=sys.stderr, flush=True)
        capture = LiveCapture(node, arguments.iface, died)
        stack.callback(capture.stop)
        node.add_part(capture.part)
        listen = assembly.serve(arguments.listen)
        metrics = assembly.serve_metrics(arguments.metrics) if arguments.metrics is not None else None
        capture.start()
        if arguments.peer:
            asking = stack.enter_context(PeerDriver(node, dict(arguments.peer), named, _peer_trouble))
            node.add_part(asking.part)
        _print_line(
            event="ready",
            job=core.job.name,
            shadow=core.shadow,
            groups=list(core.groups),
            interfaces=arguments.iface,
            listen=listen,
            metrics=metrics,
            pid=os.getpid(),
        )
        signal.sigwait(_SIGNALS)
    statuses = {group: MessageToDict(status_message(node.status(group))) for group in core.groups}
    log_errors = {part.name: f"{part.lost} lost; {part.trouble or 'the newest is there'}"
                  for part in (read() for read in assembly.logs) if part.lost or part.trouble}  # fmt: skip
    _print_line(event="final", shadow=core.shadow, capture_error=capture.error, log_errors=log_errors, groups=statuses)
    for line in dead:
        print(f"shadow {core.shadow}: {line}", file=sys.stderr)
    return 1 if dead else 0


def _peer_trouble(name: str, reason: str) -> None:
    print(f"shadow node {name} cannot fill holes: {reason}", file=sys.stderr, flush=True)


def _print_line(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    sys.exit(main())
