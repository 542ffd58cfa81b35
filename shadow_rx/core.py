"""The shadow node as one pure object: captured packets and side-channel messages in, events and status out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from jobspec.model import Job
from packets.batch import PacketBatch
from placement.discard import Discard
from placement.segments import Segments
from shadow_rx.errors import Refusal, ShadowError
from shadow_rx.group.replica import GroupReplica
from shadow_rx.options import ShadowOptions
from shadow_rx.receive.replica_filter import Rejected, ReplicaFilter
from shadow_rx.status.events import Event
from shadow_rx.status.group_status import GroupStatus


class ShadowCore:
    """All groups of one job that one shadow node serves. Not thread-safe: its driver serialises calls.

    It shares out what is captured; everything else is said to a `group`. Times are seconds of any clock that does not
    run backwards; the core has none of its own.
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

    def on_frame(self, frame: bytes, now: float) -> list[Event]:
        """Take one captured frame (Ethernet, from the destination MAC on); return what it brought about.

        Any bytes are acceptable; frames that are no intact replica are counted by cause.
        """
        taken = self._filter.take(frame)
        if isinstance(taken, Rejected):
            self._discarded[taken.cause] += 1
            if taken.replica is not None:
                self._by_flow[taken.replica.flow_id].arrivals.on_damaged(taken.replica)
            return []
        group = self._by_flow[taken.flow_id]
        group.arrivals.on_replica(taken, now)
        return group.ledger.take_events()

    def segments(self, batch: PacketBatch) -> Iterator[tuple[str, Segments]]:
        """Yield what a batch of captured packets brings to each group; give it to `Arrivals.on_segments`.

        Any bytes are acceptable; packets that are no intact replica are counted by cause.
        """
        found = self._filter.select(batch, self._discarded)
        for name, group in self._groups.items():
            mine = [flow_id for flow_id, of in self._by_flow.items() if of is group]
            segments = found if len(self._groups) == 1 else found.of_flows(mine)
            if len(segments):
                yield name, segments

    def count_kernel_drops(self, count: int) -> None:
        """Add `count` frames that the kernel dropped before they could be captured."""
        self._discarded[Discard.KERNEL_DROP] += count
        for group in self._groups.values():
            group.arrivals.on_dropped(count)

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
