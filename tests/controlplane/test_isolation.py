"""Jobs that are accepted together share nothing on a switch: no table key, no multicast group, no receiver."""

from __future__ import annotations

from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from controlplane.desired import FLOW_START_DIGEST, desired_state
from controlplane.entities import Entity, MulticastGroup, SwitchState, TableEntry
from jobspec.checks import problems_between, problems_of
from jobspec.model import Job
from p4src.constants import FLOOD_GROUP
from p4src.names import MatchField, Param, Table

APART: dict[str, tuple[int, int]] = {
    "port": (1, 20), "mac": (0x10, 0x40), "ip": (10, 60), "rid": (1, 20), "flow": (0, 40), "pair": (0, 40),
    "id": (1, 2), "shadow_ip": (110, 160),
}  # fmt: skip
"""What a job takes, counted from here: of the first job, and of the second where they do not collide."""


def make(name: str, base: dict[str, int], shape: tuple[int, int, int, int], tcp_port: int, queue_pair: int) -> Job:
    ranks, channels, nodes, pairs = shape
    hosts = [
        {"name": f"h{i}", "port": base["port"] + i, "mac": f"02:00:00:00:00:{base['mac'] + i:02x}",
         "ip": f"10.0.0.{base['ip'] + i}", "ipv6": f"fd00::{base['ip'] + i:x}"} for i in range(ranks)
    ]  # fmt: skip
    shadows = [
        {"name": f"s{i}", "port": base["port"] + ranks + i, "mac": f"02:00:00:00:00:{base['mac'] + ranks + i:02x}",
         "ip": f"10.0.0.{base['shadow_ip'] + i}", "rid": base["rid"] + i} for i in range(nodes)
    ]  # fmt: skip
    group = {"name": "g", "ring": [host["name"] for host in hosts], "channels": channels, "tcp_port": tcp_port,
             "shadows": [node["name"] for node in shadows]}  # fmt: skip
    ends = [(hosts[0], hosts[1], field) for field in ("ip", "ipv6")][:pairs]
    rdma = [
        {"source": one[field], "target": other[field], "queue_pair": queue_pair, "shadows": ["s0"]}
        for one, other, field in ends
    ]
    document: dict[str, Any] = {
        "version": 1, "name": name, "id": base["id"], "switch": {"ports": 60}, "hosts": hosts, "shadows": shadows,
        "first_flow_id": base["flow"], "first_queue_pair_id": base["pair"], "groups": [group], "rdma": rdma,
        "redundancy": {"hops": [0, 1] if ranks > 2 else [0]},
    }  # fmt: skip
    return Job.model_validate(document)


shapes = st.tuples(st.integers(2, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2))
shifts = st.dictionaries(st.sampled_from(sorted(APART)), st.integers(-8, 8), max_size=2)
"""How far the second job is moved towards the first one, for up to two of what it takes."""


def private(state: SwitchState) -> dict[object, Entity]:
    """Return what is one job's own: all but the flood group and the settings of the digest."""
    return {
        entity.key: entity
        for entity in state.entities
        if entity != FLOW_START_DIGEST and not (isinstance(entity, MulticastGroup) and entity.id == FLOOD_GROUP)
    }


def receivers(state: SwitchState) -> set[tuple[int, int, int]]:
    """Return (MAC, IP, replica id) of everybody who is sent replicas."""
    nodes = {dict(entry.match)[MatchField.RID]: entry for entry in state.table(Table.SHADOW)}
    rids = {
        copy.rid for entity in private(state).values() if isinstance(entity, MulticastGroup) for copy in entity.replicas
    } - {0}
    return {(dict(nodes[rid].params)[Param.MAC], dict(nodes[rid].params)[Param.IP], rid) for rid in rids}


@settings(max_examples=150)
@given(shapes, shapes, shifts, st.booleans(), st.booleans())
def test_accepted_jobs_share_nothing(
    one: tuple[int, int, int, int],
    other: tuple[int, int, int, int],
    moved: dict[str, int],
    towards: bool,
    same_services: bool,
) -> None:
    first = {what: at for what, (at, _) in APART.items()}
    second = {what: at for what, (_, at) in APART.items()}
    for what, by in moved.items():
        second[what] = max(0 if what in ("flow", "pair") else 1, (first if towards else second)[what] + by)
    service = (4000, 17) if same_services else (5000, 18)
    a, b = make("a", first, one, 4000, 17), make("b", second, other, *service)
    if problems_of(b):
        return  # the move made a job that is wrong in itself
    assert not problems_of(a)
    problems = problems_between([a, b])
    alone, beside = desired_state([a]), desired_state([b])
    mine, theirs = private(alone), private(beside)
    shared = mine.keys() & theirs.keys()
    if not moved:
        assert problems == []
    event("refused" if problems else "accepted")
    if problems:
        return
    assert not shared
    assert not receivers(alone) & receivers(beside)
    both = desired_state([a, b])
    assert private(both) == {**mine, **theirs}, "together each has what it has alone, and nothing else is there"
    # Copies of a job's traffic go to its own shadow nodes only.
    for job, state in ((a, mine), (b, theirs)):
        own = {shadow.rid for shadow in job.shadows}
        for entity in state.values():
            if isinstance(entity, MulticastGroup):
                assert {copy.rid for copy in entity.replicas} - {0} <= own


@settings(max_examples=60)
@given(shapes, shapes, shifts)
def test_jobs_that_would_share_a_key_are_refused(
    one: tuple[int, int, int, int], other: tuple[int, int, int, int], moved: dict[str, int]
) -> None:
    """The converse, with a second job that takes what the first has but for what was moved."""
    first = {what: at for what, (at, _) in APART.items()}
    second = {what: max(0 if what in ("flow", "pair") else 1, at + moved.get(what, 0)) for what, at in first.items()}
    a, b = make("a", first, one, 4000, 17), make("b", second, other, 4000, 17)
    if problems_of(b):
        return
    shared = private(desired_state([a])).keys() & private(desired_state([b])).keys()
    assert any(isinstance(private(desired_state([a]))[key], TableEntry | MulticastGroup) for key in shared)
    assert problems_between([a, b])
