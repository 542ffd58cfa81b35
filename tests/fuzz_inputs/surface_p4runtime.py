"""P4Runtime requests, damaged: refused with a status that the specification knows, and without a trace where refused.

Most inputs are messages for a device in this process, some are bytes for its server over loopback.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import grpc
from finsy.proto import U128, p4r
from google.protobuf.message import DecodeError, Message

from softswitch.p4rt import BatchError, Code, Device, P4RuntimeError, serve
from softswitch.p4rt.streams import Stream
from tests.fuzz_inputs.damage import damaged
from tests.softswitch.p4rt_client import (
    CPU_PORT,
    DELETE,
    DEVICE_ID,
    IDS,
    INSERT,
    MODIFY,
    Call,
    dmac,
    ether,
    exact,
    group,
    in_range,
    load_config,
    lpm,
    mac,
    optional,
    session,
    ternary,
    update,
)  # fmt: skip

NAME = "p4runtime"
TEST_COUNT = 60
PER_CALL = 10

_ELECTION = U128.encode(1)
_INTEGERS = (
    0,
    1,
    2,
    7,
    255,
    256,
    511,
    512,
    65535,
    65536,
    1 << 24,
    (1 << 31) - 1,
    1 << 32,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
_BYTES = (b"", b"\0", b"\1", b"\0\1", b"\xff", b"\xff" * 6, b"\xff" * 16, b"\xff" * 100, bytes(1000), b"\x80" * 4)
_TEXTS = ("", "x", "\0", "\u2028", "é", "x" * 5000, "no-such-role", "\n", '"""')
_EVERYTHING = (
    *(p4r.Entity(table_entry=p4r.TableEntry(is_default_action=flag)) for flag in (False, True)),
    p4r.Entity(counter_entry=p4r.CounterEntry()),
    p4r.Entity(register_entry=p4r.RegisterEntry()),
    p4r.Entity(digest_entry=p4r.DigestEntry()),
    p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
        multicast_group_entry=p4r.MulticastGroupEntry())),
    p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
        clone_session_entry=p4r.CloneSessionEntry())),
)  # fmt: skip
_READ_ALL = p4r.ReadRequest(device_id=DEVICE_ID, entities=_EVERYTHING)


def _table(name: str, *match: p4r.FieldMatch, **fields: Any) -> p4r.Entity:
    return p4r.Entity(table_entry=IDS.entry(name, *match, action=IDS.action("NoAction"), **fields))


@functools.cache
def _entities() -> tuple[p4r.Entity, ...]:
    """Return an entity of each kind that the sample program has, right or nearly so."""
    tables = [
        _table(table.preamble.alias, *(_match(field) for field in table.match_fields), priority=priority)
        for table in IDS.info.tables
        for priority in (0, 7)
    ]
    counters = [p4r.CounterEntry(counter_id=item.preamble.id, index=p4r.Index(index=1),
                                 data=p4r.CounterData(packet_count=3, byte_count=99))
                for item in IDS.info.counters]  # fmt: skip
    registers = [
        p4r.RegisterEntry(register_id=item.preamble.id, index=p4r.Index(index=1)) for item in IDS.info.registers
    ]
    for register in registers:
        register.data.bitstring = b"\5"
    digests = [p4r.DigestEntry(digest_id=item.preamble.id) for item in IDS.info.digests]
    for digest in digests:
        digest.config.max_list_size = 2
    return (
        dmac(1, 3), dmac(2, 4, idle_timeout_ns=1), *tables, group(5, (1, 1), (2, 1)), session(9, (1, 1)),
        *(p4r.Entity(counter_entry=item) for item in counters),
        *(p4r.Entity(register_entry=item) for item in registers),
        *(p4r.Entity(digest_entry=item) for item in digests),
        p4r.Entity(table_entry=IDS.entry("dmac", action=IDS.action("NoAction"), is_default_action=True)),
        p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=dmac(1, 3).table_entry)),
    )  # fmt: skip


def _match(field: Any) -> p4r.FieldMatch:
    octets = (field.bitwidth + 7) // 8 or 1
    make: dict[int, Callable[[], p4r.FieldMatch]] = {
        field.EXACT: lambda: exact(field.id, b"\1"),
        field.LPM: lambda: lpm(field.id, b"\1".ljust(octets, b"\0"), 8),
        field.TERNARY: lambda: ternary(field.id, b"\1", b"\1"),
        field.RANGE: lambda: in_range(field.id, b"\1", b"\2"),
        field.OPTIONAL: lambda: optional(field.id, b"\1"),
    }
    return make[field.match_type]()


