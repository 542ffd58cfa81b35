"""What a running controller has to do next: pure, from what happened to the next task of each switch.

The switches of one controller stand in for each other: all of them shall hold the same jobs, and each must know, of
every connection that is open, where its stream begins. A switch learns that from the SYN, and keeps it in registers
that die with it and that P4Runtime cannot write on every switch. So the controller keeps a journal of the connections
that the switches report, and writes into `flow_base` of each switch those that this switch did not see begin itself:
after a restart all of them, in a standby every new one at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controlplane.digests import ConnectionJournal, FlowStart, flow_base_entry
from controlplane.entities import SwitchState, TableEntry, is_replicate
from controlplane.pipeline import PipelineStatus
from p4src.names import MatchField, Param

FlowBase = frozenset[TableEntry]
"""Entries of the table `flow_base`."""


@dataclass(frozen=True)
class Connect:
    """Wait until the switch answers, and become its primary controller."""


@dataclass(frozen=True)
class Install:
    """Make the switch hold `state`, which has `flow_base` in it."""

    state: SwitchState
    """The jobs, and the connections that are open."""
    flow_base: FlowBase
    """The connections alone."""


@dataclass(frozen=True)
class Mirror:
    """Make `flow_base` hold exactly `flow_base`, and touch nothing else."""

    flow_base: FlowBase
    """The connections that the switch did not see begin."""


@dataclass(frozen=True)
class Idle:
    """Nothing to do until something happens."""


Task = Connect | Install | Mirror | Idle


class EventKind(StrEnum):
    """What a controller tells."""

    CONNECTED = "connected"
    """A switch answers and takes updates from this controller."""
    INSTALLED = "installed"
    """A switch holds everything that it must hold."""
    CONNECTION = "connection"
    """A switch saw a connection begin."""
    MIRRORED = "mirrored"
    """A switch was told of connections that it did not see begin."""
    LOST = "lost"
    """A switch that was ready has gone."""
    TROUBLE = "trouble"
    """A switch cannot be made ready; it is tried again."""


@dataclass(frozen=True)
class ControllerEvent:
    """Something that happened."""

    kind: EventKind
    """What."""
    switch: str
    """HOST:PORT of the switch."""
    at: float
    """When, in seconds of the caller's clock."""
    message: str
    """The same in words."""
    details: Mapping[str, int | float | str] = field(default_factory=dict)
    """Numbers and names, for programs."""

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON-ready values."""
        return {"event": str(self.kind), "switch": self.switch, "at": self.at, "message": self.message, **self.details}


class _Phase(StrEnum):
    DOWN = "down"
    CONNECTED = "connected"
    READY = "ready"


class _Switch:
    """What is known of one switch."""

    def __init__(self) -> None:
        self.phase = _Phase.DOWN
        self.seen: dict[int, FlowStart] = {}
        """Newest connection of each flow that it saw begin since it was connected: those its registers know."""
        self.held: FlowBase | None = None
        """What its `flow_base` holds; None while that is not known."""
        self.lost_at: float | None = None
        self.trouble: str | None = None


class ControllerCore:
    """Decides for all switches of one controller; not thread-safe, its driver serialises calls.

    For each switch the driver asks `next_task`, does it, and tells the outcome: `connected`, `installed`, `mirrored`
    or `lost`. Whenever a switch reports connections it calls `flow_starts`, after which other switches may have tasks.
    """

    def __init__(self, switches: Iterable[str], desired: SwitchState, known: Iterable[FlowStart] = ()) -> None:
        """Begin without any switch.

        Args:
            switches: HOST:PORT of each.
            desired: what every one must hold, without `flow_base`.
            known: connections from a journal that was kept, oldest first; those of flows that `desired` does not have
                (another job, other hosts) are left out.
        """
        self._desired = desired
        self._switches = {name: _Switch() for name in switches}
        bindings = _bindings(desired)
        self.journal = ConnectionJournal(start for start in known if _binding(start) in bindings)
        """Newest connection of each flow."""
        self._events: list[ControllerEvent] = []

    @property
    def switches(self) -> tuple[str, ...]:
        """HOST:PORT of each switch."""
        return tuple(self._switches)

    def is_ready(self, switch: str) -> bool:
        """Tell whether a switch holds everything, all known connections included."""
        known = self._switches[switch]
        return known.phase is _Phase.READY and known.held == self._wanted(known)

    def next_task(self, switch: str) -> Task:
        """Return what is to be done with a switch now."""
        known = self._switches[switch]
        if known.phase is _Phase.DOWN:
            return Connect()
        wanted = self._wanted(known)
        if known.phase is _Phase.CONNECTED:
            return Install(SwitchState(self._desired.entities | wanted), wanted)
        return Idle() if known.held == wanted else Mirror(wanted)

    def connected(self, switch: str, now: float) -> None:
        """Note that a switch answers and that this controller is its primary.

        Whether it restarted meanwhile is not certain (somebody else may have pushed the program), so nothing is taken
        for known: an entry of `flow_base` too many does no harm, since it is asked only where the registers are empty.
        """
        known = self._switches[switch]
        known.phase, known.seen, known.held = _Phase.CONNECTED, {}, None
        self._tell(EventKind.CONNECTED, switch, now, "connected")

    def installed(self, switch: str, flow_base: FlowBase, before: PipelineStatus, updates: int, now: float) -> None:
        """Note that `Install` was done.

        Args:
            switch: which.
            flow_base: the task's.
            before: what it ran before.
            updates: how many updates were made.
            now: time in seconds.
        """
        known = self._switches[switch]
        known.phase, known.trouble = _Phase.READY, None
        # A program that was there already may have had entries of its own, which `install` lets live.
        known.held = None if before is PipelineStatus.CURRENT else flow_base
        details: dict[str, int | float | str] = {
            "pipeline": str(before), "updates": updates, "connections": len(flow_base)
        }  # fmt: skip
        after = ""
        if known.lost_at is not None:
            details["after_s"] = round(now - known.lost_at, 6)
            after = f", {now - known.lost_at:.3f} s after it was lost"
            known.lost_at = None
        what = f"program {before}, {updates} updates, {len(flow_base)} connections restored"
        self._tell(EventKind.INSTALLED, switch, now, f"installed: {what}{after}", details)

    def mirrored(self, switch: str, flow_base: FlowBase, now: float) -> None:
        """Note that `Mirror` was done with `flow_base`."""
        known = self._switches[switch]
        changed = known.held != flow_base and not (known.held is None and not flow_base)
        known.held = flow_base
        if changed:
            message = f"knows {len(flow_base)} connections that it did not see begin"
            self._tell(EventKind.MIRRORED, switch, now, message, {"connections": len(flow_base)})

    def flow_starts(self, switch: str, starts: Iterable[FlowStart], now: float) -> bool:
        """Note connections that a switch saw begin; return whether the journal has changed.

        Reports may still arrive when the switch is lost already: the connections are as real as others.
        """
        known = self._switches[switch]
        changed = False
        for start in starts:
            known.seen[start.flow_id] = start
            if self.journal.record(start):
                changed = True
                ends = f"{start.src_addr}:{start.src_port} -> {start.dst_addr}:{start.dst_port}"
                details: dict[str, int | float | str] = {
                    "flow": start.flow_id, "isn": start.isn, "src_port": start.src_port
                }  # fmt: skip
                message = f"flow {start.flow_id} begins anew: {ends}, ISN {start.isn}"
                self._tell(EventKind.CONNECTION, switch, now, message, details)
        return changed

    def lost(self, switch: str, reason: str, now: float) -> None:
        """Note that a switch cannot be reached, has ended its stream, or does not take what it must hold."""
        known = self._switches[switch]
        if known.phase is _Phase.READY:
            known.lost_at = now
            self._tell(EventKind.LOST, switch, now, f"lost: {reason}")
        elif known.trouble != reason:
            self._tell(EventKind.TROUBLE, switch, now, reason)
        known.phase, known.trouble = _Phase.DOWN, reason

    def take_events(self) -> list[ControllerEvent]:
        """Return (and forget) what happened."""
        events, self._events = self._events, []
        return events

    def _wanted(self, switch: _Switch) -> FlowBase:
        starts = self.journal.starts()
        return frozenset(flow_base_entry(start) for start in starts if switch.seen.get(start.flow_id) != start)

    def _tell(
        self, kind: EventKind, switch: str, now: float, message: str,
        details: Mapping[str, int | float | str] | None = None,
    ) -> None:  # fmt: skip
        self._events.append(ControllerEvent(kind, switch, now, message, details or {}))


_Binding = tuple[int, int, int, int]


def _binding(start: FlowStart) -> _Binding:
    return start.flow_id, int(start.src_addr), int(start.dst_addr), start.dst_port


def _bindings(desired: SwitchState) -> set[_Binding]:
    """Return (flow, source, destination, port) of every flow that the switch shall know."""
    return {
        (
            entity.param(Param.FLOW_ID),
            entity.field(MatchField.SRC_ADDR),
            entity.field(MatchField.DST_ADDR),
            entity.field(MatchField.DST_PORT),
        )
        for entity in desired.entities
        if isinstance(entity, TableEntry) and is_replicate(entity)
    }
