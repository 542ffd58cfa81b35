"""What each of several switches must hold: the exact sets, and a flow's entry only where its sender is attached."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.describe import Names
from controlplane.desired import FLOW_START_DIGEST, desired_state, device_id_of
from controlplane.entities import MulticastGroup, Replica
from controlplane.target import Target
from jobspec.errors import JobError
from jobspec.loader import load_job
from p4src.constants import FLOOD_GROUP
from p4src.names import Table
from softswitch.p4rt import Device, serve
from tests.controlplane.test_desired import entry
from tests.controlplane.test_switch_commands import run, run_json

EXAMPLE = Path(__file__).parents[2] / "examples" / "two-switches.yaml"
TWO_SHADOWS = Path(__file__).parents[2] / "examples" / "two-shadows.yaml"
TWO_GROUPS = Path(__file__).parents[2] / "examples" / "two-groups.yaml"
MAC = 0x020000000100
SHADOW = entry("shadow", {"rid": 1}, "to_shadow", mac=0x020000000200, ip=0x0A000164, base_port=20000)


def forward(ports: dict[str, int]) -> set[object]:
    macs = {"r0": MAC, "r1": MAC + 1, "r2": MAC + 2, "r3": MAC + 3, "sh0": 0x020000000200}
    return {entry("l2_forward", {"dst_addr": macs[name]}, "set_port", port=port) for name, port in ports.items()}


def flow(number: int, source: int, target: int, *copies: tuple[int, int]) -> set[object]:
    match = {"src_addr": 0x0A00000A + source, "dst_addr": 0x0A00000A + target, "dst_port": 4000, "dscp": 3}
    return {
        entry("replicate", match, "replicate_flow", flow_id=number, group=number + 1),
        MulticastGroup(number + 1, frozenset(Replica(*copy) for copy in copies)),
    }


def flood(*ports: int) -> MulticastGroup:
    return MulticastGroup(FLOOD_GROUP, frozenset(Replica(port, 0) for port in ports))


def test_the_whole_state_of_two_switches() -> None:
    job = load_job(EXAMPLE)
    assert desired_state([job], "s1").entities == {
        FLOW_START_DIGEST,
        flood(1, 2, 3),
        SHADOW,
        *forward({"r0": 1, "r1": 2, "r2": 3, "r3": 3, "sh0": 3}),
        *flow(0, 0, 1, (2, 0), (3, 1)),
        # Original and replica leave by the trunk, each a copy of its own.
        *flow(1, 1, 2, (3, 0), (3, 1)),
    }
    assert desired_state([job], "s2").entities == {
        FLOW_START_DIGEST,
        flood(1, 2, 4),
        SHADOW,
        entry("shadow_ports", {"ingress_port": 3}, "drop_from_shadow"),
        *forward({"r0": 4, "r1": 4, "r2": 1, "r3": 2, "sh0": 3}),
        *flow(2, 2, 3, (2, 0), (3, 1)),
        *flow(3, 3, 0, (4, 0), (3, 1)),
    }


def test_two_shadows_get_a_copy_each_and_groups_only_their_own() -> None:
    everything = desired_state([load_job(TWO_SHADOWS)])
    for group in everything.groups():
        if group.id != FLOOD_GROUP:
            assert {(4, 1), (5, 2)} < {(copy.port, copy.rid) for copy in group.replicas}
            assert len(group.replicas) == 3
    assert len(everything.table(Table.REPLICATE)) == 6
    shared = {
        group.id: {copy.rid for copy in group.replicas} for group in desired_state([load_job(TWO_GROUPS)]).groups()
    }
    assert shared == {1: {0, 1}, 2: {0, 1}, 3: {0, 2}, 4: {0, 2}, FLOOD_GROUP: {0}}


def test_a_switch_must_be_named_where_there_are_several() -> None:
    job = load_job(EXAMPLE)
    for ask in (desired_state, device_id_of, Names.of):
        with pytest.raises(JobError, match=r"s1, s2.*--switch"):
            ask([job])
        with pytest.raises(JobError, match="has no switch 's3'; expected one of s1, s2"):
            ask([job], "s3")
    assert (device_id_of([job], "s1"), device_id_of([job], "s2")) == (1, 2)
    assert Names.of([job], "s2").ports == {1: "r2", 2: "r3", 3: "sh0", 4: "to s1"}


def test_the_program_installs_each_switch_and_shows_its_ports() -> None:
    with serve(Device(1)) as one, serve(Device(2)) as two:
        addresses = {"s1": one.address, "s2": two.address}
        unnamed = run("install", EXAMPLE, "--target", one.address)
        assert unnamed.exit_code == 2
        assert "--switch" in unnamed.stderr
        for name, address in addresses.items():
            done = run("install", EXAMPLE, "--target", address, "--switch", name)
            assert done.exit_code == 0, done.stderr
            assert run("diff", EXAMPLE, "--target", address, "--switch", name).exit_code == 0
            again = run_json(0, "install", EXAMPLE, "--target", address, "--switch", name)
            assert (again["inserted"], again["modified"], again["deleted"]) == (0, 0, 0)
            with Target.connect(address, device_id_of([load_job(EXAMPLE)], name)) as switch:
                assert switch.read_state() == desired_state([load_job(EXAMPLE)], name)
        shown = run("show", "--target", two.address, "--job", EXAMPLE, "--switch", "s2")
        assert shown.exit_code == 0
        assert "(to s1)" in shown.stdout
        lonely = run("show", "--target", two.address, "--switch", "s2")
        assert lonely.exit_code == 2
        assert "--job" in lonely.stderr
