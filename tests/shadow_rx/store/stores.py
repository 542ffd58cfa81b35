"""Snapshots of a short training, and stores that they are written to."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from checkmate_common.recovery.point import RecoveryPoint
from jobspec.store import Retention, StoreSpec
from shadow_rx.publish.snapshot import Snapshot, to_recovery_point
from shadow_rx.store.opening import open_for_reading, storage_of
from shadow_rx.store.recover import StoreReader
from shadow_rx.store.storage.crypto import KeyRing
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.twin import Twin, as_bytes, make_layout
from tests.shadow_rx.wire import make_job


@cache
def snapshots(steps: int = 14, optimizer: str = "AdamW", epochs: int = 1) -> tuple[Snapshot, ...]:
    """Return what a shadow publishes of a short training."""
    job = make_job()
    options = {"lr": 0.01} if optimizer != "SGD" else {"lr": 0.01, "momentum": 0.9}
    rig = Rig(job, Twin(job, make_layout(), optimizer, options))
    for _ in range(epochs):
        rig.begin()
        for step in range(steps):
            rig.send(rig.train(lr=0.01 / (1 + step)))
            rig.record()
    return tuple(rig.snapshots())


def policy(every: int = 1, base_every: int = 4, **retention: Any) -> StoreSpec:
    return StoreSpec(every=every, base_every=base_every, retention=Retention(**retention))


def write(target: Path | str, told: Iterable[Snapshot], **options: Any) -> RecoveryStore:
    """Write snapshots and give the store back."""
    store = RecoveryStore(target, **{"policy": policy(), **options})
    for snapshot in told:
        result = store.publish(snapshot)
        assert result.error is None, result
        assert result.cleanup_error is None, result
    for result in store.flush():
        assert result.error is None, result
    store.close()
    return store


def reader(target: Path | str, ring: KeyRing | None = None) -> StoreReader:
    return StoreReader(open_for_reading(storage_of(target), ring))


def assert_equal(point: RecoveryPoint, snapshot: Snapshot) -> None:
    """Assert that a point is what the shadow held, bit for bit, and says so itself."""
    expected = to_recovery_point(snapshot)
    assert as_bytes(point.tensors) == as_bytes(expected.tensors)
    assert point.manifest == expected.manifest
