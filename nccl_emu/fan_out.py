"""One side channel to several shadow nodes: each is told everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobspec.recovery_point import RecoveryPoint
from jobspec.sidechannel.side_channel_pb2 import AttachReply, AttachRequest, Status, StepRecord
from nccl_emu.errors import SideChannelError
from nccl_emu.side_channel import SideChannel


class FanOutSideChannel:
    """Implements `SideChannel` on the channels to all shadow nodes of a group.

    A call reaches every node, also when one of them refuses; then the first error is raised.
    """

    def __init__(self, channels: Sequence[SideChannel]) -> None:
        """Speak to `channels`, one for each node.

        Raises:
            ValueError: there is none.
        """
        if not channels:
            raise ValueError("a group has at least one shadow node")
        self.channels = tuple(channels)
        """Channel of each node."""
        self._without_state = self.channels

    def attach(self, request: AttachRequest) -> AttachReply:
        """Announce a communicator; state is needed where one node needs it."""
        needing: list[SideChannel] = []

        def attach(channel: SideChannel) -> None:
            if channel.attach(request).need_state:
                needing.append(channel)

        self._each(attach)
        self._without_state = tuple(needing)
        return AttachReply(need_state=bool(needing))

    def upload_state(self, group: str, epoch: int, state: bytes) -> None:
        """Give the state to the nodes that asked for it when they were attached last."""
        self._each(lambda channel: channel.upload_state(group, epoch, state), self._without_state)

    def open_flow(self, group: str, epoch: int, flow_id: int, source_port: int) -> None:
        """Announce the source port of a connection."""
        self._each(lambda channel: channel.open_flow(group, epoch, flow_id, source_port))

    def record_step(self, record: StepRecord) -> None:
        """Tell what a rank knows of a finished step."""
        self._each(lambda channel: channel.record_step(record))

    def status(self, group: str) -> Status:
        """Return the status of the node that is furthest behind."""
        return _furthest_behind([channel.status(group) for channel in self.channels])

    def recovery_point(self, group: str, step: int = 0) -> RecoveryPoint:
        """Return the recovery point of `step` from the first node that has it (0: the first node's newest)."""
        errors: list[SideChannelError] = []
        for channel in self.channels:
            try:
                return channel.recovery_point(group, step)
            except SideChannelError as error:
                errors.append(error)
        raise errors[0]

    def wait_for_step(self, group: str, step: int, timeout: float) -> Status:
        """Wait for each node in turn; return the status of the one that is furthest behind."""
        return _furthest_behind([channel.wait_for_step(group, step, timeout) for channel in self.channels])

    def _each(self, call: Callable[[SideChannel], None], channels: Sequence[SideChannel] | None = None) -> None:
        errors: list[SideChannelError] = []
        for channel in self.channels if channels is None else channels:
            try:
                call(channel)
            except SideChannelError as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _furthest_behind(statuses: Sequence[Status]) -> Status:
    return min(statuses, key=lambda status: (status.epoch, status.replica_step, status.durable_step))
