"""The controller's decisions: a pure state machine from events to the next task of each switch.

The switches of one controller replace each other: all have the same jobs installed, and each must know where the stream
of every open connection begins. A switch learns that from the SYN and keeps it in registers, which are lost with it and
which P4Runtime cannot write on every switch. So the controller keeps a journal of the connections that the switches
report, and writes into each switch's `flow_base` those whose SYN it did not see: all of them after a restart, every new
one at once in a standby.
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
    """Install `state`, which includes `flow_base`."""

    state: SwitchState
    """The jobs and the open connections."""
    flow_base: FlowBase
    """The open connections only."""


@dataclass(frozen=True)
class Mirror:
    """Make the table `flow_base` hold exactly `flow_base`; change nothing else."""

    flow_base: FlowBase
    """The connections whose SYN the switch did not see."""


@dataclass(frozen=True)
class Idle:
    """Nothing to do until something happens."""


Task = Connect | Install | Mirror | Idle


class EventKind(StrEnum):
    """Kinds of events."""

    CONNECTED = "connected"
    """A switch answers, and this controller is its primary."""
    INSTALLED = "installed"
    """A switch has its complete state."""
    CONNECTION = "connection"
    """A switch saw a new connection."""
    MIRRORED = "mirrored"
    """A switch got the connections whose SYN it did not see."""
    LOST = "lost"
    """A switch that was ready is gone."""
    TROUBLE = "trouble"
    """A switch cannot be made ready; the controller retries."""


@dataclass(frozen=True)
class ControllerEvent:
    """One event."""

    kind: EventKind
    """Its kind."""
    switch: str
    """HOST:PORT of the switch."""
    at: float
    """Time, in seconds of the caller's clock."""
    message: str
    """Text for people."""
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
    """What the controller knows about one switch."""

    def __init__(self) -> None:
        self.phase = _Phase.DOWN
        self.seen: dict[int, FlowStart] = {}
        """Newest connection of each flow whose SYN it saw since it was connected: those in its registers."""
        self.held: FlowBase | None = None
        """Content of its `flow_base`; None while unknown."""
        self.lost_at: float | None = None
        self.trouble: str | None = None


class ControllerCore:
    """Decides for all switches of one controller; not thread-safe, its driver serialises calls.

    For each switch the driver gets the `next_task`, performs it, and reports the outcome: `connected`, `installed`,
    `mirrored` or `lost`. When a switch reports connections, the driver calls `flow_starts`, after which other switches
    may have tasks.
    """

    def __init__(self, switches: Iterable[str], desired: SwitchState, known: Iterable[FlowStart] = ()) -> None:
        """Start with no switch connected.

        Args:
            switches: HOST:PORT of each.
            desired: state that every switch must have, without `flow_base`.
            known: connections from a journal file, oldest first; those of flows that `desired` does not have (another
                job, other hosts) are ignored.
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
        """Return whether a switch has its complete state, including all known connections."""
        known = self._switches[switch]
        return known.phase is _Phase.READY and known.held == self._expected_flow_base(known)

    def next_task(self, switch: str) -> Task:
        """Return the next task for a switch."""
        known = self._switches[switch]
        if known.phase is _Phase.DOWN:
            return Connect()
        wanted = self._expected_flow_base(known)
        if known.phase is _Phase.CONNECTED:
            return Install(SwitchState(self._desired.entities | wanted), wanted)
        return Idle() if known.held == wanted else Mirror(wanted)

    def connected(self, switch: str, now: float) -> None:
        """Record that a switch answers and that this controller is its primary.

        It may have restarted meanwhile, and another client may have pushed the program, so nothing is assumed: a
        superfluous entry of `flow_base` is harmless, since it is used only if the registers are empty.
        """
        known = self._switches[switch]
        known.phase, known.seen, known.held = _Phase.CONNECTED, {}, None
        self._emit(EventKind.CONNECTED, switch, now, "connected")

    def installed(self, switch: str, flow_base: FlowBase, before: PipelineStatus, updates: int, now: float) -> None:
        """Record that `Install` was performed.

        Args:
            switch: HOST:PORT of the switch.
            flow_base: the task's `flow_base`.
            before: program that it ran before.
            updates: number of updates.
            now: time in seconds.
        """
        known = self._switches[switch]
        known.phase, known.trouble = _Phase.READY, None
        # If the program was already there, it may have had other entries, which `install` keeps.
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
        self._emit(EventKind.INSTALLED, switch, now, f"installed: {what}{after}", details)

    def mirrored(self, switch: str, flow_base: FlowBase, now: float) -> None:
        """Record that `Mirror` was performed with `flow_base`."""
        known = self._switches[switch]
        changed = known.held != flow_base and not (known.held is None and not flow_base)
        known.held = flow_base
        if changed:
            message = f"knows {len(flow_base)} connections whose SYN it did not see"
            self._emit(EventKind.MIRRORED, switch, now, message, {"connections": len(flow_base)})

    def flow_starts(self, switch: str, starts: Iterable[FlowStart], now: float) -> bool:
        """Record new connections that a switch saw; return whether the journal has changed.

        Reports may arrive after the switch is lost: these connections are as valid as others.
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
                message = f"new connection of flow {start.flow_id}: {ends}, ISN {start.isn}"
                self._emit(EventKind.CONNECTION, switch, now, message, details)
        return changed

    def lost(self, switch: str, reason: str, now: float) -> None:
        """Record that a switch cannot be reached, has closed its stream, or refuses its state."""
        known = self._switches[switch]
        if known.phase is _Phase.READY:
            known.lost_at = now
            self._emit(EventKind.LOST, switch, now, f"lost: {reason}")
        elif known.trouble != reason:
            self._emit(EventKind.TROUBLE, switch, now, reason)
        known.phase, known.trouble = _Phase.DOWN, reason

    def take_events(self) -> list[ControllerEvent]:
        """Return the pending events and clear them."""
        events, self._events = self._events, []
        return events

    def _expected_flow_base(self, switch: _Switch) -> FlowBase:
        starts = self.journal.starts()
        return frozenset(flow_base_entry(start) for start in starts if switch.seen.get(start.flow_id) != start)

    def _emit(
        self, kind: EventKind, switch: str, now: float, message: str,
        details: Mapping[str, int | float | str] | None = None,
    ) -> None:  # fmt: skip
        self._events.append(ControllerEvent(kind, switch, now, message, details or {}))


_Binding = tuple[int, int, int, int]


def _binding(start: FlowStart) -> _Binding:
    return start.flow_id, int(start.src_addr), int(start.dst_addr), start.dst_port


def _bindings(desired: SwitchState) -> set[_Binding]:
    """Return (flow, source, destination, port) of every flow in `desired`."""
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
