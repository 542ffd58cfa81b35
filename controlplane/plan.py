"""Plans from the actual to the desired state of a switch: ordered lists of updates, pure and minimal.

Referring entities are deleted first, then referenced entities are created, then those that refer to them, and last
unreferenced entities are deleted. So no entry ever names a group that does not exist, and no group a replica id that
has no shadow:

    delete            replicate, flow_base, other entries
    insert or modify  digest, shadow_ports, shadow, groups, flow_base, replicate, l2_forward
    delete            groups, shadow, digest

Forwarding comes last: a switch that was restarted during training forwards nothing that it does not also replicate, so
that TCP's retransmissions are not lost to the shadow.

A `replicate` entry whose action changes is deleted and inserted again, never modified: while its group changes from one
flow to another, its packets must be forwarded normally, not to the other flow's host.
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
    """The kind of update."""
    entity: Entity
    """The desired entity; for a deletion, the present one."""
    before: Entity | None = None
    """The present entity; None for an insertion."""

    @property
    def result(self) -> Entity | None:
        """What the switch has under the entity's key afterwards."""
        return None if self.change is Change.DELETE else self.entity


@dataclass(frozen=True)
class Plan:
    """The updates that turn one state into another."""

    updates: tuple[Update, ...]
    """In the order in which they must be applied."""
    unchanged: int
    """Number of entities that stay unchanged (including kept entries of `flow_base`)."""
    rebound_flows: tuple[int, ...] = ()
    """Flows that now belong to another pair of hosts: their open connections must be re-established, as the switch
    remembers the other connection's sequence numbers."""

    def stages(self) -> list[tuple[Update, ...]]:
        """Return the updates in stages; each stage must be finished before the next.

        The updates of one stage may be applied in any order, like those of one P4Runtime Write (P4Runtime
        specification, section "Batching and Ordering of Updates").
        """
        return [tuple(stage) for _, stage in groupby(self.updates, key=_stage)]

    def count(self, change: Change) -> int:
        """Return the number of updates of one kind."""
        return sum(update.change is change for update in self.updates)


def install_plan(desired: SwitchState, actual: SwitchState) -> Plan:
    """Return the plan from `actual` to `desired` that keeps the connections of continuing flows.

    Entries of `flow_base` belong to the running controller: those of a flow that is the same before and after (same
    pair of hosts and port) stay, and so do those that precede their flow's `replicate` entry. Others are deleted: they
    would give a new connection an old one's sequence number.
    """
    wanted, present = _bindings(desired), _bindings(actual)
    kept = [
        entity
        for entity in actual.entities
        if is_flow_base(entity) and entity.key not in desired.by_key and _is_kept(entity, wanted, present)
    ]
    plan = exact_plan(SwitchState(desired.entities | frozenset(kept)), actual)
    rebound = tuple(sorted(flow for flow in wanted if flow in present and not wanted[flow] & present[flow]))
    return Plan(plan.updates, plan.unchanged, rebound)


def exact_plan(desired: SwitchState, actual: SwitchState) -> Plan:
    """Return the plan from `actual` to exactly `desired`, including `flow_base`."""
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
    """Return the plan that makes `table` hold exactly `wanted` and changes nothing else in `actual`."""
    rest = frozenset(e for e in actual.entities if not (isinstance(e, TableEntry) and e.table == table))
    return exact_plan(SwitchState(rest | frozenset(wanted)), actual)


_Connection = tuple[int, int, int]


def _bindings(state: SwitchState) -> dict[int, set[_Connection]]:
    """Return flow id -> its (source, destination, port) tuples."""
    found: dict[int, set[_Connection]] = {}
    for entity in state.entities:
        if isinstance(entity, TableEntry) and is_replicate(entity):
            ends = tuple(entity.field(name) for name in (MatchField.SRC_ADDR, MatchField.DST_ADDR, MatchField.DST_PORT))
            found.setdefault(entity.param(Param.FLOW_ID), set()).add((ends[0], ends[1], ends[2]))
    return found


def _is_kept(entity: Entity, wanted: dict[int, set[_Connection]], present: dict[int, set[_Connection]]) -> bool:
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
    """Return the sort key of an update's stage; updates of one stage are independent of each other."""
    kind = _kind(update.entity)
    if update.change is not Change.DELETE:
        return 1, _place(kind, _WRITTEN)
    if kind in _LAST_DELETED:
        return 2, _place(kind, _LAST_DELETED)
    return 0, _place(kind, _FIRST_DELETED)


def _place(kind: str, order: tuple[str, ...]) -> int:
    return order.index(kind) if kind in order else len(order)


def _order(update: Update) -> tuple[tuple[int, int], str, tuple[object, ...]]:
    # Within a stage by key, so that plans are deterministic.
    return _stage(update), _kind(update.entity), update.entity.key
