"""A shadow node that also keeps what it is told in a file, so that captures of its replicas can be replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from jobspec.rotating_file import LogLimits
from jobspec.sidechannel import side_channel_pb2 as pb
from jobspec.sidechannel.limits import CHUNK_BYTES
from jobspec.sidechannel.log import Message, Packed, SideChannelLog, pack
from shadow_rx.apply.upload import PreparedState
from shadow_rx.core import ShadowCore
from shadow_rx.logs.log_queue import LogQueue
from shadow_rx.node import Clock, Observer, ShadowNode
from shadow_rx.publish.publisher import Publisher
from shadow_rx.status.health import Part

_Make = Callable[[], Iterator[Packed]]


class MessageLog:
    """A side-channel log that is written by a thread of its own."""

    def __init__(self, path: Path, limits: LogLimits = LogLimits()) -> None:  # noqa: B008
        """Begin a session of the log at `path`, see `SideChannelLog`."""
        self._log = SideChannelLog(path, limits)
        self._queue: LogQueue[tuple[_Make, int]] = LogQueue(
            "side-channel log", lambda item, _: self._log.append(item[0](), item[1])
        )

    def keep(self, make: _Make, nbytes: int) -> None:
        """Have what `make` returns appended, `nbytes` in memory until then."""
        self._queue.put((make, nbytes), nbytes)

    def part(self) -> Part:
        """Return how it is."""
        return self._queue.part()

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._queue.close()
        self._log.close()


class LoggedShadowNode(ShadowNode):
    """A `ShadowNode` that logs every message of the side channel that it has accepted, in that order."""

    def __init__(
        self,
        core: ShadowCore,
        clock: Clock,
        log: MessageLog,
        publisher: Publisher | None = None,
        observe: Observer | None = None,
    ) -> None:
        """Drive `core`, see `ShadowNode`; `log` stays its caller's to close."""
        super().__init__(core, clock, publisher, observe)
        self._log = log

    def attach(self, message: pb.AttachRequest) -> bool:
        """See `ShadowCore.attach`."""
        packed = pack(message)  # not under the lock, and before the caller can change the message
        with self._lock:
            need_state = super().attach(message)
            self._keep(packed)
            return need_state

    def _take_upload(self, header: pb.StateHeader, data: bytes, state: PreparedState) -> bool:
        def pieces() -> Iterator[Packed]:
            for start in range(0, max(1, len(data)), CHUNK_BYTES):
                yield pack(pb.StateChunk(header=header, data=data[start : start + CHUNK_BYTES]))

        with self._lock:
            adopted = super()._take_upload(header, data, state)
            if adopted:  # the shadow refuses, or does not need, the others in a replay too
                self._log.keep(pieces, len(data))
            return adopted

    def open_flow(self, message: pb.OpenFlowRequest) -> None:
        """See `ShadowCore.open_flow`."""
        self._log_accepted(message, super().open_flow)

    def change(self, message: pb.ChangeRequest) -> None:
        """See `ShadowCore.change`."""
        self._log_accepted(message, super().change)

    def record(self, message: pb.StepRecord) -> None:
        """See `ShadowCore.record`."""
        self._log_accepted(message, super().record)

    def _log_accepted(self, message: Message, take: Callable[..., None]) -> None:
        packed = pack(message)
        with self._lock:
            take(message)
            self._keep(packed)

    def _keep(self, packed: Packed) -> None:
        self._log.keep(lambda: iter((packed,)), len(packed.entry))
