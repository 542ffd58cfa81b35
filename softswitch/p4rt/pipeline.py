"""One forwarding pipeline: a program, the core that runs it, and the P4Runtime state of its entities.

P4Runtime specification, sections "Write RPC", "Batch Atomicity", "Read RPC".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from finsy.proto import p4r

from softswitch.core import SwitchCore
from softswitch.errors import SwitchError
from softswitch.p4rt.arrays import ArrayStore
from softswitch.p4rt.digests import DigestTable
from softswitch.p4rt.errors import (
    BatchError,
    Code,
    P4RuntimeError,
    from_switch_error,
    invalid,
    unimplemented,
)
from softswitch.p4rt.replication import ReplicationStore
from softswitch.p4rt.roles import FULL_ACCESS, RoleRights
from softswitch.p4rt.schema import Schema
from softswitch.p4rt.tables import TableStore
from softswitch.p4rt.undo import Undo
from softswitch.p4rt.verify import check_program


class Pipeline:
    """A verified program with its forwarding state.

    Args:
        config: P4Info and BMv2 JSON, as in SetForwardingPipelineConfig; kept unchanged.
        cpu_port: port of packet-in and packet-out, None for none.
        drop_port: port that stands for "drop".

    Raises:
        P4RuntimeError: INVALID_ARGUMENT if this target cannot realize the configuration.
    """

    def __init__(self, config: p4r.ForwardingPipelineConfig, *, cpu_port: int | None, drop_port: int) -> None:
        """Verify and load a configuration."""
        if not config.HasField("p4info"):
            raise invalid("config.p4info is missing")
        if not config.p4_device_config:
            raise invalid("config.p4_device_config is empty; it must hold the BMv2 JSON of the program")
        self.config = config
        self.schema = Schema.build(config.p4info)
        try:
            self.core = SwitchCore(config.p4_device_config, cpu_port=cpu_port, drop_port=drop_port)
        except SwitchError as error:
            raise invalid(f"config.p4_device_config: {error}") from error
        check_program(self.schema, self.core)
        self.tables = TableStore(self.schema, self.core)
        self.arrays = ArrayStore(self.schema, self.core)
        self.replication = ReplicationStore(self.core)
        self.digests = DigestTable(self.schema)

    def write(
        self,
        updates: Sequence[p4r.Update],
        atomicity: p4r.WriteRequest.Atomicity.ValueType = p4r.WriteRequest.CONTINUE_ON_ERROR,
        rights: RoleRights = FULL_ACCESS,
    ) -> None:
        """Apply a batch.

        The caller holds the lock of the device for the whole batch, so no packet sees a part of it: both optional
        atomicities are the same here, all or nothing.

        Raises:
            BatchError: an update failed. With CONTINUE_ON_ERROR the others are in force, otherwise none.
        """
        results: list[P4RuntimeError | None] = []
        undos: list[Undo] = []
        for update in updates:
            try:
                undos.append(self._apply(update, rights))
            except P4RuntimeError as error:
                results.append(error)
            except SwitchError as error:
                results.append(from_switch_error(error))
            else:
                results.append(None)
            if results[-1] is not None and atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR:
                for undo in reversed(undos):
                    undo()
                culprit = len(results) - 1
                results = [
                    results[culprit] if index == culprit else _rolled_back(culprit) for index in range(len(updates))
                ]
                break
        if any(result is not None for result in results):
            raise BatchError("Write", results)

    def read(
        self, requests: Sequence[p4r.Entity], rights: RoleRights = FULL_ACCESS
    ) -> tuple[list[p4r.Entity], BatchError | None]:
        """Return the entities that `requests` select, and the error that ends the RPC if some fail."""
        found: list[p4r.Entity] = []
        results: list[P4RuntimeError | None] = []
        for request in requests:
            try:
                found.extend(self._select(request, rights))
            except P4RuntimeError as error:
                results.append(error)
            except SwitchError as error:
                results.append(from_switch_error(error))
            else:
                results.append(None)
        failed = any(result is not None for result in results)
        return found, BatchError("Read", results) if failed else None

    def _apply(self, update: p4r.Update, rights: RoleRights) -> Undo:
        kind, entity = update.type, update.entity
        form = entity.WhichOneof("entity")
        if form is None:
            raise invalid("the update has no entity")
        if kind not in (p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE):
            raise invalid("the type of the update must be INSERT, MODIFY or DELETE")
        if not rights.allows(_p4_id(entity)):
            raise P4RuntimeError(
                Code.PERMISSION_DENIED, f"the role of the client does not include P4 id {_p4_id(entity)}"
            )
        if form == "table_entry":
            return self.tables.write(kind, entity.table_entry)
        if form == "direct_counter_entry":
            return self.tables.write_direct_counter(kind, entity.direct_counter_entry)
        if form == "counter_entry":
            return self.arrays.write_counter(kind, entity.counter_entry)
        if form == "register_entry":
            return self.arrays.write_register(kind, entity.register_entry)
        if form == "packet_replication_engine_entry":
            return self.replication.write(kind, entity.packet_replication_engine_entry)
        if form == "digest_entry":
            return self.digests.write(kind, entity.digest_entry)
        raise unimplemented(form)

    def _select(self, request: p4r.Entity, rights: RoleRights) -> Iterable[p4r.Entity]:
        form = request.WhichOneof("entity")
        if form is None:
            raise invalid("the request has no entity; wildcards are set inside an entity")
        if form == "table_entry":
            return self.tables.read(request.table_entry, self._allowed(self.schema.tables, rights))
        if form == "direct_counter_entry":
            tables = self._allowed(self.schema.tables, rights)
            return self.tables.read_direct_counter(request.direct_counter_entry, tables)
        if form == "counter_entry":
            counters = self._allowed(self.schema.counters, rights)
            return self.arrays.read_counter(request.counter_entry, counters)
        if form == "register_entry":
            registers = self._allowed(self.schema.registers, rights)
            return self.arrays.read_register(request.register_entry, registers)
        if form == "packet_replication_engine_entry":
            return self.replication.read(request.packet_replication_engine_entry)
        if form == "digest_entry":
            found = self.digests.read(request.digest_entry)
            return (entity for entity in found if rights.allows(entity.digest_entry.digest_id))
        if _p4_id(request) == 0:
            # A wildcard over a kind of object that no loadable program has: an empty result, not an error, so that
            # clients can read "everything".
            return ()
        raise unimplemented(form)

    @staticmethod
    def _allowed(ids: Iterable[int], rights: RoleRights) -> Iterator[int]:
        return (p4_id for p4_id in ids if rights.allows(p4_id))


def _p4_id(entity: p4r.Entity) -> int:
    """Return the P4 id of the object that an entity belongs to, 0 if it names none."""
    form = entity.WhichOneof("entity")
    if form == "table_entry":
        return entity.table_entry.table_id
    if form == "direct_counter_entry":
        return entity.direct_counter_entry.table_entry.table_id
    if form == "direct_meter_entry":
        return entity.direct_meter_entry.table_entry.table_id
    if form == "counter_entry":
        return entity.counter_entry.counter_id
    if form == "register_entry":
        return entity.register_entry.register_id
    if form == "digest_entry":
        return entity.digest_entry.digest_id
    if form == "meter_entry":
        return entity.meter_entry.meter_id
    if form == "action_profile_member":
        return entity.action_profile_member.action_profile_id
    if form == "action_profile_group":
        return entity.action_profile_group.action_profile_id
    if form == "value_set_entry":
        return entity.value_set_entry.value_set_id
    if form == "extern_entry":
        return entity.extern_entry.extern_id or entity.extern_entry.extern_type_id
    return 0


def _rolled_back(culprit: int) -> P4RuntimeError:
    return P4RuntimeError(Code.ABORTED, f"not applied, because update {culprit} failed")
