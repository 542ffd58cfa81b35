"""Results of made-up runs, for the tests of what is shown of them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from checkmate_common.recovery.reasons import GapReason
from jobspec.loader import parse_job
from jobspec.model import Job
from topology.results import Iteration, RestartResult, RunResult

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits.yaml"
GRADIENT, HEADERS = 46_400, 1_280
HOSTILE = "</td></svg><script>alert('&\"x\"')</script>[red]\x1b[31m\x00\ud800\u202e{{ 7*7 }}"


@cache
def job(ranks: int = 4, shadows: int = 1) -> Job:
    """The example with another number of ranks and shadow nodes."""
    data = yaml.safe_load(EXAMPLE.read_text())
    data["switch"]["ports"] = ranks + shadows
    data["hosts"] = [
        {"name": f"r{i}", "port": i + 1, "mac": f"02:00:00:00:01:{i:02x}", "ip": f"10.0.0.{10 + i}"}
        for i in range(ranks)
    ]
    data["shadows"] = [
        {"name": f"sh{i}", "port": ranks + 1 + i, "mac": f"02:00:00:00:02:{i:02x}", "ip": f"10.0.1.{100 + i}",
         "rid": 1 + i} for i in range(shadows)
    ]  # fmt: skip
    data["groups"][0] |= {
        "ring": [f"r{i}" for i in range(ranks)],
        "shadows": [f"sh{i}" for i in range(shadows)],
    }
    return parse_job(yaml.safe_dump(data)).job


def iteration(step: int, ranks: int = 4) -> Iteration:
    """A step where all went well; the lag is 4 ms and a little."""
    trained = 0.12 * step
    once = GRADIENT + HEADERS
    return Iteration(
        group="dp0",
        shadow="sh0",
        step=step,
        loss=2.3 * math.exp(-step / 9) + 0.08 + 0.02 * math.sin(step * 1.7),
        wire_bytes=int(once * 2 * (ranks - 1) * 1.09) + 40 * (step * 7 % 5),
        tagged_payload_bytes=once,
        replica_payload_bytes=once,
        complete=True,
        applied=True,
        matches=True,
        trained_at=trained,
        published_at=trained + 0.004 + 0.0013 * math.sin(step * 2.1),
    )


def lost(good: Iteration, reason: str | None, detail: str | None = None, complete: bool = False) -> Iteration:
    """The same step without a recovery point."""
    return replace(
        good, complete=complete, applied=False, matches=None, reason=reason, detail=detail, published_at=None,
        replica_payload_bytes=good.replica_payload_bytes - (0 if complete else 1460),
    )  # fmt: skip


def all_good(steps: int = 20, ranks: int = 4, **changes: Any) -> RunResult:
    """A run that passed."""
    run = tuple(iteration(step, ranks) for step in range(1, steps + 1))
    half = steps // 2
    result = RunResult(
        job=job(ranks),
        switch="softswitch",
        fabric="inproc",
        seed=0,
        gradient_bytes=GRADIENT,
        header_bytes=HEADERS,
        iterations=run,
        ranks_equal=True,
        restart=RestartResult(from_step=half, iterations=run[half:], identical=True),
        wall_seconds=41.27,
        accuracy=0.9716,
        switch_counters={
            "replicated": 812,
            "untagged": 9120,
            "unknown_isn": 0,
            "late_connection": 3,
            "from_shadow": 0,
        },
    )
    return replace(result, **changes)


def with_steps(result: RunResult, changed: dict[int, Iteration]) -> RunResult:
    """The run with some steps replaced."""
    return replace(result, iterations=tuple(changed.get(i.step, i) for i in result.iterations))


def lost_step() -> RunResult:
    """A replica of step 7 was dropped, a snapshot came at step 10."""
    detail = "flow 2 (r2 to r3), bytes 81320 to 82780"
    changed = {7: lost(iteration(7), GapReason.LOST_BYTES, detail)}
    changed |= {s: lost(iteration(s), GapReason.RESYNC_PENDING, "waiting for a snapshot", True) for s in (8, 9)}
    return replace(
        with_steps(all_good(), changed),
        faults=("drop replica: flow 2, step 7",),
        discarded={"bad_checksum": 0, "duplicate": 2},
    )


def mismatch() -> RunResult:
    """Step 5 was published with a wrong tensor, and the restart went wrong with it."""
    wrong = replace(iteration(5), matches=False, mismatch="exp_avg of layers.2.weight: element 17")
    result = with_steps(all_good(), {5: wrong})
    return replace(result, restart=replace(result.restart, identical=False, difference="parameter layers.2.weight"))


def no_restart() -> RunResult:
    """Nothing was ever published."""
    run = tuple(lost(iteration(step), GapReason.UNKNOWN_ISN, f"flow {step % 4}") for step in range(1, 6))
    return replace(
        all_good(5), iterations=run, accuracy=None, ranks_equal=False,
        restart=RestartResult(0, (), False, "no recovery point was published"),
    )  # fmt: skip


def long_run(steps: int = 1000) -> RunResult:
    """A long run with three gaps."""
    changed = {333: lost(iteration(333), GapReason.CORRUPT_FRAME, "flow 1, bucket 0")}
    changed |= {s: lost(iteration(s), GapReason.RESYNC_PENDING, None, True) for s in range(334, 340)}
    changed |= {s: lost(iteration(s), GapReason.OVERLOAD, "buffers hold 4 steps") for s in (700, 702)}
    return with_steps(all_good(steps), changed)


def hostile() -> RunResult:
    """Texts that try to break out of everything that shows them."""
    run = {3: lost(iteration(3), HOSTILE, HOSTILE), 4: replace(iteration(4), matches=False, mismatch=HOSTILE)}
    result = with_steps(all_good(6), run)
    return replace(
        result,
        switch=HOSTILE,
        fabric=HOSTILE,
        restart=replace(result.restart, identical=False, difference=HOSTILE),
        discarded={HOSTILE: 3},
        switch_counters={HOSTILE: 4},
        faults=(HOSTILE,),
    )


def several(groups: int = 2, shadows: int = 2, steps: int = 6) -> RunResult:
    """A run of groups of two that passed; each shadow node gets everything, later groups have a higher loss."""
    data = yaml.safe_load(yaml.safe_dump(job(2 * groups, shadows).model_dump(mode="json")))
    everyone = data["groups"][0]["ring"]
    data["groups"] = [
        {**data["groups"][0], "name": f"dp{g}", "id": g, "ring": everyone[2 * g : 2 * g + 2]} for g in range(groups)
    ]
    tracks = [(f"dp{g}", f"sh{s}") for g in range(groups) for s in range(shadows)]
    rows = tuple(
        replace(iteration(step, 2), group=group, shadow=shadow, loss=iteration(step, 2).loss + int(group[2:]))
        for step in range(1, steps + 1)
        for group, shadow in tracks
    )
    half = steps // 2
    return RunResult(
        job=parse_job(yaml.safe_dump(data)).job,
        switch="softswitch",
        fabric="inproc",
        seed=0,
        gradient_bytes=groups * GRADIENT,
        header_bytes=groups * HEADERS,
        group_bytes={f"dp{g}": GRADIENT + HEADERS for g in range(groups)},
        iterations=rows,
        ranks_equal=True,
        restart=RestartResult(half, tuple(row for row in rows if row.step > half), True),
        wall_seconds=1.0,
    )


def with_row(result: RunResult, track: tuple[str, str], row: Iteration) -> RunResult:
    """The run with the row of one step, group and shadow node replaced."""
    row = replace(row, group=track[0], shadow=track[1])
    return replace(
        result,
        iterations=tuple(row if (i.step, i.group, i.shadow) == (row.step, *track) else i for i in result.iterations),
    )
