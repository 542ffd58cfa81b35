"""PacketReplicationEngineEntry: multicast groups and clone sessions.

P4Runtime specification, sections "MulticastGroupEntry" and "CloneSessionEntry". Messages are kept as written (form of
the port, order of the replicas, metadata), so that reads return them unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from finsy.proto import p4r

from softswitch.core import SwitchCore
from softswitch.p4rt.bytestrings import decode_unsigned, encode_unsigned
from softswitch.p4rt.errors import Code, P4RuntimeError, invalid, unimplemented
from softswitch.p4rt.undo import Undo

MAX_PORT = (1 << 9) - 1
"""Largest port of v1model (bit<9>)."""
MAX_INSTANCE = (1 << 16) - 1
"""Largest replica id of v1model (egress_rid is bit<16>)."""
MAX_GROUP = (1 << 16) - 1
"""Largest multicast group of v1model (mcast_grp is bit<16>)."""
MAX_SESSION = (1 << 15) - 1
"""Largest clone session that BMv2 can address."""

_Replicas = list[tuple[int, int]]


class ReplicationStore:
    """The packet replication engine of one pipeline."""

    def __init__(self, core: SwitchCore) -> None:
        """Start without groups and sessions."""
        self._core = core
        self._groups: dict[int, p4r.MulticastGroupEntry] = {}
        self._sessions: dict[int, p4r.CloneSessionEntry] = {}

    def write(self, kind: p4r.Update.Type.ValueType, entry: p4r.PacketReplicationEngineEntry) -> Undo:
        """Apply an update and return its undo.

        Raises:
            P4RuntimeError: with the code that the specification prescribes; nothing has changed.
        """
        form = entry.WhichOneof("type")
        if form == "multicast_group_entry":
            return self._write_group(kind, entry.multicast_group_entry)
        if form == "clone_session_entry":
            return self._write_session(kind, entry.clone_session_entry)
        raise invalid("PacketReplicationEngineEntry: neither multicast group nor clone session is set")

    def read(self, request: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.Entity]:
        """Yield one group or session, or for id 0 all of them.

        Raises:
            P4RuntimeError: NOT_FOUND for an id that is not configured, INVALID_ARGUMENT for an unset entry.
        """
        form = request.WhichOneof("type")
        if form == "multicast_group_entry":
            wanted = request.multicast_group_entry.multicast_group_id
            if wanted and wanted not in self._groups:
                raise P4RuntimeError(Code.NOT_FOUND, f"multicast group {wanted} does not exist")
            for group_id, group in self._groups.items():
                if wanted in (0, group_id):
                    pre = p4r.PacketReplicationEngineEntry(multicast_group_entry=group)
                    yield p4r.Entity(packet_replication_engine_entry=pre)
        elif form == "clone_session_entry":
            wanted = request.clone_session_entry.session_id
            if wanted and wanted not in self._sessions:
                raise P4RuntimeError(Code.NOT_FOUND, f"clone session {wanted} does not exist")
            for session_id, session in self._sessions.items():
                if wanted in (0, session_id):
                    pre = p4r.PacketReplicationEngineEntry(clone_session_entry=session)
                    yield p4r.Entity(packet_replication_engine_entry=pre)
        else:
            raise invalid("PacketReplicationEngineEntry: neither multicast group nor clone session is set")

    def _write_group(self, kind: p4r.Update.Type.ValueType, entry: p4r.MulticastGroupEntry) -> Undo:
        group_id = entry.multicast_group_id
        what = f"multicast group {group_id}"
        if group_id == 0:
            raise invalid("multicast_group_id must not be 0 in a write")
        if group_id > MAX_GROUP:
            raise P4RuntimeError(Code.OUT_OF_RANGE, f"{what}: the largest group id is {MAX_GROUP}")
        before = self._groups.get(group_id)
        _check_existence(kind, before is not None, what)
        if kind == p4r.Update.DELETE:
            self._put_group(group_id, None)
        else:
            self._put_group(
                group_id,
                p4r.MulticastGroupEntry(
                    multicast_group_id=group_id,
                    replicas=_canonical(entry.replicas, what),
                    metadata=entry.metadata,
                ),
            )
        return lambda: self._put_group(group_id, before)

    def _write_session(self, kind: p4r.Update.Type.ValueType, entry: p4r.CloneSessionEntry) -> Undo:
        session_id = entry.session_id
        what = f"clone session {session_id}"
        if not 1 <= session_id <= MAX_SESSION:
            raise invalid(f"{what}: session_id must be in 1..{MAX_SESSION}")
        before = self._sessions.get(session_id)
        _check_existence(kind, before is not None, what)
        if kind == p4r.Update.DELETE:
            self._put_session(session_id, None)
        else:
            if entry.class_of_service:
                raise unimplemented(f"{what}: class_of_service {entry.class_of_service}")
            if entry.packet_length_bytes < 0:
                raise invalid(f"{what}: packet_length_bytes must not be negative")
            self._put_session(
                session_id,
                p4r.CloneSessionEntry(
                    session_id=session_id,
                    replicas=_canonical(entry.replicas, what),
                    packet_length_bytes=entry.packet_length_bytes,
                ),
            )
        return lambda: self._put_session(session_id, before)

    def _put_group(self, group_id: int, entry: p4r.MulticastGroupEntry | None) -> None:
        if entry is None:
            self._core.delete_multicast_group(group_id)
            del self._groups[group_id]
        else:
            self._core.set_multicast_group(group_id, _pairs(entry.replicas))
            self._groups[group_id] = entry

    def _put_session(self, session_id: int, entry: p4r.CloneSessionEntry | None) -> None:
        if entry is None:
            self._core.delete_clone_session(session_id)
            del self._sessions[session_id]
        else:
            self._core.set_clone_session(session_id, _pairs(entry.replicas), entry.packet_length_bytes)
            self._sessions[session_id] = entry


def _check_existence(kind: p4r.Update.Type.ValueType, exists: bool, what: str) -> None:
    if kind == p4r.Update.INSERT and exists:
        raise P4RuntimeError(Code.ALREADY_EXISTS, f"{what} already exists")
    if kind != p4r.Update.INSERT and not exists:
        raise P4RuntimeError(Code.NOT_FOUND, f"{what} does not exist")


def _canonical(replicas: Iterable[p4r.Replica], what: str) -> list[p4r.Replica]:
    result: list[p4r.Replica] = []
    seen: set[tuple[int, int]] = set()
    for replica in replicas:
        if replica.backup_replicas:
            raise unimplemented(f"{what}: backup_replicas")
        if replica.instance > MAX_INSTANCE:
            raise invalid(f"{what}: instance {replica.instance} is above {MAX_INSTANCE}")
        form = replica.WhichOneof("port_kind")
        if form is None:
            raise invalid(f"{what}: a replica has no port")
        if form == "port":
            port = decode_unsigned(replica.port, 32, f"{what}: port")
            kept = p4r.Replica(port=encode_unsigned(port), instance=replica.instance)
        else:
            port = replica.egress_port
            kept = p4r.Replica(egress_port=port, instance=replica.instance)
        if port > MAX_PORT:
            raise invalid(f"{what}: port {port} is above {MAX_PORT}")
        if (port, replica.instance) in seen:
            raise invalid(f"{what}: port {port} with instance {replica.instance} is given twice")
        seen.add((port, replica.instance))
        result.append(kept)
    return result


def _pairs(replicas: Iterable[p4r.Replica]) -> _Replicas:
    return [
        (
            int.from_bytes(replica.port, "big") if replica.HasField("port") else replica.egress_port,
            replica.instance,
        )
        for replica in replicas
    ]
