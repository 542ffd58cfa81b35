"""Reading a switch: its whole state, and its counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finsy import P4Schema
from finsy.proto import p4r

from controlplane.codec import decode
from controlplane.dialect import counter_request, state_requests
from controlplane.entities import Entity, Key, SwitchState
from controlplane.errors import ControlPlaneError, ErrorKind
from controlplane.session import Session
from p4src.constants import NotReplicated
from p4src.names import Counter


@dataclass(frozen=True)
class Count:
    """Value of a counter."""

    packets: int
    """Number of packets."""
    bytes: int
    """Their bytes, including Ethernet headers."""


@dataclass(frozen=True)
class Counters:
    """All counters of a switch at one time."""

    entries: Mapping[Key, Count]
    """Key of a table entry -> packets that it matched, for tables with direct counters."""
    not_replicated: Mapping[NotReplicated, Count]
    """Packets that were not replicated, by reason."""


def read_state(session: Session, schema: P4Schema) -> SwitchState:
    """Return the state of the switch.

    Raises:
        ControlPlaneError: the switch does not answer, or returns something that `schema` does not define.
    """
    return SwitchState.of(entity for _, entity in _read_entities(session, schema, counters=False))


def read_counters(session: Session, schema: P4Schema) -> tuple[SwitchState, Counters]:
    """Return the state and the counters; errors as in `read_state`."""
    counts: dict[Key, Count] = {}
    entities: list[Entity] = []
    for message, entity in _read_entities(session, schema, counters=True):
        entities.append(entity)
        if message.table_entry.HasField("counter_data"):
            counts[entity.key] = _count(message.table_entry.counter_data)
    reasons = dict.fromkeys(NotReplicated, Count(0, 0))
    for message in session.read(counter_request(schema, Counter.NOT_REPLICATED)):
        reasons[NotReplicated(message.counter_entry.index.index)] = _count(message.counter_entry.data)
    return SwitchState.of(entities), Counters(counts, reasons)


def _count(data: p4r.CounterData) -> Count:
    return Count(data.packet_count, data.byte_count)


def _read_entities(session: Session, schema: P4Schema, *, counters: bool) -> list[tuple[p4r.Entity, Entity]]:
    found: list[tuple[p4r.Entity, Entity]] = []
    for requests in state_requests(schema.p4info, counters=counters):
        absent_is_empty = requests[0].HasField("digest_entry")
        for message in session.read(requests, absent_is_empty=absent_is_empty):
            try:
                found.append((message, decode(message, schema)))
            except ValueError as error:
                raise ControlPlaneError(
                    ErrorKind.READ_REFUSED,
                    session.target,
                    f"returned an entity that does not fit its program: {error}",
                ) from error
    return found
