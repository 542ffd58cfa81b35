"""A file of side-channel messages, as one shadow node accepted them: what a capture lacks to be replayed.

Format: 8 bytes ``CKMTSC`` + version (2 bytes, big-endian), then entries. Each is 9 bytes, big-endian -- kind (1),
length of the message (4), CRC32C of those 5 bytes and the message (4) -- and the message in protobuf's wire format.
Kinds: 1 `AttachRequest`, 2 `StateChunk`, 3 `OpenFlowRequest`, 4 `StepRecord`, 5 `ChangeRequest`. Entries are only
appended, so that what a killed process leaves is readable up to the entry that it was writing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from google.protobuf.message import DecodeError

from jobspec.frame import crc32c
from jobspec.private_files import make_private_folder, private
from jobspec.sidechannel.limits import MAX_MESSAGE_BYTES
from jobspec.sidechannel.side_channel_pb2 import (
    AttachRequest,
    ChangeRequest,
    OpenFlowRequest,
    StateChunk,
    StepRecord,
)

Message = AttachRequest | StateChunk | OpenFlowRequest | StepRecord | ChangeRequest
"""What is logged."""
VERSION = 1
_MAGIC = b"CKMTSC" + VERSION.to_bytes(2, "big")
_HEAD = struct.Struct("!BI")
_CRC = struct.Struct("!I")
_ENTRY_BYTES = _HEAD.size + _CRC.size
_KINDS: dict[int, type[Message]] = {
    1: AttachRequest,
    2: StateChunk,
    3: OpenFlowRequest,
    4: StepRecord,
    5: ChangeRequest,
}
_KIND_OF = {kind: number for number, kind in _KINDS.items()}


class SideChannelLogError(ValueError):
    """A log that cannot be read (on); all whole entries before `offset` were handed out first."""

    def __init__(self, path: Path, offset: int, problem: str) -> None:
        """Keep the file, the byte offset of the entry, and what is wrong there."""
        self.path = path
        self.offset = offset
        self.problem = problem
        super().__init__(f"{path}: at byte {offset}: {problem}")


@dataclass(frozen=True)
class Entry:
    """One logged message."""

    offset: int
    """Where it begins in the file: `read_entry` finds it again."""
    message: Message
    """The message."""


class SideChannelLog:
    """Writes a log; may be used from several threads."""

    def __init__(self, path: Path) -> None:
        """Begin a new file at `path`; its folder is made where it is missing. Both are their owner's alone.

        Raises:
            OSError: it cannot be written.
        """
        make_private_folder(path.parent)
        self._lock = Lock()
        self._file = open(path, "wb", opener=private)  # noqa: SIM115 - `close` does
        self._file.write(_MAGIC)
        self._file.flush()

    def append(self, message: Message) -> None:
        """Write `message`; a reader sees all of it or nothing.

        Raises:
            OSError: it cannot be written.
        """
        data = message.SerializeToString()
        with self._lock:
            head = _HEAD.pack(_KIND_OF[type(message)], len(data))
            self._file.write(head + _CRC.pack(crc32c(head + data)) + data)
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_log(path: Path) -> Iterator[Entry]:
    """Yield the entries of the log at `path`, in order.

    Raises:
        SideChannelLogError: no such log, or after the whole entries before the damage.
        OSError: it cannot be opened or read.
    """
    with path.open("rb") as file:
        magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            raise SideChannelLogError(path, 0, f"is no side-channel log of version {VERSION}: it begins with {magic!r}")
        while True:
            offset = file.tell()
            message = _read(file, path, offset)
            if message is None:
                return
            yield Entry(offset, message)


def read_entry(path: Path, offset: int) -> Message:
    """Return the message whose entry begins at `offset`.

    Raises:
        SideChannelLogError: there is no whole entry.
        OSError: the file cannot be opened or read.
    """
    with path.open("rb") as file:
        file.seek(offset)
        message = _read(file, path, offset)
    if message is None:
        raise SideChannelLogError(path, offset, "the file ends where an entry was")
    return message


def _read(file: BinaryIO, path: Path, offset: int) -> Message | None:
    entry = file.read(_ENTRY_BYTES)
    if not entry:
        return None
    if len(entry) < _ENTRY_BYTES:
        raise SideChannelLogError(path, offset, "the file ends within the head of an entry")
    kind, length = _HEAD.unpack_from(entry)
    if kind not in _KINDS or length > MAX_MESSAGE_BYTES:
        raise SideChannelLogError(path, offset, f"an entry of kind {kind} with {length} bytes: the file is damaged")
    data = file.read(length)
    if len(data) < length:
        raise SideChannelLogError(path, offset, f"the file ends within an entry: {len(data)} of {length} bytes")
    if crc32c(entry[: _HEAD.size] + data) != _CRC.unpack_from(entry, _HEAD.size)[0]:
        raise SideChannelLogError(path, offset, "the entry's CRC32C does not match its bytes")
    message = _KINDS[kind]()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise SideChannelLogError(path, offset, f"the entry holds no such message: {error}") from error
    return message
