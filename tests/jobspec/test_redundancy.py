"""Which hops of the all-gather are replicated: what a job file may ask for, and what its flows then carry."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobspec.checks import problems_of
from jobspec.loader import load_job
from jobspec.model import Job
from p4src.constants import MAX_FLOWS
from tests.jobspec.test_checks import document


def _job(hops: object, ranks: int = 3, channels: int = 2) -> Job:
    plain = document()
    plain["redundancy"] = {"hops": hops}
    plain["groups"][0].update(ring=[f"h{i}" for i in range(ranks)], channels=channels)
    return Job.model_validate(plain)


def test_hop_0_alone_is_the_default() -> None:
    job = Job.model_validate(document())
    assert job.redundancy.hops == [0]
    assert all(flow.hops == (0,) for flow in job.flows)


def test_flows_carry_the_hops_in_rising_order() -> None:
    job = _job([1, 0])
    assert problems_of(job) == []
    assert all(flow.hops == (0, 1) for flow in job.flows)
    assert Job.model_validate(job.model_dump(mode="json")).redundancy == job.redundancy


@pytest.mark.parametrize(
    ("hops", "ranks", "field", "facts"),
    [
        ([1], 3, "redundancy.hops", "0"),
        ([0, 0], 3, "redundancy.hops[1]", "0"),
        ([0, 2], 3, "redundancy.hops[1]", "2 g0 3 2 0..1"),
        ([0, 1], 2, "redundancy.hops[1]", "2 1"),
    ],
)
def test_hops_that_are_not_there_are_refused(hops: list[int], ranks: int, field: str, facts: str) -> None:
    (problem,) = problems_of(_job(hops, ranks))
    assert problem.field == field
    assert all(fact in problem.message for fact in facts.split()), problem.message


def test_two_entries_a_flow_must_fit_the_switch() -> None:
    plain = document()
    plain["redundancy"] = {"hops": [0, 1]}
    plain["groups"] = [
        {"name": f"g{i}", "id": i, "ring": ["h0", "h1", "h2"], "channels": 16, "tcp_port": 4000 + 16 * i,
         "shadows": ["s0"]}
        for i in range(MAX_FLOWS // 2 // 48 + 1)
    ]  # fmt: skip
    (problem,) = problems_of(Job.model_validate(plain))
    assert problem.field == "redundancy.hops"
    assert str(MAX_FLOWS) in problem.message
    plain["redundancy"] = {"hops": [0]}
    assert problems_of(Job.model_validate(plain)) == []


def test_the_example_is_sound() -> None:
    job = load_job(Path(__file__).parents[2] / "examples" / "redundant.yaml")
    assert {flow.hops for flow in job.flows} == {(0, 1)}
