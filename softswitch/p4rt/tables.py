"""TableEntry and DirectCounterEntry: writes and reads of one pipeline's tables.

P4Runtime specification, sections "TableEntry", "Default Entry", "Constant Tables", "Wildcard Reads" and
"Direct Resources". Every write returns its undo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from finsy.proto import p4r

from softswitch.core import SwitchCore
from softswitch.errors import SwitchError
from softswitch.p4rt.errors import Code, P4RuntimeError, invalid
from softswitch.p4rt.keys import check_priority, format_action, format_match, parse_action, parse_match
from softswitch.p4rt.schema import Schema, TableInfo
from softswitch.p4rt.undo import Undo, nothing
from softswitch.state import ActionCall, MatchKey, Table, TableEntry

_Key = tuple[tuple[MatchKey, ...], int]
_DEFAULT: _Key = ((), -1)


@dataclass(frozen=True, slots=True)
class _ClientData:
    """Client data of an entry, unknown to the data plane."""

    metadata: bytes = b""
    controller_metadata: int = 0


_NO_DATA = _ClientData()


class TableStore:
    """The tables of one pipeline, as P4Runtime sees them."""

    def __init__(self, schema: Schema, core: SwitchCore) -> None:
        """Serve the tables of `core` that `schema` describes."""
        self._schema = schema
        self._core = core
        self._client_data_of: dict[tuple[int, _Key], _ClientData] = {}
        self._set_defaults: set[int] = set()

    def write(self, kind: p4r.Update.Type.ValueType, entry: p4r.TableEntry) -> Undo:
        """Apply an update and return its undo.

        Raises:
            P4RuntimeError, SwitchError: with the code that the specification prescribes; nothing has changed.
        """
        info, table = self._find(entry.table_id)
        if entry.is_const:
            raise invalid(f"table {info.name}: is_const must not be set in a write")
        if entry.is_default_action:
            return self._write_default(kind, entry, info, table)
        if kind != p4r.Update.MODIFY and info.is_const:
            raise P4RuntimeError(Code.PERMISSION_DENIED, f"table {info.name} has constant entries")
        if kind == p4r.Update.INSERT:
            return self._insert(entry, info, table)
        if kind == p4r.Update.MODIFY:
            return self._modify(entry, info, table)
        return self._delete(entry, info, table)

    def read(self, request: p4r.TableEntry, allowed: Iterable[int]) -> Iterator[p4r.Entity]:
        """Yield the entries that `request` selects, from the tables with an id in `allowed`.

        Raises:
            P4RuntimeError: INVALID_ARGUMENT for an unknown table or an invalid filter.
        """
        if request.HasField("time_since_last_hit"):
            raise invalid("time_since_last_hit must not be set: this target has no idle timeouts")
        if request.table_id == 0 and (
            request.match
            or request.priority
            or request.HasField("action")
            or request.metadata
            or request.controller_metadata
        ):
            raise invalid("a read of all tables (table_id 0) must not filter entries")
        for info, table in self._select(request.table_id, allowed):
            yield from self._read_table(request, info, table)

    def write_direct_counter(self, kind: p4r.Update.Type.ValueType, entry: p4r.DirectCounterEntry) -> Undo:
        """Set the direct counter of an entry and return its undo.

        Raises:
            P4RuntimeError, SwitchError: INVALID_ARGUMENT for INSERT and DELETE, or a table without direct counter;
                NOT_FOUND if there is no such entry.
        """
        if kind != p4r.Update.MODIFY:
            raise invalid("DirectCounterEntry can only be modified")
        info, table = self._find_counted(entry)
        key = self._existing_key(entry.table_entry, info, table)
        if not entry.HasField("data"):
            return nothing
        return self._set_counter(table, key, entry.data)

    def read_direct_counter(self, request: p4r.DirectCounterEntry, allowed: Iterable[int]) -> Iterator[p4r.Entity]:
        """Yield direct counters: of one entry, of all entries of a table, or (table_id 0) of all tables.

        Raises:
            P4RuntimeError, SwitchError: INVALID_ARGUMENT for a table without direct counter, NOT_FOUND if there is no
                such entry.
        """
        entry = request.table_entry
        if entry.table_id == 0:
            if entry.match or entry.priority:
                raise invalid("a read of all direct counters (table_id 0) must not filter entries")
            wanted = [pair for pair in self._select(0, allowed) if pair[0].has_direct_counter]
        else:
            wanted = [self._find_counted(request)]
        for info, table in wanted:
            if entry.is_default_action or entry.match:
                keys = [self._existing_key(entry, info, table)]
            else:
                keys = [(found.match, found.priority) for found in table.entries()]
            for key in keys:
                yield p4r.Entity(
                    direct_counter_entry=p4r.DirectCounterEntry(
                        table_entry=self._key_message(info, key), data=self._counter_data(table, key)
                    )
                )

    def changed_defaults(self) -> frozenset[int]:
        """Return the ids of the tables whose default action a client has set."""
        return frozenset(self._set_defaults)

    def _insert(self, entry: p4r.TableEntry, info: TableInfo, table: Table) -> Undo:
        if not info.fields:
            raise invalid(f"table {info.name} has no key; only its default action can be set")
        self._check_resources(entry, info)
        if not entry.HasField("action"):
            raise invalid(f"table {info.name}: an insert needs an action")
        key = self._key(entry, info)
        call = parse_action(self._schema, info, entry.action, default=False)
        table.insert(TableEntry(key[0], key[1], call))
        if entry.HasField("counter_data"):
            table.set_counter(*key, *_counter_values(entry.counter_data))
        self._set_client_data(info.id, key, _client_data(entry))

        def undo() -> None:
            table.delete(*key)
            self._set_client_data(info.id, key, _NO_DATA)

        return undo

    def _modify(self, entry: p4r.TableEntry, info: TableInfo, table: Table) -> Undo:
        self._check_resources(entry, info)
        if entry.HasField("action") and info.is_const:
            raise P4RuntimeError(
                Code.PERMISSION_DENIED,
                f"table {info.name} has constant entries; modify counter_data only, without an action",
            )
        call: ActionCall | None = None
        if entry.HasField("action"):
            call = parse_action(self._schema, info, entry.action, default=False)
        key = self._existing_key(entry, info, table)
        undo_counter = nothing
        before, data = table.get(*key), self._client_data_of.get((info.id, key), _NO_DATA)
        if call is not None:
            table.modify(TableEntry(key[0], key[1], call))
            self._set_client_data(info.id, key, _client_data(entry))
        if entry.HasField("counter_data"):
            undo_counter = self._set_counter(table, key, entry.counter_data)

        def undo() -> None:
            undo_counter()
            if call is not None:
                table.modify(before)
                self._set_client_data(info.id, key, data)

        return undo

    def _delete(self, entry: p4r.TableEntry, info: TableInfo, table: Table) -> Undo:
        key = self._existing_key(entry, info, table)
        before, data = table.get(*key), self._client_data_of.get((info.id, key), _NO_DATA)
        counter = table.counter(*key) if info.has_direct_counter else None
        table.delete(*key)
        self._set_client_data(info.id, key, _NO_DATA)

        def undo() -> None:
            table.insert(before)
            if counter is not None:
                table.set_counter(*key, *counter)
            self._set_client_data(info.id, key, data)

        return undo

    def _write_default(
        self, kind: p4r.Update.Type.ValueType, entry: p4r.TableEntry, info: TableInfo, table: Table
    ) -> Undo:
        if kind != p4r.Update.MODIFY:
            raise invalid(f"table {info.name}: the default entry can only be modified")
        _check_default_key(entry, info)
        self._check_resources(entry, info)
        if info.const_default:
            raise P4RuntimeError(Code.PERMISSION_DENIED, f"table {info.name} has a constant default action")
        before, data = table.default, self._client_data_of.get((info.id, _DEFAULT), _NO_DATA)
        was_set = info.id in self._set_defaults
        counter = table.default_counter() if info.has_direct_counter else None
        if entry.HasField("action"):
            table.set_default(parse_action(self._schema, info, entry.action, default=True))
            self._set_defaults.add(info.id)
            self._set_client_data(info.id, _DEFAULT, _client_data(entry))
            if entry.HasField("counter_data"):
                table.set_default_counter(*_counter_values(entry.counter_data))
        else:
            table.reset_default()
            self._set_defaults.discard(info.id)
            self._set_client_data(info.id, _DEFAULT, _NO_DATA)
            if counter is not None:
                table.set_default_counter(0, 0)

        def undo() -> None:
            if was_set and before is not None:
                table.set_default(before)
                self._set_defaults.add(info.id)
            else:
                table.reset_default()
                self._set_defaults.discard(info.id)
            if counter is not None:
                table.set_default_counter(*counter)
            self._set_client_data(info.id, _DEFAULT, data)

        return undo

    def _read_table(self, request: p4r.TableEntry, info: TableInfo, table: Table) -> Iterator[p4r.Entity]:
        with_counter = info.has_direct_counter and request.HasField("counter_data")
        if request.is_default_action:
            _check_default_key(request, info)
            if table.default is not None and self._passes(request, info, _DEFAULT, table.default):
                message = self._entry_message(info, _DEFAULT, table.default)
                if with_counter:
                    message.counter_data.CopyFrom(self._counter_data(table, _DEFAULT))
                yield p4r.Entity(table_entry=message)
            return
        match = parse_match(info, request.match) if request.match else None
        if match is not None and (request.priority or not info.needs_priority):
            candidates = _lookup(table, match, request.priority)
        else:
            candidates = table.entries()
        for entry in candidates:
            key = (entry.match, entry.priority)
            if match is not None and entry.match != match:
                continue
            if request.priority and entry.priority != request.priority:
                continue
            if not self._passes(request, info, key, entry.action):
                continue
            message = self._entry_message(info, key, entry.action)
            if with_counter:
                message.counter_data.CopyFrom(self._counter_data(table, key))
            yield p4r.Entity(table_entry=message)

    def _passes(self, request: p4r.TableEntry, info: TableInfo, key: _Key, call: ActionCall) -> bool:
        data = self._client_data_of.get((info.id, key), _NO_DATA)
        if request.HasField("action") and request.action.action.action_id != self._schema.action_ids[call.name]:
            return False
        if request.metadata and request.metadata != data.metadata:
            return False
        return not request.controller_metadata or request.controller_metadata == data.controller_metadata

    def _entry_message(self, info: TableInfo, key: _Key, call: ActionCall) -> p4r.TableEntry:
        message = self._key_message(info, key)
        message.action.CopyFrom(format_action(self._schema, call))
        data = self._client_data_of.get((info.id, key), _NO_DATA)
        message.metadata = data.metadata
        message.controller_metadata = data.controller_metadata
        message.is_const = info.const_default if key is _DEFAULT else info.is_const
        return message

    def _key_message(self, info: TableInfo, key: _Key) -> p4r.TableEntry:
        if key is _DEFAULT:
            return p4r.TableEntry(table_id=info.id, is_default_action=True)
        return p4r.TableEntry(table_id=info.id, match=format_match(info, key[0]), priority=key[1])

    def _find(self, table_id: int) -> tuple[TableInfo, Table]:
        info = self._schema.tables.get(table_id)
        if info is None:
            raise invalid(f"table_id {table_id} is not a table of the program")
        return info, self._core.tables[info.name]

    def _select(self, table_id: int, allowed: Iterable[int]) -> list[tuple[TableInfo, Table]]:
        found = self._schema.tables if table_id == 0 else (self._find(table_id)[0].id,)
        permitted = set(allowed)
        return [self._find(wanted) for wanted in found if wanted in permitted]

    def _find_counted(self, entry: p4r.DirectCounterEntry) -> tuple[TableInfo, Table]:
        if not entry.HasField("table_entry"):
            raise invalid("DirectCounterEntry needs a table_entry")
        info, table = self._find(entry.table_entry.table_id)
        if not info.has_direct_counter:
            raise invalid(f"table {info.name} has no direct counter")
        return info, table

    def _key(self, entry: p4r.TableEntry, info: TableInfo) -> _Key:
        match = parse_match(info, entry.match)
        check_priority(info, entry.priority)
        return match, entry.priority

    def _existing_key(self, entry: p4r.TableEntry, info: TableInfo, table: Table) -> _Key:
        if entry.is_default_action:
            _check_default_key(entry, info)
            return _DEFAULT
        key = self._key(entry, info)
        table.get(*key)
        return key

    def _check_resources(self, entry: p4r.TableEntry, info: TableInfo) -> None:
        if entry.idle_timeout_ns or entry.HasField("time_since_last_hit"):
            raise invalid(f"table {info.name}: this target has no idle timeouts; omit idle_timeout_ns")
        if entry.HasField("meter_config") or entry.HasField("meter_counter_data"):
            raise invalid(f"table {info.name} has no direct meter")
        if entry.HasField("counter_data"):
            if not info.has_direct_counter:
                raise invalid(f"table {info.name} has no direct counter")
            _counter_values(entry.counter_data)

    def _set_counter(self, table: Table, key: _Key, data: p4r.CounterData) -> Undo:
        values = _counter_values(data)
        if key is _DEFAULT:
            before = table.default_counter()
            table.set_default_counter(*values)
            return lambda: table.set_default_counter(*before)
        before = table.counter(*key)
        table.set_counter(*key, *values)
        return lambda: table.set_counter(*key, *before)

    def _counter_data(self, table: Table, key: _Key) -> p4r.CounterData:
        packets, count = table.default_counter() if key is _DEFAULT else table.counter(*key)
        return p4r.CounterData(packet_count=packets, byte_count=count)

    def _set_client_data(self, table_id: int, key: _Key, data: _ClientData) -> None:
        if data == _NO_DATA:
            self._client_data_of.pop((table_id, key), None)
        else:
            self._client_data_of[(table_id, key)] = data


def _lookup(table: Table, match: tuple[MatchKey, ...], priority: int) -> list[TableEntry]:
    try:
        return [table.get(match, priority)]
    except SwitchError:
        return []


def _client_data(entry: p4r.TableEntry) -> _ClientData:
    return _ClientData(entry.metadata, entry.controller_metadata)


def _check_default_key(entry: p4r.TableEntry, info: TableInfo) -> None:
    if entry.match or entry.priority:
        raise invalid(f"table {info.name}: the default entry must have neither match nor priority")


def _counter_values(data: p4r.CounterData) -> tuple[int, int]:
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(f"counter_data must not be negative: {data.packet_count} packets, {data.byte_count} bytes")
    return data.packet_count, data.byte_count
