"""The testbed under mutual TLS: the same result, and a log of who asked for what."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.topology.fabric.test_testbed import assert_proven, launch


def assert_logged(out: Path, ranks: int, *others: str) -> None:
    lines = [json.loads(line) for line in (out / "access.jsonl").read_text().splitlines()]
    assert {line["result"] for line in lines} == {"OK", *others}
    who = {line["who"] for line in lines}
    assert {f"spiffe://checkmate/job/digits/rank/r{rank}" for rank in range(ranks)} < who
    records = [line for line in lines if line["what"] == "RecordStep"]
    assert all(line["step"] >= 1 and line["group"] == "dp0" and line["bytes_in"] > 0 for line in records)
    assert {line["who"] for line in lines if line["what"] == "UploadState"} == {"spiffe://checkmate/job/digits/rank/r0"}


def test_in_process_with_a_restart_of_switch_and_shadow(tmp_path: Path) -> None:
    out = tmp_path / "out"
    events = ("--event", "restart-switch:1", "--event", "restart-shadow:2")
    words = ("--fabric", "inproc", "--iterations", "4", "--ranks", "2", "--restart-at", "1", "--tls", *events)
    done = launch(out, *words)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # the step that was in flight is lost, and told
    assert done.stdout.splitlines()[-1].endswith("restart identical")
    assert json.loads((out / "summary.json").read_text())["mismatched_iterations"] == 0
    assert_logged(out, 2, "FAILED_PRECONDITION")  # what the new shadow node did not know of any more


@pytest.mark.mininet
@pytest.mark.parametrize("switch", ["softswitch", "bmv2"])
def test_in_mininet(tmp_path: Path, switch: str) -> None:
    if switch == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("BMv2 is not installed")
    words = ("--fabric", "mininet", "--switch", switch, "--iterations", "3", "--ranks", "2", "--tls")
    done = launch(tmp_path / "out", *words)
    assert_proven(tmp_path / "out", done, "mininet", 2, 3)
    assert_logged(tmp_path / "out", 2)
