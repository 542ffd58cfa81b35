from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from checkmate_common.recovery.reasons import GapReason
from tests.topology.report.run_results import (
    all_good,
    hostile,
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
from topology.report.table import render_table
from topology.results import RunResult


def shown(result: RunResult, width: int = 80, encoding: str = "utf-8", colour: bool = False) -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="\n")
    render_table(
        result,
        Console(file=stream, width=width, force_terminal=colour, color_system="standard" if colour else None),
    )
    stream.flush()
    return raw.getvalue().decode(encoding)


def cells(text: str) -> dict[str, list[str]]:
    """Rows of the table by their first word."""
    return {words[0]: words[1:] for line in text.splitlines() if (words := line.split()) and words[0].isdigit()}


def test_one_row_per_iteration_and_the_verdict_last() -> None:
    text = shown(all_good())
    assert list(cells(text)) == [str(step) for step in range(1, 21)]
    assert cells(text)["1"] == ["2.1580", "311,907", "47,680", "yes", "yes", "yes"]
    assert text.splitlines()[-1] == "shadow == trainer: 20/20 iterations, restart identical"
    assert "NOT so" not in text
    heads = " ".join(text.splitlines()[0].split() + text.splitlines()[1].split())
    for head in ("step", "loss", "the wire", "bytes", "complete?", "applied?", "trainer?", "reason"):
        assert head in heads


def test_a_gap_tells_its_reason_and_detail() -> None:
    text = shown(lost_step())
    assert cells(text)["7"] == ["1.1243", "311,987", "46,220", "no", "no", "-", "lost_bytes"]
    assert cells(text)["8"][3:] == ["yes", "no", "-", "resync_pending"]
    assert "step 7: lost_bytes: flow 2 (r2 to r3), bytes 81320 to 82780" in text
    assert "steps 8-9: resync_pending: waiting for a snapshot" in text
    assert "NOT so: Every iteration has a recovery point" in text
    assert text.splitlines()[-1] == "shadow == trainer: 17/20 iterations, restart identical"


def test_a_mismatch_is_loud() -> None:
    text = shown(mismatch(), width=120)
    assert cells(text)["5"][3:6] == ["yes", "yes", "NO"]
    assert "exp_avg of layers.2.weight: element 17" in text
    assert "restart from step 10 (steps 11-20): NOT identical: parameter layers.2.weight" in text
    assert "NOT so: No checkpoint was published that differs from the trainer" in text


def test_no_restart_says_why() -> None:
    assert "restart: none was possible: no recovery point was published" in shown(no_restart())


def test_ranks_that_differ_are_told_though_the_verdict_line_reads_well() -> None:
    text = shown(all_good(ranks_equal=False), width=200)
    assert "NOT so: All ranks held byte-equal state after every step" in text


def test_a_gap_of_the_restarted_run_is_told() -> None:
    good = all_good(4)
    again = (good.restart.iterations[0], lost(good.restart.iterations[1], GapReason.FLOW_RESET, "flow 3"))
    text = shown(replace(good, restart=replace(good.restart, iterations=again)))
    assert "restarted run, step 4: flow_reset: flow 3" in text
    assert "shadow == trainer in 1/2 of them" in " ".join(text.split())


@pytest.mark.parametrize("result", [all_good(), lost_step(), mismatch(), long_run(), hostile(), all_good(0)])
@pytest.mark.parametrize("width", [80, 132])
def test_it_fits_the_width_and_has_no_escape_sequences(result: RunResult, width: int) -> None:
    text = shown(result, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text


@pytest.mark.parametrize("reason", list(GapReason))
def test_no_reason_is_cut_in_80_columns(reason: GapReason) -> None:
    text = shown(with_steps(all_good(1000), {500: lost(iteration(500), reason)}))
    assert cells(text)["500"][-1] == reason


def test_a_long_run_shows_its_ends_and_every_gap() -> None:
    text = shown(long_run())
    steps = [*range(1, 11), 333, *range(334, 340), 700, 702, *range(991, 1001)]
    assert list(cells(text)) == [str(step) for step in steps]
    assert "(322 verified)" in text
    assert len(shown(all_good(40)).splitlines()) - len(shown(all_good(39)).splitlines()) == 1


def test_many_gaps_are_not_all_explained() -> None:
    odd = {step: lost(iteration(step), GapReason.LOST_BYTES, f"flow {step}") for step in range(1, 100, 2)}
    text = shown(with_steps(all_good(100), odd))
    assert len(cells(text)) >= 50
    assert "and 30 more gaps; the report lists them all" in text


def test_big_numbers_take_units_in_all_rows() -> None:
    run = tuple(replace(i, wire_bytes=6_000_000_000, replica_payload_bytes=999) for i in all_good(2).iterations)
    assert cells(shown(all_good(2, iterations=run)))["2"][1:5] == ["6", "GB", "999", "B"]


def test_markup_in_texts_is_text() -> None:
    text = shown(hostile(), width=200)
    assert "[red]" in text
    assert "{{ 7*7 }}" in text


def test_a_terminal_without_unicode_gets_plain_characters() -> None:
    text = shown(hostile(), encoding="ascii")
    assert text.splitlines()[-1] == "shadow == trainer: 4/6 iterations, restart NOT identical"


def test_colour_marks_the_verdict() -> None:
    assert shown(all_good(), colour=True).splitlines()[-1].startswith("\x1b[32m")
    assert shown(lost_step(), colour=True).splitlines()[-1].startswith("\x1b[1;31m")
    # The verdict reads the same without the colour.
    assert "shadow == trainer: 20/20 iterations, restart identical" in shown(all_good(), colour=True)


def test_a_narrow_terminal_does_not_wrap_the_verdict() -> None:
    assert shown(all_good(), width=30).splitlines()[-1] == "shadow == trainer: 20/20 iterations, restart identical"


def test_group_and_shadow_are_columns_where_there_are_several() -> None:
    result = with_row(several(), ("dp1", "sh0"), lost(iteration(2), GapReason.LOST_BYTES, "flow 3"))
    text = shown(result)
    found = [line.split() for line in text.splitlines() if line.split()[:1] == ["2"]]
    assert [row[1:3] for row in found] == [["dp0", "sh0"], ["dp0", "sh1"], ["dp1", "sh0"], ["dp1", "sh1"]]
    assert found[2][-1] == "lost_bytes"
    assert "dp1 on sh0, step 2: lost_bytes: flow 3" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "group" not in shown(several(groups=1)).splitlines()[1]
    assert text.splitlines()[-1] == "shadow == trainer: 23/24 iterations, restart identical"
