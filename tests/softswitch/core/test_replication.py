"""Where packets go: unicast, drop, multicast, clones, resubmit, recirculate, truncate; and their metadata."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from softswitch.core import PASS_LIMIT, SwitchCore
from softswitch.errors import ErrorKind, SwitchError
from tests.softswitch.core_rig import load, pack, unpack

NORMAL, INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATED, RESUBMITTED = 0, 1, 2, 4, 5, 6
REPORT = (8, 16, 16, 16, 32, 16, 16, 48, 48)
DROP, MULTICAST, CLONE, CLONE_KEEPING, RESUBMIT, CLONE_EGRESS, RECIRCULATE, DROP_EGRESS, TRUNCATE = range(1, 10)
GROUP_THEN_DROP, DROP_THEN_GROUP, CLONE_EGRESS_AND_DROP, RECIRCULATE_FOR_EVER = range(10, 14)
NOW = 1_000_000
PORT = 7
PAYLOAD = b"0123456789"


@dataclass(frozen=True)
class Seen:
    """A packet that left, with what egress saw."""

    port: int
    instance_type: int
    egress_port: int
    rid: int
    ingress_port: int
    length: int
    kept: int
    lost: int
    ingress_time: int
    egress_time: int
    rounds: int
    rest: bytes


def run(core: SwitchCore, command: int, argument: int = 0) -> list[Seen]:
    frame = pack((command, 8), (argument, 16), (0, 8)) + PAYLOAD
    seen = []
    for port, out in core.process(PORT, frame, NOW).packets:
        report = unpack(out, *REPORT)
        rounds = out[sum(REPORT) // 8 + 3]
        seen.append(Seen(port, *report, rounds, out[sum(REPORT) // 8 + 4 :]))
    return seen


def expect(port: int, **changes: int) -> Seen:
    """Return what an ordinary packet looks like, with changes."""
    values = {
        "instance_type": NORMAL,
        "egress_port": port,
        "rid": 0,
        "ingress_port": PORT,
        "length": 14,
        "kept": 1,
        "lost": 1,
        "ingress_time": NOW,
        "egress_time": NOW,
        "rounds": 0,
    }
    return Seen(port=port, rest=PAYLOAD, **(values | changes))


def test_unicast() -> None:
    assert run(load("replication"), 0) == [expect(1)]


def test_drop_in_ingress_and_in_egress() -> None:
    core = load("replication")
    assert run(core, DROP) == []
    assert run(core, DROP_EGRESS) == []


def test_multicast_overrides_unicast_and_keeps_metadata() -> None:
    core = load("replication")
    core.set_multicast_group(4, [(1, 0), (PORT, 10), (2, 300)])
    assert run(core, MULTICAST, 4) == [
        expect(1, instance_type=REPLICATED),
        expect(PORT, instance_type=REPLICATED, rid=10),
        expect(2, instance_type=REPLICATED, rid=300),
    ]


def test_multicast_to_a_group_that_does_not_exist_drops() -> None:
    core = load("replication")
    assert run(core, MULTICAST, 4) == []
    core.set_multicast_group(4, [(1, 0)])
    core.delete_multicast_group(4)
    assert run(core, MULTICAST, 4) == []


def test_the_later_of_drop_and_group_decides() -> None:
    core = load("replication")
    core.set_multicast_group(4, [(3, 1)])
    assert run(core, GROUP_THEN_DROP, 4) == [expect(2)]  # the program then sets egress_spec to 2
    assert run(core, DROP_THEN_GROUP, 4) == [expect(3, instance_type=REPLICATED, rid=1)]


def test_ingress_clone_is_the_packet_as_it_came_in() -> None:
    core = load("replication")
    core.set_clone_session(8, [(5, 50), (6, 60)])
    clone = {"instance_type": INGRESS_CLONE, "ingress_port": 0, "kept": 0, "lost": 0, "ingress_time": 0}
    assert run(core, CLONE, 8) == [
        expect(5, rid=50, **clone),
        expect(6, rid=60, **clone),
        expect(1, rounds=0xCC),
    ]


def test_ingress_clone_without_session_only_forwards() -> None:
    assert run(load("replication"), CLONE, 8) == [expect(1, rounds=0xCC)]


def test_ingress_clone_keeps_the_last_values_of_its_field_list_even_if_the_original_is_dropped() -> None:
    core = load("replication")
    core.set_clone_session(8, [(5, 50)])
    kept = expect(5, rid=50, instance_type=INGRESS_CLONE, ingress_port=0, kept=0x77, lost=0, ingress_time=0)
    assert run(core, CLONE_KEEPING, 8) == [kept]


def test_egress_clone_has_the_headers_of_the_end_of_egress() -> None:
    core = load("replication")
    core.set_clone_session(8, [(5, 50)])
    clone = expect(5, rid=50, instance_type=EGRESS_CLONE, ingress_port=0, lost=0, ingress_time=0, rounds=0xDD)
    # The report that the original's egress added counts for the clone's length.
    octets = sum(REPORT) // 8
    original, copy = run(core, CLONE_EGRESS, 8)
    assert original == expect(1, rounds=0xDD)
    assert copy == Seen(**(vars(clone) | {"length": 14 + octets}))


def test_egress_clone_of_a_dropped_packet_goes_on() -> None:
    core = load("replication")
    core.set_clone_session(8, [(5, 0)])
    (copy,) = run(core, CLONE_EGRESS_AND_DROP, 8)[:1]
    assert (copy.port, copy.instance_type) == (5, EGRESS_CLONE)


def test_clone_is_cut_to_the_session_length() -> None:
    core = load("replication")
    core.set_clone_session(8, [(5, 0)], truncate_bytes=12)
    copy, original = core.process(PORT, pack((CLONE, 8), (8, 16), (0, 8)) + PAYLOAD, NOW).packets
    assert len(copy[1]) == 12
    assert len(original[1]) == 14 + sum(REPORT) // 8


def test_resubmit_keeps_the_field_list_and_nothing_else() -> None:
    (seen,) = run(load("replication"), RESUBMIT)
    # instance_type is NORMAL again for a packet that goes on to egress by unicast.
    assert seen == expect(1, kept=3, lost=1, ingress_port=0, ingress_time=0)


def test_recirculate_parses_the_packet_as_it_left() -> None:
    (seen,) = run(load("replication"), RECIRCULATE)
    assert seen == expect(1, rounds=3, kept=4, lost=1, ingress_port=0, ingress_time=0)


def test_a_packet_that_never_stops_is_cut_off() -> None:
    core = load("replication")
    assert core.process(PORT, pack((RECIRCULATE_FOR_EVER, 8), (0, 16), (0, 8)), NOW).packets == []
    assert core.cut_off_passes == 1
    assert run(core, 0) == [expect(1)]
    core.reset()
    assert core.cut_off_passes == 0
    assert PASS_LIMIT < 1000


def test_truncate_cuts_what_is_sent() -> None:
    core = load("replication")
    ((port, frame),) = core.process(PORT, pack((TRUNCATE, 8), (20, 16), (0, 8)) + PAYLOAD, NOW).packets
    assert (port, len(frame)) == (1, 20)
    ((_, whole),) = core.process(PORT, pack((TRUNCATE, 8), (2000, 16), (0, 8)) + PAYLOAD, NOW).packets
    assert len(whole) == 14 + sum(REPORT) // 8


def test_another_drop_port() -> None:
    core = load("replication", drop_port=1)
    assert run(core, 0) == []
    assert run(core, DROP) == []
    core.set_multicast_group(4, [(1, 0)])
    assert run(core, MULTICAST, 4) == [expect(1, instance_type=REPLICATED)]


def test_groups_and_sessions_are_listed_replaced_and_deleted() -> None:
    core = load("replication")
    core.set_multicast_group(1, [(1, 0), (1, 1)])
    core.set_multicast_group(1, [(2, 5)])
    core.set_clone_session(3, [(4, 0)], 100)
    assert core.multicast_groups() == {1: ((2, 5),)}
    assert core.clone_sessions()[3].replicas == ((4, 0),)
    assert core.clone_sessions()[3].truncate_bytes == 100
    core.delete_clone_session(3)
    core.delete_multicast_group(1)
    assert (core.multicast_groups(), core.clone_sessions()) == ({}, {})
    for delete in (core.delete_multicast_group, core.delete_clone_session):
        with pytest.raises(SwitchError) as caught:
            delete(1)
        assert caught.value.kind is ErrorKind.NOT_FOUND


def test_bad_groups_and_sessions_are_refused() -> None:
    core = load("replication")
    for bad in (
        lambda: core.set_multicast_group(0, []),
        lambda: core.set_multicast_group(1 << 16, []),
        lambda: core.set_multicast_group(1, [(1, 1), (1, 1)]),
        lambda: core.set_multicast_group(1, [(-1, 1)]),
        lambda: core.set_multicast_group(1, [(1, 1 << 16)]),
        lambda: core.set_clone_session(0, []),
        lambda: core.set_clone_session(1 << 15, []),
        lambda: core.set_clone_session(1, [(1, 0)], -1),
    ):
        with pytest.raises(SwitchError) as caught:
            bad()
        assert caught.value.kind is ErrorKind.INVALID_ARGUMENT
    assert (core.multicast_groups(), core.clone_sessions()) == ({}, {})


def test_a_port_that_does_not_fit_is_refused() -> None:
    core = load("replication")
    for port in (-1, 512):
        with pytest.raises(SwitchError) as caught:
            core.process(port, b"", 0)
        assert caught.value.kind is ErrorKind.INVALID_ARGUMENT


def test_the_controller_port_is_a_plain_port_but_not_the_drop_port() -> None:
    core = load("replication", cpu_port=510)
    assert core.cpu_port == 510
    assert len(core.process(510, pack((0, 8), (0, 16), (0, 8)), 0).packets) == 1
    with pytest.raises(SwitchError):
        load("replication", cpu_port=511)
