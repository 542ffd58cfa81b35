"""Rules within a job and between jobs on one switch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from jobspec.checks import problems_between, problems_of
from jobspec.errors import JobError
from jobspec.loader import parse_job
from jobspec.model import Job
from p4src.constants import MAX_FLOWS

Document = dict[str, Any]


def document(number: int = 1, first_port: int = 1, first_flow_id: int = 0, rid: int = 1) -> Document:
    """Return a sound job of three hosts and two shadows as plain values."""
    return {
        "version": 1,
        "name": f"job{number}",
        "id": number,
        "switch": {"name": "s1", "device_id": 1, "ports": 40},
        "hosts": [
            {
                "name": f"h{i}",
                "port": first_port + i,
                "mac": f"02:00:00:00:{number:02x}:{i:02x}",
                "ip": f"10.{number}.0.{i}",
            }
            for i in range(3)
        ],
        "shadows": [
            {
                "name": f"s{i}",
                "port": first_port + 3 + i,
                "mac": f"02:00:00:01:{number:02x}:{i:02x}",
                "ip": f"10.{number}.1.{i}",
                "rid": rid + i,
            }
            for i in range(2)
        ],
        "first_flow_id": first_flow_id,
        "groups": [{"name": "g0", "ring": ["h0", "h1", "h2"], "channels": 2, "shadows": ["s0"]}],
    }


def job(plain: Document) -> Job:
    return Job.model_validate(plain)


def other() -> Document:
    return document(2, first_port=10, first_flow_id=6, rid=3)


def test_sound_jobs_have_no_problems() -> None:
    one, two = job(document()), job(other())
    assert problems_of(one) == problems_of(two) == []
    assert problems_between([one, two]) == []


def set_in(path: str, value: Any) -> Callable[[Document], None]:
    def change(plain: Document) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        place: Any = plain
        for part in parents:
            place = place[part]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "field", "facts"),
    [
        ("shadows.1.name", "h1", "shadows[1].name", "h1 hosts[1].name"),
        ("shadows.0.port", 1, "shadows[0].port", "1 hosts[0].port"),
        ("shadows.1.mac", "02:00:00:00:01:00", "shadows[1].mac", "hosts[0].mac"),
        ("shadows.1.ip", "10.1.0.2", "shadows[1].ip", "10.1.0.2 hosts[2].ip"),
        ("shadows.1.rid", 1, "shadows[1].rid", "1 shadows[0].rid"),
        ("switch.ports", [1, 2, 3, 4, 6], "shadows[1].port", "1 2 3 4 6"),
        ("switch.ports", [*range(1, 6), 2], "switch.ports[5]", "2"),
        ("first_flow_id", MAX_FLOWS - 5, "first_flow_id", ""),
        ("shadows.0.base_port", 65531, "shadows[0].base_port", "65531 5 65535"),
        ("groups.0.tcp_port", 65535, "groups[0].tcp_port", "2 65535 65535"),
        ("groups.0.ring", ["h0", "h1", "h0"], "groups[0].ring[2]", "h0"),
    ],
)
def test_a_rule_that_is_broken_is_told(path: str, value: Any, field: str, facts: str) -> None:
    plain = document()
    set_in(path, value)(plain)
    (problem,) = problems_of(job(plain))
    assert problem.field == field
    assert all(fact in problem.message for fact in facts.split()), problem.message


@pytest.mark.parametrize(("port", "free"), [(4000, False), (4001, False), (3999, False), (4002, True), (3998, True)])
def test_groups_whose_flows_overlap_are_refused(port: int, free: bool) -> None:
    plain = document()
    plain["groups"].append(
        {"name": "g1", "id": 1, "ring": ["h2", "h0"], "channels": 2, "tcp_port": port, "shadows": ["s0"]}
    )
    found = problems_of(job(plain))
    assert (found == []) is free
    assert all(problem.field == "groups[1].tcp_port" for problem in found)
    assert all("group g0" in problem.message for problem in found)


def test_groups_of_other_hosts_may_use_the_same_port() -> None:
    plain = document()
    plain["groups"] = [
        {"name": "g0", "id": 0, "ring": ["h0", "h1"], "shadows": ["s0"]},
        {"name": "g1", "id": 1, "ring": ["h2", "h3"], "shadows": ["s0"]},
    ]
    plain["hosts"].append({"name": "h3", "port": 20, "mac": "02:00:00:00:09:00", "ip": "10.9.0.1"})
    assert problems_of(job(plain)) == []


def test_groups_need_names_and_numbers_of_their_own() -> None:
    plain = document()
    plain["groups"].append({"name": "g0", "ring": ["h2", "h0"], "tcp_port": 6000, "shadows": ["s0"]})
    assert [problem.field for problem in problems_of(job(plain))] == ["groups[1].name", "groups[1].id"]


@pytest.mark.parametrize(
    ("path", "value", "field", "facts"),
    [
        ("name", "job1", "name", "'job1'"),
        ("name", "JOB1", "name", "'JOB1' 'job1'"),
        ("id", 1, "id", "'job1' 1"),
        ("switch.ports", 41, "switch", "'job1'"),
        ("switch.device_id", 2, "switch", ""),
        ("network", {"mtu": 9000}, "network.mtu", "9000 'job1' 1500"),
        ("hosts.0.port", 2, "hosts[0].port", "2 h1 'job1'"),
        ("shadows.1.port", 5, "shadows[1].port", "5 s1 'job1'"),
        ("hosts.2.mac", "02:00:00:01:01:00", "hosts[2].mac", "s0 'job1'"),
        ("hosts.2.ip", "10.1.0.1", "hosts[2].ip", "10.1.0.1 h1 'job1'"),
        ("shadows.0.rid", 2, "shadows[0].rid", "2 s1 'job1'"),
        ("first_flow_id", 5, "first_flow_id", "0..5 'job1' 6"),
    ],
)
def test_jobs_that_collide_are_told(path: str, value: Any, field: str, facts: str) -> None:
    second = other()
    set_in(path, value)(second)
    ((index, problem),) = problems_between([job(document()), job(second)])
    assert (index, problem.field) == (1, field)
    assert all(fact in problem.message for fact in facts.split()), problem.message


def test_every_pair_of_jobs_is_compared() -> None:
    third = document(3, first_port=20, first_flow_id=12, rid=9)
    third["hosts"][0]["port"], third["hosts"][1]["port"] = 1, 11
    jobs = [job(document()), job(other()), job(third)]
    assert [(i, p.field, p.message.split()[-1]) for i, p in problems_between(jobs)] == [
        (2, "hosts[0].port", "'job1'"),
        (2, "hosts[1].port", "'job2'"),
    ]


@settings(max_examples=60)
@given(
    st.permutations(range(5)),
    st.lists(st.integers(2, 5), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(0, 50),
)
def test_flows_of_a_sound_job_are_distinct(order: list[int], sizes: list[int], channels: int, first: int) -> None:
    """What the switch matches, and what it sends to, names one flow each."""
    plain = document(first_flow_id=first)
    plain["hosts"] = [
        {"name": f"h{i}", "port": 10 + i, "mac": f"02:00:00:00:01:{i:02x}", "ip": f"10.0.0.{i}"} for i in range(5)
    ]
    plain["groups"] = [
        {
            "name": f"g{g}",
            "id": g,
            "ring": [f"h{i}" for i in order[:size]],
            "channels": channels,
            "tcp_port": 4000 + 16 * g,
            "shadows": ["s0"],
        }
        for g, size in enumerate(sizes)
    ]
    sound = parse_job(yaml.safe_dump(plain)).job
    flows = sound.flows
    assert [flow.id for flow in flows] == list(range(first, first + channels * sum(sizes)))
    keys = {(flow.source.ip, flow.target.ip, flow.tcp_port) for flow in flows}
    assert len(keys) == len({flow.multicast_group for flow in flows}) == len(flows)
    for flow in flows:
        ring = flow.group.ring
        assert ring[(ring.index(flow.source.name) + 1) % len(ring)] == flow.target.name
        assert ring[flow.rank] == flow.source.name


def test_an_error_lists_every_problem_on_a_line_of_its_own() -> None:
    plain = document()
    plain["hosts"][1]["port"] = 1
    plain["shadows"][1]["rid"] = 1
    with pytest.raises(JobError) as caught:
        parse_job(yaml.safe_dump(plain), "my.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems) == 2
    assert all(line.startswith("my.yaml:") for line in lines)
