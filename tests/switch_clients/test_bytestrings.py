"""Byte strings on the wire: a switch takes padded ones, takes them for the same value, and gives canonical ones."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from finsy import P4Schema
from finsy.proto import p4r

from p4src.names import Table
from tests.softswitch.p4rt_client import DELETE, INSERT, MODIFY, Call, Controller, codes, exact, update
from tests.switch_clients.entries import DEVICE_CONFIG, EXAMPLES, P4INFO, Example

SCHEMA = P4Schema(P4INFO)


@pytest.fixture
def controller(address: str) -> Iterator[Controller]:
    with Controller(address) as client:
        assert client.arbitrate(1) == 0
        config = p4r.ForwardingPipelineConfig(p4info=SCHEMA.p4info, p4_device_config=DEVICE_CONFIG.read_bytes())
        client.set_pipeline(Call.VERIFY_AND_COMMIT, config)
        yield client


def canonical(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def message(example: Example, *, padding: int = 0) -> p4r.Entity:
    """Return an example with `padding` leading zero bytes in front of each value."""
    table, action = SCHEMA.tables[example.table], SCHEMA.actions[example.action]
    zeros = bytes(padding)
    fields = [exact(field.id, zeros + canonical(example.match[field.alias])) for field in table.match_fields]
    params = [
        p4r.Action.Param(param_id=param.id, value=zeros + canonical(example.params[param.name]))
        for param in action.params
    ]
    call = p4r.TableAction(action=p4r.Action(action_id=action.id, params=params))
    return p4r.Entity(table_entry=p4r.TableEntry(table_id=table.id, match=fields, action=call))


def values(entry: p4r.TableEntry) -> dict[tuple[str, int], bytes]:
    fields = {("match", field.field_id): field.exact.value for field in entry.match}
    return fields | {("param", param.param_id): param.value for param in entry.action.action.params}


def test_what_was_written_padded_is_read_canonical(controller: Controller) -> None:
    controller.insert(*(message(example, padding=2) for example in EXAMPLES))
    found = [entity.table_entry for entity in controller.read(p4r.Entity(table_entry=p4r.TableEntry()))]
    expected = [message(example).table_entry for example in EXAMPLES]
    assert sorted((entry.table_id, sorted(values(entry).items())) for entry in found) == sorted(
        (entry.table_id, sorted(values(entry).items())) for entry in expected
    )


def test_padding_makes_no_other_key(controller: Controller) -> None:
    controller.insert(*(message(example) for example in EXAMPLES))
    with pytest.raises(grpc.RpcError) as caught:
        controller.insert(*(message(example, padding=1) for example in EXAMPLES))
    assert codes(caught.value) == [grpc.StatusCode.ALREADY_EXISTS.value[0]] * len(EXAMPLES)
    controller.write(*(update(MODIFY, message(example, padding=3)) for example in EXAMPLES))
    controller.write(*(update(DELETE, message(example, padding=1)) for example in EXAMPLES))
    assert controller.read(p4r.Entity(table_entry=p4r.TableEntry())) == []


@pytest.mark.parametrize(
    ("table", "field", "value"),
    [
        (Table.REPLICATE, "dscp", b"\x40"),
        (Table.REPLICATE, "dscp", b"\x01\x00"),
        (Table.REPLICATE, "dst_port", b"\x01\x00\x00"),
        (Table.REPLICATE_RDMA_IPV6, "src_addr", b"\x01" + bytes(16)),
        (Table.REPLICATE_RDMA_IPV4, "destination_qp", b"\x01\x00\x00\x00"),
    ],
)
def test_values_that_do_not_fit_are_refused(controller: Controller, table: str, field: str, value: bytes) -> None:
    entity = message(next(example for example in EXAMPLES if example.table == table))
    number = SCHEMA.tables[table].match_fields[field].id
    next(part for part in entity.table_entry.match if part.field_id == number).exact.value = value
    with pytest.raises(grpc.RpcError) as caught:
        controller.write(update(INSERT, message(EXAMPLES[0])), update(INSERT, entity))
    ok, invalid = grpc.StatusCode.OK.value[0], grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert codes(caught.value) == [ok, invalid]


def test_an_empty_value_is_no_value(controller: Controller, target: str) -> None:
    entity = message(EXAMPLES[0])
    entity.table_entry.match[0].exact.value = b""
    if target == "bmv2":  # takes it for 0, which the specification does not allow
        controller.insert(entity)
        (found,) = controller.read(p4r.Entity(table_entry=p4r.TableEntry()))
        assert found.table_entry.match[0].exact.value == b"\x00"
    else:
        with pytest.raises(grpc.RpcError) as caught:
            controller.insert(entity)
        assert codes(caught.value) == [grpc.StatusCode.INVALID_ARGUMENT.value[0]]
