from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate_common.recovery.reasons import GapReason
from p4src.constants import NotReplicated
from tests.topology.report.run_results import (
    all_good,
    iteration,
    long_run,
    lost,
    lost_step,
    mismatch,
    no_restart,
    several,
    with_row,
    with_steps,
)
from topology.report.findings import (
    bytes_text,
    checks,
    combined,
    duration_text,
    gaps,
    lag_seconds,
    lag_steps,
    loss_text,
    milliseconds_text,
    replication_factor,
    rows_to_show,
    step_ranges,
    track_columns,
)
from topology.report.meanings import COUNTER_MEANING, GAP_MEANING, UNREPORTED, counter_meaning, gap_meaning
from topology.results import RunResult


def test_every_reason_and_every_counter_is_explained() -> None:
    assert set(GAP_MEANING) == set(GapReason)
    assert {reason.name.lower() for reason in NotReplicated} | {"replicated"} == set(COUNTER_MEANING)
    assert counter_meaning("LATE_CONNECTION") == counter_meaning("late_connection") != ""
    assert counter_meaning("another") == ""
    assert "no reason given" in gap_meaning(UNREPORTED)
    assert "Not a reason" in gap_meaning("solar_flare")


outcomes = st.sampled_from(["good", "lost", "wrong", "silent", "uncompared"])


def spoil(step: int, outcome: str) -> object:
    good = iteration(step)
    return {
        "good": good,
        "lost": lost(good, GapReason.LOST_BYTES),
        "wrong": replace(good, matches=False),
        "silent": lost(good, None),
        "uncompared": replace(good, matches=None),
    }[outcome]


@given(st.lists(outcomes, max_size=6), st.lists(outcomes, max_size=4), st.booleans(), st.booleans())
def test_all_checks_hold_exactly_where_the_run_passed(
    run: list[str], again: list[str], ranks_equal: bool, identical: bool
) -> None:
    good = all_good(2)
    result = replace(
        good,
        iterations=tuple(spoil(i + 1, outcome) for i, outcome in enumerate(run)),
        restart=replace(
            good.restart,
            identical=identical,
            iterations=tuple(spoil(i + 1, outcome) for i, outcome in enumerate(again)),
        ),
        ranks_equal=ranks_equal,
    )
    found = checks(result)
    assert all(check.holds for check in found) == result.passed
    assert all(check.detail for check in found)


def test_checks_say_which_steps() -> None:
    def details(result: RunResult) -> list[str]:
        return [check.detail for check in checks(result) if not check.holds]

    assert details(lost_step()) == ["17 of 20 verified; none for steps 7-9"]
    assert details(mismatch()) == [
        "19 of 20 verified",
        "published and not proven equal: step 5",
        "parameter layers.2.weight",
    ]
    assert len(details(no_restart())) == 3


def test_gaps_join_consecutive_steps_of_the_same_kind() -> None:
    found = [(gap.steps, gap.reason, gap.detail) for gap in gaps(lost_step().iterations)]
    assert found == [
        ("step 7", "lost_bytes", "flow 2 (r2 to r3), bytes 81320 to 82780"),
        ("steps 8-9", "resync_pending", "waiting for a snapshot"),
    ]
    assert [(gap.first, gap.last) for gap in gaps(long_run().iterations)] == [
        (333, 333),
        (334, 339),
        (700, 700),
        (702, 702),
    ]


def test_a_gap_without_reason_is_called_unreported() -> None:
    (gap,) = gaps([lost(iteration(1), None)])
    assert gap.reason == UNREPORTED


def test_step_ranges() -> None:
    assert step_ranges([]) == ""
    assert step_ranges([7, 9, 10, 11, 14]) == "7, 9-11, 14"


def test_replication_factor_counts_complete_steps_only() -> None:
    assert replication_factor(lost_step()) == 1.0
    doubled = [replace(i, replica_payload_bytes=4 * i.replica_payload_bytes) for i in all_good().iterations]
    assert replication_factor(replace(all_good(), iterations=tuple(doubled))) == 4.0
    assert replication_factor(no_restart()) is None
    assert replication_factor(all_good(0)) is None


def test_lag_in_steps_grows_through_a_gap_and_shrinks_after_it() -> None:
    # A step ends before its own recovery point is there, so 1 is the least; step 10 ends the gap.
    behind = dict(lag_steps(lost_step().iterations))
    assert [behind[step] for step in range(5, 13)] == [1, 1, 1, 2, 3, 4, 1, 1]


def test_lag_is_zero_steps_where_the_shadow_is_first() -> None:
    early = replace(iteration(2), published_at=iteration(2).trained_at - 0.001)
    result = with_steps(all_good(3), {2: early})
    assert lag_steps(result.iterations) == [(1, 1), (2, 0), (3, 1)]
    assert lag_seconds(early) == pytest.approx(-0.001)
    assert lag_seconds(lost(iteration(1), "overload")) is None


