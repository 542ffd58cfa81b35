"""Runs whose switch is killed in the middle of training, as a user makes them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from checkmate_common.recovery.reasons import GapReason
from tests.program import run_program

ROOT = Path(__file__).parents[3]
BMV2 = "simple_switch_grpc"
STEPS, RESTART_AT, EVENT_AT = 6, 2, 3
needs_bmv2 = pytest.mark.skipif(shutil.which(BMV2) is None, reason=f"{BMV2} is not on PATH")


def launch(out: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    example = str(ROOT / "examples" / "digits.yaml")
    words = ("--out", out, "--iterations", str(STEPS), "--restart-at", str(RESTART_AT))
    done = run_program("testbed", "run", example, *words, *arguments)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done, json.loads((out / "summary.json").read_text())


def check(done: subprocess.CompletedProcess[str], summary: dict[str, Any]) -> None:
    """Check what must hold whatever the switch took with it when it died.

    Packets that it was just making copies of are lost to the shadow alone; all else TCP sends again.
    """
    assert summary["mismatched_iterations"] == 0
    gaps = {gap["step"]: gap for gap in summary["gaps"]}
    assert set(gaps) <= {EVENT_AT, EVENT_AT + 1, *range(EVENT_AT, STEPS + 1)}
    assert summary["verified_iterations"] == STEPS - len(gaps)
    assert STEPS not in gaps, "after a loss the trainer's state is asked for, at the latest the last one"
    if gaps:
        first = min(gaps)
        assert (gaps[first]["reason"], bool(gaps[first]["detail"])) == (GapReason.LOST_BYTES, True), gaps
        assert {gap["reason"] for gap in gaps.values()} <= {GapReason.LOST_BYTES, GapReason.RESYNC_PENDING}, gaps
    assert done.returncode == (1 if gaps else 0)
    # The restarted job goes on through the switch that serves now, and is followed again.
    assert summary["restart_identical"] is True
    assert f"shadow == trainer in {STEPS - RESTART_AT}/{STEPS - RESTART_AT} of them" in " ".join(done.stdout.split())
    assert summary["switch_counters"]["unknown_isn"] == 0, "everything was restored before anything was forwarded"


def test_both_events_in_process(tmp_path: Path) -> None:
    events = ("--event", f"restart-switch:{EVENT_AT}", "--event", f"failover-switch:{EVENT_AT + 1}")
    done, summary = launch(tmp_path, "--fabric", "inproc", "--ranks", "3", *events)
    check(done, summary)
    assert summary["gaps"] == [], "in the simulation a packet is forwarded with all its copies or not at all"
    restart, failover = summary["events"]
    assert restart.startswith("restart-switch:3: s1 was killed and started again; 3 connections were restored")
    assert failover == "failover-switch:4: s1 was killed; its standby, which knew 3 connections, took over"
    assert all(f"event {event}" in done.stdout for event in summary["events"])
    assert restart in (tmp_path / "report.html").read_text()


def test_a_shadow_is_killed_in_process(tmp_path: Path) -> None:
    done, summary = launch(tmp_path, "--fabric", "inproc", "--ranks", "3", "--event", f"restart-shadow:{EVENT_AT}")
    assert summary["events"] == [f"restart-shadow:{EVENT_AT}: sh0 was killed and started again"]
    assert summary["mismatched_iterations"] == 0
    # The step in which it died; what came before is on storage, what comes after follows from an uploaded state.
    assert [(gap["step"], gap["reason"]) for gap in summary["gaps"]] == [(EVENT_AT + 1, GapReason.RESYNC_PENDING)]
    assert "started again" in summary["gaps"][0]["detail"]
    assert summary["verified_iterations"] == STEPS - 1
    assert (done.returncode, summary["restart_identical"]) == (1, True)


@pytest.mark.mininet
def test_a_shadow_process_is_killed_and_started_again(tmp_path: Path) -> None:
    """In the last step: while it starts the ranks end training, and tell it what it has lost before they leave."""
    event = f"restart-shadow:{STEPS - 1}"
    done, summary = launch(tmp_path, "--fabric", "mininet", "--ranks", "2", "--event", event)
    assert summary["events"] == [f"{event}: sh0 was killed and started again"]
    assert summary["mismatched_iterations"] == 0
    gaps = {gap["step"]: gap["reason"] for gap in summary["gaps"]}
    assert STEPS not in gaps
    assert set(gaps) <= {STEPS - 1}
    assert summary["verified_iterations"] == STEPS - len(gaps)
    assert summary["restart_identical"] is True
    assert done.returncode == (1 if gaps else 0)


@pytest.mark.mininet
def test_a_switch_process_is_killed_and_restarted(tmp_path: Path) -> None:
    """With BMv2: see tests/controlplane/test_switch_restart.py, which needs no ranks for it."""
    event = f"restart-switch:{EVENT_AT}"
    done, summary = launch(tmp_path, "--fabric", "mininet", "--ranks", "2", "--event", event)
    check(done, summary)
    [told] = summary["events"]
    assert told.startswith("restart-switch:3: s1 was killed and started again; 2 connections were restored")
    # The captures of before are still there, and so are those of the new process.
    for folder in (tmp_path, tmp_path / f"captures-after-{EVENT_AT:08d}"):
        assert (folder / "s1-eth9_out.pcap").stat().st_size > 24


@pytest.mark.mininet
@pytest.mark.parametrize("switch", ["softswitch", pytest.param("bmv2", marks=needs_bmv2)])
def test_a_standby_process_takes_over(tmp_path: Path, switch: str) -> None:
    event = f"failover-switch:{EVENT_AT}"
    done, summary = launch(tmp_path, "--fabric", "mininet", "--ranks", "2", "--switch", switch, "--event", event)
    check(done, summary)
    assert summary["events"] == ["failover-switch:3: s1 was killed; its standby, which knew 2 connections, took over"]
    # Both switches have sent replicas: the first before the event, its standby after it.
    for name in ("s1-eth9_out.pcap", "s1b-eth9_out.pcap"):
        assert (tmp_path / name).stat().st_size > 24
