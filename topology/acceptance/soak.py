"""The summary of a soak test, as a JSON file and as a paragraph of the documents.

``python -m topology.acceptance.soak NUMBERS.json DOCUMENT.md`` updates the paragraph in a document.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from topology.acceptance.plan import HOPS, RANKS
from topology.acceptance.record import RunRecord, failures
from topology.acceptance.scenarios import Outcome

SOAK_FILE = "soak.json"
"""Name of the file in a campaign's folder."""
BEGIN, END = "<!-- soak: begin -->", "<!-- soak: end -->"
"""Markers around the paragraph in a document."""


@dataclass(frozen=True)
class Soak:
    """Totals of many runs."""

    fabric: str
    """``simulation`` or ``mininet``."""
    seeds: int
    """Number of runs, each with a seed of its own."""
    first_seed: int
    """Smallest seed."""
    last_seed: int
    """Largest seed."""
    clean: int
    """Runs in which the contract held."""
    failed_seeds: list[int]
    """Seeds of the other runs."""
    run_seconds: float
    """Sum of the runs' durations in seconds."""
    jobs: int
    """Runs made in parallel."""
    trained: int
    """Steps trained, counting those trained again."""
    compared: int
    """Recovery points compared bit for bit with the trainers' state."""
    outcomes: dict[str, int]
    """Number of steps by outcome."""
    injected: dict[str, int]
    """How often each fault happened."""
    runs_with: dict[str, int]
    """Number of runs in which each fault happened."""

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Soak:
        """Read what `write` wrote."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def text(self) -> str:
        """Return the paragraph of the documents."""
        kinds = ", ".join(f"{name} {count:,}" for name, count in sorted(self.runs_with.items()))
        outcome = "in every one of them" if self.clean == self.seeds else f"in {self.clean:,} of them"
        hours = self.run_seconds / 3600
        counts = {outcome: self.outcomes[outcome] for outcome in Outcome}
        became = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
        hops = ", ".join(map(str, HOPS))
        return (
            f"{self.seeds:,} seeds ({self.first_seed} to {self.last_seed}) of mixed faults in the {self.fabric}: the "
            f"contract held {outcome}. {RANKS} ranks, hops {hops} replicated; {self.trained:,} steps trained; "
            f"{self.compared:,} recovery points compared bit for bit; of the steps {became}. "
            "Every run ended with a restart from the newest durable step. "
            f"Together the runs took {hours:.1f} hours, {self.jobs} at a time.\n\n"
            f"Runs in which each fault happened: {kinds}.\n"
        )


def soak_of(records: Sequence[RunRecord], jobs: int) -> Soak:
    """Return the totals of `records`, which must not be empty."""
    injected: Counter[str] = Counter()
    with_fault: Counter[str] = Counter()
    outcomes = Counter({outcome.value: 0 for outcome in Outcome})
    for record in records:
        injected.update(record.injected)
        with_fault.update(record.injected.keys())
        outcomes.update({outcome.value: count for outcome, count in record.outcomes().items()})
    failed = sorted(record.seed for record in records if failures(record))
    seeds = [record.seed for record in records]
    return Soak(
        fabric=records[0].fabric,
        seeds=len(records),
        first_seed=min(seeds),
        last_seed=max(seeds),
        clean=len(records) - len(failed),
        failed_seeds=failed,
        run_seconds=round(sum(record.seconds for record in records), 1),
        jobs=jobs,
        trained=sum(len(record.numbers) for record in records),
        compared=sum(record.verified for record in records),
        outcomes=dict(outcomes),
        injected=dict(sorted(injected.items())),
        runs_with=dict(sorted(with_fault.items())),
    )


def update_document(document: Path, soak: Soak) -> None:
    """Replace the paragraph between the markers of a document.

    Raises:
        ValueError: the document has no markers.
    """
    before, begin, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} has no {BEGIN} ... {END}")
    document.write_text(f"{before}{BEGIN}\n{soak.text()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    update_document(Path(sys.argv[2]), Soak.read(Path(sys.argv[1])))
