"""The writer is killed at every file operation, and in the middle of writes: the newest committed step loads."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from jobspec.store import StoreSpec
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.store.storage.files import FileOperations, Parts
from shadow_rx.store.verify import verify_store
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.store.stores import assert_equal, policy, reader, snapshots

STEPS = 5
POLICIES = {
    "log": policy(base_every=3),
    "retention": policy(base_every=2, bases=1),
    "together": policy(every=2, base_every=4, bases=2),
    "whole": policy(base_every=1, steps=2),
}


class Watched(FileOperations):
    """Tells `before` of every operation that changes something, and may write a part of the data only."""

    def __init__(self, before: Callable[[str, Path, bytes], None]) -> None:
        self._before = before

    def make_directory(self, path: Path) -> None:
        self._before("mkdir", path, b"")
        super().make_directory(path)

    def write(self, path: Path, data: Parts) -> None:
        whole = b"".join(data)
        self._before("write", path, whole)
        super().write(path, [whole])

    def sync_file(self, path: Path) -> None:
        self._before("sync_file", path, b"")

    def sync_directory(self, path: Path) -> None:
        self._before("sync_directory", path, b"")

    def rename(self, source: Path, target: Path) -> None:
        self._before("rename", target, b"")
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        if path.exists():
            self._before("remove", path, b"")
        super().remove(path)

    def remove_directory(self, path: Path) -> None:
        if path.exists():
            self._before("rmdir", path, b"")
        super().remove_directory(path)


def _write(root: Path, spec: StoreSpec, files: FileOperations, tell: Callable[[int], None]) -> None:
    store = RecoveryStore(root, files=files, policy=spec)
    for snapshot in snapshots()[:STEPS]:
        result = store.publish(snapshot)
        assert result.error is None
        if not result.waiting:
            tell(snapshot.step)
    for result in store.flush():
        tell(result.point[2])


def operations(root: Path, spec: StoreSpec) -> list[tuple[str, int]]:
    """Return kind and bytes of every operation of the run."""
    seen: list[tuple[str, int]] = []
    _write(root, spec, Watched(lambda kind, path, data: seen.append((kind, len(data)))), lambda step: None)
    return seen


def killed(root: Path, spec: StoreSpec, at: int, cut: int | None) -> int:
    """Let a process be killed (SIGKILL) before operation `at`, or after `cut` bytes; return what it called durable."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        said, count = os.fdopen(tell, "w"), 0

        def before(kind: str, path: Path, data: bytes) -> None:
            nonlocal count
            if count == at:
                if cut is not None:
                    path.write_bytes(data[:cut])
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

        try:
            _write(root, spec, Watched(before), lambda step: print(step, file=said, flush=True))
        finally:
            os._exit(1)  # it was not killed
    os.close(tell)
    with os.fdopen(told) as pipe:
        steps = [int(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the process was to be killed"
    assert os.WTERMSIG(status) == signal.SIGKILL
    return max(steps, default=0)


def check(root: Path, spec: StoreSpec, durable: int, told: tuple[Snapshot, ...]) -> None:
    """Assert that all that was called durable and is to be kept is there and true, and that a new writer goes on."""
    if durable:
        found = reader(root)
        newest = found.latest("dp0")
        assert newest.manifest.step >= durable
        assert_equal(newest, told[newest.manifest.step - 1])
        report = verify_store(found)
        assert report.sound, report
        for epoch in report.epochs:
            for first, last in epoch.recoverable:
                for step in range(first, last + 1):
                    assert_equal(found.point("dp0", step), told[step - 1])
    store = RecoveryStore(root, policy=spec, resume=True)
    for snapshot in told[STEPS : STEPS + 3]:
        assert store.publish(snapshot).error is None
    store.flush()
    store.close()
    assert_equal(reader(root).latest("dp0"), told[STEPS + 2])
    assert not list(root.rglob(".*")), "what the crash left unfinished is gone"


@pytest.mark.parametrize("name", POLICIES)
def test_killed_at_every_operation(tmp_path: Path, name: str) -> None:
    spec, told = POLICIES[name], snapshots()
    for at, _ in enumerate(operations(tmp_path / "count", spec)):
        root = tmp_path / str(at)
        check(root, spec, killed(root, spec, at, None), told)


@pytest.mark.parametrize("seed", range(12))
def test_killed_in_the_middle_of_a_write(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    name = rng.choice(list(POLICIES))
    spec, told = POLICIES[name], snapshots()
    writes = [(at, size) for at, (kind, size) in enumerate(operations(tmp_path / "count", spec)) if kind == "write"]
    for at, size in rng.sample(writes, 6):
        root = tmp_path / f"{name}-{at}"
        check(root, spec, killed(root, spec, at, rng.randrange(size)), told)


@pytest.mark.parametrize("seed", range(20))
def test_the_last_segment_is_torn(tmp_path: Path, seed: int) -> None:
    """A power cut where nothing is flushed, or storage that lies: the name is there, the end of the data is not."""
    rng, told = random.Random(seed), snapshots()
    spec = policy(every=rng.choice([1, 3]), base_every=100)
    _write(tmp_path, spec, FileOperations(), lambda step: None)
    last = max((tmp_path / "dp0/epoch-0001").glob("log-*"))
    whole = last.read_bytes()
    last.write_bytes(whole[: rng.randrange(len(whole))])
    found = reader(tmp_path)
    newest = found.latest("dp0")
    first = int(last.name.split("-")[1])
    assert first - 1 <= newest.manifest.step <= STEPS
    assert_equal(newest, told[newest.manifest.step - 1])
    report = verify_store(found)
    assert [damage.name for damage in report.epochs[0].damage] == [f"dp0/epoch-0001/{last.name}"]
    assert report.latest == {"dp0": newest.manifest.step}
