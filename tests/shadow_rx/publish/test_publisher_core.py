"""The publisher's core under seeded trouble: each point is stored or told once, in order, and for the right reason."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checkmate_common.recovery.reasons import GapReason
from jobspec.store import Fsync, StoreSpec
from shadow_rx.publish.core import Done, PublisherCore, Report, Work, Written
from shadow_rx.publish.publisher import DirectPublisher
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.publish.store_queue import StoreQueue
from shadow_rx.status.events import Event, StepNotStored, StepReplicated, StepStored
from shadow_rx.status.health import StoreStatus
from shadow_rx.store.api import open_store
from shadow_rx.store.storage.files import FileOperations, Parts
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.store.stores import policy, snapshots
from tests.shadow_rx.test_node import NodeRig

SEEDS = range(5)


class FailingFiles(FileOperations):
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.chance = rng, 0.0

    def write(self, path: Path, data: Parts) -> None:
        if self.rng.random() < self.chance:
            raise OSError(5, "Input/output error")
        super().write(path, data)


class SteppedPublisher:
    """Drives the core as a thread would, one call at a time, when the test says so."""

    def __init__(self, store: RecoveryStore, depth: int) -> None:
        self.store, self.core = store, PublisherCore(store, depth)
        self.work: Work | None = None
        self.done: Done | None = None
        self.failed = set[int]()
        self.report: Report = lambda _: None

    def start(self, report: Report) -> None:
        self.report = report
        self.core.start()

    def offer(self, snapshot: Snapshot, room: int | None = None) -> None:
        for point in self.core.offer(snapshot, room):
            self.report(point)

    def status(self, group: str) -> StoreStatus:
        return self.core.status(group)

    def go_on(self) -> bool:
        """Make the next call of the writer; tell whether there was one."""
        if self.done is not None:
            done, self.work, self.done = self.done, None, None
            for written in self.core.finish(done, 0.1):
                self.report(written)
        elif self.work is not None:
            self.done = self.core.write(self.work)
            for result in self.done.results:
                if result.error is not None:
                    self.failed |= {step for _, _, step in (*result.failed, result.point)}
        else:
            self.work = self.core.take() if self.core.has_work else None
            return self.work is not None
        return True

    def close(self) -> None:
        self.core.close()
        while self.go_on():
            pass
        self.store.close()


def faults(seed: int, folder: Path) -> list[str]:
    """Train with a storage that is slow and fails at random; return what is wrong."""
    rng, events = random.Random(f"publisher/{seed}"), list[Event]()
    files, depth = FailingFiles(rng), rng.randint(1, 4)
    policy = StoreSpec(every=rng.choice([1, 2, 3]), base_every=rng.choice([1, 4]), fsync=Fsync.NEVER)
    publisher = SteppedPublisher(RecoveryStore(folder, None, files, policy=policy), depth)
    rig = NodeRig(publisher, observe=events.append)
    rig.begin()
    for _ in range(4):
        files.chance = rng.choice([0.0, 0.0, 0.5])
        pace = rng.choice([0, 2, 8])
        for _ in range(5):
            rig.step()
            for _ in range(rng.randint(0, pace)):
                publisher.go_on()
            assert rig.node.status("dp0").health.buffers.store.waiting <= depth
    files.chance = 0.0
    rig.node.close()
    replicated = [event.step for event in events if isinstance(event, StepReplicated)]
    stored = [event.step for event in events if isinstance(event, StepStored)]
    told = {event.step: event.gap.reason for event in events if isinstance(event, StepNotStored)}
    found = []
    if sorted([*stored, *told]) != replicated or replicated != list(range(1, 21)):
        found.append(f"lost, or twice: {sorted({*replicated} - {*stored, *told})}")
    reasons = {step: GapReason.STORAGE_ERROR if step in publisher.failed else GapReason.OVERLOAD for step in told}
    if told != reasons:
        found.append(f"wrong reason: {told}, {publisher.failed} failed")
    if stored != sorted(stored):
        found.append(f"out of order: {stored}")
    explained = {step: gap.reason for step in replicated if (gap := rig.node.explain("dp0", step)) is not None}
    if explained != told:
        found.append(f"told {told}, explained {explained}")
    there = {step for epoch in open_store(folder).epochs("dp0") for step in epoch.steps}
    if there != set(stored):
        found.append(f"stored {sorted(there)}, told {stored}")
    return found


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_each_point_is_stored_or_told_once_in_order_and_for_the_right_reason(tmp_path: Path) -> None:
    assert {seed: found for seed in SEEDS if (found := faults(seed, tmp_path / str(seed)))} == {}


def silent(real: Callable[..., Any]) -> Callable[..., Any]:
    def offer(self: StoreQueue, snapshot: Snapshot, room: int | None = None) -> Any:
        return real(self, snapshot, room)[1:]

    return offer


def newest_first(real: Callable[..., Any]) -> Callable[..., Any]:
    def take(self: StoreQueue) -> Any:
        for lane in self._lanes.values():
            lane.waiting.rotate(1)
        return real(self)

    return take


def as_dropped(real: Callable[..., Any]) -> Callable[..., Any]:
    def finish(self: PublisherCore, done: Done, seconds: float) -> list[Any]:
        told: list[Written] = real(self, done, seconds)
        return [each.result.point if each.result.error is not None else each for each in told]

    return finish


@pytest.mark.parametrize(
    ("owner", "name", "spoil", "said"),
    [
        (StoreQueue, "offer", silent, "lost, or twice"),
        (StoreQueue, "take", newest_first, "out of order"),
        (PublisherCore, "finish", as_dropped, "wrong reason"),
    ],
)
def test_a_broken_queue_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, spoil: Any, said: str
) -> None:
    monkeypatch.setattr(owner, name, spoil(getattr(owner, name)))
    found = (each for seed in SEEDS for each in faults(seed, tmp_path / str(seed)))
    assert any(said in each for each in found)


def test_a_closed_core_writes_what_waits_then_flushes_once(tmp_path: Path) -> None:
    publisher = SteppedPublisher(RecoveryStore(tmp_path, policy=StoreSpec(every=5, base_every=9)), 4)
    rig = NodeRig(publisher)
    rig.begin()
    for _ in range(3):
        rig.step()
    assert rig.node.status("dp0").durable_step == 0
    rig.node.close()
    assert rig.node.status("dp0").durable_step == 3
    assert publisher.core.take() is None
    with pytest.raises(RuntimeError, match="not running"):
        rig.step()


class InterruptedFiles(FileOperations):
    """The user presses Ctrl-C during the next write."""

    interrupt = True

    def write(self, path: Path, data: Parts) -> None:
        if self.interrupt:
            self.interrupt = False
            raise KeyboardInterrupt
        super().write(path, data)


def test_an_interrupted_write_does_not_keep_the_store_from_being_closed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    publisher = DirectPublisher(RecoveryStore(root, policy=policy(), files=InterruptedFiles()))
    publisher.start(lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        publisher.offer(snapshots()[0])
    publisher.close()
    store = RecoveryStore(root, policy=policy(), resume=True)
    assert store.publish(snapshots()[0]).error is None
    store.close()
