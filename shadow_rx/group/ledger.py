"""What became of a group's steps, and the events that tell of it. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from shadow_rx.group.history import History
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.events import Event, StateAdopted, StepLost, StepReplicated, StepResynced
from shadow_rx.status.group_status import Gap, StepReport
from shadow_rx.status.health import Totals


class Ledger:
    """History, recovery points in memory, totals and events of one group, kept in step with each other."""

    def __init__(self, group: str, hold: int) -> None:
        """Keep the ledger of `group`, with at most `hold` recovery points in memory."""
        self.history = History()
        """Which steps are recovery points, on storage, or lost; the driver notes what happens on storage."""
        self._group = group
        self._held: deque[Snapshot] = deque(maxlen=hold)
        self._events: list[Event] = []
        self._totals = Totals()

    def add(self, event: Event) -> None:
        """Have `event` told."""
        self._events.append(event)

    def take_events(self) -> list[Event]:
        """Return what happened since the last call."""
        events, self._events = self._events, []
        return events

    def begin(self, epoch: int, first_step: int) -> None:
        """Begin an epoch at `first_step`."""
        if epoch <= self.history.epoch:
            # Another run's points were found on storage: its steps are not this one's.
            self.history = History()
        self.history.begin(epoch, first_step)

    def lost(self, epoch: int, gaps: Iterable[Gap]) -> None:
        """Note steps that cannot become recovery points; what is known already is not told again."""
        self._events += [StepLost(self._group, epoch, gap) for gap in gaps if self.history.lost(gap)]

    def published(self, snapshot: Snapshot, report: StepReport) -> None:
        """Note a recovery point."""
        self._held.append(snapshot)
        self.history.replicated(report)
        self._totals = replace(
            self._totals,
            replicated_steps=self._totals.replicated_steps + 1,
            repaired_bytes=self._totals.repaired_bytes + report.repaired_bytes,
            peer_bytes=self._totals.peer_bytes + report.peer_bytes,
        )
        self._events.append(StepReplicated(snapshot, report))

    def adopted(self, event: StateAdopted, report: StepReport) -> None:
        """Note a recovery point that another shadow node gave, before the first attach."""
        self._held.append(event.snapshot)
        self.history.adopt(report)
        self._events.append(event)

    def resynced(self, event: StepResynced) -> None:
        """Note that the trainer's state ended a loss."""
        self._totals = replace(self._totals, resyncs=self._totals.resyncs + 1)
        self._events.append(event)

    @property
    def points(self) -> tuple[Snapshot, ...]:
        """Recovery points in memory, oldest first; those of an abandoned history too."""
        return tuple(self._held)

    def point(self, step: int) -> Snapshot | None:
        """Return a recovery point of the current history from memory (0: the newest), None when it is not there."""
        wanted = step or self.history.replica_step
        if not self.history.is_replicated(wanted):
            return None
        return next((snapshot for snapshot in reversed(self._held) if snapshot.step == wanted), None)

    @property
    def totals(self) -> Totals:
        """All counts."""
        history = self.history
        return replace(
            self._totals,
            stored_steps=history.stored_total,
            lost_steps={str(reason): count for reason, count in sorted(history.lost_total.items())},
            unstored_steps={str(reason): count for reason, count in sorted(history.unstored_total.items())},
        )
