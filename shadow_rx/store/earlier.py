"""What a store holds from before its writer was restarted."""

from __future__ import annotations

from collections.abc import Iterable

from shadow_rx.store.errors import StoreError
from shadow_rx.store.log import Log
from shadow_rx.store.names import MAX_NUMBER, base_name
from shadow_rx.store.recover import StoreReader
from shadow_rx.store.retained import StoredObject


def found_points(reader: StoreReader, group: str) -> list[tuple[int, int]]:
    """Return epoch and step of what the store holds of `group`, of its current epochs.

    The newest is one that was just read back, replayed and found right: what comes after it, as names tell, was torn
    by the crash that ended the writer, and is not durable.
    """
    found: list[tuple[int, int]] = []
    last: int | None = None
    for entry in reader.epochs(group):
        if entry.superseded:
            continue
        if last is None:
            try:
                last = reader.latest(group, entry.epoch).manifest.step
            except StoreError:
                continue  # nothing of this epoch can be recovered
        for first, end in entry.steps.spans():
            found += [(entry.epoch, step) for step in range(first, min(end, last + 1))]
        last = MAX_NUMBER  # of the epochs before the newest one all counts
    return sorted(found)


def found_objects(reader: StoreReader, group: str, points: Iterable[tuple[int, int]]) -> list[StoredObject]:
    """Return what was written of `group`, in the order of writing; `points` are those that can be recovered.

    What cannot be recovered counts for nothing, so that nothing that can is deleted for its sake.
    """
    sound = {(group, *point) for point in points}
    found: list[tuple[tuple[int, int, bool], StoredObject]] = []
    for epoch in reader.epochs(group):
        if epoch.superseded:
            continue
        torn = _torn_bases(reader.log(epoch))
        for step in epoch.bases:
            point = (group, epoch.epoch, step)
            name, good = f"{epoch.folder}/{base_name(step)}", point in sound and step not in torn
            found.append(((epoch.epoch, step, True), StoredObject(name, (point,) if good else (), good)))
        for segment in epoch.segments:
            steps = range(segment.first, segment.last + 1)
            held = tuple(point for step in steps if (point := (group, epoch.epoch, step)) in sound)
            found.append(((epoch.epoch, segment.last, False), StoredObject(segment.name, held, False)))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def _torn_bases(log: Log) -> set[int]:
    """Return the newest bases that a crash has left damaged: back to the first one that is whole."""
    torn: set[int] = set()
    for step in reversed(log.epoch.bases):
        try:
            log.base(step)
            break
        except StoreError:
            torn.add(step)
    return torn
