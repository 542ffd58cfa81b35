"""A plain gRPC client of P4Runtime for the tests: it sends exactly what a test says, valid or not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from finsy.proto import U128, p4i, p4r, p4r_grpc, rpc_status
from google.protobuf import text_format

PROGRAMS = Path(__file__).parent / "programs"
DEVICE_ID = 1
CPU_PORT = 510
TIMEOUT_S = 10.0

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
Call = p4r.SetForwardingPipelineConfigRequest


def load_info() -> p4i.P4Info:
    return text_format.Parse((PROGRAMS / "p4rt_sample.p4info.txtpb").read_text(), p4i.P4Info())


def load_config(cookie: int | None = 7) -> p4r.ForwardingPipelineConfig:
    config = p4r.ForwardingPipelineConfig(
        p4info=load_info(), p4_device_config=(PROGRAMS / "p4rt_sample.json").read_bytes()
    )
    if cookie is not None:
        config.cookie.cookie = cookie
    return config


class Names:
    """Ids of the sample program by alias."""

    def __init__(self) -> None:
        self.info = load_info()
        self._ids = {
            (kind, item.preamble.alias): item.preamble.id
            for kind, items in (
                ("table", self.info.tables),
                ("action", self.info.actions),
                ("counter", self.info.counters),
                ("register", self.info.registers),
                ("digest", self.info.digests),
            )
            for item in items
        }

    def __call__(self, kind: str, alias: str) -> int:
        return self._ids[kind, alias]

    def action(self, alias: str, *params: bytes) -> p4r.TableAction:
        return p4r.TableAction(
            action=p4r.Action(
                action_id=self("action", alias),
                params=[p4r.Action.Param(param_id=i + 1, value=value) for i, value in enumerate(params)],
            )
        )

    def entry(self, table: str, *match: p4r.FieldMatch, **fields: Any) -> p4r.TableEntry:
        return p4r.TableEntry(table_id=self("table", table), match=match, **fields)


IDS = Names()


def exact(field_id: int, value: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, exact=p4r.FieldMatch.Exact(value=value))


def lpm(field_id: int, value: bytes, prefix_len: int) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, lpm=p4r.FieldMatch.LPM(value=value, prefix_len=prefix_len))


def ternary(field_id: int, value: bytes, mask: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, ternary=p4r.FieldMatch.Ternary(value=value, mask=mask))


def optional(field_id: int, value: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, optional=p4r.FieldMatch.Optional(value=value))


def in_range(field_id: int, low: bytes, high: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, range=p4r.FieldMatch.Range(low=low, high=high))


def mac(last: int) -> bytes:
    """The canonical byte string of a unicast address 02:00:00:00:00:<last>."""
    return bytes([2, 0, 0, 0, 0, last])


def ether(dst: bytes, src: bytes, payload: bytes = b"x" * 46, ether_type: int = 0x88B5) -> bytes:
    return dst + src + ether_type.to_bytes(2, "big") + payload


def ipv4(src: bytes, dst: bytes, *, protocol: int = 17, ttl: int = 64) -> bytes:
    """An IPv4 header without options, checksum 0 (the sample program does not look at it)."""
    return bytes([0x45, 0, 0, 20, 0, 0, 0, 0, ttl, protocol, 0, 0]) + src + dst


def dmac(last: int, port: int, **fields: Any) -> p4r.Entity:
    """An entry that forwards frames for `mac(last)` to `port`."""
    action = IDS.action("forward", port.to_bytes((max(port, 1).bit_length() + 7) // 8, "big"))
    return p4r.Entity(table_entry=IDS.entry("dmac", exact(1, mac(last)), action=action, **fields))


def group(group_id: int, *replicas: tuple[int, int]) -> p4r.Entity:
    entry = p4r.MulticastGroupEntry(
        multicast_group_id=group_id,
        replicas=[p4r.Replica(egress_port=port, instance=instance) for port, instance in replicas],
    )
    return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(multicast_group_entry=entry))


def session(session_id: int, *replicas: tuple[int, int], **fields: Any) -> p4r.Entity:
    entry = p4r.CloneSessionEntry(
        session_id=session_id,
        replicas=[p4r.Replica(egress_port=port, instance=instance) for port, instance in replicas],
        **fields,
    )
    return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(clone_session_entry=entry))


def update(kind: p4r.Update.Type.ValueType, entity: p4r.Entity) -> p4r.Update:
    return p4r.Update(type=kind, entity=entity)


def status_of(error: grpc.RpcError) -> tuple[str, str]:
    """(code name, text) of a failed RPC."""
    return error.code().name, error.details()


def update_errors(error: grpc.RpcError) -> list[p4r.Error]:
    """The p4.v1.Error of each update, after checking that the two statuses of the RPC agree."""
    data = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status = rpc_status.Status.FromString(data)
    assert (status.code, status.message) == (error.code().value[0], error.details())
    result = []
    for detail in status.details:
        item = p4r.Error()
        assert detail.Unpack(item)
        result.append(item)
    return result


def codes(error: grpc.RpcError) -> list[int]:
    return [item.canonical_code for item in update_errors(error)]


class Controller:
    """A client with one stream; closing it ends the stream."""

    def __init__(self, address: str, device_id: int = DEVICE_ID, role: str = "", credentials: Any = None) -> None:
        options = [("grpc.max_metadata_size", 1 << 20), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )
        self.stub = p4r_grpc.P4RuntimeStub(self.channel)
        self.device_id = device_id
        self.role = role
        self.election_id: int | None = None
        self._requests: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self._responses: queue.SimpleQueue[p4r.StreamMessageResponse | grpc.RpcError | None] = queue.SimpleQueue()
        self._call: Any = None
        self._reader: threading.Thread | None = None

    # -- stream ----------------------------------------------------------------------------------------------

    def send(self, **fields: Any) -> None:
        if self._call is None:
            self._call = self.stub.StreamChannel(iter(self._requests.get, None))
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
        self._requests.put(p4r.StreamMessageRequest(**fields))

    def receive(self, form: str) -> Any:
        """Return the next stream message, which must have this form."""
        return self.receive_any(form)[1]

    def receive_any(self, *forms: str) -> tuple[str, Any]:
        """Return (form, message) of the next stream message, which must have one of these forms."""
        item = self._responses.get(timeout=TIMEOUT_S)
        assert isinstance(item, p4r.StreamMessageResponse), f"the stream ended: {item}"
        form = item.WhichOneof("update")
        assert form in forms, item
        return form, getattr(item, form)

    def stream_error(self) -> tuple[str, str]:
        """Wait until the server ends the stream; return the status of the RPC."""
        item = self._responses.get(timeout=TIMEOUT_S)
        assert isinstance(item, grpc.RpcError), item
        return status_of(item)

    def nothing_received(self) -> bool:
        return self._responses.empty()

    def arbitration(self, election_id: int | None, config: Any = None) -> p4r.MasterArbitrationUpdate:
        message = p4r.MasterArbitrationUpdate(device_id=self.device_id)
        if election_id is not None:
            message.election_id.CopyFrom(U128.encode(election_id))
        if self.role:
            message.role.name = self.role
        if config is not None:
            message.role.config.Pack(config)
        return message

    def arbitrate(self, election_id: int | None, config: Any = None) -> int:
        """Send an arbitration message; return the status code of the answer."""
        self.election_id = election_id
        self.send(arbitration=self.arbitration(election_id, config))
        return int(self.receive("arbitration").status.code)

    def close(self) -> None:
        self._requests.put(None)
        if self._reader is not None:
            self._reader.join(TIMEOUT_S)
        self.channel.close()

    def __enter__(self) -> Controller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        try:
            for message in self._call:
                self._responses.put(message)
        except grpc.RpcError as error:
            self._responses.put(error)
        self._responses.put(None)

    # -- unary RPCs ------------------------------------------------------------------------------------------

    def _identity(self) -> Mapping[str, Any]:
        identity: dict[str, Any] = {"device_id": self.device_id, "role": self.role}
        if self.election_id is not None:
            identity["election_id"] = U128.encode(self.election_id)
        return identity

    def write(self, *updates: p4r.Update, **fields: Any) -> None:
        request = p4r.WriteRequest(updates=updates, **self._identity(), **fields)
        self.stub.Write(request, timeout=TIMEOUT_S)

    def insert(self, *entities: p4r.Entity) -> None:
        self.write(*(update(INSERT, entity) for entity in entities))

    def modify(self, *entities: p4r.Entity) -> None:
        self.write(*(update(MODIFY, entity) for entity in entities))

    def delete(self, *entities: p4r.Entity) -> None:
        self.write(*(update(DELETE, entity) for entity in entities))

    def read(self, *entities: p4r.Entity, role: str = "") -> list[p4r.Entity]:
        return list(self.read_stream(*entities, role=role))

    def read_stream(self, *entities: p4r.Entity, role: str = "") -> Iterator[p4r.Entity]:
        request = p4r.ReadRequest(device_id=self.device_id, entities=entities, role=role)
        for response in self.stub.Read(request, timeout=TIMEOUT_S):
            yield from response.entities

    def set_pipeline(self, action: Call.Action.ValueType, config: p4r.ForwardingPipelineConfig | None) -> None:
        request = Call(action=action, config=config, **self._identity())
        self.stub.SetForwardingPipelineConfig(request, timeout=TIMEOUT_S)

    def get_pipeline(self, kind: int = 0) -> p4r.GetForwardingPipelineConfigResponse:
        request = p4r.GetForwardingPipelineConfigRequest(device_id=self.device_id, response_type=kind)
        return self.stub.GetForwardingPipelineConfig(request, timeout=TIMEOUT_S)
