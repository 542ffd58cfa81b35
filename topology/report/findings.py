"""Checks, gaps, lags and byte counts of a run, shared by the table and the report. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from topology.fabric.participants import Track
from topology.report.meanings import UNREPORTED, gap_meaning
from topology.results import Iteration, RunResult

VIRTUAL_TIME_FABRIC = "inproc"
"""The fabric that runs in virtual time."""


@dataclass(frozen=True)
class Check:
    """A claim that the testbed checks."""

    holds: bool
    """Whether the claim is true."""
    claim: str
    """The claim."""
    detail: str
    """What was found."""


@dataclass(frozen=True)
class Gap:
    """Consecutive steps without a recovery point, for the same reason."""

    first: int
    """First step."""
    last: int
    """Last step."""
    reason: str
    """A `GapReason` value, or `UNREPORTED`."""
    detail: str | None
    """What the reason refers to."""
    where: str = ""
    """Group and shadow node if there are several, otherwise empty."""

    @property
    def steps(self) -> str:
        """``step 7`` or ``steps 7-9``, preceded by group and shadow node if there are several."""
        steps = f"step {self.first}" if self.first == self.last else f"steps {self.first}-{self.last}"
        return f"{self.where}, {steps}" if self.where else steps

    @property
    def meaning(self) -> str:
        """The reason in plain words."""
        return gap_meaning(self.reason)


def is_gap(iteration: Iteration) -> bool:
    """Return whether the step has no recovery point."""
    return iteration.reason is not None or not iteration.applied


def is_wrong(iteration: Iteration) -> bool:
    """Return whether the step was published and is not proven equal to the trainer's state."""
    return iteration.matches is False or (iteration.applied and iteration.matches is None)


def by_track(iterations: Iterable[Iteration]) -> dict[Track, list[Iteration]]:
    """Return the rows of each group and shadow node."""
    tracks: dict[Track, list[Iteration]] = {}
    for iteration in iterations:
        tracks.setdefault((iteration.group, iteration.shadow), []).append(iteration)
    return tracks


def track_names(tracks: Iterable[Track]) -> dict[Track, str]:
    """Return a name for each track: ``dp0 on sh1``, only the part that differs, or an empty one for a single track."""
    known = list(tracks)
    groups, shadows = len({group for group, _ in known}), len({shadow for _, shadow in known})
    names = {}
    for group, shadow in known:
        names[group, shadow] = " on ".join(
            part for part, several in ((group, groups > 1), (shadow, shadows > 1)) if several
        )
    return names


def track_columns(iterations: Iterable[Iteration]) -> list[str]:
    """Return which of the fields ``group`` and ``shadow`` differ between rows."""
    tracks = by_track(iterations)
    return [name for i, name in enumerate(("group", "shadow")) if len({track[i] for track in tracks}) > 1]


def gaps(iterations: Iterable[Iteration]) -> tuple[Gap, ...]:
    """Return the gaps, track by track; consecutive steps with equal reason and detail form one gap."""
    tracks = by_track(iterations)
    names = track_names(tracks)
    return tuple(gap for track, rows in tracks.items() for gap in _gaps(rows, names[track]))


def _gaps(iterations: Iterable[Iteration], where: str) -> list[Gap]:
    found: list[Gap] = []
    for iteration in iterations:
        if not is_gap(iteration):
            continue
        step, reason = iteration.step, iteration.reason or UNREPORTED
        if found and found[-1].last + 1 == step and (found[-1].reason, found[-1].detail) == (reason, iteration.detail):
            found[-1] = Gap(found[-1].first, step, reason, iteration.detail, where)
        else:
            found.append(Gap(step, step, reason, iteration.detail, where))
    return found


def combined(iterations: Sequence[Iteration]) -> list[Iteration]:
    """Return one row for each step, over all groups and shadow nodes.

    Bytes are summed (bytes that ranks sent once for each group), the loss is the mean over the groups, and a step is
    complete, applied and equal if it is so on every track. Times are those of the slowest track.
    """
    steps: dict[int, list[Iteration]] = {}
    for iteration in iterations:
        steps.setdefault(iteration.step, []).append(iteration)
    names = track_names(by_track(iterations))
    return [_combined(rows, names) if len(rows) > 1 else rows[0] for rows in steps.values()]


def _combined(rows: Sequence[Iteration], names: Mapping[Track, str]) -> Iteration:
    groups = list({row.group: row for row in rows}.values())
    bad = next((row for row in rows if is_gap(row)), None) or next((row for row in rows if is_wrong(row)), rows[0])
    published = [row.published_at for row in rows]
    answers = {row.matches for row in rows}
    return Iteration(
        step=bad.step,
        loss=sum(row.loss for row in groups) / len(groups),
        wire_bytes=sum(row.wire_bytes for row in groups),
        tagged_payload_bytes=sum(row.tagged_payload_bytes for row in groups),
        replica_payload_bytes=sum(row.replica_payload_bytes for row in rows),
        complete=all(row.complete for row in rows),
        applied=all(row.applied for row in rows),
        matches=False if False in answers else None if None in answers else True,
        mismatch=bad.mismatch,
        reason=f"{names[bad.group, bad.shadow]}: {bad.reason}" if bad.reason else None,
        detail=bad.detail,
        trained_at=max(row.trained_at for row in rows),
        published_at=_last(published),
        durable_at=_last(row.durable_at for row in rows),
    )


def _last(times: Iterable[float | None]) -> float | None:
    """Return the latest of `times`, None if one is missing."""
    known = list(times)
    return None if None in known else max(when for when in known if when is not None)


