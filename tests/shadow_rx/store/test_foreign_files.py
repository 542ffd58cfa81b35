"""A store touches nothing that it has not written, wherever that lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shadow_rx.store.errors import StoreError, Trouble
from shadow_rx.store.maintain import purge, rotate_key
from shadow_rx.store.opening import storage_of
from shadow_rx.store.storage.crypto import Key, KeyRing, read_key_file
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.store.stores import assert_equal, policy, reader, snapshots, write

MINE = (
    ".bashrc", ".ssh/id_ed25519", "src/.git/HEAD", "src/.new-idea", "notes/.keep", "plan.txt", ".old-plan/x",
    ".new-photos/epoch-0001/step-00000001/manifest.json",
)  # fmt: skip
"""As in a home directory."""
INSIDE = (
    "dp0/.snapshot/x", "dp0/notes.txt", "dp0/epoch-0001/.new-idea", "dp0/epoch-0001/.old-notes/x",
    "dp0/epoch-0001/.new-log-1", "dp0/epoch-0001/log-2-2", "dp0/epoch-0001/log-000000002-000000002",
    "dp0/epoch-0001/step-00000001/notes", "dp0/epoch-0001/step-00000001/.new-x", "dp0/epoch-0001/step-00000001/sub/y",
    "dp0/epoch-1/z", "dp0/epoch-0001.old-0/z", "dp0/epoch-0001.old-1/step-00000001.enc/z",
)  # fmt: skip
"""In the folders of the store itself."""


def put(root: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"mine: {name}")


def assert_kept(root: Path, names: tuple[str, ...]) -> None:
    assert {name: (root / name).read_text() for name in names} == {name: f"mine: {name}" for name in names}


def tree(root: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in root.rglob("*")}


def _publish(root: Path) -> None:
    store = RecoveryStore(root, policy=policy())
    store.open()


@pytest.mark.parametrize(
    "action",
    [_publish, lambda root: rotate_key(storage_of(root), root.parent / "key"), lambda root: purge(storage_of(root))],
    ids=["publish", "rotate-key", "purge"],
)
def test_a_directory_with_other_things_is_refused_untouched(tmp_path: Path, action: Callable[[Path], None]) -> None:
    home = tmp_path / "home"
    put(home, MINE)
    home.chmod(0o700)
    before = tree(home)
    with pytest.raises(StoreError, match="home: is not a store") as caught:
        action(home)
    assert tree(home) == before
    if action is _publish:
        assert caught.value.kind is Trouble.OCCUPIED
        assert "name a new or an empty directory" in str(caught.value)
        assert "is not a store and not empty" in (RecoveryStore(home).publish(snapshots()[0]).error or "")
        assert tree(home) == before
    assert not (tmp_path / "key").exists()


@pytest.mark.parametrize("name", ["lock", "store.json"])
def test_names_of_the_store_that_are_somebody_elses_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    before = tree(tmp_path)
    assert RecoveryStore(tmp_path).publish(snapshots()[0]).error is not None
    assert tree(tmp_path) == before


def test_what_an_interrupted_beginning_leaves_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("process 123\n")
    (tmp_path / ".new-store.json").write_text("torn")
    write(tmp_path, snapshots()[:2])
    assert not (tmp_path / ".new-store.json").exists()


def test_other_files_in_a_store_stay_through_everything(tmp_path: Path) -> None:
    """Writing, retention, a rerun, a restart, a new key, purge."""
    told, root, key = snapshots(), tmp_path / "store", tmp_path / "key"
    write(root, told[:2])
    put(root, MINE + INSIDE)
    names = MINE + INSIDE
    write(root, told[2:], resume=True, policy=policy(steps=2))
    assert_kept(root, names)
    assert not (root / "dp0/epoch-0001/step-00000001/manifest.json").exists(), "retention has removed the base"
    write(root, told[:3])
    assert_kept(root, names)
    assert_equal(reader(root).latest("dp0"), told[2])
    assert [epoch.superseded for epoch in reader(root).epochs("dp0")] == [False, True, True]
    new = rotate_key(storage_of(root), key)
    assert_kept(root, names)
    ring = KeyRing((new,))
    assert_equal(reader(root, ring).latest("dp0"), told[2])
    write(root, told[:2], ring=ring)
    assert_kept(root, names)
    purge(storage_of(root))
    assert_kept(root, names)
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert files == set(names), "and all of the store is gone"


def test_other_objects_in_an_object_store_stay(tmp_path: Path) -> None:
    told, url = snapshots(), f"memory://foreign-{tmp_path.name}"
    fs = storage_of(url)._fs  # type: ignore[attr-defined]
    top = url.removeprefix("memory:/")
    fs.pipe_file(f"{top}/plan.txt", b"mine")
    with pytest.raises(StoreError, match="is not a store and not empty"):
        RecoveryStore(url).open()
    fs.rm_file(f"{top}/plan.txt")
    write(url, told[:2])
    names = (*(name for name in MINE if not name.startswith(".")), *INSIDE)
    for name in names:
        fs.pipe_file(f"{top}/{name}", b"mine")
    write(url, told[2:], resume=True, policy=policy(steps=2))
    write(url, told[:3])
    key = tmp_path / "key"
    rotate_key(storage_of(url), key)
    purge(storage_of(url))
    assert {str(path).removeprefix(f"{top}/") for path in fs.find(top)} == set(names)


def test_a_torn_writer_s_leftovers_go_and_nothing_else(tmp_path: Path) -> None:
    """Also those of programs that wrote bases under another name first."""
    told = snapshots()
    write(tmp_path, told[:6])
    epoch = tmp_path / "dp0/epoch-0001"
    leftovers = [
        ".new-log-00000007-00000007", ".old-log-00000002-00000002.enc", ".new-step-00000009/state.safetensors",
        ".old-step-00000001/manifest.json", "step-00000005/.new-manifest.json", "step-00000009/state.safetensors",
    ]  # fmt: skip
    put(epoch, tuple(leftovers))
    put(tmp_path, INSIDE)
    store = RecoveryStore(tmp_path, policy=policy(), resume=True)
    store.open()
    store.close()
    assert not [name for name in leftovers if (epoch / name).exists()]
    assert_kept(tmp_path, INSIDE)
    for snapshot in told[:6]:
        assert_equal(reader(tmp_path).point("dp0", snapshot.step), snapshot)


def test_a_key_of_another_store_in_the_same_file_stays(tmp_path: Path) -> None:
    told, key = snapshots()[:3], tmp_path / "keys"
    for name in ("a", "b"):
        write(tmp_path / name, told)
        rotate_key(storage_of(tmp_path / name), key)
    ring = read_key_file(key)
    assert len(ring.keys) == 2
    for name in ("a", "b"):
        assert_equal(reader(tmp_path / name, ring).latest("dp0"), told[-1])
    last = rotate_key(storage_of(tmp_path / "b"), key, drop_old=True)
    assert read_key_file(key).keys == (last,), "only where that is asked for"


def test_a_store_whose_key_is_not_in_the_file_is_not_rotated(tmp_path: Path) -> None:
    write(tmp_path / "store", snapshots()[:3], ring=KeyRing((Key(bytes(32)),)))
    rotate_key_file = tmp_path / "keys"
    write(tmp_path / "other", snapshots()[:1])
    rotate_key(storage_of(tmp_path / "other"), rotate_key_file)
    before = tree(tmp_path)
    with pytest.raises(StoreError, match="is encrypted with key"):
        rotate_key(storage_of(tmp_path / "store"), rotate_key_file)
    assert tree(tmp_path) == before


def test_links_are_not_followed(tmp_path: Path) -> None:
    told, root, other = snapshots(), tmp_path / "store", tmp_path / "other"
    write(root, told[:4])
    other.mkdir()
    base = root / "dp0/epoch-0001/step-00000001"
    base.rename(other / "base")
    base.symlink_to(other / "base")
    with pytest.raises(StoreError, match="is a symbolic link"):
        reader(root).point("dp0", 1)
    store = RecoveryStore(root, policy=policy(base_every=1))
    (root / "dp0").rename(other / "dp0")
    (root / "dp0").symlink_to(other / "dp0")
    assert "is a symbolic link" in (store.publish(told[5]).error or "")
    store.close()
    (tmp_path / "link").symlink_to(root)
    (root / "dp0").unlink()
    write(tmp_path / "link", told[:2])
    assert_equal(reader(root).latest("dp0"), told[1])
