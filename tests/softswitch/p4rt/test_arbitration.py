"""The arbitration rules of the P4Runtime specification, on the pure state machine."""

from __future__ import annotations

from typing import Any

import pytest
from finsy.proto import U128, p4r, stratum

from softswitch.p4rt.arbitration import Arbiter, Client, Notification
from softswitch.p4rt.errors import Code, P4RuntimeError
from tests.softswitch.p4rt_client import DEVICE_ID


def message(
    election_id: int | None, role: str = "", device_id: int = DEVICE_ID, config: Any = None
) -> p4r.MasterArbitrationUpdate:
    result = p4r.MasterArbitrationUpdate(device_id=device_id)
    if election_id is not None:
        result.election_id.CopyFrom(U128.encode(election_id))
    if role:
        result.role.name = role
    if config is not None:
        result.role.config.Pack(config)
    return result


def seen(notifications: list[Notification]) -> list[tuple[Client, int | None, Code]]:
    """(receiver, election id in the message, status) of each notification."""
    result = []
    for client, response in notifications:
        update = response.arbitration
        assert update.device_id == DEVICE_ID
        election_id = U128.decode(update.election_id) if update.HasField("election_id") else None
        result.append((client, election_id, Code(update.status.code)))
    return result


def refusal(arbiter: Arbiter, client: Client, update: p4r.MasterArbitrationUpdate) -> Code:
    with pytest.raises(P4RuntimeError) as caught:
        arbiter.update(client, update)
    return caught.value.code


def test_highest_election_id_is_primary_and_others_are_told_first() -> None:
    arbiter, a, b = Arbiter(DEVICE_ID), Client(), Client()
    assert seen(arbiter.update(a, message(5))) == [(a, 5, Code.OK)]
    assert seen(arbiter.update(b, message(3))) == [(b, 5, Code.ALREADY_EXISTS)]
    assert seen(arbiter.update(b, message(9))) == [(a, 9, Code.ALREADY_EXISTS), (b, 9, Code.OK)]
    assert arbiter.is_primary(b)
    assert not arbiter.is_primary(a)


def test_election_ids_have_128_bits() -> None:
    arbiter, a, b = Arbiter(DEVICE_ID), Client(), Client()
    arbiter.update(a, message((1 << 64) - 1))
    assert seen(arbiter.update(b, message(1 << 64))) == [
        (a, 1 << 64, Code.ALREADY_EXISTS),
        (b, 1 << 64, Code.OK),
    ]


def test_nobody_is_promoted_when_the_primary_goes_until_someone_asks() -> None:
    arbiter, a, b, c = Arbiter(DEVICE_ID), Client(), Client(), Client()
    for client, election_id in ((a, 5), (b, 3), (c, None)):
        arbiter.update(client, message(election_id))
    assert seen(arbiter.leave(a)) == [(b, 5, Code.NOT_FOUND), (c, 5, Code.NOT_FOUND)]
    with pytest.raises(P4RuntimeError, match="no primary"):
        arbiter.authorize("", 3)
    assert seen(arbiter.update(b, message(4))) == [(b, 5, Code.NOT_FOUND)]
    # The id of the primary that has gone is free again, and high enough.
    assert seen(arbiter.update(b, message(5))) == [(c, 5, Code.ALREADY_EXISTS), (b, 5, Code.OK)]
    arbiter.authorize("", 5)


def test_leaving_backup_is_not_announced_and_leaving_twice_is_harmless() -> None:
    arbiter, a, b = Arbiter(DEVICE_ID), Client(), Client()
    arbiter.update(a, message(5))
    arbiter.update(b, message(3))
    assert arbiter.leave(b) == []
    assert arbiter.leave(b) == []
    assert arbiter.leave(Client()) == []


def test_primary_may_step_down_and_everyone_hears_of_it() -> None:
    arbiter, a, b = Arbiter(DEVICE_ID), Client(), Client()
    arbiter.update(a, message(5))
    arbiter.update(b, message(3))
    assert seen(arbiter.update(a, message(1))) == [(a, 5, Code.NOT_FOUND), (b, 5, Code.NOT_FOUND)]
    assert not arbiter.is_primary(a)


def test_repeated_message_of_the_primary_is_announced_like_a_new_one() -> None:
    arbiter, a, b = Arbiter(DEVICE_ID), Client(), Client()
    arbiter.update(a, message(5))
    arbiter.update(b, message(3))
    assert seen(arbiter.update(a, message(5))) == [(b, 5, Code.ALREADY_EXISTS), (a, 5, Code.OK)]


