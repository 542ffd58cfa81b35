"""The results of acceptance runs, and the checks that they must pass. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from topology.acceptance.excuses import Excuse
from topology.acceptance.scenarios import Outcome, Scenario


class StepNumbers(NamedTuple):
    """The contract's three step numbers, as the shadow node reported them when a step had been trained."""

    step: int
    """Step that all ranks had just finished."""
    trained: int
    """Newest step whose records the shadow node had."""
    replica: int
    """Newest recovery point."""
    durable: int
    """Newest recovery point on storage."""


class ReportedGap(NamedTuple):
    """A step that is not on storage, with the reported reason."""

    step: int
    """The step."""
    reason: str
    """A value of `checkmate_common.recovery.reasons.GapReason`."""
    detail: str
    """What the reason refers to."""


@dataclass
class RunRecord:
    """One run of one scenario with one seed."""

    scenario: str
    """Name of the scenario."""
    fabric: str
    """``simulation`` or ``mininet``."""
    seed: int
    """The seed."""
    steps: int
    """Steps to train with faults."""
    numbers: list[StepNumbers] = field(default_factory=list)
    """In the order of training; a step that was trained again occurs again."""
    at_end: StepNumbers | None = None
    """The numbers at the end, before the job was restarted."""
    injected: dict[str, int] = field(default_factory=dict)
    """How often each fault happened."""
    verified: int = 0
    """Number of comparisons of recovery points: in memory, and again as read from the store."""
    repaired: int = 0
    """Steps with bytes from the redundant hop only."""
    resynced: int = 0
    """Steps whose state the trainer uploaded."""
    reported: list[ReportedGap] = field(default_factory=list)
    """Steps that are not on storage at the end, with the reason."""
    excuses: list[Excuse] = field(default_factory=list)
    """Steps that the faults of the run may have cost, with the allowed reasons; no others may be reported."""
    wrong: list[str] = field(default_factory=list)
    """Recovery points that differ from the trainers' state or cannot be read; must be empty."""
    unexplained: list[int] = field(default_factory=list)
    """Steps that are neither on storage nor explained; must be empty."""
    training: str | None = None
    """First difference of the training from the run without faults; must be None."""
    restarted_from: int = 0
    """Newest durable step, from which the job was restarted; 0: there was none."""
    restart: str | None = None
    """First difference of the restarted job from the run without faults; must be None."""
    error: str | None = None
    """Why the run failed to complete; must be None."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Faults of the scenario that were not injected, with the reason."""
    skipped: str | None = None
    """Why this fault cannot be injected on this fabric."""
    seconds: float = 0.0
    """Duration in seconds of wall time."""

    def outcomes(self) -> dict[Outcome, int]:
        """Return the number of steps by outcome."""
        return {
            Outcome.REPAIRED: self.repaired,
            Outcome.RESYNCED: self.resynced,
            Outcome.REPORTED: len(self.reported),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return the record that `to_json` wrote.

        Raises:
            TypeError, KeyError: `data` is not a record.
        """
        numbers = [StepNumbers(*entry) for entry in data["numbers"]]
        reported = [ReportedGap(*entry) for entry in data["reported"]]
        excuses = [Excuse(fault, first, last, tuple(reasons)) for fault, first, last, reasons in data["excuses"]]
        at_end = StepNumbers(*data["at_end"]) if data["at_end"] is not None else None
        return cls(**{**data, "numbers": numbers, "at_end": at_end, "reported": reported, "excuses": excuses})


def failures(record: RunRecord) -> list[str]:
    """Return the violations of the contract in a run, a sentence each; empty if it holds."""
    if record.skipped is not None:
        return []
    found = []
    if record.error is not None:
        found.append(f"the run did not complete: {record.error}")
    if record.wrong:
        found.append(f"{len(record.wrong)} wrong checkpoints: {record.wrong[0]}")
    if record.training is not None:
        found.append(f"training was changed: {record.training}")
    if record.unexplained:
        found.append(f"steps {record.unexplained} are neither on storage nor explained")
    for step, reason, detail in record.reported:
        if not any(excuse.covers(step, reason) for excuse in record.excuses):
            found.append(f"step {step} is not on storage, and no fault of this run excuses {reason}: {detail}")
            break
    if record.restart is not None:
        found.append(f"restart from step {record.restarted_from}: {record.restart}")
    for numbers in record.numbers:
        if not numbers.step >= numbers.trained >= numbers.replica >= numbers.durable:
            found.append(f"the three numbers contradict each other: {numbers}")
            break
    if record.error is None and not record.verified:
        found.append("nothing was compared: no recovery point was published")
    return found


@dataclass(frozen=True)
class Row:
    """A scenario on a fabric with all its runs."""

    scenario: Scenario
    """The scenario."""
    fabric: str
    """The fabric."""
    runs: tuple[RunRecord, ...]
    """By seed."""

    @property
    def skipped(self) -> str | None:
        """Why there were no runs, None if there were."""
        reasons = [run.skipped for run in self.runs if run.skipped is not None]
        return reasons[0] if reasons else None

    def total(self, outcome: Outcome) -> int:
        """Return the number of steps with an outcome, over all runs."""
        return sum(run.outcomes()[outcome] for run in self.runs)

    @property
    def injected(self) -> Counter[str]:
        """How often each fault happened, over all runs."""
        total: Counter[str] = Counter()
        for run in self.runs:
            total.update(run.injected)
        return total

    @property
    def left_out(self) -> dict[str, str]:
        """Faults that no run has, with the reason; empty if the seed draws the faults."""
        if self.scenario.pick:
            return {}
        return {name: why for run in self.runs for name, why in run.left_out.items() if not self.injected[name]}

    def failed_runs(self) -> list[tuple[RunRecord, list[str]]]:
        """Return the runs that violate the contract, with the violations."""
        return [(run, found) for run in self.runs if (found := failures(run))]

    def shortcomings(self) -> list[str]:
        """Return what the row requires of its runs together and they do not show."""
        if self.skipped is not None:
            return []
        found = []
        idle = [i.value for i in self.scenario.injections if not self.injected[i.value] and i not in self.left_out]
        if idle and not self.scenario.pick:
            found.append(f"never happened: {', '.join(idle)}")
        expected = self.scenario.expects
        if expected and not any(self.total(outcome) for outcome in expected):
            found.append(f"no step was {' or '.join(sorted(expected))}")
        if self.scenario.complete and (missing := self.total(Outcome.REPORTED)):
            found.append(f"{missing} steps are not on storage, though no injected fault excuses it")
        return found

    @property
    def passed(self) -> bool:
        """Whether the contract holds in all runs, and they show what the row requires."""
        return not self.failed_runs() and not self.shortcomings()


def rows_of(scenarios: Sequence[Scenario], records: Iterable[RunRecord]) -> list[Row]:
    """Group records by scenario and fabric, in the order of the scenarios."""
    kept = list(records)
    rows = []
    for fabric in dict.fromkeys(record.fabric for record in kept):
        for scenario in scenarios:
            runs = [r for r in kept if (r.fabric, r.scenario) == (fabric, scenario.name)]
            if runs:
                rows.append(Row(scenario, fabric, tuple(sorted(runs, key=lambda run: run.seed))))
    return rows
