from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from checkmate_common.recovery.reasons import GapReason
from jobspec.model import Job
from tests.topology.report.run_results import (
    GRADIENT,
    HEADERS,
    all_good,
    iteration,
    lost,
    lost_step,
    mismatch,
    no_restart,
    several,
)
from topology.results import RestartResult, RunResult


def test_a_run_where_all_went_well_passes() -> None:
    result = all_good(20)
    assert (result.verified, result.mismatched, result.passed) == (20, 0, True)
    assert result.verdict == "shadow == trainer: 20/20 iterations, restart identical"


def test_a_lost_step_fails_the_run_but_is_no_mismatch() -> None:
    result = lost_step()
    assert (result.verified, result.mismatched, result.passed) == (17, 0, False)
    assert result.verdict == "shadow == trainer: 17/20 iterations, restart identical"


def test_a_published_step_that_differs_is_counted_as_mismatched() -> None:
    result = mismatch()
    assert (result.verified, result.mismatched, result.passed) == (19, 1, False)
    assert result.verdict.endswith("restart NOT identical")


def test_a_mismatch_of_the_restarted_run_counts_too() -> None:
    good = all_good(4)
    wrong = replace(good.restart.iterations[-1], matches=False)
    result = replace(good, restart=replace(good.restart, iterations=(good.restart.iterations[0], wrong)))
    assert (result.verified, result.mismatched, result.passed) == (4, 1, False)


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda good: replace(good, ranks_equal=False),
        lambda good: replace(good, restart=replace(good.restart, identical=False)),
        lambda good: replace(good, restart=RestartResult(2, (lost(iteration(3), GapReason.OVERLOAD),), True)),
    ],
)
def test_whatever_else_fails_fails_the_run(spoiled: object) -> None:
    assert callable(spoiled)
    assert not spoiled(all_good(4)).passed


def test_applied_but_never_compared_is_not_verified() -> None:
    assert not replace(iteration(1), matches=None).verified


def test_the_summary_has_the_documented_keys_and_numbers() -> None:
    summary = lost_step().summary()
    once = GRADIENT + HEADERS
    expected = {
        "iterations": 20,
        "steps": 20,
        "verified_iterations": 17,
        "mismatched_iterations": 0,
        "restart_identical": True,
        "ranks": 4,
        "switch": "softswitch",
        "fabric": "inproc",
        "gradient_bytes_per_iteration": GRADIENT,
        "frame_header_bytes_per_iteration": HEADERS,
        "tagged_payload_bytes": 20 * once,
        "replica_bytes_wanted_per_step": once,
        "shadows_by_group": {"dp0": ["sh0"]},
        "replica_payload_bytes": 20 * once - 1460,
        "wall_s": 41.27,
        "passed": False,
        "restart_from_step": 10,
    }
    assert {key: summary[key] for key in expected} == expected
    assert [gap["step"] for gap in summary["gaps"]] == [7, 8, 9]
    assert summary["gaps"][0] == {
        "step": 7,
        "group": "dp0",
        "shadow": "sh0",
        "reason": "lost_bytes",
        "detail": "flow 2 (r2 to r3), bytes 81320 to 82780",
    }


@pytest.mark.parametrize("result", [all_good(3), lost_step(), no_restart()], ids=["good", "lost", "none"])
def test_the_written_summary_is_json_whose_config_is_the_job(result: RunResult, tmp_path: Path) -> None:
    result.write_summary(tmp_path / "summary.json")
    read = json.loads((tmp_path / "summary.json").read_text())
    assert read == json.loads(json.dumps(result.summary()))
    assert Job.model_validate(read["config"]) == result.job


def test_rows_of_several_groups_and_shadows_are_counted_each_and_bytes_of_ranks_once() -> None:
    result = several(groups=2, shadows=2, steps=5)
    assert (result.verified, len(result.iterations), result.steps, result.ranks) == (20, 20, (1, 2, 3, 4, 5), 4)
    assert result.passed
    once = GRADIENT + HEADERS
    assert result.single_copy_bytes("dp1") == once
    summary = result.summary()
    assert (summary["iterations"], summary["steps"], summary["ranks"]) == (20, 5, 4)
    assert summary["tagged_payload_bytes"] == 5 * 2 * once
    assert summary["replica_payload_bytes"] == 5 * summary["replica_bytes_wanted_per_step"] == 5 * 4 * once
    assert summary["gradient_bytes_per_iteration"] == 2 * GRADIENT
    assert summary["shadows_by_group"] == {"dp0": ["sh0", "sh1"], "dp1": ["sh0", "sh1"]}
