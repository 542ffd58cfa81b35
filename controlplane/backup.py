"""Another program's state, saved while ours is installed and restored if the installation fails.

Works on P4Runtime messages: the other program's tables are opaque to us. It covers tables (including default
actions), multicast groups, clone sessions and digest settings; counters and registers start from zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from finsy.proto import p4r

from controlplane.dialect import clone_session_request, group_request, state_requests
from controlplane.errors import ControlPlaneError
from controlplane.session import Session

BATCH = 64
"""Updates in one request: the errors of this many fit into the metadata of one reply."""


@dataclass(frozen=True)
class Backup:
    """A program and its state on the switch."""

    config: p4r.ForwardingPipelineConfig
    """The program."""
    entities: tuple[p4r.Entity, ...]
    """Everything written by controllers, and the default actions."""

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Kinds of objects of that program that are not covered."""
        info = self.config.p4info
        kinds = {
            "action profiles": info.action_profiles,
            "meters": [*info.meters, *info.direct_meters],
            "registers": info.registers,
            "value sets": info.value_sets,
        }
        return tuple(kind for kind, objects in kinds.items() if objects)


def save(session: Session) -> Backup | None:
    """Return the program and state of the switch, None when it runs none.

    Raises:
        ControlPlaneError: they cannot be read.
    """
    config = session.get_config("ALL")
    if config is None:
        return None
    return Backup(config, tuple(_read(session, config)))


def forget_replication(session: Session) -> None:
    """Delete multicast groups and clone sessions of the program that the switch runs.

    To be called before another program is pushed: BMv2's front end then forgets the groups, but the switch keeps
    copying, and adds to the copies of a group that is created again.

    Raises:
        ControlPlaneError: they cannot be read, or the switch does not answer.
    """
    held = [entity for request in (group_request(), clone_session_request()) for entity in session.read(request)]
    updates = [p4r.Update(type=p4r.Update.DELETE, entity=entity) for entity in held]
    for start in range(0, len(updates), BATCH):
        session.write(updates[start : start + BATCH])


def is_in_force(session: Session, backup: Backup) -> bool:
    """Return whether the switch runs the program of `backup` and has its state."""
    try:
        config = session.get_config()
        if config is None or config.cookie != backup.config.cookie:
            return False
        return _equal(_read(session, backup.config), backup.entities)
    except ControlPlaneError:
        # If it cannot be read, it is not in force.
        return False


def restore(session: Session, backup: Backup) -> bool:
    """Install `backup` on the switch again; return whether it reads back equal.

    Raises:
        ControlPlaneError: the switch does not accept the program.
    """
    if session.get_config() is not None:
        forget_replication(session)
    session.set_config(backup.config)
    fresh = set(map(_bytes, _read(session, backup.config)))
    missing = [entity for entity in backup.entities if _bytes(entity) not in fresh]
    engines = [entity for entity in missing if entity.HasField("packet_replication_engine_entry")]
    others = [entity for entity in missing if not entity.HasField("packet_replication_engine_entry")]
    for entities in (engines, others):
        updates = [_update(entity) for entity in entities]
        for start in range(0, len(updates), BATCH):
            session.write(updates[start : start + BATCH])
    return _equal(_read(session, backup.config), backup.entities)


def _read(session: Session, config: p4r.ForwardingPipelineConfig) -> Iterator[p4r.Entity]:
    requests = state_requests(config.p4info, counters=False)
    defaults = [
        p4r.Entity(table_entry=p4r.TableEntry(table_id=table.preamble.id, is_default_action=True))
        for table in config.p4info.tables
        if not table.const_default_action_id
    ]
    for request in (*requests, clone_session_request(), defaults):
        if request:
            yield from session.read(request, absent_is_empty=request[0].HasField("digest_entry"))


def _equal(one: Iterable[p4r.Entity], other: Iterable[p4r.Entity]) -> bool:
    return set(map(_bytes, one)) == set(map(_bytes, other))


def _update(entity: p4r.Entity) -> p4r.Update:
    default = entity.HasField("table_entry") and entity.table_entry.is_default_action
    return p4r.Update(type=p4r.Update.MODIFY if default else p4r.Update.INSERT, entity=entity)


def _bytes(entity: p4r.Entity) -> bytes:
    """Return `entity` in a comparable form, independent of the order of replicas and fields."""
    plain = p4r.Entity()
    plain.CopyFrom(entity)
    if plain.HasField("packet_replication_engine_entry"):
        kind = plain.packet_replication_engine_entry.WhichOneof("type")
        engine = getattr(plain.packet_replication_engine_entry, str(kind))
        copies = sorted(engine.replicas, key=lambda copy: copy.SerializeToString(deterministic=True))
        del engine.replicas[:]
        engine.replicas.extend(copies)
    elif plain.HasField("table_entry"):
        fields = sorted(plain.table_entry.match, key=lambda field: field.field_id)
        del plain.table_entry.match[:]
        plain.table_entry.match.extend(fields)
    return plain.SerializeToString(deterministic=True)
