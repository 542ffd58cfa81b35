"""The three steps over time, as the report draws them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.topology.report.run_results import all_good, iteration, lost
from topology.report.page import render_report
from topology.report.timeline import timeline
from topology.results import Iteration


def stored(row: Iteration, after: float = 0.05) -> Iteration:
    return replace(row, durable_at=None if row.published_at is None else row.published_at + after)


def run(*losses: int, steps: int = 10) -> list[Iteration]:
    rows = [iteration(step) for step in range(1, steps + 1)]
    return [stored(lost(row, "lost_bytes", "flow 1") if row.step in losses else row) for row in rows]


def test_curves_end_with_the_newest_steps_and_are_in_order() -> None:
    shown = timeline(run())
    assert shown.unit == "ms"
    assert {name: points[-1][1] for name, points in shown.curves.items()} == {
        "trained": 10,
        "replica": 10,
        "durable": 10,
    }
    assert all(points[0][1] == 0 for points in shown.curves.values())
    assert shown.missing == ()
    assert shown.lost == {}


def test_values_are_those_of_the_moment() -> None:
    rows = run()
    shown = timeline(rows)
    seconds = shown.width / 1e3
    for index in range(shown.slots):
        now = (index + 1e-6) * seconds
        assert shown.curves["trained"][index][1] == sum(row.trained_at <= now for row in rows)
        assert shown.curves["durable"][index][1] == sum((row.durable_at or 0) <= now for row in rows)


def test_a_lost_step_is_hatched_until_a_newer_one_is_a_recovery_point() -> None:
    shown = timeline(run(4, 5))
    assert shown.lost == {4: "lost_bytes", 5: "lost_bytes"}
    ((first, last),) = shown.missing
    in_ms = shown.width
    assert first * in_ms - in_ms < 4 * 120 <= first * in_ms
    assert 6 * 120 <= last * in_ms <= 6 * 120 + 10 + in_ms
    assert shown.notes[first] == "step 4 lost: lost_bytes"


def test_a_loss_that_nothing_follows_is_hatched_to_the_end() -> None:
    shown = timeline(run(10))
    assert shown.missing[-1][1] == shown.slots - 1


def test_long_runs_are_in_seconds_and_never_have_more_slots_than_a_plot_can_show() -> None:
    shown = timeline(run(steps=1000))
    assert shown.unit == "s"
    assert 80 <= shown.slots <= 202


@given(st.floats(1e-9, 1e6), st.integers(1, 30))
def test_any_duration_gives_a_round_width(scale: float, steps: int) -> None:
    rows = [replace(row, trained_at=row.trained_at * scale, published_at=None) for row in run(steps=steps)]
    shown = timeline([replace(row, durable_at=None, applied=False, reason="overload") for row in rows])
    assert 2 <= shown.slots <= 202
    assert f"{shown.width:.0e}"[0] in "125"
    assert shown.curves["trained"][-1][1] == steps
    assert all(0 <= first <= last < shown.slots for first, last in shown.missing)


def test_the_report_names_the_reasons_beside_the_curves() -> None:
    result = replace(all_good(10), iterations=tuple(run(4)))
    page = render_report(result)
    assert "Steps over time" in page
    assert "lost_bytes: step 4" in page
    assert "step 4 lost: lost_bytes" in page
    assert "No step was lost." in render_report(all_good(10))
