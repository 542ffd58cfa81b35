"""Copying the forwarding state of one pipeline to the next (RECONCILE_AND_COMMIT).

P4Runtime specification, section "SetForwardingPipelineConfig RPC". The state is read from the old pipeline and written
into the new one as P4Runtime entities: it survives if a client could have written it there.
"""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from softswitch.p4rt.errors import BatchError, Code, invalid
from softswitch.p4rt.pipeline import Pipeline
from softswitch.p4rt.schema import ArrayInfo


def copy_state(old: Pipeline, new: Pipeline) -> None:
    """Copy tables, defaults, groups, sessions, digest settings, counters and registers from `old` to `new`.

    Counters whose array is gone or has shrunk are statistics of the old program and are dropped. Registers with
    non-zero values are state and must be preserved.

    Args:
        old: pipeline in force; not changed.
        new: pipeline just built from the new configuration; discard it after an error.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT, naming the state that cannot be preserved.
    """
    _clear_initial_entries(old, new)
    updates = [*_forwarding(old), *_counters(old, new), *_registers(old, new)]
    try:
        new.write(updates, p4r.WriteRequest.ROLLBACK_ON_ERROR)
    except BatchError as error:
        culprit, reason = next(
            (update, result)
            for update, result in zip(updates, error.results, strict=True)
            if result is not None and result.code is not Code.ABORTED
        )
        kind = culprit.entity.WhichOneof("entity")
        raise invalid(f"the existing forwarding state cannot be preserved: {kind}: {reason.message}") from error


def _clear_initial_entries(old: Pipeline, new: Pipeline) -> None:
    """Remove the initial entries of tables that the old program has too: the old contents replace them."""
    known = {info.name for info in old.schema.tables.values()}
    for info in new.schema.tables.values():
        if info.is_const or info.name not in known:
            continue
        table = new.core.tables[info.name]
        for entry in table.entries():
            table.delete(entry.match, entry.priority)


def _forwarding(old: Pipeline) -> Iterator[p4r.Update]:
    requests = [
        p4r.Entity(table_entry=p4r.TableEntry(counter_data=p4r.CounterData())),
        p4r.Entity(table_entry=p4r.TableEntry(is_default_action=True, counter_data=p4r.CounterData())),
        p4r.Entity(
            packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
                multicast_group_entry=p4r.MulticastGroupEntry()
            )
        ),
        p4r.Entity(
            packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
                clone_session_entry=p4r.CloneSessionEntry()
            )
        ),
        p4r.Entity(digest_entry=p4r.DigestEntry()),
    ]
    entities, error = old.read(requests)
    if error is not None:
        raise error
    for entity in entities:
        if entity.HasField("table_entry"):
            entry = entity.table_entry
            if entry.is_default_action:
                if entry.table_id in old.tables.changed_defaults():
                    entry.is_const = False
                    yield p4r.Update(type=p4r.Update.MODIFY, entity=entity)
                continue
            if entry.is_const:
                continue
        yield p4r.Update(type=p4r.Update.INSERT, entity=entity)


def _counters(old: Pipeline, new: Pipeline) -> Iterator[p4r.Update]:
    entities, error = old.read([p4r.Entity(counter_entry=p4r.CounterEntry())])
    if error is not None:
        raise error
    for entity in entities:
        home = new.schema.counters.get(entity.counter_entry.counter_id)
        data = entity.counter_entry.data
        if home and entity.counter_entry.index.index < home.size and (data.packet_count or data.byte_count):
            yield p4r.Update(type=p4r.Update.MODIFY, entity=entity)


def _registers(old: Pipeline, new: Pipeline) -> Iterator[p4r.Update]:
    for info in old.schema.registers.values():
        array = old.core.registers[info.name]
        if not any(array.read(index) for index in range(info.size)):
            continue
        home = new.schema.registers.get(info.id)
        if home is None:
            raise invalid(f"the existing forwarding state cannot be preserved: no register {info.name}")
        yield from _cells(old, info)


def _cells(old: Pipeline, info: ArrayInfo) -> Iterator[p4r.Update]:
    request = p4r.Entity(register_entry=p4r.RegisterEntry(register_id=info.id))
    entities, error = old.read([request])
    if error is not None:
        raise error
    for entity in entities:
        yield p4r.Update(type=p4r.Update.MODIFY, entity=entity)
