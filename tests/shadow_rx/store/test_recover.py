"""Recovery from bases and the log: bit for bit, from every step, and from what damage leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from checkmate_common.recovery.point import read_recovery_point
from jobspec.store import Fsync, StoreSpec
from shadow_rx.store.errors import StoreError, Trouble
from shadow_rx.store.opening import storage_of
from shadow_rx.store.storage.files import FileOperations
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.store.stores import assert_equal, policy, reader, snapshots, write
from tests.shadow_rx.twin import Twin, make_layout
from tests.shadow_rx.wire import make_job


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "RMSprop", "Adagrad"])
def test_every_step_is_recovered_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    told = snapshots(optimizer=optimizer)
    write(tmp_path, told)
    names = sorted(path.name for path in (tmp_path / "dp0/epoch-0001").iterdir())
    assert names == [f"log-{s:08d}-{s:08d}" for s in range(2, 15)] + [f"step-{s:08d}" for s in (1, 5, 9, 13)]
    for snapshot in told:
        assert_equal(reader(tmp_path).point("dp0", snapshot.step), snapshot)
    assert_equal(reader(tmp_path).latest("dp0"), told[-1])
    base = read_recovery_point(tmp_path / "dp0/epoch-0001/step-00000005")
    assert_equal(base, told[4])


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_object_stores_hold_the_same(tmp_path: Path, scheme: str) -> None:
    url = f"memory://{tmp_path.name}" if scheme == "memory" else f"file://{tmp_path}/store"
    told = snapshots()
    write(url, told)
    found = reader(url)
    for snapshot in told:
        assert_equal(found.point("dp0", snapshot.step), snapshot)
    write(url, told[:2])
    assert_equal(reader(url).latest("dp0"), told[1])
    assert [epoch.superseded for epoch in reader(url).epochs("dp0")] == [False, True]


def test_points_may_be_read_in_any_order(tmp_path: Path) -> None:
    told = snapshots()
    write(tmp_path, told)
    found = reader(tmp_path)
    for step in (7, 7, 8, 3, 14, 13, 1, 2, 12):
        assert_equal(found.point("dp0", step), told[step - 1])


def test_what_is_returned_does_not_change_with_the_next_step(tmp_path: Path) -> None:
    told = snapshots()
    write(tmp_path, told)
    found = reader(tmp_path)
    second = found.point("dp0", 2)
    found.point("dp0", 4)
    assert_equal(second, told[1])


def test_a_damaged_base_is_replaced_by_an_older_one(tmp_path: Path) -> None:
    told = snapshots()
    write(tmp_path, told)
    for step in (13, 9):
        path = tmp_path / f"dp0/epoch-0001/step-{step:08d}/state.safetensors"
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
    found = reader(tmp_path)
    assert_equal(found.latest("dp0"), told[-1])
    for snapshot in told:
        assert_equal(found.point("dp0", snapshot.step), snapshot)


def test_a_damaged_record_ends_what_can_be_recovered_with_its_name(tmp_path: Path) -> None:
    told = snapshots()
    write(tmp_path, told)
    path = tmp_path / "dp0/epoch-0001/log-00000007-00000007"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    found = reader(tmp_path)
    assert_equal(found.point("dp0", 6), told[5])
    for step in (7, 8):
        with pytest.raises(StoreError, match=r"log-00000007-00000007: step 7: .*CRC32C is wrong") as caught:
            found.point("dp0", step)
        assert caught.value.kind is Trouble.DAMAGED
    assert_equal(found.point("dp0", 9), told[8])
    assert_equal(found.latest("dp0"), told[-1])


def test_latest_stops_before_a_damaged_record(tmp_path: Path) -> None:
    told = snapshots(12)
    write(tmp_path, told, policy=policy(base_every=100))
    path = tmp_path / "dp0/epoch-0001/log-00000009-00000009"
    path.write_bytes(path.read_bytes()[:100])
    assert_equal(reader(tmp_path).latest("dp0"), told[7])
    path.unlink()
    assert_equal(reader(tmp_path).latest("dp0"), told[7])
    with pytest.raises(StoreError, match="has no record of step 9"):
        reader(tmp_path).point("dp0", 11)


def test_a_replay_that_gives_other_parameters_is_refused(tmp_path: Path) -> None:
    """A base that was exchanged for another run's, whole and well formed: only the digest can tell."""
    told = snapshots()
    write(tmp_path / "one", told)
    other = replace(told[0], tensors={name: tensor + 1 for name, tensor in told[0].tensors.items()})
    write(tmp_path / "two", [other])
    (tmp_path / "one/dp0/epoch-0001/step-00000001").rename(tmp_path / "gone")
    (tmp_path / "two/dp0/epoch-0001/step-00000001").rename(tmp_path / "one/dp0/epoch-0001/step-00000001")
    with pytest.raises(StoreError, match="step 2: replayed parameters have digest"):
        reader(tmp_path / "one").point("dp0", 3)
    assert_equal(reader(tmp_path / "one").latest("dp0"), told[-1])


def test_steps_share_a_commit(tmp_path: Path) -> None:
    told = snapshots()
    store = RecoveryStore(tmp_path, policy=policy(every=3, base_every=100))
    results = [store.publish(snapshot) for snapshot in told[:6]]
    assert [result.waiting for result in results] == [False, True, True, False, True, True]
    assert results[3].together == (("dp0", 1, 2), ("dp0", 1, 3))
    assert_equal(reader(tmp_path).latest("dp0"), told[3])
    (last,) = store.flush()
    assert (last.point, last.together) == (("dp0", 1, 6), (("dp0", 1, 5),))
    assert_equal(reader(tmp_path).latest("dp0"), told[5])
    assert store.flush() == []


