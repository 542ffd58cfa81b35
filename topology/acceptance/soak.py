"""What a long campaign has shown, as numbers in a file, and as the paragraph that the documents have of it.

``python -m topology.acceptance.soak NUMBERS.json DOCUMENT.md`` puts the paragraph into a document.
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
"""Around the paragraph in a document."""


@dataclass(frozen=True)
class Soak:
    """The sum of many runs."""

    fabric: str
    """Where they were made."""
    seeds: int
    """Runs, each with a seed of its own."""
    first_seed: int
    """Smallest seed."""
    last_seed: int
    """Largest seed."""
    clean: int
    """Runs in which the contract held."""
    failed_seeds: list[int]
    """The others."""
    run_seconds: float
    """Sum of the durations of the runs."""
    jobs: int
    """Runs that were made at a time, in the end."""
    trained: int
    """Steps that were trained, those that were trained again included."""
    compared: int
    """Recovery points that were compared bit for bit with the trainers' state."""
    outcomes: dict[str, int]
    """Steps by what became of them."""
    injected: dict[str, int]
    """How often each fault happened."""
    runs_with: dict[str, int]
    """In how many runs each fault happened."""

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
    """Return the sum of `records`, of which there is at least one."""
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


def fill(document: Path, soak: Soak) -> None:
    """Put the paragraph into a document, between its marks.

    Raises:
        ValueError: the document has no marks.
    """
    before, begin, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} has no {BEGIN} ... {END}")
    document.write_text(f"{before}{BEGIN}\n{soak.text()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    fill(Path(sys.argv[2]), Soak.read(Path(sys.argv[1])))
