"""From what a switch holds to what it must hold: an ordered list of updates, pure and minimal.

Order: first what refers to other things goes, then what is referred to comes, then what refers to it, and last goes
what nothing refers to any more. So no entry ever names a group that does not exist, and no group a replica id that
has no shadow:

    delete  replicate, flow_base, other entries
    insert or modify  digest, shadow_ports, shadow, l2_forward, groups, flow_base, replicate
    delete  groups, shadow, digest

A `replicate` entry whose action changes is deleted and inserted again, never modified: while its group turns from
one flow's into another's, its packets must be forwarded as any other packet, not to the other flow's host.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from controlplane.entities import (
    DigestConfig,
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


@dataclass(frozen=True)
class Plan:
    """What turns one state into another."""

    updates: tuple[Update, ...]
    """In the order in which they must be made."""
    unchanged: int
    """Entities that stay as they are (entries of `flow_base` that are kept included)."""
    rebound_flows: tuple[int, ...] = ()
    """Flows that belong to another pair of hosts than before: connections that live on need to be made anew, as the
    switch remembers the other connection's sequence numbers."""

    def count(self, change: Change) -> int:
        """Return the number of updates of one kind."""
        return sum(update.change is change for update in self.updates)


def reconcile(desired: SwitchState, actual: SwitchState) -> Plan:
    """Return what turns `actual` into `desired`, with the connections of flows that live on.

    Entries of `flow_base` are the running controller's: those of a flow that is the same before and after (the same
    pair of hosts and port) stay, and so do those that came before their flow's `replicate` entry; others go, since
    they would give a new connection an old one's sequence number.
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


_DELETED_FIRST = (Table.REPLICATE, Table.REPLICATE_RDMA_IPV4, Table.REPLICATE_RDMA_IPV6, Table.FLOW_BASE)
_WRITTEN = (Table.SHADOW_PORTS, Table.SHADOW, Table.L2_FORWARD, "groups", Table.FLOW_BASE)


def _order(update: Update) -> tuple[int, int, tuple[object, ...]]:
    entity = update.entity
    if isinstance(entity, DigestConfig):
        kind, place = "digest", entity.digest
    elif isinstance(entity, MulticastGroup):
        kind, place = "groups", f"{entity.id:10}"
    else:
        kind, place = entity.table, ""
    fields = (place, entity.match) if isinstance(entity, TableEntry) else (place,)
    if update.change is Change.DELETE:
        late = {"groups": 1, str(Table.SHADOW): 2, "digest": 3}.get(kind)
        if late is not None:
            return 2, late, fields
        return 0, _DELETED_FIRST.index(kind) if kind in _DELETED_FIRST else len(_DELETED_FIRST), fields
    if kind == "digest":
        return 1, -1, fields
    return 1, _WRITTEN.index(kind) if kind in _WRITTEN else len(_WRITTEN), fields
