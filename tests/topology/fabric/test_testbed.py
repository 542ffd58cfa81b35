"""The testbed as a user runs it: the program, its exit codes, its files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.program import run_program

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits.yaml"
FIELDS = {
    "iterations", "verified_iterations", "mismatched_iterations", "restart_identical", "ranks", "switch", "fabric",
    "gradient_bytes_per_iteration", "replica_payload_bytes", "tagged_payload_bytes", "wall_s", "config",
}  # fmt: skip


def launch(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program("testbed", "run", EXAMPLE, "--out", out, *arguments)


def assert_proven(out: Path, done: subprocess.CompletedProcess[str], fabric: str, ranks: int, steps: int) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"shadow == trainer: {steps}/{steps} iterations, restart identical"
    summary = json.loads((out / "summary.json").read_text())
    assert summary.keys() >= FIELDS
    assert (summary["iterations"], summary["verified_iterations"], summary["mismatched_iterations"]) == (
        steps,
        steps,
        0,
    )
    assert (summary["restart_identical"], summary["ranks"], summary["fabric"]) == (True, ranks, fabric)
    one = summary["gradient_bytes_per_iteration"] + summary["frame_header_bytes_per_iteration"]
    assert summary["replica_payload_bytes"] == summary["tagged_payload_bytes"] == steps * one
    assert summary["config"]["groups"][0]["ring"] == [f"r{rank}" for rank in range(ranks)]
    assert "<svg" in (out / "report.html").read_text()
    captures = sorted(path.name for path in out.glob("*.pcap"))
    ports = [*range(1, ranks + 1), 9]
    assert captures == sorted(f"s1-eth{port}_{way}.pcap" for port in ports for way in ("in", "out"))
    assert all((out / name).stat().st_size > 24 for name in captures if name != "s1-eth9_in.pcap")
    # The file header alone; a BMv2 that ends before its first frame there has not even written that.
    assert (out / "s1-eth9_in.pcap").stat().st_size in (0, 24), "the shadow sent something"


def test_in_process(tmp_path: Path) -> None:
    done = launch(tmp_path / "out", "--fabric", "inproc", "--iterations", "3", "--ranks", "3", "--mtu", "9000")
    assert_proven(tmp_path / "out", done, "inproc", 3, 3)
    again = launch(tmp_path / "out", "--fabric", "inproc", "--iterations", "2", "--ranks", "2")
    assert_proven(tmp_path / "out", again, "inproc", 2, 2)


@pytest.mark.mininet
def test_in_mininet(tmp_path: Path) -> None:
    done = launch(tmp_path / "out", "--fabric", "mininet", "--iterations", "3", "--ranks", "2")
    assert_proven(tmp_path / "out", done, "mininet", 2, 3)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("drop-replica:3", "lost_bytes"), ("flip-replica-bit:3", "lost_bytes"), ("forge-replica-bit:3", "corrupt_frame")],
)
def test_a_damaged_replica_is_never_verified_the_report_says_why_and_the_next_steps_are_followed(
    tmp_path: Path, fault: str, reason: str
) -> None:
    arguments = ("--fabric", "inproc", "--iterations", "6", "--ranks", "2", "--fault", fault, "--restart-at", "5")
    done = launch(tmp_path, *arguments)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "shadow == trainer: 4/6 iterations, restart identical"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["verified_iterations"], summary["mismatched_iterations"]) == (4, 0)
    gaps = {gap["step"]: gap for gap in summary["gaps"]}
    # What step 3 lacks is known to be lost when step 4 is complete; the state after step 5 is the next one to be had.
    assert sorted(gaps) == [3, 4]
    assert gaps[3]["reason"] == reason
    assert "flow" in gaps[3]["detail"]
    assert not list((tmp_path / "checkpoints").glob("dp0/epoch-0001/step-00000003"))
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(e["event"], e["step"]) for e in events if e["epoch"] == 1 and e["event"] in ("lost", "resynced")] == [
        ("lost", 3), ("lost", 4), ("resynced", 5),
    ]  # fmt: skip
    report = (tmp_path / "report.html").read_text()
    assert reason in report


def test_without_resync_the_rest_of_the_epoch_is_reported(tmp_path: Path) -> None:
    arguments = ("--fabric", "inproc", "--iterations", "5", "--ranks", "2", "--fault", "drop-replica:3")
    done = launch(tmp_path, *arguments, "--restart-at", "2", "--no-resync")
    assert done.returncode == 1, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["verified_iterations"], summary["mismatched_iterations"]) == (2, 0)
    assert [gap["step"] for gap in summary["gaps"]] == [3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fabric", "inproc", "--ranks", "9"], "the job declares 8"),
        (["--fabric", "inproc", "--switch", "bmv2"], "use --fabric mininet"),
        (["--fabric", "inproc", "--iterations", "3", "--restart-at", "3"], "not before the last step"),
        (["--fault", "eat-replica:3"], "eat-replica:3"),
    ],
)
def test_what_cannot_be_run_is_said(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = launch(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_job_file_gets_its_line(tmp_path: Path) -> None:
    wrong = tmp_path / "job.yaml"
    wrong.write_text(EXAMPLE.read_text().replace("ring: [r0, r1, r2, r3]", "ring: [r0, r1, r1, r3]"))
    done = run_program("testbed", "run", wrong, "--fabric", "inproc", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert f"{wrong}:35: groups[0].ring[2]: " in done.stderr
