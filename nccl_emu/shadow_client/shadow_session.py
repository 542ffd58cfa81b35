"""What one rank tells one shadow node over one communicator, and what that node asks for in return.

No threads, no clocks: what could not be sent waits, in order, until `flush` is called again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from checkmate_common.sidechannel.side_channel_pb2 import AttachRequest, ChangeRequest, Status, StepRecord
from nccl_emu.errors import SideChannelError
from nccl_emu.shadow_client.side_channel import SideChannel

MAX_WAITING = 1024
"""Records kept while the shadow does not answer; later ones are lost (and their steps no recovery points)."""
LAST_ATTEMPTS = 3
"""How often a shadow is told the last step while it is no recovery point: it may die of it, or meanwhile, once more."""
_PASSING = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
"""gRPC codes of a shadow that is not there at the moment: to be tried again."""


@dataclass(frozen=True)
class _State:
    step: int
    data: bytes
    final: bool


class ShadowSession:
    """Survives restarts of the shadow: announces the communicator and its flows again where the shadow forgot them.

    Everything that is sent may be sent twice, because a reply can be lost; the shadow knows what it has.
    """

    def __init__(
        self,
        channel: SideChannel,
        group: str,
        epoch: int,
        flows: Sequence[tuple[int, int]],
        on_lost: Callable[[int, str], None],
        attach: AttachRequest | None = None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            channel: to the shadow node.
            group: the DP group.
            epoch: incarnation of the communicator.
            flows: (flow id, source port) of this rank's connections.
            on_lost: called with step and reason for each record that the shadow will not get.
            attach: how rank 0 announces the communicator, None for the other ranks.
        """
        self._channel = channel
        self._group = group
        self._epoch = epoch
        self._flows = tuple(flows)
        self._on_lost = on_lost
        self._attach = attach
        self._newest = attach.first_step - 1 if attach is not None else 0
        self._waiting: deque[StepRecord | _State] = deque()
        self._listed: StepRecord | None = None
        self._last: StepRecord | None = None
        self._unannounced: deque[ChangeRequest] = deque()
        self._state_from: int | None = None
        self._uploading = False

    def begin(self, state: Callable[[], bytes]) -> None:
        """Announce the communicator (rank 0), with the state before its first step where that is needed.

        Raises:
            SideChannelError: the shadow is not there, or refuses.
        """
        if self._attach is not None and self._channel.attach(self._attach).need_state:
            self._channel.upload_state(self._group, self._epoch, state())

    def announce(self) -> None:
        """Announce the source ports of this rank's connections, before their SYNs leave.

        Raises:
            SideChannelError: the shadow is not there, or refuses. Not where it was started again since the
                communicator was announced: the reply to a record will ask for the ports.
        """
        try:
            for flow_id, source_port in self._flows:
                self._channel.open_flow(self._group, self._epoch, flow_id, source_port)
        except SideChannelError as error:
            if not self._forgotten(error):
                raise

    @property
    def forgotten(self) -> bool:
        """Whether the shadow was started again since the communicator was announced, as far as it can be asked."""
        try:
            return self._channel.status(self._group).epoch < self._epoch
        except SideChannelError:
            return False

    @property
    def waiting(self) -> int:
        """How much is not sent yet."""
        return len(self._waiting)

    def offer(self, record: StepRecord) -> None:
        """Take a record to be sent; where too many wait it is lost."""
        self._newest = max(self._newest, record.step)
        if len(self._waiting) >= MAX_WAITING:
            self._on_lost(record.step, f"{MAX_WAITING} records wait already")
        else:
            self._waiting.append(record)
        self._last = record

    def offer_again(self) -> None:
        """Queue the last record once more where nothing waits: a shadow that was started again has lost it."""
        if self._last is not None and not self._waiting:
            self._waiting.append(self._last)

    def is_replicated(self, step: int, status: Status) -> bool:
        """Tell whether a shadow with this status has a recovery point of `step`, or of a later one, of this epoch."""
        return status.epoch == self._epoch and status.replica_step >= step

    def offer_end(self, step: int, state: Callable[[], bytes] | None) -> None:
        """Queue what a shadow needs that has no recovery point of the last step, where nothing waits.

        Args:
            step: the last step.
            state: gives the state after it, a safetensors file; None where it is not uploaded.
        """
        if not self._waiting:
            self.offer_again()
            if state is not None:
                self.offer_state(step, state(), final=True)

    def change(self, request: ChangeRequest) -> None:
        """Announce another optimizer or layout at once (rank 0), before any rank begins its first step.

        Where the shadow is not there it is announced again before anything else is sent, and to a shadow that was
        started again. The shadow loses steps then, whose bytes it could not place, but publishes no wrong one.
        """
        assert self._attach is not None, "rank 0 announces"
        attach = AttachRequest()
        attach.CopyFrom(self._attach)
        attach.changes.append(request)
        self._attach = attach  # replaced as a whole: `flush` may run in another thread
        self._unannounced.append(request)
        with suppress(SideChannelError):
            self._announce_changes()

    def _announce_changes(self) -> None:
        while self._unannounced:
            request = self._unannounced[0]
            try:
                self._channel.change(request)
            except SideChannelError as error:
                if error.code in _PASSING or self._forgotten(error):
                    raise
                self._on_lost(request.effective_step, str(error))
            if self._unannounced and self._unannounced[0] is request:
                self._unannounced.popleft()

    def wants_state(self, step: int) -> bool:
        """Tell whether the shadow asks for the state after `step`."""
        return self._attach is not None and not self._uploading and step >= (self._state_from or step + 1)

    def offer_state(self, step: int, state: bytes, *, final: bool = False) -> None:
        """Take the state after `step` to be sent: a copy, which training does not change any more.

        Args:
            step: newest step of the state.
            state: a safetensors file.
            final: no step will be trained after it.
        """
        self._uploading = True
        self._waiting.append(_State(step, state, final))

    def flush(self) -> bool:
        """Send what waits; returns False when the shadow is not there, and the rest has to wait."""
        while self._waiting:
            if not self.send_next():
                return False
        return True

    def send_next(self) -> bool:
        """Send the oldest message that waits; returns False when the shadow is not there, and it has to wait."""
        item = self._waiting[0]
        try:
            self._send(item)
        except SideChannelError as error:
            if self._may_pass(error):
                return False
            self._on_lost(item.step, str(error))
        self._waiting.popleft()
        if isinstance(item, _State):
            self._state_from, self._uploading = None, False
        return True

    def _send(self, item: StepRecord | _State) -> None:
        self._announce_changes()
        if isinstance(item, _State):
            self._channel.upload_state(self._group, self._epoch, item.data, item.step, final=item.final)
            return
        if item.state_objects:
            # A copy: `item` is told to other shadow nodes too, which may lack other things.
            self._listed = StepRecord(state_digest=item.state_digest, state_objects=item.state_objects)
        reply = self._channel.record_step(item)
        # A shadow that was started again has to be told what it was told before.
        if reply.flows_unknown:
            self.announce()
        if (
            reply.list_wanted
            and not item.state_objects
            and self._listed is not None
            and self._listed.state_digest == item.state_digest
        ):
            again = StepRecord()
            again.CopyFrom(item)
            again.state_objects.MergeFrom(self._listed.state_objects)
            reply = self._channel.record_step(again)
        self._state_from = reply.state_from if reply.state_wanted else None

    def _may_pass(self, error: SideChannelError) -> bool:
        """Tell whether to try again; first rank 0 announces the communicator anew to a shadow that has forgotten it."""
        if not self._forgotten(error):
            return error.code in _PASSING
        return self._attach is None or self._rejoin(self._attach)  # other ranks wait until rank 0 has announced it

    def rejoin_if_forgotten(self) -> None:
        """Announce the communicator anew to a shadow that has forgotten it, though nothing waits (rank 0).

        The other ranks' last records need it: they are refused until the communicator is known again.
        """
        if self._attach is not None and self.forgotten:
            self._rejoin(self._attach)

    def _rejoin(self, attach: AttachRequest) -> bool:
        """Announce the communicator anew; tell whether to try again what was refused."""
        attach.rejoin = True
        attach.current_step = self._newest
        try:
            self._channel.attach(attach)
        except SideChannelError as refusal:
            return refusal.code in _PASSING
        # What waits is sent with the next flush; the reply to the next record asks for the flows.
        return True

    def _forgotten(self, error: SideChannelError) -> bool:
        """Tell whether the shadow refuses because it was started again and knows nothing of this communicator."""
        if error.code != "FAILED_PRECONDITION":
            return False
        try:
            return self._channel.status(self._group).epoch < self._epoch
        except SideChannelError:
            return True  # it has just gone again
