"""Conversion between entities and P4Runtime messages, by the names in the P4Info."""

from __future__ import annotations

from finsy import P4DigestEntry, P4Schema, P4TableAction, P4TableEntry, P4TableMatch
from finsy.proto import p4r

from controlplane.entities import DigestConfig, Entity, MulticastGroup, Replica, TableEntry, fields_of
from controlplane.plan import Change, Update

_TYPES = {
    Change.INSERT: p4r.Update.INSERT,
    Change.MODIFY: p4r.Update.MODIFY,
    Change.DELETE: p4r.Update.DELETE,
}


def encode(entity: Entity, schema: P4Schema) -> p4r.Entity:
    """Return `entity` as a message.

    Raises:
        ValueError: the P4Info has no such table, field, action, parameter or digest, or a value is too wide.
    """
    if isinstance(entity, TableEntry):
        action = P4TableAction(entity.action, **dict(entity.params))
        return P4TableEntry(entity.table, match=P4TableMatch(entity.match), action=action).encode(schema)
    if isinstance(entity, MulticastGroup):
        # `egress_port`, not the newer `port`: BMv2 speaks P4Runtime 1.3, and newer servers still accept it.
        # The original last: if the switch dies after the replicas, TCP sends the segment again; in the other order the
        # replicas would be lost.
        copies = sorted(entity.replicas, key=lambda copy: (copy.rid == 0, copy))
        replicas = [p4r.Replica(egress_port=copy.port, instance=copy.rid) for copy in copies]
        group = p4r.MulticastGroupEntry(multicast_group_id=entity.id, replicas=replicas)
        engine = p4r.PacketReplicationEngineEntry(multicast_group_entry=group)
        return p4r.Entity(packet_replication_engine_entry=engine)
    return P4DigestEntry(
        entity.digest,
        max_list_size=entity.max_list_size,
        max_timeout_ns=entity.max_timeout_ns,
        ack_timeout_ns=entity.ack_timeout_ns,
    ).encode(schema)


def encode_update(update: Update, schema: P4Schema) -> p4r.Update:
    """Return `update` as a message; errors as in `encode`."""
    return p4r.Update(type=_TYPES[update.change], entity=encode(update.entity, schema))


def decode(message: p4r.Entity, schema: P4Schema) -> Entity:
    """Return the entity in `message`: a table entry, a multicast group or a digest entry.

    Raises:
        ValueError: another kind of entity, or one that our data plane cannot hold (no exact key, no action).
    """
    kind = message.WhichOneof("entity")
    if kind == "table_entry":
        return _table_entry(P4TableEntry.decode(message, schema))
    if kind == "packet_replication_engine_entry":
        group = message.packet_replication_engine_entry.multicast_group_entry
        return MulticastGroup(group.multicast_group_id, frozenset(_replica(copy) for copy in group.replicas))
    if kind == "digest_entry":
        entry = P4DigestEntry.decode(message, schema)
        return DigestConfig(entry.digest_id, entry.max_list_size, entry.max_timeout_ns, entry.ack_timeout_ns)
    raise ValueError(f"an entity of kind {kind} cannot be part of the state")


def _replica(copy: p4r.Replica) -> Replica:
    port = int.from_bytes(copy.port, "big") if copy.HasField("port") else copy.egress_port
    return Replica(port, copy.instance)


def _table_entry(entry: P4TableEntry) -> TableEntry:
    if not isinstance(entry.action, P4TableAction):
        raise ValueError(f"an entry of table {entry.table_id} has no plain action")
    match = dict(entry.match or {})
    for name, value in (*match.items(), *entry.action.args.items()):
        if not isinstance(value, int):
            raise ValueError(f"field {name} of table {entry.table_id} is not exact")
    return TableEntry(entry.table_id, fields_of(match), entry.action.name, fields_of(entry.action.args))
