"""A file of the side-channel messages that a shadow node accepted: what replaying a capture also needs.

Format: 8 bytes ``CKMTSC`` + version (2 bytes, big-endian), then entries. Each is 9 bytes, big-endian -- kind (1),
length of the message (4), CRC32C of those 5 bytes and the message (4) -- and the message in protobuf's wire format.
Kinds: 1 `AttachRequest`, 2 `StateChunk`, 3 `OpenFlowRequest`, 4 `StepRecord`, 5 `ChangeRequest`. Entries are only
appended, so after a kill the file is readable up to the entry that was being written. Each session of a shadow node
begins with the 8 bytes; a restarted node first cuts off the unfinished entry of the previous session.

A file that is too large is renamed (`RotatingFile`). The next one begins with the messages in force for each
group (attach, changes, source ports), so that it can be replayed from a recovery point without the older ones.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError

from checkmate_common.files.regular_files import regular
from checkmate_common.files.rotating_file import LogLimits, RotatingFile
from checkmate_common.sidechannel.limits import MAX_MESSAGE_BYTES
from checkmate_common.sidechannel.side_channel_pb2 import (
    AttachRequest,
    ChangeRequest,
    OpenFlowRequest,
    StateChunk,
    StepRecord,
)
from checkmate_common.stream.frame import crc32c

Message = AttachRequest | StateChunk | OpenFlowRequest | StepRecord | ChangeRequest
"""Types of messages that are logged."""
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
_IN_FORCE = (AttachRequest, ChangeRequest, OpenFlowRequest)
"""Types that stay in force until a group attaches again."""


class SideChannelLogError(ValueError):
    """A log is damaged at `offset`; all complete entries before it were returned first."""

    def __init__(self, path: Path, offset: int, problem: str) -> None:
        """Keep the file, the byte offset of the entry, and the problem."""
        self.path = path
        self.offset = offset
        self.problem = problem
        super().__init__(f"{path}: at byte {offset}: {problem}")


@dataclass(frozen=True)
class LogEntry:
    """One logged message."""

    offset: int
    """Its byte offset in the file, for `read_entry`."""
    message: Message
    """The message."""
    session: int = 0
    """Session of the shadow node, from 0 in each file."""


@dataclass(frozen=True)
class PackedEntry:
    """A serialized message, independent of later changes to the message."""

    group: str
    """Its DP group."""
    kind: type[Message]
    """Its type."""
    entry: bytes
    """The whole entry."""


def pack(message: Message) -> PackedEntry:
    """Return `message` in the form of an entry."""
    data = message.SerializeToString()
    head = _HEAD.pack(_KIND_OF[type(message)], len(data))
    group = message.header.group if isinstance(message, StateChunk) else message.group
    return PackedEntry(group, type(message), head + _CRC.pack(crc32c(head + data)) + data)


class SideChannelLog:
    """Writes a log. Not thread-safe."""

    def __init__(self, path: Path, limits: LogLimits = LogLimits()) -> None:  # noqa: B008
        """Begin a session at the end of the log at `path`; file and folder are created if missing.

        Both are private. A log that is damaged before its end is renamed like one that is too large.

        Raises:
            SideChannelLogError: the file is not a side-channel log.
            OSError: it cannot be written.
        """
        self._file = RotatingFile(path, limits)
        self._in_force: dict[str, list[PackedEntry]] = {}
        try:
            end = _end(path) if self._file.size else 0
            if end is None:
                self._file.rotate()
            elif end < self._file.size:
                self._file.cut(end)
            self._put(_MAGIC)
        except BaseException:
            self._file.close()
            raise

    def append(self, messages: Iterable[PackedEntry], nbytes: int = 0) -> None:
        """Write messages, of about `nbytes` bytes in total, into one file; a reader sees each completely or not at all.

        Raises:
            OSError: one cannot be written; those before it were written.
        """
        if self._file.make_room(nbytes):
            self._put(_MAGIC + b"".join(known.entry for kept in self._in_force.values() for known in kept))
        for message in messages:
            self._put(message.entry)
            self._remember(message)

    def _remember(self, message: PackedEntry) -> None:
        kept = self._in_force.setdefault(message.group, [])
        if message.kind is AttachRequest:
            kept.clear()
        if message.kind in _IN_FORCE and message not in kept:
            kept.append(message)

    def _put(self, data: bytes) -> None:
        before = self._file.size
        try:
            self._file.write(data)
        except OSError:
            # A partial entry would make everything after it unreadable.
            with contextlib.suppress(OSError):
                self._file.cut(before)
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _end(path: Path) -> int | None:
    """Return the offset at which the complete entries of a log end; None if one before the last is damaged.

    Raises:
        SideChannelLogError: not a side-channel log.
    """
    with open(path, "rb", opener=regular) as file:
        _check_magic(file, path)
        size = os.fstat(file.fileno()).st_size
        while True:
            at = file.tell()
            if file.read(len(_MAGIC)) == _MAGIC:
                continue
            file.seek(at)
            try:
                if _read(file, path, at) is None:
                    return at
            except SideChannelLogError:
                file.seek(at)
                head = file.read(_HEAD.size)
                kind, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
                # A killed process or a power cut can only tear the last one.
                torn = len(head) < _HEAD.size or (kind in _KINDS and at + _ENTRY_BYTES + length >= size)
                return at if torn else None


def _check_magic(file: BinaryIO, path: Path) -> None:
    magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        raise SideChannelLogError(path, 0, f"is not a side-channel log of version {VERSION}: it begins with {magic!r}")


def read_log(path: Path) -> Iterator[LogEntry]:
    """Yield the entries of the log at `path`, in order.

    Raises:
        SideChannelLogError: not a side-channel log, or damaged; complete entries before the damage are yielded first.
        OSError: it cannot be opened or read.
    """
    session = 0
    with open(path, "rb", opener=regular) as file:
        _check_magic(file, path)
        while True:
            offset = file.tell()
            if file.read(len(_MAGIC)) == _MAGIC:
                session += 1
                continue
            file.seek(offset)
            message = _read(file, path, offset)
            if message is None:
                return
            yield LogEntry(offset, message, session)


def read_entry(path: Path, offset: int) -> Message:
    """Return the message of the entry at `offset`.

    Raises:
        SideChannelLogError: there is no complete entry.
        OSError: the file cannot be opened or read.
    """
    with open(path, "rb", opener=regular) as file:
        file.seek(offset)
        message = _read(file, path, offset)
    if message is None:
        raise SideChannelLogError(path, offset, "the file ends before this entry")
    return message


def _read(file: BinaryIO, path: Path, offset: int) -> Message | None:
    entry = file.read(_ENTRY_BYTES)
    if not entry:
        return None
    if len(entry) < _ENTRY_BYTES:
        raise SideChannelLogError(path, offset, "the file ends within the header of an entry")
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
        raise SideChannelLogError(path, offset, f"the entry's message is invalid: {error}") from error
    return message
