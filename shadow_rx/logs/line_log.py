"""Logs of one JSON object a line, whole lines only; used by several threads, and several processes."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path

from checkmate_common.files.rotating_file import LogLimits, RotatingFile


class LineLog:
    """Appends lines to a file."""

    def __init__(self, path: Path, limits: LogLimits) -> None:
        """Open `path` for appending.

        Raises:
            OSError: it cannot be written.
        """
        self._file: RotatingFile | None = RotatingFile(path, limits)
        self._lock = threading.Lock()

    def append(self, fields: Mapping[str, object]) -> None:
        """Write a line; nothing once the log is closed.

        Raises:
            OSError: it could not be written.
        """
        data = (json.dumps(fields) + "\n").encode()
        with self._lock:
            if self._file is None:
                return
            self._file.make_room(len(data))
            try:
                self._file.write(data)
            except OSError:
                with contextlib.suppress(OSError):  # so that the next line does not continue this one
                    self._file.write(b"\n")
                raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
