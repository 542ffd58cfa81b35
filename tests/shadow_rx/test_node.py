"""The node: publishers, what became of recovery points, and waiting."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from checkmate_common.recovery.point import decode_recovery_point, read_recovery_point
from checkmate_common.recovery.reasons import GapReason
from shadow_rx.core import ShadowCore
from shadow_rx.errors import ShadowError
from shadow_rx.logs.event_log import EventLog
from shadow_rx.node import Observer, ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.publish.publisher import BackgroundPublisher, DirectPublisher, Publisher
from shadow_rx.store.storage.files import FileOperations, Parts
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.twin import as_bytes, upload


class NodeRig(Rig):
    """A rig whose core sits in a node."""

    def __init__(self, publisher: Publisher | None, hold: int = 1, observe: Observer | None = None) -> None:
        super().__init__()
        self.core = ShadowCore(self.job, "sh0", ShadowOptions(hold=hold))
        self.node = ShadowNode(self.core, lambda: self.now, publisher, observe)

    def begin(self, **changes: object) -> bool:  # type: ignore[override]
        self.epoch += 1
        self.first_step = self.twin.step + 1
        self.port = 40000 + 1000 * self.epoch
        need = self.node.attach(self.twin.attach(self.epoch))
        if need:
            upload(self.node, self.epoch, self.twin.state_bytes())
        for message in self.twin.open_flows(self.epoch, self.port):
            self.node.open_flow(message)
        return need

    def step(self) -> None:
        self.node.on_frames(self.train())
        for message in self.twin.records(self.epoch):
            self.node.record(message)


def test_the_event_log_has_a_line_for_every_step_gained_or_lost(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "logs" / "events.jsonl")
    rig = NodeRig(None, observe=log)
    rig.begin()
    rig.step()
    rig.node.on_frames(rig.train()[1:])
    for _ in range(4):
        rig.step()
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "logs/events.jsonl").read_text().splitlines()]
    assert [(line["event"], line["epoch"], line["step"]) for line in lines] == [
        ("attached", 1, 0), ("uploaded", 1, 0), ("replicated", 1, 1), ("lost", 1, 2),
    ]  # fmt: skip
    lines = lines[2:]
    frames = rig.core.group("dp0").progress.epoch.assembler.plan.frames
    assert lines[0]["replica_bytes"] == rig.twin.layout.nbytes + 64 * frames
    assert lines[1]["reason"] == "lost_bytes"


def test_bytes_of_steps_in_progress_are_told() -> None:
    rig = NodeRig(None)
    rig.begin()
    rig.step()
    assert rig.node.status("dp0").pending_bytes == {}
    frames = rig.train()
    rig.node.on_frames(frames[:2])
    assert rig.node.status("dp0").pending_bytes == {2: len(frames[0]) + len(frames[1]) - 2 * 54}


class GatedFiles(FileOperations):
    """Lets the thread that stores begin a point only when the test says so."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def write(self, path: Path, data: Parts) -> None:
        if path.name.endswith("state.safetensors"):
            self.begun.release()
            assert self.gate.acquire(timeout=20)
        super().write(path, data)


class FullDisk(FileOperations):
    full = False

    def write(self, path: Path, data: Parts) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().write(path, data)


def test_every_step_becomes_durable(tmp_path: Path) -> None:
    rig = NodeRig(DirectPublisher(RecoveryStore(tmp_path)))
    rig.begin()
    for _ in range(4):
        rig.step()
    status = rig.node.status("dp0")
    assert (status.trained_step, status.replica_step, status.durable_step) == (4, 4, 4)
    assert status.gaps == ()
    for step in range(1, 5):
        point = read_recovery_point(tmp_path / f"dp0/epoch-0001/step-{step:08d}")
        tensors = {k: v for k, v in point.tensors.items() if not k.startswith("rank/")}
        assert as_bytes(tensors) == rig.truth[1, step]
        encoded = rig.node.recovery_point("dp0", step)
        assert decode_recovery_point(encoded.manifest_json, encoded.state).manifest == point.manifest
    assert rig.node.recovery_point("dp0", 0) == rig.node.recovery_point("dp0", 4)
    assert rig.node.explain("dp0", 4) is None


def test_a_full_disk_stops_neither_training_nor_replication(tmp_path: Path) -> None:
    files = FullDisk()
    rig = NodeRig(DirectPublisher(RecoveryStore(tmp_path, None, files)))
    rig.begin()
    rig.step()
    files.full = True
    rig.step()
    rig.step()
    status = rig.node.status("dp0")
    assert (status.trained_step, status.replica_step, status.durable_step) == (3, 3, 1)
    assert [(g.step, g.reason) for g in status.gaps] == [(3, GapReason.STORAGE_ERROR), (2, GapReason.STORAGE_ERROR)]
    assert "No space left" in status.gaps[0].detail
    files.full = False
    rig.step()
    status = rig.node.status("dp0")
    assert (status.replica_step, status.durable_step, status.gaps) == (4, 4, ())
    gap = rig.node.explain("dp0", 2)
    assert gap is not None
    assert gap.reason is GapReason.STORAGE_ERROR
    with pytest.raises(ShadowError, match=r"storage_error: .*No space left"):
        rig.node.recovery_point("dp0", 2)