def _write(rng: random.Random) -> p4r.WriteRequest:
    updates = [
        update(rng.choice((INSERT, INSERT, MODIFY, DELETE)), rng.choice(_entities()))
        for _ in range(rng.randrange(1, 5))
    ]
    atomicity = rng.choice(p4r.WriteRequest.Atomicity.values())
    return p4r.WriteRequest(device_id=DEVICE_ID, election_id=_ELECTION, updates=updates, atomicity=atomicity)


def _read(rng: random.Random) -> p4r.ReadRequest:
    entities = [rng.choice((*_entities(), *_EVERYTHING)) for _ in range(rng.randrange(1, 4))]
    return p4r.ReadRequest(device_id=DEVICE_ID, entities=entities)


def _set_pipeline(rng: random.Random) -> p4r.SetForwardingPipelineConfigRequest:
    action = rng.choice(Call.Action.values())
    return Call(device_id=DEVICE_ID, election_id=_ELECTION, action=action, config=load_config())


def _get_pipeline(rng: random.Random) -> p4r.GetForwardingPipelineConfigRequest:
    kinds = p4r.GetForwardingPipelineConfigRequest
    return kinds(device_id=DEVICE_ID, response_type=rng.choice(kinds.ResponseType.values()))


def _stream(rng: random.Random) -> p4r.StreamMessageRequest:
    packet = p4r.PacketOut(payload=ether(mac(1), mac(2)))
    for field in next(
        item for item in IDS.info.controller_packet_metadata if item.preamble.name == "packet_out"
    ).metadata:
        packet.metadata.add(metadata_id=field.id, value=b"\1")
    arbitration = p4r.MasterArbitrationUpdate(device_id=DEVICE_ID, election_id=_ELECTION)
    ack = p4r.DigestListAck(digest_id=IDS.info.digests[0].preamble.id, list_id=1)
    return rng.choice((
        p4r.StreamMessageRequest(packet=packet),
        p4r.StreamMessageRequest(arbitration=arbitration),
        p4r.StreamMessageRequest(digest_ack=ack),
        p4r.StreamMessageRequest(other={}),
    ))  # fmt: skip


_METHODS: dict[str, Callable[[random.Random], Message]] = {
    "Write": _write,
    "Read": _read,
    "SetForwardingPipelineConfig": _set_pipeline,
    "GetForwardingPipelineConfig": _get_pipeline,
    "StreamChannel": _stream,
}


def _mutate(rng: random.Random, message: Message) -> None:
    """Change one field somewhere in a message."""
    inside = [message, *_messages(message)]
    target = rng.choice(inside)
    field = rng.choice(target.DESCRIPTOR.fields) if target.DESCRIPTOR.fields else None
    if field is None:
        return
    if rng.randrange(5) == 0:
        target.ClearField(field.name)
        return
    values: dict[int, Callable[[], Any]] = {
        field.CPPTYPE_BOOL: lambda: rng.random() < 0.5,
        field.CPPTYPE_STRING: lambda: rng.choice(_BYTES if field.type == field.TYPE_BYTES else _TEXTS),
        field.CPPTYPE_FLOAT: lambda: rng.choice((0.0, -1.0, float("nan"), float("inf"))),
        field.CPPTYPE_DOUBLE: lambda: rng.choice((0.0, -1.0, float("nan"), float("inf"))),
    }
    whole: Callable[[], Any] = lambda: rng.choice((rng.choice(_INTEGERS), -rng.choice(_INTEGERS)))  # noqa: E731
    try:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(target, field.name).clear()
        elif field.cpp_type == field.CPPTYPE_MESSAGE and field.is_repeated:
            items = getattr(target, field.name)
            items.add().CopyFrom(rng.choice(items)) if items and rng.random() < 0.7 else items.add()
        elif field.cpp_type == field.CPPTYPE_MESSAGE:
            getattr(target, field.name).SetInParent()
        elif field.is_repeated:
            getattr(target, field.name).append(values.get(field.cpp_type, whole)())
        else:
            setattr(target, field.name, values.get(field.cpp_type, whole)())
    except ValueError:
        pass  # a number that the field cannot hold


def _messages(message: Message) -> list[Message]:
    """Return the messages inside a message, at any depth."""
    found: list[Message] = []
    for field, value in message.ListFields():
        if field.cpp_type != field.CPPTYPE_MESSAGE or field.message_type.GetOptions().map_entry:
            continue
        for item in value if field.is_repeated else [value]:
            found += [item, *_messages(item)]
    return found


