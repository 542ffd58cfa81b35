"""The testbed runs the examples with more than one of something, and says what it found for each."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.program import run_program

EXAMPLES = Path(__file__).parents[3] / "examples"
BMV2 = "simple_switch_grpc"


def launch(example: str, out: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run an example by its name; return what the program did and its summary."""
    done = run_program("testbed", "run", EXAMPLES / f"{example}.yaml", *arguments, "--out", out)
    summary = json.loads((out / "summary.json").read_text()) if (out / "summary.json").exists() else {}
    return done, summary


def assert_proven(done: subprocess.CompletedProcess[str], summary: dict[str, Any], rows: int) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"shadow == trainer: {rows}/{rows} iterations, restart identical"
    assert (summary["verified_iterations"], summary["iterations"], summary["passed"]) == (rows, rows, True)
    wanted = summary["steps"] * summary["replica_bytes_wanted_per_step"]
    assert summary["replica_payload_bytes"] == wanted
    one = summary["gradient_bytes_per_iteration"] + summary["frame_header_bytes_per_iteration"]
    assert summary["tagged_payload_bytes"] == summary["steps"] * one


def captures(out: Path) -> set[str]:
    return {path.name.removesuffix("_in.pcap") for path in out.glob("*_in.pcap")}


def test_two_groups(tmp_path: Path) -> None:
    done, summary = launch("two-groups", tmp_path, "--fabric", "inproc", "--iterations", "3")
    assert_proven(done, summary, rows=6)
    assert (summary["steps"], summary["ranks"]) == (3, 4)
    assert summary["shadows_by_group"] == {"dp0": ["sh0"], "dp1": ["sh1"]}
    assert summary["replica_payload_bytes"] == summary["tagged_payload_bytes"]
    points = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("checkpoints/*/*/epoch-0001")}
    assert points == {"checkpoints/sh0/dp0/epoch-0001", "checkpoints/sh1/dp1/epoch-0001"}
    states = [(tmp_path / "uninterrupted" / g / "state-00000003.safetensors").read_bytes() for g in ("dp0", "dp1")]
    assert states[0] != states[1], "the groups train the same model"
    heads = done.stdout.splitlines()[1].split()
    assert heads[:3] == ["step", "group", "shadow"]
    assert ["3", "dp1", "sh1"] in [line.split()[:3] for line in done.stdout.splitlines()]
    assert captures(tmp_path) == {f"s1-eth{port}" for port in range(1, 7)}


def test_two_shadows_that_both_get_everything(tmp_path: Path) -> None:
    done, summary = launch("two-shadows", tmp_path, "--fabric", "inproc", "--iterations", "3")
    assert_proven(done, summary, rows=6)
    assert summary["replica_payload_bytes"] == 2 * summary["tagged_payload_bytes"]
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"sh0", "sh1"}


@pytest.mark.parametrize("fault", ["drop-replica", "forge-replica-bit"])
def test_what_one_of_two_shadows_misses_the_other_gives(tmp_path: Path, fault: str) -> None:
    arguments = ("--iterations", "4", "--restart-at", "2", "--fault", f"{fault}:2", "--fault", f"{fault}:3")
    done, summary = launch("two-shadows", tmp_path, "--fabric", "inproc", *arguments)
    assert_proven(done, summary, rows=8)
    assert summary["mismatched_iterations"] == 0
    events = [json.loads(line) for line in (tmp_path / "events-sh0.jsonl").read_text().splitlines()]
    first = [event for event in events if (event["event"], event["epoch"]) == ("replicated", 1)]
    given = {event["step"]: event["peer_bytes"] for event in first}
    assert [step for step, count in given.items() if count] == [2, 3]


def test_two_switches(tmp_path: Path) -> None:
    done, summary = launch("two-switches", tmp_path, "--fabric", "inproc", "--iterations", "3")
    assert_proven(done, summary, rows=3)
    ports = {f"s1-eth{port}" for port in (1, 2, 3)} | {f"s2-eth{port}" for port in (1, 2, 3, 4)}
    assert captures(tmp_path) == ports
    assert (tmp_path / "s2-eth3_in.pcap").stat().st_size == 24, "the shadow sent something"
    # A trunk carries the same bytes at both ends.
    for one, other in (("s1-eth3", "s2-eth4"), ("s2-eth4", "s1-eth3")):
        sizes = [(tmp_path / name).stat().st_size for name in (f"{one}_out.pcap", f"{other}_in.pcap")]
        assert sizes[0] == sizes[1] > 24


@pytest.mark.mininet
@pytest.mark.parametrize("switch", ["softswitch", pytest.param("bmv2", marks=pytest.mark.skipif(
    shutil.which(BMV2) is None, reason=f"{BMV2} is not on PATH"))])  # fmt: skip
def test_two_switches_in_mininet(tmp_path: Path, switch: str) -> None:
    arguments = ("--fabric", "mininet", "--switch", switch, "--iterations", "2")
    done, summary = launch("two-switches", tmp_path / "out", *arguments)
    assert_proven(done, summary, rows=2)
    assert (summary["switch"], summary["fabric"]) == (switch, "mininet")
    assert {"s1-eth3", "s2-eth4", "s2-eth3"} < captures(tmp_path / "out")


@pytest.mark.parametrize(
    ("old", "new", "arguments", "message"),
    [
        ("ring: [r2, r3]", "ring: [r3, r2]", ["--ranks", "2"], "has 2 groups, so their rings say how many ranks"),
        ("ring: [r2, r3]", "ring: [r2, r1]", [], "host r1 is a rank of dp0 and of dp1"),
    ],
)
def test_what_the_testbed_does_not_run_is_said(
    tmp_path: Path, old: str, new: str, arguments: list[str], message: str
) -> None:
    job = tmp_path / "job.yaml"
    text = (EXAMPLES / "two-groups.yaml").read_text()
    job.write_text(text.replace(old, new).replace("tcp_port: 4000, shadows: [sh1]", "tcp_port: 5000, shadows: [sh1]"))
    done = run_program("testbed", "run", job, "--fabric", "inproc", "--out", tmp_path / "out", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
