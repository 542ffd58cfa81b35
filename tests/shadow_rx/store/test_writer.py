"""Recovery points on storage: whole or absent, whatever fails and whenever the process dies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkmate_common.recovery.point import RecoveryPointError, read_recovery_point
from checkmate_common.stream.layout import Layout
from shadow_rx.publish.snapshot import Snapshot, to_recovery_point
from shadow_rx.store.storage.files import FileOperations, Parts
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.twin import as_bytes


@pytest.fixture(scope="module")
def snapshots() -> list[Snapshot]:
    rig = Rig()
    rig.begin()
    for _ in range(6):
        rig.step()
    return rig.snapshots()


class Crash(BaseException):
    """The process dies: nothing after it runs, not even clean-up."""


class FaultyFiles(FileOperations):
    """Fails at the n-th operation (from 1): with an error, or as a crash; a failing write leaves half of its data."""

    def __init__(self, at: int, error: Callable[[], BaseException]) -> None:
        self.at, self.error, self.count = at, error, 0
        self.log: list[str] = []

    def _do(self, name: str, path: Path) -> None:
        self.count += 1
        self.log.append(f"{name} {path.name}")
        if self.count == self.at:
            raise self.error()

    def make_directory(self, path: Path) -> None:
        self._do("mkdir", path)
        super().make_directory(path)

    def write(self, path: Path, data: Parts) -> None:
        whole = b"".join(data)
        try:
            self._do("write", path)
        except BaseException:
            path.write_bytes(whole[: len(whole) // 2])
            raise
        path.write_bytes(whole)  # not flushed: the test is about the order of operations, and runs many

    def sync_file(self, path: Path) -> None:
        self._do("flush", path)

    def sync_directory(self, path: Path) -> None:
        self._do("sync", path)

    def rename(self, source: Path, target: Path) -> None:
        self._do("rename", target)
        super().rename(source, target)

    def exists(self, path: Path) -> bool:
        self._do("exists", path)
        return super().exists(path)

    def remove(self, path: Path) -> None:
        self._do("remove", path)
        super().remove(path)

    def remove_directory(self, path: Path) -> None:
        self._do("rmdir", path)
        super().remove_directory(path)


def _published(root: Path) -> dict[tuple[int, int], Path]:
    """Return what a reader finds: every ``step-…`` directory with a manifest, by epoch and step."""
    paths = (path.parent for path in root.glob("dp0/epoch-[0-9][0-9][0-9][0-9]/step-*/manifest.json"))
    return {(int(p.parent.name[6:]), int(p.name[5:])): p for p in paths}


def _check(root: Path, snapshots: list[Snapshot]) -> set[int]:
    """Assert that every published point is whole and true; return the steps."""
    found = _published(root)
    for (_, step), path in found.items():
        point = read_recovery_point(path)
        expected = to_recovery_point(snapshots[step - 1])
        assert as_bytes(point.tensors) == as_bytes(expected.tensors)
        assert point.manifest == expected.manifest
    return {step for _, step in found}


def test_a_published_point_holds_everything_with_origin_and_step(tmp_path: Path, snapshots: list[Snapshot]) -> None:
    store = RecoveryStore(tmp_path / "new" / "root")
    result = store.publish(snapshots[1])
    assert (result.point, result.error, result.removed) == (("dp0", 1, 2), None, ())
    path = tmp_path / "new/root/dp0/epoch-0001/step-00000002"
    assert path == tmp_path / "new/root/dp0/epoch-0001/step-00000002"
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["job"], manifest["epoch"], manifest["step"], manifest["ranks"]) == ("test", 1, 2, 3)
    assert Layout.from_json(json.dumps(manifest["layout"])) == snapshots[1].layout
    origins = {entry["name"]: (entry["origin"], entry["rank"]) for entry in manifest["objects"]}
    assert origins["param/layer.0"] == ("replay", None)
    assert origins["optim/layer.0/exp_avg"] == ("replay", None)
    assert origins["rank/2/data"] == ("side_channel", 2)
    assert origins["rank/2/rng.torch"] == ("side_channel", 2)
    assert {entry["step"] for entry in manifest["objects"]} == {2}
    assert manifest["records"][1]["objects"] == {"data": {"epoch": 0, "position": 21}}
    point = read_recovery_point(path)
    assert bytes(point.tensors["rank/1/rng.torch"].numpy()) == bytes([1, 2] * 4)
    assert [p.name for p in path.parent.iterdir()] == ["step-00000002"]


def _operations(snapshots: list[Snapshot], root: Path, keep: int | None) -> int:
    files = FaultyFiles(0, OSError)
    store = RecoveryStore(root, keep, files)
    for snapshot in snapshots[:3]:
        assert store.publish(snapshot).error is None
    return files.count


@pytest.mark.parametrize("keep", [None, 1])
def test_an_error_at_any_operation_costs_at_most_that_point(
    tmp_path: Path, snapshots: list[Snapshot], keep: int | None
) -> None:
    for at in range(1, _operations(snapshots, tmp_path / "count", keep) + 1):
        root = tmp_path / str(at)
        files = FaultyFiles(at, lambda: OSError(28, "No space left on device"))
        store = RecoveryStore(root, keep, files)
        durable: set[int] = set()
        for snapshot in snapshots[:3]:
            result = store.publish(snapshot)
            if result.error is None:
                durable.add(snapshot.step)
            else:
                assert "No space left on device" in result.error
            durable -= {step for _, _, step in result.removed}
            assert _check(root, snapshots) >= durable, files.log
        final = store.publish(snapshots[3])
        assert final.error is None, "the error has passed: storing goes on"
        steps = _check(root, snapshots)
        assert 4 in steps
        if keep is not None:
            assert steps == {4}, "what an error left behind is deleted in its turn"
            assert not list(root.rglob(".*")), files.log


@pytest.mark.parametrize("keep", [None, 1])
def test_a_crash_at_any_operation_leaves_the_points_before(
    tmp_path: Path, snapshots: list[Snapshot], keep: int | None
) -> None:
    for at in range(1, _operations(snapshots, tmp_path / "count", keep) + 1):
        root = tmp_path / str(at)
        files = FaultyFiles(at, Crash)
        store = RecoveryStore(root, keep, files)
        durable: set[int] = set()
        try:
            for snapshot in snapshots[:3]:
                result = store.publish(snapshot)
                durable.add(snapshot.step)
                durable -= {step for _, _, step in result.removed}
        except Crash:
            steps = _check(root, snapshots)
            assert max(steps, default=0) >= max(durable, default=0), files.log
            assert keep is not None or steps >= durable, files.log
        else:
            raise AssertionError("the crash did not happen")


def test_the_newest_points_are_kept(tmp_path: Path, snapshots: list[Snapshot]) -> None:
    store = RecoveryStore(tmp_path, keep=2)
    removed = [step for s in snapshots for _, _, step in store.publish(s).removed]
    assert removed == [1, 2, 3, 4]
    assert _check(tmp_path, snapshots) == {5, 6}
    with pytest.raises(RecoveryPointError):
        store.read("dp0", 1, 4)
    assert json.loads(store.read("dp0", 1, 5).manifest_json)["step"] == 5
    with pytest.raises(ValueError, match="stored steps: 0"):
        RecoveryStore(tmp_path, keep=0)


def test_an_earlier_run_of_the_same_epoch_is_moved_away_not_mixed(tmp_path: Path, snapshots: list[Snapshot]) -> None:
    first = RecoveryStore(tmp_path)
    for snapshot in snapshots:
        first.publish(snapshot)
    first.close()
    for number in (1, 2):
        again = RecoveryStore(tmp_path, keep=1)
        assert again.publish(snapshots[0]).error is None
        again.close()
        assert _check(tmp_path, snapshots) == {1}
        assert (tmp_path / f"dp0/epoch-0001.old-{number}").is_dir()
    old = tmp_path / "dp0/epoch-0001.old-1/step-00000006"
    assert read_recovery_point(old).manifest.step == 6, "a rerun deletes nothing"


def test_a_snapshot_that_cannot_be_stored_is_a_result(tmp_path: Path, snapshots: list[Snapshot]) -> None:
    import dataclasses

    shared = next(iter(snapshots[0].tensors.values()))
    bad: Any = dataclasses.replace(snapshots[0], tensors={"param/a": shared.to_sparse()})
    result = RecoveryStore(tmp_path).publish(bad)
    assert result.error is not None
    assert "cannot be stored" in result.error
