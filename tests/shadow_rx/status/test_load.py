"""The estimate of how busy a node is, and the durations that it is made from."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow_rx.status.histogram import BOUNDS, Distribution, Histogram
from shadow_rx.status.load import TARGET_UTILISATION, Load, LoadMeter, Mean
from shadow_rx.status.step_times import StepTimes


@pytest.mark.parametrize(
    ("step", "apply", "store", "nodes"),
    [
        (0.0, 5.0, 5.0, 1),  # nothing is known of the pace
        (1.0, 0.0, 0.0, 1),
        (1.0, 0.9, 0.1, 1),
        (1.0, 0.91, 0.1, 2),
        (1.0, 1.8, 0.1, 2),
        (1.0, 0.1, 2.0, 3),
        (0.5, 4.5, 1.0, 10),
    ],
)
def test_nodes_that_would_be_enough(step: float, apply: float, store: float, nodes: int) -> None:
    assert Load(step, apply, store).nodes_needed == nodes


@given(st.floats(0.01, 10), st.floats(0, 100), st.floats(0, 100))
def test_so_many_nodes_have_time_to_spare_and_one_fewer_would_not(step: float, apply: float, store: float) -> None:
    load = Load(step, apply, store)
    n = load.nodes_needed
    assert load.utilisation / n <= TARGET_UTILISATION * (1 + 1e-5)
    assert n == 1 or load.utilisation / (n - 1) > TARGET_UTILISATION * (1 - 1e-5)


def test_an_overload_ends_only_with_time_to_spare() -> None:
    assert not Load(1.0, 0.95, 0.0).overloaded(before=False)
    assert Load(1.0, 0.95, 0.0).overloaded(before=True)
    assert Load(1.0, 0.0, 1.05).overloaded(before=False)
    assert not Load(1.0, 0.0, 0.85).overloaded(before=True)
    assert "2 nodes would be enough" in Load(1.0, 0.0, 1.05).describe()


def test_means_start_from_the_first_value_and_follow_the_newest() -> None:
    mean = Mean()
    assert mean.value == 0
    mean.add(4.0)
    assert mean.value == 4
    mean.add(2.0)
    assert mean.value == 3
    for _ in range(50):
        mean.add(10.0)
    assert mean.value == pytest.approx(10, rel=1e-3)


def test_storage_is_measured_by_bytes_and_writes_that_only_prepare_count_too() -> None:
    meter = LoadMeter(base_every=2)
    meter.replicated(20, 60)
    assert meter.load(1.0).store_seconds == 0, "nothing was written yet"
    meter.wrote(0, 0.0)
    meter.wrote(200, 4.0)
    assert meter.load(1.0).store_seconds == pytest.approx(1.0), "50 bytes of each step, at 50 bytes a second"


def test_where_each_step_is_a_base_its_gradient_is_not_written() -> None:
    meter = LoadMeter(base_every=1)
    meter.replicated(20, 60)
    meter.wrote(100, 1.0)
    assert meter.load(1.0).store_seconds == pytest.approx(0.6)


def test_durations_are_counted_by_upper_bound() -> None:
    histogram = Histogram()
    assert histogram.read() == Distribution()
    for seconds in (0.001, 0.0011, 60.0, 61.0):
        histogram.add(seconds)
    found = histogram.read()
    assert found.count == 4
    assert found.total == pytest.approx(121.0021)
    cumulative = dict(found.cumulative())
    assert (cumulative[0.001], cumulative[0.0025], cumulative[60.0], cumulative[math.inf]) == (1, 2, 3, 4)
    assert list(cumulative)[:-1] == list(BOUNDS)


def test_times_of_steps() -> None:
    times = StepTimes()
    times.begin(10)
    assert times.since(10) is None
    assert times.step_seconds == 0
    times.announced(11, 5.0)
    assert times.step_seconds == 0, "one step has no distance"
    times.announced(13, 9.0)
    assert (times.since(11), times.since(12), times.since(13), times.since(14)) == (5.0, 9.0, 9.0, None)
    assert times.step_seconds == 2.0
    times.announced(12, 11.0)
    assert times.since(12) == 9.0, "the first time counts"
    for step in range(14, 80):
        times.announced(step, 9.0 + (step - 13) * 0.5)
    assert times.step_seconds == 0.5, "of the newest steps"
    times.begin(20)
    assert times.since(21) is None
    assert times.since(20) is not None
    assert times.step_seconds == 0


def test_a_time_that_runs_backwards_changes_nothing() -> None:
    times = StepTimes()
    assert times.tell(4.0) == 4.0
    assert times.tell(3.0) == 4.0
    assert times.tell(None) == 4.0
