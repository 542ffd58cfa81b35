"""SetForwardingPipelineConfig and GetForwardingPipelineConfig over gRPC: replies, packets and state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import grpc
import pytest
from finsy.proto import p4r

from tests.softswitch.p4rt_client import (
    IDS,
    MODIFY,
    Call,
    Controller,
    dmac,
    ether,
    exact,
    group,
    load_config,
    mac,
    session,
    status_of,
    update,
)
from tests.softswitch.p4rt_rig import Rig

Get = p4r.GetForwardingPipelineConfigRequest


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(pipeline=False) as rig:
        yield rig


def refused(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return status_of(caught.value)


def entries(controller: Controller, alias: str, **fields: object) -> list[p4r.TableEntry]:
    request = p4r.Entity(table_entry=p4r.TableEntry(table_id=IDS("table", alias), **fields))
    return [entity.table_entry for entity in controller.read(request)]


def forwards(rig: Rig, last: int) -> list[int]:
    """The ports that a frame for `mac(last)` leaves by."""
    return [port for port, _ in rig.device.inject(1, ether(mac(last), mac(99)), 0)]


def test_device_without_pipeline(rig: Rig) -> None:
    c = rig.controller
    assert not c.get_pipeline().HasField("config")
    for call in (lambda: c.insert(dmac(1, 2)), lambda: c.read(p4r.Entity(table_entry=p4r.TableEntry()))):
        code, text = refused(call)
        assert code == "FAILED_PRECONDITION"
        assert "No forwarding pipeline config" in text
    assert rig.device.inject(1, ether(mac(1), mac(2)), 0) == []


@pytest.mark.parametrize("cookie", [None, 0, 1 << 63])
def test_commit_and_get_back(rig: Rig, cookie: int | None) -> None:
    config = load_config(cookie)
    rig.controller.set_pipeline(Call.VERIFY_AND_COMMIT, config)
    only_cookie = p4r.ForwardingPipelineConfig()
    if cookie is not None:
        only_cookie.cookie.cookie = cookie
    assert rig.controller.get_pipeline().config == config
    assert rig.controller.get_pipeline(Get.COOKIE_ONLY).config == only_cookie
    assert rig.controller.get_pipeline(Get.COOKIE_ONLY).HasField("config")
    with_info, with_data = p4r.ForwardingPipelineConfig(), p4r.ForwardingPipelineConfig()
    for part in (with_info, with_data):
        part.CopyFrom(only_cookie)
    with_info.p4info.CopyFrom(config.p4info)
    with_data.p4_device_config = config.p4_device_config
    assert rig.controller.get_pipeline(Get.P4INFO_AND_COOKIE).config == with_info
    assert rig.controller.get_pipeline(Get.DEVICE_CONFIG_AND_COOKIE).config == with_data
    assert refused(lambda: rig.controller.get_pipeline(9))[0] == "INVALID_ARGUMENT"


def test_verify_changes_nothing(rig: Rig) -> None:
    rig.controller.set_pipeline(Call.VERIFY, load_config())
    assert not rig.controller.get_pipeline().HasField("config")
    rig.controller.set_pipeline(Call.VERIFY_AND_COMMIT, load_config(1))
    rig.controller.insert(dmac(1, 2))
    rig.controller.set_pipeline(Call.VERIFY, load_config(2))
    assert rig.controller.get_pipeline().config.cookie.cookie == 1
    assert forwards(rig, 1) == [2]


def test_commit_clears_the_state(rig: Rig) -> None:
    rig.controller.set_pipeline(Call.VERIFY_AND_COMMIT, load_config(1))
    rig.controller.insert(dmac(1, 2), group(1, (1, 0)))
    rig.controller.set_pipeline(Call.VERIFY_AND_COMMIT, load_config(2))
    assert entries(rig.controller, "dmac") == []
    assert rig.controller.read(group(0)) == []
    assert forwards(rig, 1) == []


def test_save_then_commit_switches_packets_only_at_the_commit(rig: Rig) -> None:
    c = rig.controller
    c.set_pipeline(Call.VERIFY_AND_COMMIT, load_config(1))
    c.insert(dmac(1, 2))
    c.set_pipeline(Call.VERIFY_AND_SAVE, load_config(2))
    assert c.get_pipeline().config.cookie.cookie == 2
    # Reads and writes are about the saved program, packets still go through the committed one.
    assert entries(c, "dmac") == []
    c.insert(dmac(1, 3))
    assert forwards(rig, 1) == [2]
    c.set_pipeline(Call.COMMIT, None)
    assert forwards(rig, 1) == [3]
    assert len(entries(c, "dmac")) == 1
    assert refused(lambda: c.set_pipeline(Call.COMMIT, None))[0] == "NOT_FOUND"


def test_save_and_commit_as_the_first_program(rig: Rig) -> None:
    c = rig.controller
    assert refused(lambda: c.set_pipeline(Call.COMMIT, None))[0] == "NOT_FOUND"
    c.set_pipeline(Call.VERIFY_AND_SAVE, load_config())
    c.insert(dmac(1, 2))
    assert forwards(rig, 1) == []
    assert refused(lambda: c.set_pipeline(Call.COMMIT, load_config()))[0] == "INVALID_ARGUMENT"
    c.set_pipeline(Call.COMMIT, None)
    assert forwards(rig, 1) == [2]


@pytest.mark.parametrize(
    "action", [Call.VERIFY, Call.VERIFY_AND_SAVE, Call.VERIFY_AND_COMMIT, Call.RECONCILE_AND_COMMIT]
)
def test_bad_config_is_refused_with_a_reason_and_the_old_one_stays(rig: Rig, action: Call.Action.ValueType) -> None:
    c = rig.controller
    c.set_pipeline(Call.VERIFY_AND_COMMIT, load_config(1))
    c.insert(dmac(1, 2))
    no_info, no_data, not_json, other = (load_config() for _ in range(4))
    no_info.ClearField("p4info")
    no_data.p4_device_config = b""
    not_json.p4_device_config = b"{"
    other.p4info.tables[0].preamble.name = "SampleIngress.nowhere"
    other.p4info.tables[1].match_fields[0].bitwidth = 47
    other.p4info.tables[2].is_const_table = True
    other.p4info.counters[0].size = 9
    other.p4info.registers[0].size = 1
    other.p4info.digests[0].type_spec.bitstring.bit.bitwidth = 57
    for config, texts in (
        (None, ["config is missing"]),
        (no_info, ["p4info"]),
        (no_data, ["p4_device_config is empty"]),
        (not_json, ["p4_device_config"]),
        (
            other,
            [
                "table SampleIngress.nowhere",
                "table SampleIngress.dmac: key",
                "table SampleIngress.routes: the two differ",
                "counter SampleIngress.kinds with 9 cells",
                "register SampleIngress.lengths with 1 cells of 16 bits",
                "digest learn_t",
            ],
        ),
    ):
        code, message = refused(lambda config=config: c.set_pipeline(action, config))
        assert code == "INVALID_ARGUMENT"
        for text in texts:
            assert text in message
    assert c.get_pipeline().config.cookie.cookie == 1
    assert forwards(rig, 1) == [2]


def test_actions_of_p4info_and_program_must_agree(rig: Rig) -> None:
    config = load_config()
    [forward] = [action for action in config.p4info.actions if action.preamble.alias == "forward"]
    forward.preamble.name = "SampleIngress.elsewhere"
    code, text = refused(lambda: rig.controller.set_pipeline(Call.VERIFY, config))
    assert code == "INVALID_ARGUMENT"
    assert "SampleIngress.elsewhere" in text


@pytest.mark.parametrize("change", ["another parameter", "one missing", "another width"])
def test_parameters_of_p4info_and_program_must_agree(rig: Rig, change: str) -> None:
    config = load_config()
    action = next(item for item in config.p4info.actions if item.params)
    if change == "another parameter":
        action.params.add(id=99, name="more", bitwidth=8)
    elif change == "one missing":
        del action.params[-1]
    else:
        action.params[0].bitwidth += 1
    with pytest.raises(grpc.RpcError) as caught:
        rig.controller.set_pipeline(Call.VERIFY, config)
    code, text = status_of(caught.value)
    assert code == "INVALID_ARGUMENT"
    assert action.preamble.name in text


def test_program_with_a_construct_that_is_not_supported_is_refused_by_name(rig: Rig) -> None:
    config = load_config()
    program = json.loads(config.p4_device_config)
    program["meter_arrays"] = [
        {
            "name": "SampleIngress.rate",
            "id": 0,
            "is_direct": False,
            "size": 4,
            "rate_count": 2,
            "type": "bytes",
        }
    ]
    config.p4_device_config = json.dumps(program).encode()
    code, text = refused(lambda: rig.controller.set_pipeline(Call.VERIFY_AND_COMMIT, config))
    assert code == "INVALID_ARGUMENT"
    assert "SampleIngress.rate" in text


def test_unspecified_or_unknown_action_is_refused(rig: Rig) -> None:
    for action in (Call.UNSPECIFIED, 17):
        code, _ = refused(lambda action=action: rig.controller.set_pipeline(action, load_config()))
        assert code == "INVALID_ARGUMENT"


def test_only_the_primary_of_the_right_device_sets_pipelines(rig: Rig) -> None:
    other = rig.connect(device_id=5)
    assert refused(lambda: other.set_pipeline(Call.VERIFY, load_config()))[0] == "NOT_FOUND"
    assert refused(other.get_pipeline)[0] == "NOT_FOUND"
    backup = rig.connect()
    assert refused(lambda: backup.set_pipeline(Call.VERIFY, load_config()))[0] == "PERMISSION_DENIED"
    backup.election_id = 3
    assert refused(lambda: backup.set_pipeline(Call.COMMIT, None))[0] == "PERMISSION_DENIED"
    stranger = rig.connect(role="nobody")
    stranger.election_id = 1
    assert refused(lambda: stranger.set_pipeline(Call.VERIFY, load_config()))[0] == "NOT_FOUND"


def full_state(c: Controller) -> list[p4r.Entity]:
    """Everything that a client can read, with counters."""
    counted = p4r.TableEntry(counter_data=p4r.CounterData())
    defaults = p4r.TableEntry(is_default_action=True, counter_data=p4r.CounterData())
    return c.read(
        p4r.Entity(table_entry=counted),
        p4r.Entity(table_entry=defaults),
        p4r.Entity(counter_entry=p4r.CounterEntry()),
        p4r.Entity(register_entry=p4r.RegisterEntry()),
        group(0),
        session(0),
        p4r.Entity(digest_entry=p4r.DigestEntry()),
    )


def populate(rig: Rig) -> None:
    c = rig.controller
    default = IDS.entry("dmac", action=IDS.action("flood", b"\x01"), is_default_action=True, metadata=b"m")
    digest = p4r.DigestEntry(digest_id=IDS("digest", "learn_t"), config={"max_list_size": 3})
    c.insert(
        dmac(1, 2, metadata=b"cookie", controller_metadata=9),
        dmac(2, 3),
        group(1, (1, 0), (2, 5)),
        session(4, (3, 1), packet_length_bytes=60),
        p4r.Entity(digest_entry=digest),
    )
    c.modify(p4r.Entity(table_entry=default))
    for last in (1, 2, 3):
        rig.device.inject(1, ether(mac(last), mac(50)), 0)


def test_reconcile_keeps_every_entity_and_counter(rig: Rig) -> None:
    c = rig.controller
    c.set_pipeline(Call.VERIFY_AND_COMMIT, load_config(1))
    populate(rig)
    before = full_state(c)
    assert len(before) > 20
    c.set_pipeline(Call.RECONCILE_AND_COMMIT, load_config(2))
    assert c.get_pipeline().config.cookie.cookie == 2
    assert full_state(c) == before
    assert forwards(rig, 1) == [2]
    assert forwards(rig, 77) == [1, 2]


def test_reconcile_without_an_old_pipeline_is_a_commit(rig: Rig) -> None:
    rig.controller.set_pipeline(Call.RECONCILE_AND_COMMIT, load_config(3))
    assert rig.controller.get_pipeline().config.cookie.cookie == 3


def test_reconcile_that_would_lose_state_is_refused_and_names_it(rig: Rig) -> None:
    c = rig.controller
    c.set_pipeline(Call.VERIFY_AND_COMMIT, load_config(1))
    populate(rig)
    before = full_state(c)
    smaller = load_config(2)
    smaller.p4_device_config = smaller.p4_device_config.replace(b'"max_size" : 4,', b'"max_size" : 1,')
    without_register = load_config(2)
    del without_register.p4info.registers[:]
    for config, text in (
        (smaller, "SampleIngress.dmac"),
        (without_register, "register SampleIngress.lengths"),
    ):
        code, message = refused(lambda config=config: c.set_pipeline(Call.RECONCILE_AND_COMMIT, config))
        assert code == "INVALID_ARGUMENT"
        assert "cannot be preserved" in message
        assert text in message
    assert c.get_pipeline().config.cookie.cookie == 1
    assert full_state(c) == before


def test_reconcile_lets_unused_objects_go(rig: Rig) -> None:
    c = rig.controller
    c.set_pipeline(Call.VERIFY_AND_COMMIT, load_config(1))
    c.insert(dmac(1, 2))
    trimmed = load_config(2)
    del trimmed.p4info.registers[:]
    del trimmed.p4info.counters[:]
    c.set_pipeline(Call.RECONCILE_AND_COMMIT, trimmed)
    assert [entry.match[0] for entry in entries(c, "dmac")] == [exact(1, mac(1))]


def test_program_without_p4info_runs_but_clients_see_no_pipeline(rig: Rig) -> None:
    config = load_config()
    rig.device.load(config.p4_device_config)
    assert forwards(rig, 1) == []  # the default action of dmac drops
    assert not rig.controller.get_pipeline().HasField("config")
    code, _ = refused(lambda: rig.controller.write(update(MODIFY, dmac(1, 2))))
    assert code == "FAILED_PRECONDITION"
    rig.controller.set_pipeline(Call.VERIFY_AND_COMMIT, config)
    rig.controller.insert(dmac(1, 2))
    assert forwards(rig, 1) == [2]
