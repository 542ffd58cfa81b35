"""Queue pairs in job files: what is accepted, what it becomes, and what is refused with which words."""

from __future__ import annotations

import copy
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobspec.checks import problems_between, problems_of
from jobspec.errors import JobError
from jobspec.loader import load_job, load_jobs, parse_job
from jobspec.model import FIRST_QUEUE_PAIR_GROUP, Job
from p4src.constants import MAX_FLOWS, MAX_RDMA_FLOWS

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "rdma.yaml"
PLAIN = yaml.safe_load(EXAMPLE.read_text())


def plain() -> dict[str, Any]:
    return copy.deepcopy(PLAIN)


def found_in(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return field and message of every problem, through the same door as a file."""
    try:
        parse_job(yaml.safe_dump(document, sort_keys=False))
    except JobError as error:
        return [(problem.field, problem.message) for problem in error.problems]
    return []


def test_the_example_says_what_is_replicated() -> None:
    job = load_job(EXAMPLE)
    a, b = job.hosts
    assert job.groups == []
    assert job.flows == ()
    assert [
        (pair.id, pair.source, pair.target, pair.source_address, pair.target_address, pair.number, pair.version)
        for pair in job.queue_pairs
    ] == [
        (0, a, b, IPv6Address("fe80::ff:fe00:100"), IPv6Address("fe80::ff:fe00:101"), 1561, 6),
        (1, b, a, IPv6Address("fe80::ff:fe00:101"), IPv6Address("fe80::ff:fe00:100"), 2204, 6),
        (2, a, b, IPv4Address("10.0.0.10"), IPv4Address("10.0.0.11"), 1562, 4),
    ]
    assert all([shadow.name for shadow in pair.shadows] == ["sh0"] for pair in job.queue_pairs)
    # Flow f has the multicast group f + 1.
    assert [pair.multicast_group for pair in job.queue_pairs] == [MAX_FLOWS + 1, MAX_FLOWS + 2, MAX_FLOWS + 3]


@pytest.mark.parametrize("name", ["rdma", "digits", "two-switches", "two-groups"])
def test_a_job_survives_being_written_and_read_again(name: str) -> None:
    job = load_job(EXAMPLES / f"{name}.yaml")
    written = job.model_dump(mode="json")
    assert parse_job(yaml.safe_dump(written, sort_keys=False)).job == job
    assert ("rdma" in written, "groups" in written) == (name == "rdma", name != "rdma")


def test_a_job_may_have_groups_and_queue_pairs() -> None:
    document = plain()
    document["groups"] = [{"name": "dp0", "ring": ["a", "b"], "shadows": ["sh0"]}]
    job = parse_job(yaml.safe_dump(document)).job
    groups = {flow.multicast_group for flow in job.flows} | {pair.multicast_group for pair in job.queue_pairs}
    assert len(groups) == len(job.flows) + len(job.queue_pairs) == 5


def test_hosts_need_no_ipv4_address_for_ipv6_alone() -> None:
    document = plain()
    for host in document["hosts"]:
        del host["ip"]
    document["rdma"].pop()
    job = parse_job(yaml.safe_dump(document)).job
    assert [host.ipv4 for host in job.hosts] == [None, None]
    with pytest.raises(JobError, match="host a has no ip; add it"):
        _ = job.hosts[0].ip
    document["groups"] = [{"name": "dp0", "ring": ["a", "b"], "shadows": ["sh0"]}]
    assert [field for field, _ in found_in(document)] == ["hosts[0].ip", "hosts[1].ip"]
    del document["groups"], document["hosts"][0]["ipv6"]
    assert "hosts[0].ip" in [field for field, _ in found_in(document)]


@pytest.mark.parametrize(
    ("change", "field", "facts"),
    [
        ({"source": "fe80::1"}, "rdma[0].source", "fe80::1 ipv6"),
        (
            {"source": "10.0.0.10", "target": "10.0.0.9"},
            "rdma[0].target",
            "10.0.0.9",
        ),
        ({"target": "10.0.0.11"}, "rdma[0].target", "fe80::ff:fe00:100"),
        ({"target": "fe80::ff:fe00:100"}, "rdma[0].target", ""),
        ({"source": "a"}, "rdma[0].source", "IPv4 IPv6 10.0.0.1 fe80::1"),
        ({"source": 1}, "rdma[0].source", "IPv4 IPv6"),
        ({"source": "fe80::1%eth0"}, "rdma[0].source", ""),
        ({"source": "ff02::1"}, "rdma[0].source", ""),
        ({"target": "0.0.0.0"}, "rdma[0].target", ""),
        ({"queue_pair": 1}, "rdma[0].queue_pair", "2 1"),
        ({"queue_pair": 1 << 24}, "rdma[0].queue_pair", "16777215 16777216"),
        ({"queue_pair": "x"}, "rdma[0].queue_pair", "'x'"),
        ({"shadows": []}, "rdma[0].shadows", "1"),
        ({"shadows": ["a"]}, "rdma[0].shadows[0]", "'a' sh0"),
        ({"shadows": ["sh0", "sh0"]}, "rdma[0].shadows[1]", "sh0"),
        ({"qp": 3}, "rdma[0].qp", ""),
        (
            {"source": "10.0.0.10", "target": "10.0.0.11", "queue_pair": 1562},
            "rdma[2].queue_pair",
            "1562 10.0.0.10 10.0.0.11 rdma[0]",
        ),
    ],
)
def test_a_mistake_is_told_with_its_field(change: dict[str, Any], field: str, facts: str) -> None:
    document = plain()
    document["rdma"][0].update(change)
    [(place, message)] = found_in(document)
    assert place == field
    assert all(fact in message for fact in facts.split()), message


def test_mistakes_in_hosts_addresses() -> None:
    document = plain()
    document["hosts"][1]["ipv6"] = document["hosts"][0]["ipv6"]
    message = dict(found_in(document))["hosts[1].ipv6"]
    assert "fe80::ff:fe00:100" in message
    assert "hosts[0].ipv6" in message
    document = plain()
    document["hosts"][1]["ipv6"] = "10.0.0.12"
    [(place, message)] = found_in(document)
    assert place == "hosts[1].ipv6"
    assert "IPv6" in message


def test_neither_groups_nor_queue_pairs() -> None:
    document = plain()
    del document["rdma"]
    assert [field for field, _ in found_in(document)] == ["groups"]


def many(count: int) -> dict[str, Any]:
    document = plain()
    document["rdma"] = [{**document["rdma"][0], "queue_pair": 2 + i} for i in range(count)]
    return document


def test_no_more_queue_pairs_than_a_switch_holds() -> None:
    assert found_in(many(MAX_RDMA_FLOWS)) == []
    assert [field for field, _ in found_in(many(MAX_RDMA_FLOWS + 1))] == ["rdma"]
    document = plain()
    document["first_queue_pair_id"] = 2 * MAX_RDMA_FLOWS - 3
    assert found_in(document) == []
    document["first_queue_pair_id"] += 1
    assert [field for field, _ in found_in(document)] == ["first_queue_pair_id"]


def other(**changes: Any) -> dict[str, Any]:
    """Return a job that can stand beside the example."""
    document = plain()
    document |= {"name": "second", "id": 12, "first_queue_pair_id": 3, "switch": {"name": "s1", "ports": 6}, **changes}
    for i, end in enumerate([*document["hosts"], *document["shadows"]]):
        end |= {"port": 4 + i, "mac": f"02:00:00:00:03:0{i}", "ip": f"10.0.3.{i}", "name": f"x{i}"}
        if "ipv6" in end:
            end["ipv6"] = f"fd00::{i}"
    document["shadows"][0]["rid"] = 2
    document["rdma"] = [{"source": "fd00::0", "target": "fd00::1", "queue_pair": 1561, "shadows": ["x2"]}]
    return document


def first() -> Job:
    return Job.model_validate({**plain(), "switch": {"name": "s1", "ports": 6}})


def test_jobs_side_by_side() -> None:
    second = Job.model_validate(other())
    assert problems_of(second) == []
    assert problems_between([first(), second]) == []
    assert problems_between([second, first()]) == []


def test_jobs_that_collide_are_refused() -> None:
    document = other(first_queue_pair_id=2)
    document["rdma"].append(plain()["rdma"][0])
    collisions = problems_between([first(), Job.model_validate(document)])
    assert [(index, problem.field, problem.message) for index, problem in collisions] == [
        (
            1,
            "rdma[1].queue_pair",
            "queue pair 1561 from fe80::ff:fe00:100 to fe80::ff:fe00:101 belongs to job 'rdma'; "
            "remove it from one of them",
        ),
        (
            1,
            "first_queue_pair_id",
            "queue pairs 2..3 overlap those of job 'rdma', 0..2; expected 3 or more",
        ),
    ]


def test_an_address_of_another_job_is_told_with_its_owner() -> None:
    document = other()
    document["hosts"][0]["ipv6"] = plain()["hosts"][1]["ipv6"]
    [(_, problem)] = problems_between([first(), Job.model_validate(document)])
    assert (problem.field, problem.message) == (
        "hosts[0].ipv6",
        "address fe80::ff:fe00:101 belongs to b of job 'rdma'",
    )


def test_flows_of_a_job_without_any_overlap_with_none(tmp_path: Path) -> None:
    """A job without groups has no range of flow numbers, whatever its first one is."""
    digits = yaml.safe_load((EXAMPLES / "two-groups.yaml").read_text()) | {"switch": {"name": "s1", "ports": 9}}
    document = other(first_flow_id=2, switch={"name": "s1", "ports": 9}, network={"mtu": 1500})
    for i, end in enumerate([*document["hosts"], *document["shadows"]]):
        end["port"] = 7 + i
    document["shadows"][0]["rid"] = 9
    files = []
    for plain_job in (digits, document):
        path = tmp_path / f"{plain_job['name']}.yaml"
        path.write_text(yaml.safe_dump(plain_job))
        files.append(path)
    assert len(load_jobs(files)) == 2


def test_groups_of_queue_pairs_begin_behind_those_of_flows() -> None:
    assert FIRST_QUEUE_PAIR_GROUP == MAX_FLOWS + 1
