"""Events that a run is asked for: switch or shadow node are killed in the middle of training, restarted or replaced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Self

from jobspec.model import Job
from topology.errors import TestbedError
from topology.simulation.timed import parse_timed


class EventKind(StrEnum):
    """What happens."""

    RESTART = "restart-switch"
    """The switch is killed and started again at its address, with nothing in it; its controller restores it."""
    FAILOVER = "failover-switch"
    """The switch is killed for good; all go on through a standby that the controller has prepared."""
    RESTART_SHADOW = "restart-shadow"
    """The first shadow node is killed and started again with what it has on storage."""


@dataclass(frozen=True)
class SwitchEvent:
    """One event."""

    kind: EventKind
    """What happens."""
    step: int
    """Training step after which it happens (when rank 0 has finished it, in the middle of the next one)."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``KIND:STEP``.

        Raises:
            ValueError: another form; says what was expected.
        """
        return cls(*parse_timed(text, EventKind, "event"))

    def __str__(self) -> str:
        """Return the form that `parse` reads."""
        return f"{self.kind}:{self.step}"


class EventPlan:
    """The events that are still to come."""

    def __init__(self, events: Iterable[SwitchEvent] = ()) -> None:
        """Plan `events`; each happens once."""
        self._events = sorted(events, key=lambda event: event.step)
        self.of_switch = any(event.kind is not EventKind.RESTART_SHADOW for event in self._events)
        """Whether something happens to the switch, so that it needs a controller of its own."""
        self.needs_standby = any(event.kind is EventKind.FAILOVER for event in self._events)
        """Whether a standby switch has to be there from the start."""

    def __bool__(self) -> bool:
        """Return whether anything is to come."""
        return bool(self._events)

    def due(self, step: int) -> list[SwitchEvent]:
        """Return (and forget) what happens now that `step` is finished, in order of steps."""
        found = [event for event in self._events if event.step <= step]
        self._events = self._events[len(found) :]
        return found


def check_events(events: Sequence[SwitchEvent], job: Job, last_step: int) -> None:
    """Check that `events` can happen in a run of `job` up to `last_step`.

    Raises:
        TestbedError: one cannot; says which and why.
    """
    if EventPlan(events).of_switch and len(job.switches) > 1:
        raise TestbedError("event", f"job {job.name!r} has {len(job.switches)} switches",
                           "events of a switch are for jobs with one")  # fmt: skip
    ordered = sorted(events, key=lambda event: event.step)
    for event in ordered:
        if event.step >= last_step:
            raise TestbedError("event", f"{event} is not before the last step {last_step}")
    for before, after in pairwise(ordered):
        if before.step == after.step:
            raise TestbedError("event", f"{before} and {after} are at the same step")
    of_switch = [event for event in ordered if event.kind is not EventKind.RESTART_SHADOW]
    for before, after in pairwise(of_switch):
        if before.kind is EventKind.FAILOVER:
            raise TestbedError("event", f"{after} comes after {before}, and there is one standby only")
