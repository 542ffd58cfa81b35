"""From what a switch holds to what it must hold: an ordered list of updates, pure and minimal.

First what refers to other things goes, then what is referred to comes, then what refers to it, and last goes
what nothing refers to any more. So no entry ever names a group that does not exist, and no group a replica id
that has no shadow:

    delete            replicate, flow_base, other entries
    insert or modify  digest, shadow_ports, shadow, groups, flow_base, replicate, l2_forward
    delete            groups, shadow, digest

Forwarding comes last: a switch that was restarted in the middle of training forwards nothing that it does not also
replicate, so that what TCP sends again meanwhile is not lost to the shadow.

A `replicate` entry whose action changes is deleted and inserted again, never modified: while its group turns
from one flow's into another's, its packets must be forwarded as any other, not to the other flow's host.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from controlplane.entities import (
    Entity,
    MulticastGroup,
    SwitchState,
    TableEntry,
    is_flow_base,
    is_replicate,
)
from p4src.names import MatchField, Param, Table


class Change(StrEnum):
    """Kind of an update."""

    INSERT = "insert"
    MODIFY = "modify"
    DELETE = "delete"


@dataclass(frozen=True)
class Update:
    """One change of one entity."""

    change: Change
    """What is done."""
    entity: Entity
    """The entity as it shall be; for a deletion as it is."""
    before: Entity | None = None
    """The entity as it is; None for an insertion."""

    @property
    def result(self) -> Entity | None:
        """What the switch holds under the entity's key afterwards."""
        return None if self.change is Change.DELETE else self.entity


@dataclass(frozen=True)
class Plan:
    """What turns one state into another."""

    updates: tuple[Update, ...]
    """In the order in which they must be made."""
    unchanged: int
    """Entities that stay as they are (entries of `flow_base` that are kept included)."""
    rebound_flows: tuple[int, ...] = ()
    """Flows that belong to another pair of hosts than before: connections that live on must be made anew, as
    the switch remembers the other connection's sequence numbers."""

    def stages(self) -> list[tuple[Update, ...]]:
        """Return the updates in stages, each to be finished before the next.

        The updates of one stage may be made in any order, as those of one P4Runtime Write are (P4Runtime
        specification, section "Batching and Ordering of Updates").
        """
        return [tuple(stage) for _, stage in groupby(self.updates, key=_stage)]

    def count(self, change: Change) -> int:
        """Return the number of updates of one kind."""
        return sum(update.change is change for update in self.updates)


def reconcile(desired: SwitchState, actual: SwitchState) -> Plan:
    """Return what turns `actual` into `desired`, with the connections of flows that live on.

    Entries of `flow_base` are the running controller's: those of a flow that is the same before and after
    (same pair of hosts and port) stay, and so do those that came before their flow's `replicate` entry.
    Others go: they would give a new connection an old one's sequence number.
    """
    wanted, present = _bindings(desired), _bindings(actual)
    kept = [
        entity
        for entity in actual.entities
        if is_flow_base(entity) and entity.key not in desired.by_key and _lives_on(entity, wanted, present)
    ]
    plan = exact_plan(SwitchState(desired.entities | frozenset(kept)), actual)
    rebound = tuple(sorted(flow for flow in wanted if flow in present and not wanted[flow] & present[flow]))
    return Plan(plan.updates, plan.unchanged, rebound)


def exact_plan(desired: SwitchState, actual: SwitchState) -> Plan:
    """Return what turns `actual` into exactly `desired`, `flow_base` included."""
    updates: list[Update] = []
    for key, old in actual.by_key.items():
        new = desired.by_key.get(key)
        if new is None:
            updates.append(Update(Change.DELETE, old, old))
        elif new != old and is_replicate(old):
            updates += [Update(Change.DELETE, old, old), Update(Change.INSERT, new)]
        elif new != old:
            updates.append(Update(Change.MODIFY, new, old))
    updates += [Update(Change.INSERT, new) for key, new in desired.by_key.items() if key not in actual.by_key]
    return Plan(tuple(sorted(updates, key=_order)), len(desired.entities & actual.entities))


def table_plan(wanted: Iterable[TableEntry], actual: SwitchState, table: str) -> Plan:
    """Return what makes `table` hold exactly `wanted` and leaves everything else of `actual` alone."""
    rest = frozenset(e for e in actual.entities if not (isinstance(e, TableEntry) and e.table == table))
    return exact_plan(SwitchState(rest | frozenset(wanted)), actual)


_Connection = tuple[int, int, int]


def _bindings(state: SwitchState) -> dict[int, set[_Connection]]:
    """Return flow id -> the (source, destination, port) that it stands for."""
    found: dict[int, set[_Connection]] = {}
    for entity in state.entities:
        if isinstance(entity, TableEntry) and is_replicate(entity):
            ends = tuple(entity.field(name) for name in (MatchField.SRC_ADDR, MatchField.DST_ADDR, MatchField.DST_PORT))
            found.setdefault(entity.param(Param.FLOW_ID), set()).add((ends[0], ends[1], ends[2]))
    return found


def _lives_on(entity: Entity, wanted: dict[int, set[_Connection]], present: dict[int, set[_Connection]]) -> bool:
    assert isinstance(entity, TableEntry)
    flow = entity.field(MatchField.FLOW_ID)
    return flow in wanted and (flow not in present or bool(wanted[flow] & present[flow]))


_LAST_DELETED = ("groups", Table.SHADOW, "digest")
_REPLICATE = (Table.REPLICATE, Table.REPLICATE_RDMA_IPV4, Table.REPLICATE_RDMA_IPV6)
_WRITTEN = ("digest", Table.SHADOW_PORTS, Table.SHADOW, "groups", Table.FLOW_BASE, *_REPLICATE, Table.L2_FORWARD)
_FIRST_DELETED = (*_REPLICATE, Table.FLOW_BASE)


def _kind(entity: Entity) -> str:
    if isinstance(entity, TableEntry):
        return entity.table
    return "groups" if isinstance(entity, MulticastGroup) else "digest"


def _stage(update: Update) -> tuple[int, int]:
    """Return the place of an update's stage; updates of one stage do not depend on each other."""
    kind = _kind(update.entity)
    if update.change is not Change.DELETE:
        return 1, _place(kind, _WRITTEN)
    if kind in _LAST_DELETED:
        return 2, _place(kind, _LAST_DELETED)
    return 0, _place(kind, _FIRST_DELETED)


def _place(kind: str, order: tuple[str, ...]) -> int:
    return order.index(kind) if kind in order else len(order)


def _order(update: Update) -> tuple[tuple[int, int], str, tuple[object, ...]]:
    # Within a stage by key, so that equal inputs give equal plans.
    return _stage(update), _kind(update.entity), update.entity.key