def test_without_storage_the_newest_points_are_in_memory() -> None:
    rig = NodeRig(None, hold=2)
    rig.begin()
    with pytest.raises(ShadowError, match="no recovery point yet"):
        rig.node.recovery_point("dp0", 0)
    for _ in range(3):
        rig.step()
    status = rig.node.status("dp0")
    assert (status.replica_step, status.durable_step) == (3, 0)
    assert {g.reason for g in status.gaps} == {GapReason.STORAGE_ERROR}
    assert '"step": 2' in rig.node.recovery_point("dp0", 2).manifest_json
    with pytest.raises(ShadowError, match="is not held"):
        rig.node.recovery_point("dp0", 1)
    with pytest.raises(ShadowError, match="announced by any rank"):
        rig.node.recovery_point("dp0", 4)


def test_pruned_points_are_no_longer_held(tmp_path: Path) -> None:
    rig = NodeRig(DirectPublisher(RecoveryStore(tmp_path, keep=2)))
    rig.begin()
    for _ in range(4):
        rig.step()
    assert rig.node.status("dp0").durable_step == 4
    assert rig.node.explain("dp0", 1) is None, "it was durable until newer ones came"
    with pytest.raises(ShadowError, match="no longer kept"):
        rig.node.recovery_point("dp0", 1)
    assert '"step": 3' in rig.node.recovery_point("dp0", 3).manifest_json


def test_storage_slower_than_training_drops_the_oldest_waiting_points(tmp_path: Path) -> None:
    files = GatedFiles()
    rig = NodeRig(BackgroundPublisher(RecoveryStore(tmp_path, None, files), depth=2))
    rig.begin()
    rig.step()
    assert files.begun.acquire(timeout=20), "step 1 is being written"
    for _ in range(4):
        rig.step()
    status = rig.node.status("dp0")
    assert (status.replica_step, status.durable_step) == (5, 0)
    details = {g.step: g.detail for g in status.gaps}
    assert "slower than training" in details[2]
    assert "slower than training" in details[3]
    assert "not written to storage yet" in details[4]
    for _ in range(3):
        files.gate.release()
    rig.node.close()
    status = rig.node.status("dp0")
    assert (status.replica_step, status.durable_step, status.gaps) == (5, 5, ())
    assert rig.node.explain("dp0", 2) is not None
    assert sorted(p.name for p in (tmp_path / "dp0/epoch-0001").iterdir()) == [
        "step-00000001", "step-00000004", "step-00000005",
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match="not running"):
        rig.step()


def test_publishers_refuse_misuse(tmp_path: Path) -> None:
    rig = NodeRig(None)
    rig.begin()
    rig.step()
    (snapshot,) = [rig.group.ledger.point(1)]
    assert snapshot is not None
    for publisher in (DirectPublisher(RecoveryStore(tmp_path)), BackgroundPublisher(RecoveryStore(tmp_path))):
        with pytest.raises(RuntimeError, match="start"):
            publisher.offer(snapshot)
        publisher.close()
    with pytest.raises(ValueError, match="waiting points: 0"):
        BackgroundPublisher(RecoveryStore(tmp_path), 0)


def test_durable_steps_of_an_abandoned_history_do_not_count(tmp_path: Path) -> None:
    rig = NodeRig(DirectPublisher(RecoveryStore(tmp_path)))
    rig.begin()
    for _ in range(5):
        rig.step()
    rig.twin.step = 2  # the trainer restarts from step 2 (here: with other values)
    assert rig.begin()
    status = rig.node.status("dp0")
    assert (status.trained_step, status.replica_step, status.durable_step) == (2, 2, 2)
    rig.step()
    status = rig.node.status("dp0")
    assert (status.replica_step, status.durable_step) == (3, 3)
    assert '"epoch": 2' in rig.node.recovery_point("dp0", 3).manifest_json
    assert '"epoch": 1' in rig.node.recovery_point("dp0", 2).manifest_json
    assert (tmp_path / "dp0/epoch-0001/step-00000005").is_dir(), "still there for who wants it"


def test_waiting_ends_with_the_step_the_loss_the_timeout_or_the_caller() -> None:
    rig = NodeRig(None)
    rig.begin()
    assert rig.node.wait_for_step("dp0", 1, 0.0, lambda: True).replica_step == 0
    waiter = _Waiter(rig.node, 1)
    rig.step()
    assert waiter.result() == 1
    frames = rig.train()
    waiter = _Waiter(rig.node, 2)
    rig.node.on_frames(frames[1:])
    for message in rig.twin.records(1):
        rig.node.record(message)
    for _ in range(4):
        rig.step()
    assert waiter.result() == 1, "step 2 is lost for good"
    interested = threading.Event()
    interested.set()
    rig.begin()
    waiter = _Waiter(rig.node, 50, interested)
    interested.clear()
    rig.node.wake()
    assert waiter.result() == 1


class _Waiter:
    def __init__(self, node: ShadowNode, step: int, interested: threading.Event | None = None) -> None:
        self._replica: int | None = None
        asked = threading.Event()

        def active() -> bool:
            asked.set()
            return interested is None or interested.is_set()

        def wait() -> None:
            self._replica = node.wait_for_step("dp0", step, 30.0, active).replica_step

        self._thread = threading.Thread(target=wait)
        self._thread.start()
        assert asked.wait(10)

    def result(self) -> int | None:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self._replica
