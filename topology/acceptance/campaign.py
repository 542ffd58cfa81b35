"""Makes many runs in parallel processes and keeps their records, so that an interrupted campaign can resume."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from checkmate_common.files.private_files import make_private_folder, write_private
from topology.acceptance.plan import RunLength
from topology.acceptance.record import RunRecord
from topology.acceptance.scenarios import Scenario
from topology.acceptance.simulated_run.run import run_simulated
from topology.errors import TestbedError

RUNS_FILE = "runs.jsonl"
"""File of records in a campaign's folder, one run a line."""
_RUNS_A_PROCESS = 100
"""Runs after which a process is replaced: each gRPC server that is closed leaks a little."""


@dataclass(frozen=True)
class Task:
    """A run to make in the simulation."""

    scenario: Scenario
    """The fault row."""
    seed: int
    """The seed."""
    length: RunLength
    """Number of steps."""


def run_task(task: Task) -> RunRecord:
    """Make a run; also the entry point of worker processes."""
    return run_simulated(task.scenario, task.seed, task.length)


def run_tasks(tasks: Sequence[Task], jobs: int) -> Iterator[RunRecord]:
    """Yield the records of runs as they complete, from `jobs` processes at a time (1: this process)."""
    if jobs <= 1 or len(tasks) <= 1:
        yield from map(run_task, tasks)
        return
    # A forked child would lack gRPC's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), context, max_tasks_per_child=_RUNS_A_PROCESS) as pool:
        left = iter(tasks)
        waiting: set[Future[RunRecord]] = {pool.submit(run_task, task) for task in islice(left, 2 * jobs)}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                waiting |= {pool.submit(run_task, task) for task in islice(left, len(done))}
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class RunLog:
    """The records of a campaign, kept in a file."""

    def __init__(self, out: Path, *, resume: bool) -> None:
        """Keep records in the folder `out`; without `resume`, replace those that are there.

        Raises:
            TestbedError: the folder cannot be written.
        """
        self.path = out / RUNS_FILE
        try:
            make_private_folder(out)
            self.known = list(read_runs(self.path)) if resume and self.path.exists() else []
            write_private(self.path, "".join(json.dumps(record.to_json()) + "\n" for record in self.known))
        except OSError as error:
            raise TestbedError("out", f"{out} cannot be written: {error.strerror}", "choose another folder") from error

    def add(self, record: RunRecord) -> None:
        """Append a record.

        Raises:
            TestbedError: it cannot be written.
        """
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record.to_json()) + "\n")
        except OSError as error:
            raise TestbedError("out", f"{self.path} cannot be written: {error.strerror}") from error
        self.known.append(record)

    def missing(self, tasks: Iterable[Task], fabric: str) -> list[Task]:
        """Return the tasks without a record."""
        done = {(r.scenario, r.seed, r.steps) for r in self.known if r.fabric == fabric}
        return [task for task in tasks if (task.scenario.name, task.seed, task.length.steps) not in done]


def read_runs(path: Path) -> Iterator[RunRecord]:
    """Yield the records of a file; an unfinished line of an interrupted program is skipped."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield RunRecord.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue


def default_jobs() -> int:
    """Return the number of processors that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))
