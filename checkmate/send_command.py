"""`checkmate replay --send`: options, keys, signals and the progress bar of sending a capture."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from capture.errors import CaptureError
from replay.errors import ReplayError
from replay.send import Pause, SendState, send_capture
from replay.send_pace import Pace, PaceKind
from replay.send_rewrite import Rewrite

INCOMPLETE = 1
"""Exit code when not every packet was sent, or the capture is damaged."""
FAILED = 2
"""Exit code when nothing can be sent with these options."""

INTERRUPTED = 130
"""Exit code after SIGINT, which also ends endless sending."""

_PANEL = "Sending"
SendOption = Annotated[
    str | None,
    typer.Option("--send", metavar="IFACE", rich_help_panel=_PANEL,
                 help="Send the capture at this interface; the space key or signal USR1 pauses."),
]  # fmt: skip
RateOption = Annotated[
    float | None, typer.Option("--rate", metavar="PPS", rich_help_panel=_PANEL, help="Packets per second.")
]
SpeedOption = Annotated[
    float | None,
    typer.Option(
        "--speed", metavar="FACTOR", rich_help_panel=_PANEL, help="Multiple of the recorded speed [default: 1]."
    ),
]
MbpsOption = Annotated[
    float | None, typer.Option("--mbps", metavar="MBIT", rich_help_panel=_PANEL, help="Megabits of frames per second.")
]
LoopOption = Annotated[
    int | None,
    typer.Option("--loop", min=0, metavar="N", rich_help_panel=_PANEL, help="Send it N times; 0: until interrupted."),
]
RewriteMacOption = Annotated[
    list[str] | None,
    typer.Option("--rewrite-mac", metavar="OLD=NEW", rich_help_panel=_PANEL, help="Replace a MAC address; repeatable."),
]
RewriteIpOption = Annotated[
    list[str] | None,
    typer.Option("--rewrite-ip", metavar="OLD=NEW", rich_help_panel=_PANEL,
                 help="Replace an IP address and update checksums; repeatable; not for RoCEv2."),
]  # fmt: skip


def send_options_without_send(
    *,
    rate: float | None,
    speed: float | None,
    mbps: float | None,
    loop: int | None,
    rewrite_mac: list[str] | None,
    rewrite_ip: list[str] | None,
) -> str | None:
    """Return the first given option that needs ``--send``, None if there is none."""
    given = {
        "--rate": rate, "--speed": speed, "--mbps": mbps, "--loop": loop, "--rewrite-mac": rewrite_mac,
        "--rewrite-ip": rewrite_ip,
    }  # fmt: skip
    return next((name for name, value in given.items() if value is not None and value != []), None)


def pace_of(rate: float | None, speed: float | None, mbps: float | None) -> Pace:
    """Return the pace that the options select.

    Raises:
        ReplayError: more than one is given, or one is not above 0.
    """
    asked = {
        "--rate": (PaceKind.PACKETS, rate),
        "--speed": (PaceKind.RECORDED, speed),
        "--mbps": (PaceKind.BITS, None if mbps is None else mbps * 1e6),
    }
    given = {name: (kind, value) for name, (kind, value) in asked.items() if value is not None}
    if len(given) > 1:
        raise ReplayError(" and ".join(given), "they exclude each other", "give one of them")
    for name, (kind, value) in given.items():
        try:
            return Pace(kind, value)
        except ValueError as error:
            raise ReplayError(name, str(error), "or omit it for the recorded pace") from error
    return Pace()


def run_send(
    captures: list[Path],
    iface: str,
    *,
    rate: float | None = None,
    speed: float | None = None,
    mbps: float | None = None,
    loop: int | None = None,
    rewrite_mac: list[str] | None = None,
    rewrite_ip: list[str] | None = None,
    as_json: bool = False,
) -> int:
    """Send a capture; return the exit code: 0 all sent, 1 not all, 2 nothing can be sent, 130 SIGINT."""
    errors = Console(stderr=True)
    last = SendState()
    problem: str | None = None
    code = 0
    try:
        if len(captures) != 1:
            fix = "send one, or merge them: mergecap -w NEW FILE..."
            raise ReplayError("--send", f"{len(captures)} captures are given", fix)
        pace = pace_of(rate, speed, mbps)
        rewrite = Rewrite.of(rewrite_mac or [], rewrite_ip or [])
        times = 1 if loop is None else loop
        with _Bar(errors, captures[0], iface, pace) as bar, _switching() as (pause, keys):

            def show(state: SendState) -> None:
                nonlocal last
                last = state
                keys()
                bar.show(state)

            send_capture(
                captures[0],
                iface,
                pace=pace,
                loop=times,
                rewrite=rewrite,
                progress=show,
                stop=lambda: False,
                pause=pause,
            )
    except KeyboardInterrupt:
        code, problem = INTERRUPTED, "interrupted"
    except CaptureError as error:
        code, problem = INCOMPLETE, str(error)
    except (ReplayError, OSError) as error:
        code, problem = FAILED, str(error)
    if last.not_sent:
        code = code or INCOMPLETE
    if as_json:
        print(json.dumps(summary(last) | {"error": problem}, indent=2))
    elif last.round:
        print(_text(last))
    if problem is not None:
        errors.print(f"error: {problem}", highlight=False, markup=False, soft_wrap=True)
    return code


def summary(state: SendState) -> dict[str, Any]:
    """Return the totals as JSON-ready values."""
    return {
        "rounds": state.round,
        "packets": state.packets,
        "bytes": state.bytes,
        "seconds": round(state.elapsed_ns / 1e9, 6),
        "largest_delay_seconds": round(state.late_ns / 1e9, 6),
        "not_sent": dict(state.not_sent),
    }


def _text(state: SendState) -> str:
    seconds = max(state.elapsed_ns, 1) / 1e9
    rates = f"{state.packets / seconds:,.0f} packets/s, {8e-6 * state.bytes / seconds:,.1f} Mbit/s"
    lines = [
        f"sent {state.packets} packets, {state.bytes} bytes in {seconds:.3f} s ({rates}); "
        f"largest delay {state.late_ns / 1e6:.1f} ms"
    ]
    lines += [f"not sent: {count} packets: {reason}" for reason, count in state.not_sent.items()]
    return "\n".join(lines)


class _Bar:
    """The progress of one round, by bytes of the file."""

    def __init__(self, console: Console, path: Path, iface: str, pace: Pace) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(f"{path.name} -> {iface}, {pace}", total=None, note="")

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, state: SendState) -> None:
        note = f"{state.packets} packets" + (f", round {state.round}" if state.round > 1 else "")
        if state.paused:
            note += ", paused (space continues)"
        self._progress.update(self._task, completed=state.file_bytes, total=state.file_size, note=note)


@contextmanager
def _switching() -> Iterator[tuple[Pause, Callable[[], None]]]:
    """Let USR1 and, on a terminal, the space key pause; time stopped by the shell does not count as a delay.

    Yields the pause switch and a function that polls the keyboard.
    """
    pause = Pause()
    terminal = sys.stdin.fileno() if sys.stdin is not None and _is_terminal() else None
    before = termios.tcgetattr(terminal) if terminal is not None else None

    def cbreak() -> None:
        # Only in the foreground: a background job that changes the terminal is stopped (TTOU).
        if terminal is not None and os.tcgetpgrp(terminal) == os.getpgrp():
            tty.setcbreak(terminal, termios.TCSANOW)

    def restore() -> None:
        if terminal is not None and os.tcgetpgrp(terminal) == os.getpgrp():
            termios.tcsetattr(terminal, termios.TCSANOW, before or [])

    def toggle(*_: object) -> None:
        pause.paused = not pause.paused

    def suspend(*_: object) -> None:
        restore()
        began = time.monotonic_ns()
        os.kill(os.getpid(), signal.SIGSTOP)
        pause.suspended_ns += time.monotonic_ns() - began
        cbreak()

    def keys() -> None:
        if terminal is not None and os.tcgetpgrp(terminal) == os.getpgrp():
            while select.select([terminal], [], [], 0)[0]:
                pressed = os.read(terminal, 64)
                if not pressed:
                    return
                if pressed.count(b" ") % 2:
                    toggle()

    handlers = {signal.SIGUSR1: toggle, signal.SIGTSTP: suspend}
    old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    cbreak()
    try:
        yield pause, keys
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        restore()


def _is_terminal() -> bool:
    try:
        return os.isatty(sys.stdin.fileno())
    except (OSError, ValueError):  # a stream without a descriptor, in tests
        return False
