"""Puts a capture on the wire: an AF_PACKET socket, paced by `replay.send_pace`.

Needs CAP_NET_RAW. See packet(7). Frames leave as they were captured, but for addresses that are asked to be others.
"""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from capture.errors import CaptureError
from capture.frame_socket import FrameSocket
from capture.model import LINKTYPE_ETHERNET, Packet
from capture.reader import open_capture
from replay.errors import ReplayError
from replay.send_pace import Pace, Pacer
from replay.send_rewrite import Rewrite, RoceAddressError

_REPORT_NS = 100_000_000
_SLICE_S = 0.05
"""Longest sleep, so that a pause or the end is noticed soon."""
_MOST_CATCHING_UP_NS = 20_000_000
"""A longer delay is not caught up with: the packets of a burst are lost in the next queue, e.g. a switch's."""
_BUFFER_BYTES = 4 << 20
_FULL_QUEUE_S = 0.001
_FULL_QUEUE_PATIENCE_NS = 1_000_000_000
_DOWN = (errno.ENETDOWN, errno.ENXIO, errno.ENODEV)

CUT = "cut short by the capture's snapshot length"
NOT_ETHERNET = "not Ethernet"
TOO_LONG = "too long for the interface"
QUEUE_FULL = "the interface's queue stayed full"


@dataclass
class Pause:
    """Switches between sending and waiting; may be changed from a signal handler at any time."""

    paused: bool = False
    """Send nothing while it is set."""
    suspended_ns: int = 0
    """How long the process was stopped by the shell (SIGTSTP), in nanoseconds: this is no delay of the pace."""


@dataclass
class SendState:
    """What was sent so far."""

    round: int = 0
    """Which repetition is under way, from 1; 0 before the first packet."""
    packets: int = 0
    """Packets sent."""
    bytes: int = 0
    """Their bytes."""
    not_sent: Counter[str] = field(default_factory=Counter)
    """Packets that were not sent, by reason."""
    late_ns: int = 0
    """How far behind the pace the worst packet was, in nanoseconds."""
    elapsed_ns: int = 0
    """Time since the start without pauses, in nanoseconds."""
    paused: bool = False
    """Whether it waits."""
    file_bytes: int = 0
    """Bytes of the capture read in this round."""
    file_size: int | None = None
    """All of its bytes, None for pipes."""


def send_capture(
    path: Path,
    iface: str,
    *,
    pace: Pace,
    loop: int = 1,
    rewrite: Rewrite | None = None,
    progress: Callable[[SendState], None],
    stop: Callable[[], bool],
    pause: Pause | None = None,
) -> SendState:
    """Send the packets of the capture at `path` from interface `iface`.

    Short delays are caught up with. After a longer one, which the largest delay tells, the pace goes on from there:
    nothing leaves as a burst that was none in the capture.

    Args:
        path: the capture.
        iface: name of an Ethernet interface.
        pace: how fast.
        loop: how often to send all of it; 0 means until `stop`.
        rewrite: other addresses.
        progress: is called a few times a second, and at the end.
        stop: tells to end early; asked before each packet.
        pause: switched by the caller.

    Returns:
        What was sent.

    Raises:
        CaptureError: the capture is damaged; all packets before the damage were sent.
        ReplayError: the interface is not there, not up or not allowed; or an IP address of RoCEv2 packets is to be
            rewritten (found before anything is sent); or a pipe would have to be read twice.
        OSError: the capture cannot be opened or read.
    """
    if (loop != 1 or (rewrite is not None and rewrite.ips)) and not path.is_file():
        raise ReplayError(str(path), "has to be read more than once", "save it to a file first")
    if rewrite is not None and rewrite.ips:
        _refuse_roce(path, rewrite)
    with _Interface(iface) as interface:
        run = _Run(interface, Pacer(pace), rewrite, progress, stop, pause or Pause())
        try:
            while loop == 0 or run.state.round < loop:
                sent_before = run.state.packets
                if not run.send_all(path) or (loop == 0 and run.state.packets == sent_before):
                    break
        finally:
            run.report()
    return run.state


def _refuse_roce(path: Path, rewrite: Rewrite) -> None:
    # Damage is told when sending comes to it.
    with suppress(CaptureError), open_capture(path) as capture:
        for packet in capture:
            try:
                rewrite.apply(packet.data)
            except RoceAddressError as error:
                raise ReplayError(f"--rewrite-ip: packet {packet.number}", str(error), "use --rewrite-mac") from error