def test_unset_election_id_is_a_backup_and_zero_is_a_number() -> None:
    arbiter, a, b, c = Arbiter(DEVICE_ID), Client(), Client(), Client()
    assert seen(arbiter.update(a, message(None))) == [(a, None, Code.NOT_FOUND)]
    assert seen(arbiter.update(b, message(None))) == [(b, None, Code.NOT_FOUND)]
    assert seen(arbiter.update(c, message(0))) == [
        (a, 0, Code.ALREADY_EXISTS),
        (b, 0, Code.ALREADY_EXISTS),
        (c, 0, Code.OK),
    ]
    arbiter.authorize("", 0)
    with pytest.raises(P4RuntimeError) as caught:
        arbiter.authorize("", None)
    assert caught.value.code is Code.PERMISSION_DENIED


def test_election_id_in_use_is_refused_and_changes_nothing() -> None:
    arbiter, a, b = Arbiter(DEVICE_ID), Client(), Client()
    arbiter.update(a, message(5))
    arbiter.update(b, message(3))
    assert refusal(arbiter, Client(), message(5)) is Code.INVALID_ARGUMENT
    assert refusal(arbiter, b, message(5)) is Code.INVALID_ARGUMENT
    assert b.election_id == 3
    assert arbiter.is_primary(a)


def test_wrong_device_and_change_of_device_or_role() -> None:
    arbiter, a = Arbiter(DEVICE_ID), Client()
    assert refusal(arbiter, a, message(5, device_id=9)) is Code.NOT_FOUND
    arbiter.update(a, message(5))
    assert refusal(arbiter, a, message(5, device_id=9)) is Code.FAILED_PRECONDITION
    assert refusal(arbiter, a, message(5, role="other")) is Code.FAILED_PRECONDITION


def test_roles_elect_their_primaries_independently() -> None:
    arbiter, a, b = Arbiter(DEVICE_ID), Client(), Client()
    arbiter.update(a, message(5))
    with pytest.raises(P4RuntimeError) as caught:
        arbiter.authorize("ops", 1)
    assert caught.value.code is Code.NOT_FOUND
    [(client, response)] = arbiter.update(b, message(1, role="ops"))
    assert client is b
    assert response.arbitration.role.name == "ops"
    assert response.arbitration.status.code == Code.OK
    arbiter.authorize("ops", 1)
    arbiter.authorize("", 5)
    with pytest.raises(P4RuntimeError):
        arbiter.authorize("ops", 5)


def test_role_by_number_of_older_clients() -> None:
    arbiter, a = Arbiter(DEVICE_ID), Client()
    update = message(1)
    update.role.id = 3
    arbiter.update(a, update)
    arbiter.authorize("#3", 1)
    assert not arbiter.rights("#3").conflicts(arbiter.rights(""))


def test_role_config_is_kept_from_the_primary_and_sent_to_all() -> None:
    arbiter, a, b = Arbiter(DEVICE_ID), Client(), Client()
    config = stratum.P4RoleConfig(shared_p4_ids=[11], receives_packet_ins=True)
    arbiter.update(a, message(5, "ops", config=config))
    [(_, response)] = arbiter.update(b, message(2, "ops"))
    received = stratum.P4RoleConfig()
    assert response.arbitration.role.config.Unpack(received)
    assert received == config
    rights = arbiter.rights("ops")
    assert rights.allows(11)
    assert not rights.allows(12)
    assert not rights.push_pipeline


def test_role_config_of_an_unknown_kind_or_with_a_conflict_is_refused() -> None:
    arbiter, a = Arbiter(DEVICE_ID), Client()
    assert refusal(arbiter, a, message(1, "ops", config=p4r.Error())) is Code.INVALID_ARGUMENT
    broken = message(1, "ops", config=stratum.P4RoleConfig(can_push_pipeline=True))
    broken.role.config.value = b"\xff\xff\xff"
    assert refusal(arbiter, a, broken) is Code.INVALID_ARGUMENT
    arbiter.update(a, message(1, "ops", config=stratum.P4RoleConfig(exclusive_p4_ids=[11])))
    clash = stratum.P4RoleConfig(shared_p4_ids=[11, 12])
    assert refusal(arbiter, Client(), message(1, "dev", config=clash)) is Code.INVALID_ARGUMENT
    arbiter.update(Client(), message(1, "dev", config=stratum.P4RoleConfig(shared_p4_ids=[12])))
