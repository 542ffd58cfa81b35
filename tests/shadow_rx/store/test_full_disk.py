"""A disk that is full, and one that has space again."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from checkmate_common.recovery.reasons import GapReason
from shadow_rx.publish.publisher import DirectPublisher
from shadow_rx.store.storage.files import FileOperations, Parts
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.store.stores import assert_equal, policy, reader, snapshots
from tests.shadow_rx.test_node import NodeRig
from tests.shadow_rx.twin import as_bytes


class Limited(FileOperations):
    """A disk with no space left after so many bytes; what a failing write began stays there."""

    left = 1 << 40

    def write(self, path: Path, data: Parts) -> None:
        whole = b"".join(data)
        if len(whole) > self.left:
            path.write_bytes(whole[: self.left])
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= len(whole)
        super().write(path, [whole])


def test_training_and_replica_go_on_and_steps_become_durable_again(tmp_path: Path) -> None:
    files = Limited()
    rig = NodeRig(DirectPublisher(RecoveryStore(tmp_path, files=files, policy=policy(base_every=100))))
    rig.begin()
    for _ in range(3):
        rig.step()
    files.left = 100
    for _ in range(3):
        rig.step()
    status = rig.node.status("dp0")
    assert (status.trained_step, status.replica_step, status.durable_step) == (6, 6, 3)
    assert {(gap.step, gap.reason) for gap in status.gaps} == {(s, GapReason.STORAGE_ERROR) for s in (4, 5, 6)}
    assert "No space left on device" in status.gaps[0].detail
    tensors = reader(tmp_path).point("dp0", 3).tensors
    assert as_bytes({name: t for name, t in tensors.items() if not name.startswith("rank/")}) == rig.truth[1, 3]
    files.left = 1 << 40
    rig.step()
    rig.step()
    status = rig.node.status("dp0")
    assert (status.replica_step, status.durable_step, status.gaps) == (8, 8, ())
    assert reader(tmp_path).epochs("dp0")[0].bases == (1, 7), "the chain is broken, so a base begins a new one"
    assert not list(tmp_path.rglob(".*"))


def test_a_base_that_does_not_fit_costs_no_step(tmp_path: Path) -> None:
    told, files = snapshots(), Limited()
    store = RecoveryStore(tmp_path, files=files, policy=policy(base_every=3))
    for snapshot in told[:3]:
        assert store.publish(snapshot).error is None
    log = (tmp_path / "dp0/epoch-0001/log-00000002-00000002").stat().st_size
    files.left = log + 200
    result = store.publish(told[3])
    assert (result.error, "No space left" in (result.base_error or "")) == (None, True)
    files.left = 1 << 40
    assert store.publish(told[4]).base_error is None
    assert reader(tmp_path).epochs("dp0")[0].bases == (1, 5), "tried again with the next step"
    assert_equal(reader(tmp_path).point("dp0", 4), told[3])


def test_steps_that_waited_share_the_error(tmp_path: Path) -> None:
    told, files = snapshots(), Limited()
    store = RecoveryStore(tmp_path, files=files, policy=policy(every=3, base_every=100))
    for snapshot in told[:3]:
        store.publish(snapshot)
    files.left = 0
    result = store.publish(told[3])
    assert "No space left" in (result.error or "")
    assert result.failed == (("dp0", 1, 2), ("dp0", 1, 3))
    assert result.together == ()
    files.left = 1 << 40
    assert store.publish(told[4]).error is None
    assert_equal(reader(tmp_path).latest("dp0"), told[4])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_real_full_disk(small_disk: Path) -> None:
    told = snapshots()
    root = small_disk / "store"
    ballast = small_disk / "ballast"
    store = RecoveryStore(root, policy=policy(base_every=100))
    for snapshot in told[:4]:
        assert store.publish(snapshot).error is None
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert "No space left on device" in (store.publish(told[4]).error or "")
    assert_equal(reader(root).latest("dp0"), told[3])
    ballast.unlink()
    assert store.publish(told[5]).error is None
    assert_equal(reader(root).latest("dp0"), told[5])
    store.close()