class _Run:
    """One call of `send_capture`."""

    def __init__(
        self,
        interface: _Interface,
        pacer: Pacer,
        rewrite: Rewrite | None,
        progress: Callable[[SendState], None],
        stop: Callable[[], bool],
        pause: Pause,
    ) -> None:
        self.state = SendState()
        self._interface = interface
        self._pacer = pacer
        self._rewrite = rewrite
        self._progress = progress
        self._stop = stop
        self._pause = pause
        self._waited_ns = 0
        self._slipped_ns = 0
        self._start_ns = time.monotonic_ns()
        self._next_report_ns = 0

    def send_all(self, path: Path) -> bool:
        """Send the capture once; return whether to go on."""
        state = self.state
        state.round += 1
        if state.round > 1:
            self._pacer.begin_again()
        with open_capture(path) as capture:
            state.file_size = capture.size
            for packet in capture:
                state.file_bytes = capture.bytes_read
                if not self._send(packet):
                    return False
        return True

    def report(self) -> None:
        """Tell how far it is."""
        self.state.elapsed_ns = self._now()
        self._next_report_ns = self.state.elapsed_ns + _REPORT_NS
        self._progress(self.state)

    def _send(self, packet: Packet) -> bool:
        state = self.state
        if packet.link_type != LINKTYPE_ETHERNET:
            state.not_sent[NOT_ETHERNET] += 1
            return not self._stop()
        due = self._pacer.due_ns(packet.time_ns, packet.original_length)
        if len(packet.data) < packet.original_length:
            state.not_sent[CUT] += 1
            return not self._stop()
        frame = packet.data if self._rewrite is None else self._rewrite.apply(packet.data)
        if not self._wait_until(due + self._slipped_ns):
            return False
        late = self._now() - due
        state.late_ns = max(state.late_ns, late)
        if late - self._slipped_ns > _MOST_CATCHING_UP_NS:
            self._slipped_ns = late
        failed = self._interface.send(frame)
        if failed is None:
            state.packets += 1
            state.bytes += len(frame)
        else:
            state.not_sent[failed] += 1
        if self._now() >= self._next_report_ns:
            self.report()
        return True

    def _wait_until(self, due: int) -> bool:
        while not self._stop():
            if self._pause.paused:
                self._wait_for_the_end_of_the_pause()
                continue
            left = due - self._now()
            if left <= 0:
                return True
            if self._now() >= self._next_report_ns:
                self.report()
            time.sleep(min(left / 1e9, _SLICE_S))
        return False

    def _wait_for_the_end_of_the_pause(self) -> None:
        begin, suspended = time.monotonic_ns(), self._pause.suspended_ns
        self.state.paused = True
        self.report()
        while self._pause.paused and not self._stop():
            time.sleep(_SLICE_S)
            self._progress(self.state)
        self.state.paused = False
        # What the shell stopped in the meantime counts once.
        self._waited_ns += time.monotonic_ns() - begin - (self._pause.suspended_ns - suspended)

    def _now(self) -> int:
        """Return the nanoseconds since the start, pauses not counted."""
        return time.monotonic_ns() - self._start_ns - self._waited_ns - self._pause.suspended_ns


class _Interface:
    """A socket that sends whole frames."""

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self._socket = FrameSocket(name, _BUFFER_BYTES, receives=False)
        except PermissionError:
            fix = "run as root or with CAP_NET_RAW"
            raise ReplayError(f"interface {name}", "raw sockets are not allowed", fix) from None
        except OSError as error:
            what = "" if error.errno == errno.ENODEV else "cannot be opened: "
            raise ReplayError(f"interface {name}", f"{what}{error.strerror}", "see: ip link") from error

    def send(self, frame: bytes) -> str | None:
        """Send a frame; return why it did not go, None when it did.

        Raises:
            ReplayError: the interface is down or gone.
        """
        began = 0
        while True:
            try:
                self._socket.send(frame)
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    return TOO_LONG
                if error.errno in _DOWN:
                    fix = f"bring it up: ip link set {self.name} up"
                    raise ReplayError(f"interface {self.name}", f"cannot send: {error.strerror}", fix) from error
                if error.errno not in (errno.ENOBUFS, errno.EAGAIN):
                    return str(error.strerror)
            else:
                return None
            began = began or time.monotonic_ns()
            if time.monotonic_ns() - began > _FULL_QUEUE_PATIENCE_NS:
                return QUEUE_FULL
            time.sleep(_FULL_QUEUE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
