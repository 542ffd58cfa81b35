"""SIGTERM and SIGINT as something that a select loop can wait for."""

from __future__ import annotations

import select
import signal
import socket
from types import FrameType, TracebackType

from nccl_emu.errors import EmulatorError


class Stopped(EmulatorError):
    """A signal asked the process to stop."""

    def __init__(self, number: int) -> None:
        """Keep the signal's number."""
        self.number = number
        super().__init__(f"stopped by {signal.Signals(number).name}")


class StopSignals:
    """Takes SIGTERM and SIGINT while its ``with`` block runs (in the main thread only, as Python demands)."""

    def __init__(self) -> None:
        """Make the wake-up pipe; handlers are installed on entry."""
        self._received: int | None = None
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def __enter__(self) -> StopSignals:
        """Install the handlers."""
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno())
        self._handlers = {n: signal.signal(n, self._on_signal) for n in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the old handlers back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        """Return a descriptor that is readable once a signal has come."""
        return self._reader.fileno()

    def check(self) -> None:
        """Raise `Stopped` when a signal has come."""
        if self._received is not None:
            raise Stopped(self._received)

    def wait(self, seconds: float) -> None:
        """Wait so long, or raise `Stopped` as soon as a signal comes."""
        select.select([self._reader], [], [], seconds)
        self.check()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._received = number
