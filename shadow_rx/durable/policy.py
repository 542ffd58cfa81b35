"""When a base is due, when a commit is, and what may be deleted: arithmetic on the section ``store`` of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobspec.store import Fsync, Retention, StoreSpec

MAX_TOGETHER = 16
"""Most steps that wait for one commit when storage is slow."""
Point = tuple[str, int, int]
"""Group, epoch and step of a recovery point."""


@dataclass(frozen=True)
class Entry:
    """An object of a store, in the order of writing."""

    name: str
    """Its name."""
    points: tuple[Point, ...]
    """Recovery points in it: one for a base, one or more for a log segment."""
    base: bool
    """Whether it is a base."""


def base_due(policy: StoreSpec, since: int, hurry: bool) -> bool:
    """Tell whether a base is due.

    Args:
        policy: the job's wishes.
        since: steps since the last base, the present one included.
        hurry: whether other steps wait already: a base is put off then, for at most as long again, because it is
            what takes the longest.
    """
    return since >= policy.base_every * (2 if hurry and policy.base_every > 1 else 1)


def commit_due(policy: StoreSpec, waiting: int, hurry: bool) -> bool:
    """Tell whether `waiting` steps are to be committed now; with `hurry` more of them share a commit."""
    return waiting >= (max(policy.every, MAX_TOGETHER) if hurry else policy.every)


def synced(policy: StoreSpec, base: bool) -> bool:
    """Tell whether an object is flushed to storage before it counts as durable."""
    return policy.fsync is Fsync.ALWAYS or (base and policy.fsync is Fsync.BASE)


def expendable(entries: Sequence[Entry], retention: Retention) -> int:
    """Return how many of `entries`, from the oldest on, may be deleted: always up to a base, never the newest one."""
    bases = [index for index, entry in enumerate(entries) if entry.base]
    wanted: list[int] = []
    if retention.bases is not None and bases:
        wanted.append(bases[max(0, len(bases) - retention.bases)])
    if retention.steps is not None and bases:
        enough = (index for index in reversed(bases) if _steps_from(entries, index) >= retention.steps)
        wanted.append(next(enough, bases[0]))
    return min(wanted, default=0)


def _steps_from(entries: Sequence[Entry], index: int) -> int:
    return len({point for entry in entries[index:] for point in entry.points})
