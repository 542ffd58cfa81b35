"""Events of a run: the switch or shadow node is killed in the middle of training, then restarted or replaced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Self

from jobspec.model import Job
from topology.errors import TestbedError
from topology.simulation.step_option import parse_step_option


class EventKind(StrEnum):
    """What happens."""

    RESTART = "restart-switch"
    """The switch is killed and restarted empty at its address; its controller restores it."""
    FAILOVER = "failover-switch"
    """The switch is killed for good; a standby that the controller has prepared takes over."""
    RESTART_SHADOW = "restart-shadow"
    """The first shadow node is killed and restarted from its storage."""


@dataclass(frozen=True)
class SwitchEvent:
    """One event."""

    kind: EventKind
    """What happens."""
    step: int
    """Training step after which it happens: in the middle of the next step."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``KIND:STEP``.

        Raises:
            ValueError: another form; the message lists the allowed ones.
        """
        return cls(*parse_step_option(text, EventKind, "event"))

    def __str__(self) -> str:
        """Return the form that `parse` reads."""
        return f"{self.kind}:{self.step}"


class EventPlan:
    """The events of a run that have not happened yet."""

    def __init__(self, events: Iterable[SwitchEvent] = ()) -> None:
        """Plan `events`; each happens once."""
        self._events = sorted(events, key=lambda event: event.step)
        self.of_switch = any(event.kind is not EventKind.RESTART_SHADOW for event in self._events)
        """Whether an event concerns the switch, so that the run needs a controller."""
        self.needs_standby = any(event.kind is EventKind.FAILOVER for event in self._events)
        """Whether a standby switch has to be there from the start."""

    def __bool__(self) -> bool:
        """Return whether events remain."""
        return bool(self._events)

    def due(self, step: int) -> list[SwitchEvent]:
        """Return the events due now that `step` is finished, in order of steps, and forget them."""
        found = [event for event in self._events if event.step <= step]
        self._events = self._events[len(found) :]
        return found


def check_events(events: Sequence[SwitchEvent], job: Job, last_step: int) -> None:
    """Check that `events` can happen in a run of `job` up to `last_step`.

    Raises:
        TestbedError: an event cannot happen; the message names it.
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
