"""When a base is due, when a commit is, and what is flushed: arithmetic on the section ``store`` of a job."""

from __future__ import annotations

from jobspec.store import Fsync, StoreSpec

MAX_TOGETHER = 16
"""Most steps that wait for one commit when storage is slow."""
Point = tuple[str, int, int]
"""Group, epoch and step of a recovery point."""


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