class _Rig:
    """A device with the sample program and a client that holds it, and its server."""

    def __init__(self) -> None:
        self.device = Device(DEVICE_ID, cpu_port=CPU_PORT)
        self.said: list[p4r.StreamMessageResponse] = []
        self.stream = self._open()
        self.device.set_pipeline(Call(device_id=DEVICE_ID, election_id=_ELECTION, action=Call.VERIFY_AND_COMMIT,
                                      config=load_config()))  # fmt: skip

    def _open(self) -> Stream:
        stream = self.device.open_stream(self._deliver)
        arbitration = p4r.MasterArbitrationUpdate(device_id=DEVICE_ID, election_id=_ELECTION)
        self.device.receive(stream, p4r.StreamMessageRequest(arbitration=arbitration))
        return stream

    def _deliver(self, message: p4r.StreamMessageResponse) -> bool:
        del self.said[:-50]
        self.said.append(message)
        return True

    def state(self) -> list[bytes]:
        entities, error = self.device.read(_READ_ALL)
        assert error is None, error
        return sorted(entity.SerializeToString(deterministic=True) for entity in entities)

    def call(self, method: str, request: Any) -> None:
        device = self.device
        if method == "Write":
            device.write(request)
        elif method == "Read":
            device.read(request)
        elif method == "SetForwardingPipelineConfig":
            device.set_pipeline(request)
        elif method == "GetForwardingPipelineConfig":
            device.get_pipeline(request)
        else:
            device.receive(self.stream, request)


def run(rng: random.Random, count: int) -> int:
    """Try `count` requests."""
    rig = _Rig()
    for _ in range(count):
        method = rng.choice(("Write", "Write", "Write", "Read", "Read", "GetForwardingPipelineConfig", "StreamChannel",
                             "StreamChannel", "SetForwardingPipelineConfig"))  # fmt: skip
        request = _METHODS[method](rng)
        if rng.randrange(4) == 0:
            data = damaged(rng, request.SerializeToString())
            if rng.randrange(3) == 0:
                _over_loopback(method, data)
                continue
            try:
                request = type(request).FromString(data)
            except DecodeError:
                continue
        else:
            for _ in range(rng.choice((0, 1, 1, 2, 4))):
                _mutate(rng, request)
        _in_process(rng, rig, method, request)
    return count


def _in_process(rng: random.Random, rig: _Rig, method: str, request: Any) -> None:
    what = f"{method} of {request.SerializeToString()[:20_000]!r}"
    before = rig.state()
    refusal: P4RuntimeError | None = None
    try:
        rig.call(method, request)
    except P4RuntimeError as error:
        refusal = error
    except Exception as error:
        raise AssertionError(f"{what} raises {error!r}") from error
    if isinstance(refusal, BatchError):
        assert len(refusal.results) == len(request.updates if method == "Write" else request.entities), what
        refusal.to_status()
    try:
        after = rig.state()
    except Exception as error:
        raise AssertionError(f"after {what} the state cannot be read: {error!r}") from error
    kept = method in ("Read", "GetForwardingPipelineConfig", "StreamChannel") or (
        refusal is not None
        and not (isinstance(refusal, BatchError) and request.atomicity == p4r.WriteRequest.CONTINUE_ON_ERROR)
    )
    if kept and (refusal is not None or method != "SetForwardingPipelineConfig"):
        assert after == before, f"{what} changed the state: {refusal!r}"
    if method == "StreamChannel" and refusal is not None:
        rig.device.close_stream(rig.stream)
        rig.stream = rig._open()
    frame = rng.choice((ether(mac(1), mac(2)), rng.randbytes(70), b""))
    try:
        rig.device.inject(rng.randrange(1, 8), frame, 1000)
        rig.device.poll(2000)
    except Exception as error:
        raise AssertionError(f"after {what} the frame {frame.hex()} raises {error!r}") from error


@functools.cache
def _server() -> tuple[Any, grpc.Channel]:
    server = serve(Device(DEVICE_ID, cpu_port=CPU_PORT))
    return server, grpc.insecure_channel(server.address)


def _over_loopback(method: str, data: bytes) -> None:
    """Send bytes to the server: whatever they are, the RPC ends with a status that the service chose."""
    call = _server()[1].stream_stream(f"/p4.v1.P4Runtime/{method}", lambda item: item, lambda item: item)
    try:
        list(call(iter([data]), timeout=8))
    except grpc.RpcError as error:
        status: Any = error
        code, details = status.code(), status.details() or ""
        expected = code.name in Code.__members__ and not details.startswith("Exception") and code.name != "INTERNAL"
        if not expected:
            raise AssertionError(f"{method} of {data!r} over loopback ends with {code.name}: {details}") from error
