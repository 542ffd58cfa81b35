"""CounterEntry and RegisterEntry: the indexed arrays of one pipeline.

P4Runtime specification, sections "CounterEntry" and "RegisterEntry". Upstream BMv2 answers register reads
and writes with UNIMPLEMENTED; here they work. A client for both uses tables, digests and counters instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from finsy.proto import p4r

from softswitch.core import SwitchCore
from softswitch.p4rt.errors import Code, P4RuntimeError, invalid
from softswitch.p4rt.p4data import DataType, decode_data, encode_data
from softswitch.p4rt.schema import ArrayInfo, Schema
from softswitch.p4rt.undo import Undo, nothing


class ArrayStore:
    """The indirect counters and registers of one pipeline."""

    def __init__(self, schema: Schema, core: SwitchCore) -> None:
        """Serve the arrays of `core` that `schema` describes."""
        self._schema = schema
        self._core = core

    def write_counter(self, kind: p4r.Update.Type.ValueType, entry: p4r.CounterEntry) -> Undo:
        """Set one counter, or with `index` unset all of the array; return its undo.

        Raises:
            P4RuntimeError: INVALID_ARGUMENT for INSERT and DELETE, an unknown id or a negative number;
                OUT_OF_RANGE for an index beyond the array.
        """
        if kind != p4r.Update.MODIFY:
            raise invalid("CounterEntry can only be modified")
        info = _find(self._schema.counters, entry.counter_id, "counter")
        indices = _indices(info, entry)
        if not entry.HasField("data"):
            return nothing
        packets, count = entry.data.packet_count, entry.data.byte_count
        if packets < 0 or count < 0:
            raise invalid(f"counter {info.name}: data must not be negative")
        array = self._core.counters[info.name]
        before = [(index, array.read(index)) for index in indices]
        for index in indices:
            array.write(index, packets, count)

        def undo() -> None:
            for index, values in before:
                array.write(index, *values)

        return undo

    def read_counter(self, request: p4r.CounterEntry, allowed: Iterable[int]) -> Iterator[p4r.Entity]:
        """Yield one counter, those of an array (index unset), or those of all arrays (counter_id 0).

        Raises:
            P4RuntimeError: as `write_counter`.
        """
        for info in _select(self._schema.counters, request.counter_id, "counter", allowed):
            array = self._core.counters[info.name]
            for index in _indices(info, request):
                packets, count = array.read(index)
                yield p4r.Entity(
                    counter_entry=p4r.CounterEntry(
                        counter_id=info.id,
                        index=p4r.Index(index=index),
                        data=p4r.CounterData(packet_count=packets, byte_count=count),
                    )
                )

    def write_register(self, kind: p4r.Update.Type.ValueType, entry: p4r.RegisterEntry) -> Undo:
        """Set one cell, or with `index` unset all of the array; return its undo.

        Raises:
            P4RuntimeError: INVALID_ARGUMENT for INSERT and DELETE, an unknown id, a negative index or data of
                another type; OUT_OF_RANGE for an index beyond the array or a value that is too wide.
        """
        if kind != p4r.Update.MODIFY:
            raise invalid("RegisterEntry can only be modified")
        info = _find(self._schema.registers, entry.register_id, "register")
        indices = _indices(info, entry)
        if not entry.HasField("data"):
            raise invalid(f"register {info.name}: data is missing")
        leaves = decode_data(_cell_type(info), entry.data, f"register {info.name}")
        array = self._core.registers[info.name]
        before = [(index, array.read(index)) for index in indices]
        for index in indices:
            array.write(index, leaves[0])

        def undo() -> None:
            for index, value in before:
                array.write(index, value)

        return undo

    def read_register(self, request: p4r.RegisterEntry, allowed: Iterable[int]) -> Iterator[p4r.Entity]:
        """Yield one cell, those of an array (index unset), or those of all arrays (register_id 0).

        Raises:
            P4RuntimeError: as `write_register`.
        """
        for info in _select(self._schema.registers, request.register_id, "register", allowed):
            array = self._core.registers[info.name]
            cell = _cell_type(info)
            for index in _indices(info, request):
                yield p4r.Entity(
                    register_entry=p4r.RegisterEntry(
                        register_id=info.id,
                        index=p4r.Index(index=index),
                        data=encode_data(cell, (array.read(index),)),
                    )
                )


def _find(known: Mapping[int, ArrayInfo], wanted: int, kind: str) -> ArrayInfo:
    if wanted not in known:
        raise invalid(f"{kind}_id {wanted} is not a {kind} of the program")
    return known[wanted]


def _select(known: Mapping[int, ArrayInfo], wanted: int, kind: str, allowed: Iterable[int]) -> list[ArrayInfo]:
    found = list(known.values()) if wanted == 0 else [_find(known, wanted, kind)]
    permitted = set(allowed)
    return [info for info in found if info.id in permitted]


def _cell_type(info: ArrayInfo) -> DataType:
    assert info.type is not None, "registers have a type"
    return info.type


def _indices(info: ArrayInfo, entry: p4r.CounterEntry | p4r.RegisterEntry) -> range:
    if not entry.HasField("index"):
        return range(info.size)
    index = entry.index.index
    if index < 0:
        raise invalid(f"{info.name}: index {index} is negative")
    if index >= info.size:
        raise P4RuntimeError(Code.OUT_OF_RANGE, f"{info.name}: index {index} is not below its size {info.size}")
    return range(index, index + 1)
