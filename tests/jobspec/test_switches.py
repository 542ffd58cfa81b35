"""Jobs with several switches: what the file may say, what is refused with its line, and which port leads where."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jobspec.checks import problems_between
from jobspec.errors import JobError
from jobspec.loader import load_job, parse_job
from jobspec.model import Job
from jobspec.trunks import TrunkGraph

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = (EXAMPLES / "two-switches.yaml").read_text()
LINES = TEXT.splitlines()
THIRD = "  - {name: s2, device_id: 2, ports: 4}\n  - {name: s3, device_id: 3, ports: 4}"
TRUNK = "  - {between: [s1, s2], ports: [3, 4]}"


def line_of(words: str) -> int:
    (found,) = [number for number, line in enumerate(LINES, 1) if words in line]
    return found


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_sound_and_comes_back_equal_from_what_is_written(path: Path) -> None:
    job = load_job(path)
    again = parse_job(yaml.safe_dump(job.model_dump(mode="json"))).job
    assert again == job
    assert Job.model_validate(job.model_dump()) == job
    assert again.flows == job.flows


def test_ports_lead_to_hosts_and_over_trunks() -> None:
    job = parse_job(TEXT).job
    ends = {end.name: end for end in (*job.hosts, *job.shadows)}
    assert {name: job.port_towards("s1", end) for name, end in ends.items()} == {
        "r0": 1, "r1": 2, "r2": 3, "r3": 3, "sh0": 3,
    }  # fmt: skip
    assert {name: job.port_towards("s2", end) for name, end in ends.items()} == {
        "r0": 4, "r1": 4, "r2": 1, "r3": 2, "sh0": 3,
    }  # fmt: skip
    assert [switch.name for switch in job.switches] == ["s1", "s2"]
    assert job.switch_of(ends["sh0"]).device_id == 2
    with pytest.raises(JobError, match=r"s1, s2.*--switch"):
        _ = job.switch
    with pytest.raises(JobError, match=r"'s9'.* s1, s2"):
        job.switch_named("s9")


def test_one_switch_is_written_and_read_as_ever() -> None:
    job = load_job(EXAMPLES / "digits.yaml")
    assert (job.switch, *job.switches[1:]) == job.switches
    assert job.switch_named("s1") is job.switch
    assert all(job.switch_of(host) is job.switch for host in job.hosts)
    plain = job.model_dump(mode="json")
    assert not {"switches", "trunks", "sole_switch", "several_switches"} & set(plain)
    assert "switch" not in plain["hosts"][0]


MISTAKES = [
    (
        "switch: s2, port: 1",
        "switch: s9, port: 1",
        "hosts[2].switch",
        "'s9' s1 s2",
    ),
    ("switch: s2, port: 1", "port: 1", "hosts[2].switch", ""),
    ("switch: s2, port: 3", "port: 3", "shadows[0].switch", ""),
    (
        "switch: s2, port: 1",
        "switch: s2, port: 2",
        "hosts[3].port",
        "2 s2 hosts[2].port",
    ),
    (
        "switch: s1, port: 2",
        "switch: s1, port: 3",
        "trunks[0].ports[0]",
        "3 s1 hosts[1]",
    ),
    (
        "switch: s2, port: 3",
        "switch: s2, port: 4",
        "trunks[0].ports[1]",
        "4 s2 shadows[0].port",
    ),
    ("switch: s1, port: 2", "switch: s1, port: 4", "hosts[1].port", "s1 4 1..3"),
    ("ports: [3, 4]}", "ports: [3, 5]}", "trunks[0].ports[1]", "s2 5 1..4"),
    ("ports: [3, 4]}", "ports: [3]}", "trunks[0].ports", "2"),
    ("{name: s2, device_id: 2", "{name: s1, device_id: 2", "switches[1].name", "s1"),
    (TRUNK, THIRD.splitlines()[0], "trunks[0].between", ""),
]


@pytest.mark.parametrize(("good", "bad", "field", "facts"), MISTAKES, ids=lambda value: value[:24])
def test_a_mistake_is_told_with_field_and_words(good: str, bad: str, field: str, facts: str) -> None:
    with pytest.raises(JobError) as caught:
        parse_job(TEXT.replace(good, bad), "job.yaml")
    told = {problem.field: problem for problem in caught.value.problems}
    assert field in told, caught.value
    assert all(fact in told[field].message for fact in facts.split()), told[field].message
    index, _, key = field.partition(".")
    wanted = {"hosts[1]": "name: r1", "hosts[2]": "name: r2", "hosts[3]": "name: r3", "shadows[0]": "name: sh0",
              "trunks[0]": "between", "switches[1]": "device_id: 2"}[index]  # fmt: skip
    assert told[field].line == line_of(TRUNK if wanted == "between" else wanted)
    assert key


@pytest.mark.parametrize(
    ("trunks", "field", "facts"),
    [
        ([], "switches[1]", "s2 s1"),
        ([("s1", 3, "s2", 4)], "switches[2]", "s3 s1"),
        ([("s1", 3, "s2", 4), ("s2", 5, "s3", 1), ("s3", 2, "s1", 4)], "trunks[2].between", ""),
        ([("s1", 3, "s2", 4), ("s1", 4, "s2", 5), ("s2", 6, "s3", 1)], "trunks[1].between", ""),
        ([("s1", 3, "s2", 4), ("s2", 5, "s3", 1), ("s3", 2, "s3", 3)], "trunks[2].between", ""),
        ([("s1", 3, "s2", 4), ("s2", 5, "s3", 1), ("s3", 2, "s4", 3)], "trunks[2].between[1]", "'s4'"),
    ],
)  # fmt: skip
def test_trunks_must_make_a_tree(trunks: list[tuple[str, int, str, int]], field: str, facts: str) -> None:
    plain = yaml.safe_load(TEXT)
    plain["switches"] = [{"name": f"s{i}", "device_id": i, "ports": 9} for i in (1, 2, 3)]
    plain["trunks"] = [{"between": [a, b], "ports": [p, q]} for a, p, b, q in trunks]
    with pytest.raises(JobError) as caught:
        parse_job(yaml.safe_dump(plain, sort_keys=False))
    problem = next(problem for problem in caught.value.problems if problem.field == field)
    assert all(fact in problem.message for fact in facts.split()), problem.message
    assert problem.line is not None


def test_one_form_of_naming_switches_is_enough() -> None:
    plain = yaml.safe_load(TEXT)
    with pytest.raises(JobError, match="switches: "):
        parse_job(yaml.safe_dump(plain | {"switch": {"name": "s0", "ports": 4}}))
    del plain["switches"]
    with pytest.raises(JobError, match="switch: is missing"):
        parse_job(yaml.safe_dump(plain))


def test_jobs_must_describe_the_same_switches_and_trunks() -> None:
    plain = yaml.safe_load(TEXT)
    one = parse_job(TEXT).job
    plain |= {"name": "other", "id": 11, "first_flow_id": 10}
    for i, end in enumerate((*plain["hosts"], *plain["shadows"])):
        end |= {"mac": f"02:00:00:00:09:{i:02x}", "ip": f"10.9.0.{i}", "port": end["port"] + 10}
    plain["shadows"][0]["rid"] = 2
    for switch in plain["switches"]:
        switch["ports"] = 20
    wide = yaml.safe_load(TEXT) | {"switches": plain["switches"]}
    job = parse_job(yaml.safe_dump(wide)).job
    assert problems_between([job, parse_job(yaml.safe_dump(plain)).job]) == []
    (found,) = problems_between([one, parse_job(yaml.safe_dump(plain)).job])
    assert found[1].field == "switches"
    assert "differ from the switches and trunks of job 'two-switches'" in found[1].message
    plain["hosts"][2]["port"] = 1
    plain["trunks"] = [{"between": ["s2", "s1"], "ports": [4, 3]}]  # the same trunk, told from the other end
    (found,) = problems_between([job, parse_job(yaml.safe_dump(plain)).job])
    assert found[1].field == "hosts[2].port"
    assert "switch port 1 of s2 belongs to r2 of job" in found[1].message


@given(st.lists(st.integers(0, 100), min_size=1, max_size=12))
def test_in_a_tree_every_switch_finds_the_way_to_every_other(parents: list[int]) -> None:
    names = tuple(f"s{i}" for i in range(len(parents) + 1))
    edges = tuple(((names[p % (i + 1)], 10 + i), (names[i + 1], 99)) for i, p in enumerate(parents))
    graph = TrunkGraph(names, edges)
    assert graph.redundant_trunks() == []
    assert graph.unreachable() == []
    for start in names:
        for goal in names:
            at, seen = start, {start}
            while at != goal:
                at = graph.ports(at)[graph.port_towards(at, goal)]
                assert at not in seen
                seen.add(at)
    looped = TrunkGraph(names, (*edges, ((names[0], 500), (names[-1], 501))))
    assert looped.redundant_trunks() == [len(edges)]
    apart = TrunkGraph((*names, "alone"), edges)
    assert apart.unreachable() == ["alone"]
    with pytest.raises(ValueError, match=f"no trunk leads from switch {names[0]} to alone"):
        apart.port_towards(names[0], "alone")
