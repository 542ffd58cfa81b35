"""A shadow node that also keeps what it is told in a file, so that captures of its replicas can be replayed."""

from __future__ import annotations

from jobspec.sidechannel import side_channel_pb2 as pb
from jobspec.sidechannel.limits import CHUNK_BYTES
from jobspec.sidechannel.log import Message, SideChannelLog
from shadow_rx.core import ShadowCore
from shadow_rx.node import Clock, Observer, ShadowNode
from shadow_rx.publisher import Publisher
from shadow_rx.upload import PreparedState


class LoggedShadowNode(ShadowNode):
    """A `ShadowNode` that logs every message of the side channel that it has accepted."""

    def __init__(
        self,
        core: ShadowCore,
        clock: Clock,
        log: SideChannelLog,
        publisher: Publisher | None = None,
        observe: Observer | None = None,
    ) -> None:
        """Drive `core`, see `ShadowNode`; `log` stays its caller's to close."""
        super().__init__(core, clock, publisher, observe)
        self._log = log
        self.log_error: str | None = None
        """Why logging has stopped, None while it goes on."""

    def attach(self, message: pb.AttachRequest) -> bool:
        """See `ShadowCore.attach`."""
        with self._lock:
            need_state = super().attach(message)
            self._keep(message)
            return need_state

    def _take_upload(self, header: pb.StateHeader, data: bytes, state: PreparedState) -> bool:
        with self._lock:
            adopted = super()._take_upload(header, data, state)
            # Only what was of use: the shadow refuses, or does not need, the others in a replay too.
            for start in range(0, max(1, len(data)) if adopted else 0, CHUNK_BYTES):
                self._keep(pb.StateChunk(header=header, data=data[start : start + CHUNK_BYTES]))
            return adopted

    def open_flow(self, message: pb.OpenFlowRequest) -> None:
        """See `ShadowCore.open_flow`."""
        with self._lock:
            super().open_flow(message)
            self._keep(message)

    def change(self, message: pb.ChangeRequest) -> None:
        """See `ShadowCore.change`."""
        with self._lock:
            super().change(message)
            self._keep(message)

    def record(self, message: pb.StepRecord) -> None:
        """See `ShadowCore.record`."""
        with self._lock:
            super().record(message)
            self._keep(message)

    def _keep(self, message: Message) -> None:
        # A full disk ends the log, never the replication.
        if self.log_error is None:
            try:
                self._log.append(message)
            except OSError as error:
                self.log_error = str(error)
