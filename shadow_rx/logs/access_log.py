"""The access log: one JSON line for every RPC of a shadow node, and for every use of a store by a command.

A line has ``time``, ``who`` (identity of the certificate, or ``user NAME@HOST`` of a command), ``peer`` (address, for
RPCs), ``what``, ``on`` (shadow node or store), ``group``, ``step``, ``result`` (``OK``, or a gRPC code; ``BEGUN``
before a command does anything), ``detail`` (why it was refused), ``bytes_in``, ``bytes_out`` and ``seconds``. Neither
values of a state nor keys are in it, nor what a URL may keep secret.
"""

from __future__ import annotations

import getpass
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from checkmate_common.files.rotating_file import LogLimits
from shadow_rx.logs.line_log import LineLog
from shadow_rx.redaction import redacted
from shadow_rx.status.health import Part

VARIABLE = "CHECKMATE_ACCESS_LOG"
"""Environment variable with the file that commands log to, where none is named."""
BEGUN = "BEGUN"
"""Result of the line that a command writes before it uses a store."""
_LONGEST = 200
"""Characters of a text that a client chose; a log must not grow by what is refused."""


@dataclass
class Access:
    """One use; filled in as it goes on."""

    who: str
    """Who."""
    what: str
    """RPC or command."""
    on: str
    """Shadow node or store."""
    peer: str | None = None
    """Address of the client."""
    group: str | None = None
    """DP group."""
    step: int | None = None
    """Step that it is about."""
    result: str = "OK"
    """``OK`` or what went wrong, in a word."""
    detail: str | None = None
    """Why it was refused."""
    bytes_in: int = 0
    """Size of what the client sent."""
    bytes_out: int = 0
    """Size of what it got."""


class AccessLog:
    """Appends to a file that its owner alone can read; may be used from several threads and processes."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.time,
        limits: LogLimits = LogLimits(),  # noqa: B008
    ) -> None:
        """Open `path`; its folder is made where it is missing.

        Args:
            path: the file.
            clock: seconds since 1970.
            limits: when a new file is begun.

        Raises:
            OSError: it cannot be written.
        """
        self.path = path
        """The file."""
        self._lines = LineLog(path, limits)
        self._clock = clock
        self._lock = threading.Lock()
        self._lost_before = 0
        self._lost = 0
        self._trouble: str | None = None

    def write(self, access: Access, seconds: float | None = None) -> None:
        """Append `access`, which took so many `seconds` where that is known.

        A failure to write is counted, and told in the next line: serving goes on when a disk is full.
        """
        fields = {key: _shown(value) for key, value in asdict(access).items() if value is not None}
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds"),
            **fields,
        }
        if seconds is not None:
            line["seconds"] = round(seconds, 6)
        with self._lock:
            if self._lost_before:
                line["lost_before"] = self._lost_before
            try:
                self._lines.append(line)
            except OSError as error:
                self._lost_before += 1
                self._lost += 1
                self._trouble = str(error)
            else:
                self._lost_before, self._trouble = 0, None

    def part(self) -> Part:
        """Return how it is."""
        with self._lock:
            return Part("access log", self._trouble, self._lost)

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def _shown(value: object) -> object:
    """Return `value` without what URLs of stores may hold: passwords and signatures; texts not too long."""
    if not isinstance(value, str):
        return value
    value = redacted(value)
    return f"{value[:_LONGEST]}..." if len(value) > _LONGEST else value


@contextmanager
def logged_use(path: Path | None, what: str, on: str, group: str | None = None) -> Iterator[Access]:
    """Log the use of a store by a command to `path`, else to the file of the environment, else nowhere.

    A line is written before anything is used, with the result `BEGUN`, and one with the outcome. What the
    command learns (step, bytes) it adds to the `Access`. An exception is logged with its type, and goes on.

    Raises:
        OSError: the log cannot be written: then nothing is used. Or the second line could not be.
    """
    named = os.environ.get(VARIABLE)
    path = path if path is not None or not named else Path(named)
    access = Access(f"user {_user()}@{socket.gethostname()}", what, on, group=group)
    if path is None:
        yield access
        return
    log = AccessLog(path)
    with closing(log):
        _must_write(log, replace(access, result=BEGUN))
        begun = time.monotonic()
        try:
            yield access
        except BaseException as error:
            if access.result == "OK":
                access.result = type(error).__name__
                access.detail = str(error) or None
            log.write(access, time.monotonic() - begun)
            raise
        _must_write(log, access, time.monotonic() - begun)


def _must_write(log: AccessLog, access: Access, seconds: float | None = None) -> None:
    log.write(access, seconds)
    trouble = log.part().trouble
    if trouble is not None:
        raise OSError(f"the access log {log.path} cannot be written: {trouble}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in containers
        return str(os.getuid())