def test_lag_of_a_run_that_begins_later_counts_from_its_own_start() -> None:
    assert lag_steps(all_good(20).restart.iterations)[0] == (11, 1)
    assert lag_steps([lost(iteration(step), "overload") for step in (11, 12)]) == [(11, 1), (12, 2)]
    assert lag_steps([]) == []


@given(st.lists(st.booleans(), max_size=120), st.integers(0, 50), st.integers(1, 12))
def test_shortened_tables_account_for_every_step(fine: list[bool], most: int, edge: int) -> None:
    run = [iteration(i + 1) if ok else lost(iteration(i + 1), "overload") for i, ok in enumerate(fine)]
    rows = rows_to_show(run, most, edge)
    position = 0
    for row in rows:
        if isinstance(row, int):
            assert all(i.verified for i in run[position : position + row])
            position += row
        else:
            assert row is run[position]
            position += 1
    assert position == len(run)
    if len(run) <= most:
        assert rows == run
    else:
        shown = sum(not isinstance(row, int) for row in rows)
        assert shown <= 2 * edge + fine.count(False)


def test_texts() -> None:
    assert [loss_text(v) for v in (0.0, 2.30259, 3.2e-5, 1e7)] == ["0.0000", "2.3026", "3.20e-05", "1.00e+07"]
    assert loss_text(float("nan")) == "nan"
    sizes = [bytes_text(v) for v in (0, 999, 47_680, 1_234_567, 5e9)]
    assert sizes == [
        "0 B",
        "999 B",
        "47.68 kB",
        "1.235 MB",
        "5 GB",
    ]
    assert [duration_text(v) for v in (0.42, 41.27, 125, 3599.7)] == [
        "0.42 s",
        "41.3 s",
        "2 min 05 s",
        "60 min 00 s",
    ]
    assert [milliseconds_text(v) for v in (0.00412, 12.5, -0.0001)] == ["4.12 ms", "12,500 ms", "-0.1 ms"]


def test_a_shortened_table_never_leaves_out_a_wrong_checkpoint() -> None:
    run = [iteration(step) for step in range(1, 101)]
    run[49] = replace(run[49], matches=False)
    run[59] = replace(run[59], matches=None)
    shown = [row.step for row in rows_to_show(run, 40, 5) if not isinstance(row, int)]
    assert shown == [1, 2, 3, 4, 5, 50, 60, 96, 97, 98, 99, 100]


def test_gaps_of_several_tracks_are_told_apart() -> None:
    result = several()
    for step in (2, 3):
        result = with_row(result, ("dp1", "sh0"), lost(iteration(step), GapReason.LOST_BYTES, "flow 2"))
    result = with_row(result, ("dp0", "sh1"), lost(iteration(3), GapReason.OVERLOAD))
    assert [(gap.steps, gap.reason) for gap in gaps(result.iterations)] == [
        ("dp0 on sh1, step 3", "overload"),
        ("dp1 on sh0, steps 2-3", "lost_bytes"),
    ]
    assert checks(result)[0].detail == "21 of 24 verified; none for steps 2-3 (dp1 on sh0); step 3 (dp0 on sh1)"
    (gap,) = gaps(with_row(several(groups=1), ("dp0", "sh1"), lost(iteration(3), GapReason.OVERLOAD)).iterations)
    assert gap.steps == "sh1, step 3"


def test_columns_are_those_that_differ() -> None:
    assert track_columns(all_good().iterations) == []
    assert track_columns(several(groups=1).iterations) == ["shadow"]
    assert track_columns(several(shadows=1).iterations) == ["group"]
    assert track_columns(several().iterations) == ["group", "shadow"]


def test_tracks_together_are_as_good_as_the_worst_and_as_late_as_the_last() -> None:
    assert combined(all_good(3).iterations) == list(all_good(3).iterations)
    late = replace(iteration(2), published_at=99.0)
    result = with_row(several(steps=3), ("dp0", "sh1"), late)
    result = with_row(result, ("dp1", "sh1"), lost(iteration(3), GapReason.OVERLOAD, "full"))
    one, two, three = combined(result.iterations)
    once = iteration(1, 2)
    assert (one.wire_bytes, one.tagged_payload_bytes) == (2 * once.wire_bytes, 2 * once.tagged_payload_bytes)
    assert one.replica_payload_bytes == 4 * once.replica_payload_bytes
    assert one.loss == pytest.approx(once.loss + 0.5)
    assert (one.verified, two.verified, three.verified) == (True, True, False)
    assert two.published_at == 99.0
    assert (three.published_at, three.reason, three.detail) == (None, "dp1 on sh1: overload", "full")
    wrong = combined(with_row(result, ("dp1", "sh0"), replace(iteration(1), matches=False, mismatch="x")).iterations)
    assert (wrong[0].matches, wrong[0].mismatch) == (False, "x")


def test_each_shadow_that_gets_everything_once_is_a_factor_of_one() -> None:
    assert replication_factor(several(groups=2, shadows=3)) == 1.0