def step_ranges(steps: Iterable[int]) -> str:
    """Return steps as text: ``7, 9-12``."""
    ranges = merged_ranges((step, step) for step in steps)
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def merged_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge (first, last) ranges that overlap or touch; return them in order."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)


def checks(result: RunResult) -> tuple[Check, ...]:
    """Return every claim that the testbed checks; `RunResult.passed` is true if and only if all hold."""
    run, again = result.iterations, result.restart.iterations
    wrong = _steps(i for i in run if is_wrong(i))
    wrong_again = _steps(i for i in again if is_wrong(i))
    without = _steps(i for i in run if is_gap(i))
    followed = sum(i.verified for i in again)
    restart = result.restart
    return (
        Check(
            result.verified == len(run),
            "Every iteration has a recovery point that equals the trainer bit for bit",
            f"{result.verified} of {len(run)} verified"
            + (f"; none for {without}" if without else ""),
        ),
        Check(
            not wrong and not wrong_again,
            "No checkpoint was published that differs from the trainer",
            "; ".join(
                f"published and not proven equal{where}: {steps}"
                for where, steps in (("", wrong), (" in the restarted run", wrong_again))
                if steps
            )
            or "none did",
        ),
        Check(
            result.ranks_equal,
            "All ranks held byte-equal state after every step",
            "they did" if result.ranks_equal else "they did not: the training itself went wrong",
        ),
        Check(
            restart.identical,
            "A job restarted from the shadow's checkpoint alone ends exactly as the uninterrupted job did",
            (f"restarted from step {restart.from_step}, final state identical" if restart.identical else
             restart.difference or "the final states differ"),
        ),
        Check(
            followed == len(again),
            "The shadow followed the restarted job too",
            f"{followed} of {len(again)} restarted steps verified",
        ),
    )  # fmt: skip


def _steps(iterations: Iterable[Iteration]) -> str:
    """Return the steps of rows as text, with group and shadow node where there are several; empty for no rows."""
    tracks = by_track(iterations)
    parts = []
    for track, rows in tracks.items():
        ranges = step_ranges(row.step for row in rows)
        steps = f"step {ranges}" if ranges.isdigit() else f"steps {ranges}"
        parts.append(f"{steps} ({' on '.join(track)})" if len(tracks) > 1 else steps)
    return "; ".join(parts)


def replication_factor(result: RunResult) -> float | None:
    """Return how many times per complete step a shadow node placed one gradient and its frame headers.

    The aim is 1.0: hop 0 of the all-gather carries each reduced byte once. None if no step is complete.
    """
    complete = [i for i in result.iterations if i.complete]
    wanted = sum(result.single_copy_bytes(i.group) for i in complete)
    return sum(i.replica_payload_bytes for i in complete) / wanted if wanted else None


def lag_seconds(iteration: Iteration) -> float | None:
    """Return the seconds from the slowest rank's end of the step to its recovery point; None without one.

    Negative if the shadow node was first: it needs hop 0 only, while the ranks also need the later hops.
    """
    return None if iteration.published_at is None else iteration.published_at - iteration.trained_at


def lag_steps(iterations: Sequence[Iteration]) -> list[tuple[int, int]]:
    """Return (step, steps to train again if all ranks failed when the slowest had just finished the step).

    That is the training step minus the newest recovery point published by then.
    """
    published = sorted((i.published_at, i.step) for i in iterations if i.applied and i.published_at is not None)
    times = [when for when, _ in published]
    newest = [0, *accumulate((step for _, step in published), max)]
    # Before the first recovery point, the run would restart from its initial state.
    before = min((i.step for i in iterations), default=1) - 1
    return [(i.step, max(0, i.step - max(before, newest[bisect_right(times, i.trained_at)]))) for i in iterations]


def rows_to_show(iterations: Sequence[Iteration], most: int, edge: int) -> list[Iteration | int]:
    """Return a table's rows: all, or if there are more than `most`, the first and last `edge` and all unverified ones.

    An integer stands for that many verified rows left out.
    """
    if len(iterations) <= most:
        return list(iterations)
    rows: list[Iteration | int] = []
    for index, iteration in enumerate(iterations):
        if index < edge or index >= len(iterations) - edge or not iteration.verified:
            rows.append(iteration)
        elif rows and isinstance(rows[-1], int):
            rows[-1] += 1
        else:
            rows.append(1)
    return rows


def loss_text(loss: float) -> str:
    """Return a loss with four decimals, a very small or large one in scientific notation."""
    return f"{loss:.4f}" if loss == 0 or 1e-3 <= abs(loss) < 1e4 or loss != loss else f"{loss:.2e}"


def bytes_text(count: float) -> str:
    """Return a number of bytes in decimal units with three or four digits: ``46.4 kB``."""
    scale, unit = byte_unit(count)
    value = count / scale
    return f"{value:,.0f} {unit}" if unit == "B" or value >= 1000 else f"{value:.4g} {unit}"


def byte_unit(count: float) -> tuple[float, str]:
    """Return the decimal unit that suits `count` as (bytes, name)."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= scale:
            return scale, unit
    return 1.0, "B"


def milliseconds_text(seconds: float) -> str:
    """Return a short time in milliseconds, with three digits or, from one second on, whole."""
    value = seconds * 1e3
    return f"{value:,.0f} ms" if abs(value) >= 1000 else f"{value:.3g} ms"


def duration_text(seconds: float) -> str:
    """Return a duration: ``0.42 s``, ``12.3 s``, ``2 min 05 s``."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"
