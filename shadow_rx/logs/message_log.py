"""What a shadow node is told, kept in a file, so that captures of its replicas can be replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from checkmate_common.files.rotating_file import LogLimits
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel.limits import CHUNK_BYTES
from checkmate_common.sidechannel.log import Message, PackedEntry, SideChannelLog, pack
from shadow_rx.logs.log_queue import LogQueue
from shadow_rx.status.health import Part

Append = Callable[[], None]
"""Has a message appended that was prepared for it; quick, so that it can be called with a lock held."""
_Make = Callable[[], Iterator[PackedEntry]]


class MessageLog:
    """A side-channel log that is written by a thread of its own, in the order of the calls of `Append`."""

    def __init__(self, path: Path, limits: LogLimits = LogLimits()) -> None:  # noqa: B008
        """Begin a session of the log at `path`, see `SideChannelLog`."""
        self._log = SideChannelLog(path, limits)
        self._queue: LogQueue[tuple[_Make, int]] = LogQueue(
            "side-channel log", lambda item, _: self._log.append(item[0](), item[1])
        )

    def prepare(self, message: Message) -> Append:
        """Return what has `message` appended, as it is now."""
        packed = pack(message)
        return lambda: self._put(lambda: iter((packed,)), len(packed.entry))

    def prepare_state(self, header: pb.StateHeader, data: bytes) -> Append:
        """Return what has an uploaded state appended."""

        def pieces() -> Iterator[PackedEntry]:
            for start in range(0, max(1, len(data)), CHUNK_BYTES):
                yield pack(pb.StateChunk(header=header, data=data[start : start + CHUNK_BYTES]))

        return lambda: self._put(pieces, len(data))

    def _put(self, make: _Make, nbytes: int) -> None:
        self._queue.put((make, nbytes), nbytes)

    def part(self) -> Part:
        """Return how it is."""
        return self._queue.part()

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._queue.close()
        self._log.close()
