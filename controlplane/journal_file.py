"""The journal of connections as a file, so that a restarted controller knows the open ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from checkmate_common.files.regular_files import read_bounded
from controlplane.digests import FlowStart

_FORMAT = 1
_MAX_BYTES = 64 << 20
"""Maximum size of a journal file in bytes: far more than the maximum number of flows needs."""
_RANGES = {"flow_id": 1 << 16, "isn": 1 << 32, "src_port": 1 << 16, "dst_port": 1 << 16}


class JournalError(ValueError):
    """A journal cannot be used.

    Attributes:
        path: the file.
        reason: what is wrong.
    """

    def __init__(self, path: Path, reason: str) -> None:
        """Keep the fields."""
        self.path = path
        self.reason = reason
        super().__init__(f"journal {path}: {reason}")


def read_journal(path: Path) -> tuple[FlowStart, ...]:
    """Return the connections in `path`, none if there is no such file yet.

    Raises:
        JournalError: it cannot be read, is not a journal, or its folder does not exist.
    """
    try:
        text = read_bounded(path, _MAX_BYTES).decode()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise JournalError(path, "its folder does not exist") from None
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise JournalError(path, f"cannot be read: {error}") from error
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT:
            raise JournalError(path, f"format {document['format']!r}, expected {_FORMAT}")
        return tuple(_start(item) for item in document["connections"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, JournalError):
            raise
        raise JournalError(
            path, f"is not a journal of connections ({error!r}); delete it to start without one"
        ) from error


def write_journal(path: Path, starts: Iterable[FlowStart]) -> None:
    """Replace `path` by a journal of `starts`; a crash at any time leaves the old or the new one.

    Raises:
        OSError: the file cannot be written.
    """
    items = [
        {
            "flow_id": start.flow_id, "isn": start.isn, "src_addr": str(start.src_addr),
            "dst_addr": str(start.dst_addr), "src_port": start.src_port, "dst_port": start.dst_port,
        }
        for start in starts
    ]  # fmt: skip
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, "connections": items}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _start(item: dict[str, Any]) -> FlowStart:
    numbers = {}
    for name, limit in _RANGES.items():
        value = item[name]
        if type(value) is not int or not 0 <= value < limit:
            raise ValueError(f"{name} is {value!r}")
        numbers[name] = value
    return FlowStart(src_addr=IPv4Address(item["src_addr"]), dst_addr=IPv4Address(item["dst_addr"]), **numbers)
