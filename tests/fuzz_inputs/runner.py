"""Run surfaces in child processes, a batch at a time, until each has had its time or its number of inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from tests.fuzz_inputs.batch import GROWTH_BYTES, HANG_SECONDS, Outcome
from tests.fuzz_inputs.surfaces import Surface

ROOT = Path(__file__).parents[2]
BATCH_SECONDS = 30.0
"""After which a child process makes room for a new one."""


@dataclass(frozen=True)
class Plan:
    """How long each surface is run, and with what."""

    seed: int = 0
    """Equal seeds, equal inputs."""
    first: int = 0
    """Number of the first call."""
    inputs: int | None = None
    """Inputs of each surface at least; None until the time is over."""
    seconds: float = float("inf")
    """Of each surface at most."""
    growth_bytes: int = GROWTH_BYTES
    """By which a process may grow."""
    hang_seconds: float = HANG_SECONDS
    """That a call may take."""


@dataclass
class Tally:
    """What became of a surface so far."""

    surface: Surface
    """Which."""
    inputs: int = 0
    """Inputs tried."""
    seconds: float = 0.0
    """In the surface's calls."""
    growth_bytes: int = 0
    """Peak growth of resident memory in any batch."""
    failure: str | None = None
    """What was found; the surface ends with it."""
    again: str | None = None
    """The command that shows the failure again."""
    next_call: int = field(default=0, repr=False)
    """Number of the first call that was not made."""


class Runner:
    """Runs surfaces, `processes` at a time."""

    def __init__(self, plan: Plan, on_progress: Callable[[Tally, int, float], None] = lambda *_: None) -> None:
        """Prepare; `on_progress` is called from several threads, with inputs and seconds of a surface so far."""
        self._plan = plan
        self._on_progress = on_progress
        self._children: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, surfaces: Sequence[Surface], processes: int) -> list[Tally]:
        """Run all; return what became of each. An interrupt ends the children and is raised again."""
        tallies = [Tally(surface, next_call=self._plan.first) for surface in surfaces]
        with ThreadPoolExecutor(processes) as pool:
            futures = [pool.submit(self._run_surface, tally) for tally in tallies]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self._stop()
                raise
        return tallies

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for child in self._children:
                child.kill()

    def _run_surface(self, tally: Tally) -> None:
        plan, began = self._plan, time.monotonic()
        while not self._stopped and tally.failure is None:
            left = plan.seconds - (time.monotonic() - began)
            calls = 1 << 30 if plan.inputs is None else -(-(plan.inputs - tally.inputs) // tally.surface.per_call)
            if left <= 0 or calls <= 0:
                return
            self._run_batch(tally, calls, min(BATCH_SECONDS, left), began)

    def _run_batch(self, tally: Tally, calls: int, seconds: float, began: float) -> None:
        plan, surface = self._plan, tally.surface
        words = [sys.executable, "-m", "tests.fuzz_inputs.batch", surface.module]
        words += [f"--seed={plan.seed}", f"--first={tally.next_call}", f"--calls={calls}", f"--seconds={seconds}"]
        words += [f"--growth-bytes={plan.growth_bytes}", f"--hang-seconds={plan.hang_seconds}"]
        # Threads must not use up the address space with malloc's arenas, of which each reserves 64 MiB.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "2", "PYTHONPATH": str(ROOT)}
        with TemporaryFile("w+", errors="replace") as errors:
            with self._lock:
                if self._stopped:
                    return
                child = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
                    env=environment,
                )  # fmt: skip
                self._children.add(child)
            call: int | str = "warm-up"
            outcome = None
            assert child.stdout is not None
            with child.stdout:
                for line in child.stdout:
                    told = json.loads(line)
                    if "call" not in told:
                        outcome = Outcome(**told)
                        continue
                    call = told["call"]
                    tried = call - tally.next_call if isinstance(call, int) else 0
                    self._on_progress(tally, tally.inputs + tried * surface.per_call, time.monotonic() - began)
            status = child.wait()
            with self._lock:
                self._children.discard(child)
            errors.seek(0)
            text = errors.read()[-20_000:]
        if self._stopped:
            return
        if outcome is None:
            # faulthandler ends a process that hangs; a signal ends one that crashed or that the kernel killed.
            hung = "Timeout (" in text
            what = f"no input may take {plan.hang_seconds:g} s" if hung else f"the process ended with status {status}"
            tally.failure = f"{what}\n{text}"
        else:
            tally.inputs += outcome.inputs
            tally.seconds += outcome.seconds
            tally.growth_bytes = max(tally.growth_bytes, outcome.growth_bytes)
            tally.next_call += outcome.calls
            tally.failure = outcome.failure
            if tally.failure is None and outcome.growth_bytes > plan.growth_bytes:
                tally.failure = f"memory grew by {outcome.growth_bytes >> 20} MiB"
        if tally.failure is not None:
            at = call if isinstance(call, int) else 0
            tally.again = (
                f"make fuzz-inputs SURFACE={surface.name} SEED={plan.seed} FIRST={at} COUNT={surface.per_call}"
            )
