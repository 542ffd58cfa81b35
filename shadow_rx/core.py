"""The shadow node as one pure object: captured packets and side-channel messages in, events and status out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from jobspec.model import Job
from jobspec.sidechannel import side_channel_pb2 as pb
from packets.batch import PacketBatch
from placement.discard import Discard
from placement.segments import Segments
from shadow_rx.apply.upload import PreparedState, UploadPlan, prepare
from shadow_rx.errors import Refusal, ShadowError
from shadow_rx.group.history import History
from shadow_rx.group.replica import GroupReplica
from shadow_rx.options import ShadowOptions
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.receive.replica_filter import Rejected, ReplicaFilter
from shadow_rx.status.group_status import Event, Gap, GroupStatus, StepReport


class ShadowCore:
    """All groups of one job that one shadow node serves. Not thread-safe: its driver serialises calls.

    Times are seconds of any clock that does not run backwards; the core has none of its own.
    """

    def __init__(self, job: Job, shadow: str, options: ShadowOptions | None = None) -> None:
        """Serve the groups of `job` that name `shadow` among their shadows.

        Raises:
            ShadowError: the job has no such shadow node.
        """
        options = options or ShadowOptions()
        if shadow not in {node.name for node in job.shadows}:
            known = ", ".join(node.name for node in job.shadows)
            raise ShadowError(Refusal.NOT_FOUND, "shadow", f"job {job.name!r} has no shadow {shadow!r}; it has {known}")
        self.job = job
        """The job."""
        self.shadow = shadow
        """Name of this node."""
        self.options = options
        """Bounds of this node."""
        self._groups: dict[str, GroupReplica] = {}
        self._by_flow: dict[int, GroupReplica] = {}
        flows = [flow for flow in job.flows if shadow in flow.group.shadows]
        for group in job.groups:
            mine = [flow for flow in flows if flow.group.name == group.name]
            if mine:
                self._groups[group.name] = GroupReplica(job, group, mine, options)
                self._by_flow.update((flow.id, self._groups[group.name]) for flow in mine)
        self._filter = ReplicaFilter(job.shadow(shadow), flows)
        self._discarded: Counter[Discard] = Counter()

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups that this node serves."""
        return tuple(self._groups)

    def on_frame(self, frame: bytes, now: float) -> list[Event]:
        """Take one captured frame (Ethernet, from the destination MAC on); return what it brought about.

        Any bytes are acceptable; frames that are no intact replica are counted by cause.
        """
        taken = self._filter.take(frame)
        if isinstance(taken, Rejected):
            self._discarded[taken.cause] += 1
            if taken.replica is not None:
                self._by_flow[taken.replica.flow_id].on_damaged(taken.replica)
            return []
        group = self._by_flow[taken.flow_id]
        group.on_replica(taken, now)
        return group.take_events()

    def segments(self, batch: PacketBatch) -> Iterator[tuple[str, Segments]]:
        """Yield what a batch of captured packets brings to each group; give it to `GroupReplica.on_segments`.

        Any bytes are acceptable; packets that are no intact replica are counted by cause.
        """
        found = self._filter.select(batch, self._discarded)
        for name, group in self._groups.items():
            mine = [flow_id for flow_id, of in self._by_flow.items() if of is group]
            segments = found if len(self._groups) == 1 else found.of_flows(mine)
            if len(segments):
                yield name, segments

    def on_batch(self, batch: PacketBatch, now: float) -> list[Event]:
        """Take a batch of captured packets; return what it brought about."""
        events: list[Event] = []
        for name, segments in self.segments(batch):
            self._groups[name].on_segments(segments, now)
            events += self._groups[name].take_events()
        return events

    def count_kernel_drops(self, count: int) -> None:
        """Add `count` frames that the kernel dropped before they could be captured."""
        self._discarded[Discard.KERNEL_DROP] += count
        for group in self._groups.values():
            group.on_dropped(count)

    def attach(self, message: pb.AttachRequest) -> bool:
        """Begin an epoch of a group; tell whether its state has to be uploaded (`GroupReplica.attach`).

        Raises:
            ShadowError: see there, or an unknown group.
        """
        return self.group(message.group).attach(message)

    def resume(self, group: str, points: Iterable[tuple[int, int]], losses: Iterable[tuple[int, Gap]] = ()) -> None:
        """Learn which recovery points of a group are on storage, and what was lost (`GroupReplica.resume`).

        Raises:
            ShadowError: an unknown group.
        """
        self.group(group).resume(points, losses)

    def adopt(self, snapshot: Snapshot, peer: str, now: float) -> list[Event]:
        """Take a recovery point that another shadow node gave (`GroupReplica.adopt`); return what it brought about.

        Raises:
            ShadowError: see there, or an unknown group.
        """
        replica = self.group(snapshot.group)
        replica.adopt(snapshot, peer, now)
        return replica.take_events()

    def upload(
        self, group: str, epoch: int, data: bytes, now: float | None = None, step: int = 0, *, final: bool = False
    ) -> list[Event]:
        """Take the state after a step, a safetensors file that came whole; return what it brought about.

        A driver with several threads calls `plan_upload`, `shadow_rx.apply.upload.prepare` and `take_upload`.

        Raises:
            ShadowError: see there, or an unknown group.
        """
        return self.take_upload(group, prepare(self.plan_upload(group, epoch, step), data), now, final=final)

    def plan_upload(self, group: str, epoch: int, step: int) -> UploadPlan:
        """Return what the state after `step` has to be (`GroupReplica.plan_upload`).

        Raises:
            ShadowError: see there, or an unknown group.
        """
        return self.group(group).plan_upload(epoch, step)

    def take_upload(
        self, group: str, state: PreparedState, now: float | None = None, *, final: bool = False
    ) -> list[Event]:
        """Take a state (`GroupReplica.take_upload`); return what it brought about: nothing if it is not needed.

        Raises:
            ShadowError: see there, or an unknown group.
        """
        replica = self.group(group)
        replica.take_upload(state, now, final=final)
        return replica.take_events()

    def change(self, message: pb.ChangeRequest) -> None:
        """Learn of another optimizer or layout (`GroupReplica.change`).

        Raises:
            ShadowError: see there, or an unknown group.
        """
        self.group(message.group).change(message)

    def expect_no_state(self, group: str, epoch: int) -> None:
        """Learn that a state that was planned does not come (`GroupReplica.expect_no_state`).

        Raises:
            ShadowError: see there, or an unknown group.
        """
        self.group(group).expect_no_state(epoch)

    def asks(self, group: str, rank: int) -> pb.RecordReply:
        """Return what is needed of a rank of a group.

        Raises:
            ShadowError: an unknown group.
        """
        return self.group(group).asks(rank)

    def open_flow(self, message: pb.OpenFlowRequest) -> None:
        """Learn a connection's source port (`GroupReplica.open_flow`).

        Raises:
            ShadowError: see there, or an unknown group.
        """
        self.group(message.group).open_flow(message.epoch, message.flow_id, message.source_port)

    def record(self, message: pb.StepRecord, now: float | None = None) -> list[Event]:
        """Take a rank's record of a step (`GroupReplica.record`); return what it brought about.

        Raises:
            ShadowError: see there, or an unknown group.
        """
        replica = self.group(message.group)
        replica.record(message, now)
        return replica.take_events()

    def status(self, group: str, now: float | None = None) -> GroupStatus:
        """Return a group's status; frames that belong to no flow are counted in every group's.

        Lags are those at `now`, or where it is None at the newest time that the core was told.

        Raises:
            ShadowError: an unknown group.
        """
        status = self.group(group).status(now)
        discarded = Counter(dict(status.discarded))
        discarded.update({str(cause): count for cause, count in self._discarded.items() if count})
        return replace(status, discarded=dict(sorted(discarded.items())))

    def explain(self, group: str, step: int) -> Gap | None:
        """Return why a step is not a recovery point on storage (`GroupReplica.explain`).

        Raises:
            ShadowError: an unknown group.
        """
        return self.group(group).explain(step)

    def settled(self, group: str, step: int) -> bool:
        """Tell whether a step is a recovery point or can never be one in the present epoch.

        Raises:
            ShadowError: an unknown group.
        """
        return self.group(group).settled(step)

    def reports(self, group: str) -> list[StepReport]:
        """Return how the remembered recovery points came about, oldest first.

        Raises:
            ShadowError: an unknown group.
        """
        return self.group(group).reports()

    def held(self, group: str, step: int) -> Snapshot | None:
        """Return a recovery point from memory (step 0: the newest), None when it is not there.

        Raises:
            ShadowError: an unknown group.
        """
        return self.group(group).held(step)

    def history(self, group: str) -> History:
        """Return a group's history, where its driver notes what became of recovery points on storage.

        Raises:
            ShadowError: an unknown group.
        """
        return self.group(group).history

    def group(self, name: str) -> GroupReplica:
        """Return the replica of a group.

        Raises:
            ShadowError: this node does not serve such a group.
        """
        try:
            return self._groups[name]
        except KeyError:
            known = ", ".join(self._groups) or "none"
            message = f"shadow {self.shadow!r} serves no group {name!r}; it serves {known}"
            raise ShadowError(Refusal.NOT_FOUND, "group", message) from None