def test_slow_storage_shares_commits_and_puts_bases_off(tmp_path: Path) -> None:
    told = snapshots()
    store = RecoveryStore(tmp_path, policy=policy(base_every=4))
    store.publish(told[0])
    assert all(store.publish(snapshot, hurry=True).waiting for snapshot in told[1:6])
    assert len(store.publish(told[6]).together) == 5
    assert sorted(p.name for p in (tmp_path / "dp0/epoch-0001").iterdir()) == [
        "log-00000002-00000007", "step-00000001", "step-00000007",
    ]  # fmt: skip
    assert_equal(reader(tmp_path).point("dp0", 4), told[3])


def test_a_step_that_is_missing_makes_a_base(tmp_path: Path) -> None:
    told = snapshots()
    kept = [*told[:3], *told[4:6], replace(told[7], gradient=None), told[8]]
    write(tmp_path, kept, policy=policy(base_every=100))
    assert sorted(p.name for p in (tmp_path / "dp0/epoch-0001").glob("step-*")) == [
        "step-00000001", "step-00000005", "step-00000008",
    ]  # fmt: skip
    for snapshot in kept:
        assert_equal(reader(tmp_path).point("dp0", snapshot.step), snapshot)
    with pytest.raises(StoreError, match="has no step 4; it has steps 1 to 9 of epoch 1"):
        reader(tmp_path).point("dp0", 4)


def test_the_newest_epoch_counts(tmp_path: Path) -> None:
    told = snapshots(5, epochs=2)
    write(tmp_path, told)
    again = [replace(snapshot, epoch=3) for snapshot in told[5:8]]
    write(tmp_path, again, resume=True)
    assert [(s.epoch, s.step) for s in told[5:8]] == [(2, 6), (2, 7), (2, 8)]
    found = reader(tmp_path)
    assert_equal(found.latest("dp0"), again[-1])
    assert_equal(found.point("dp0", 7), again[1])
    assert_equal(found.point("dp0", 7, epoch=2), told[6])
    assert_equal(found.point("dp0", 2), told[1])


def test_a_restarted_writer_goes_on(tmp_path: Path) -> None:
    told = snapshots()
    write(tmp_path, told[:6])
    write(tmp_path, told[8:], resume=True, policy=policy(base_every=4, steps=7))
    found = reader(tmp_path)
    assert_equal(found.latest("dp0"), told[-1])
    epoch = found.epochs("dp0")[0]
    assert min(epoch.steps) == 5, "what was written before the restart is deleted in its turn"
    with pytest.raises(StoreError, match=r"has no step 7"):
        found.point("dp0", 7)


@pytest.mark.parametrize(
    ("wishes", "left"),
    [
        ({"bases": 2}, [9, 13]),
        ({"bases": 1}, [13]),
        ({"steps": 1}, [13]),
        ({"steps": 3}, [9, 13]),
        ({"steps": 6}, [9, 13]),
        ({"steps": 7}, [5, 9, 13]),
        ({"steps": 1, "bases": 2}, [9, 13]),
        ({}, [1, 5, 9, 13]),
    ],
)
def test_retention(tmp_path: Path, wishes: dict[str, int], left: list[int]) -> None:
    told = snapshots()
    store = RecoveryStore(tmp_path, policy=policy(base_every=4, **wishes))
    removed = [point for snapshot in told for point in store.publish(snapshot).removed]
    store.close()
    (epoch,) = reader(tmp_path).epochs("dp0")
    assert list(epoch.bases) == left
    assert list(epoch.steps) == list(range(left[0], 15))
    assert removed == [("dp0", 1, step) for step in range(1, left[0])]
    assert not list(tmp_path.rglob(".*"))
    for step in range(left[0], 15):
        assert_equal(reader(tmp_path).point("dp0", step), told[step - 1])


def test_a_step_costs_its_gradient(tmp_path: Path) -> None:
    """Write amplification of the log, on a model whose gradient is large against its records."""
    job = make_job()
    rig = Rig(job, Twin(job, make_layout(((300, 200), (250,)), 1 << 20)))
    rig.begin()
    for _ in range(6):
        rig.train()
        rig.send(rig.twin.frames(rig.last_gradient, rig.epoch, rig.first_step, 60000, rig.port))
        rig.record()
    told = rig.snapshots()
    write(tmp_path, told, policy=policy(base_every=100))
    gradient = told[0].layout.nbytes
    sizes = storage_of(tmp_path).sizes()
    logged = [size for name, size in sizes.items() if "/log-" in name]
    assert len(logged) == 5
    assert max(logged) < 1.02 * gradient
    state = sizes["dp0/epoch-0001/step-00000001/state.safetensors"]
    assert state > 2.9 * gradient, "what a step would cost as a whole snapshot"


@pytest.mark.parametrize(("fsync", "flushes"), [(Fsync.ALWAYS, {1, 2, 3, 4}), (Fsync.BASE, {1}), (Fsync.NEVER, set())])
def test_what_is_flushed(tmp_path: Path, fsync: Fsync, flushes: set[int]) -> None:
    class Counting(FileOperations):
        flushed = 0

        def sync_file(self, path: Path) -> None:
            if path.name != ".new-store.json":
                self.flushed += 1

    files = Counting()
    store = RecoveryStore(tmp_path, files=files, policy=StoreSpec(fsync=fsync))
    seen = set()
    for snapshot in snapshots()[:4]:
        before = files.flushed
        store.publish(snapshot)
        if files.flushed > before:
            seen.add(snapshot.step)
    assert seen == flushes


def test_the_replay_runs_on_the_writers_threads(tmp_path: Path) -> None:
    told = snapshots()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        write(tmp_path, told)
        torch.set_num_threads(2)
        assert_equal(reader(tmp_path).latest("dp0"), told[-1])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
