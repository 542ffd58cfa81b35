"""Encrypted stores: what is refused, and how keys are changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shadow_rx.store.api import restore
from shadow_rx.store.errors import StoreError, Trouble
from shadow_rx.store.maintain import purge, rotate_key
from shadow_rx.store.opening import storage_of
from shadow_rx.store.storage.crypto import (
    CHUNK_BYTES,
    Key,
    KeyRing,
    decrypt,
    encrypt,
    find_keys,
    read_key_file,
    sealed_size,
    write_key_file,
)
from shadow_rx.store.verify import verify_store
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.store.stores import assert_equal, policy, reader, snapshots, write

RING = KeyRing((Key(bytes(range(32))),))
OTHER = KeyRing((Key(bytes(32)),))


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES])
def test_what_is_encrypted_comes_back(size: int) -> None:
    data = os.urandom(size)
    for cut in (0, 1, size // 2, size):
        sealed = b"".join(encrypt(RING.primary, "id", "a/b", [data[:cut], b"", memoryview(data)[cut:]]))
        assert decrypt(RING, "store", "id", "a/b", sealed) == data
        assert len(sealed) == sealed_size(size)
    assert b"".join(encrypt(RING.primary, "id", "a/b", [data])) != sealed, "every object has a salt of its own"


def test_every_change_is_noticed() -> None:
    data = os.urandom(CHUNK_BYTES + 100)
    sealed = b"".join(encrypt(RING.primary, "id", "a", [data]))
    changed = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :] for at in (0, 20, 47, 48, 500, len(sealed) - 1)]
    one, two = sealed[48 : 48 + CHUNK_BYTES + 16], sealed[48 + CHUNK_BYTES + 16 :]
    cut = [sealed[:n] for n in (0, 10, 48, 60, 48 + CHUNK_BYTES + 16, len(sealed) - 1)]
    for bad in (*changed, *cut, sealed[:48] + two + one, sealed + b"x", sealed + two):
        with pytest.raises(StoreError) as caught:
            decrypt(RING, "store", "id", "a", bad)
        assert caught.value.kind is Trouble.DAMAGED
    for store_id, name in (("id", "b"), ("other", "a")):
        with pytest.raises(StoreError, match="another name or store"):
            decrypt(RING, "store", store_id, name, sealed)


def test_a_changed_key_id_names_the_key_that_is_missing() -> None:
    sealed = bytearray(b"".join(encrypt(RING.primary, "id", "a", [b"data"])))
    sealed[8:16] = bytes(8)
    with pytest.raises(StoreError, match="is encrypted with key 0000000000000000") as caught:
        decrypt(RING, "store", "id", "a", bytes(sealed))
    assert caught.value.kind is Trouble.KEY
    assert RING.primary.secret.hex() not in str(caught.value)
    assert RING.primary.secret.hex() not in repr(RING)


@pytest.mark.parametrize("scheme", ["local", "memory"])
def test_an_encrypted_store_gives_every_step_and_tells_nothing(tmp_path: Path, scheme: str) -> None:
    target = tmp_path / "store" if scheme == "local" else f"memory://sealed-{tmp_path.name}"
    told = snapshots()
    write(target, told, ring=RING)
    found = reader(target, RING)
    for snapshot in told:
        assert_equal(found.point("dp0", snapshot.step), snapshot)
    storage = storage_of(target)
    gradient = told[1].gradient
    assert gradient
    for name in storage.sizes():
        data = storage.get(name, 1 << 20)
        assert name == "store.json" or (name.endswith(".enc") and b"layer" not in data and gradient not in data)


def test_a_missing_or_wrong_key_is_told(tmp_path: Path) -> None:
    told = snapshots()
    write(tmp_path / "sealed", told[:3], ring=RING)
    write(tmp_path / "plain", told[:3])
    with pytest.raises(StoreError, match=rf"is encrypted with key {RING.primary.id}; name the key file") as caught:
        reader(tmp_path / "sealed")
    assert caught.value.kind is Trouble.KEY
    with pytest.raises(StoreError, match=rf"key {RING.primary.id}; memory has {OTHER.primary.id}"):
        reader(tmp_path / "sealed", OTHER)
    with pytest.raises(StoreError, match="is not encrypted, and a key was given"):
        reader(tmp_path / "plain", RING).point("dp0", 2)
    for target, ring in ((tmp_path / "sealed", None), (tmp_path / "sealed", OTHER), (tmp_path / "plain", RING)):
        before = storage_of(target).sizes()
        store = RecoveryStore(target, ring=ring, resume=True)
        assert "encrypted" in (store.publish(told[3]).error or "")
        assert storage_of(target).sizes() == before


def test_objects_cannot_be_exchanged(tmp_path: Path) -> None:
    told = snapshots()
    write(tmp_path / "one", told, ring=RING, policy=policy(base_every=100))
    folder = tmp_path / "one/dp0/epoch-0001"
    (folder / "log-00000005-00000005.enc").write_bytes((folder / "log-00000004-00000004.enc").read_bytes())
    assert_equal(reader(tmp_path / "one", RING).latest("dp0"), told[3])
    (folder / "log-00000005-00000005.enc").unlink()
    write(tmp_path / "two", told, policy=policy(base_every=100))
    plain = tmp_path / "two/dp0/epoch-0001/log-00000005-00000005"
    plain.rename(folder / "log-00000005-00000005")
    assert_equal(reader(tmp_path / "one", RING).latest("dp0"), told[3])
    assert "is not encrypted" in verify_store(reader(tmp_path / "one", RING)).epochs[0].damage[0].reason


def test_an_old_run_of_an_encrypted_store_stays_readable(tmp_path: Path) -> None:
    told = snapshots()
    write(tmp_path, told[:4], ring=RING)
    write(tmp_path, told[:2], ring=RING)
    report = verify_store(reader(tmp_path, RING))
    assert [(e.superseded, e.recoverable) for e in report.epochs] == [(False, ((1, 2),)), (True, ((1, 4),))]


def test_a_new_key_for_new_objects(tmp_path: Path) -> None:
    told = snapshots()
    write(tmp_path, told[:4], ring=RING)
    both = KeyRing((OTHER.primary, RING.primary))
    write(tmp_path, told[4:8], ring=both, resume=True)
    for step in (2, 4, 5, 8):
        assert_equal(reader(tmp_path, both).point("dp0", step), told[step - 1])
    assert_equal(reader(tmp_path, OTHER).point("dp0", 7), told[6])
    with pytest.raises(StoreError, match=f"is encrypted with key {RING.primary.id}"):
        reader(tmp_path, OTHER).point("dp0", 3)


@pytest.mark.parametrize("ring", [None, RING])
def test_rotation_can_be_interrupted_anywhere(tmp_path: Path, ring: KeyRing | None) -> None:
    told = snapshots()[:6]
    key_file = tmp_path / "keys"

    class Interrupted(Exception):
        pass

    def stop_at(at: int) -> Callable[[int, int], None]:
        def progress(done: int, total: int) -> None:
            if done == at:
                raise Interrupted

        return progress

    for at in range(1, 10):
        target = tmp_path / str(at)
        write(target, told, ring=ring)
        if ring is not None:
            write_key_file(key_file, ring)
        with pytest.raises(Interrupted):
            rotate_key(storage_of(target), key_file, progress=stop_at(at))
        interrupted = read_key_file(key_file)
        if ring is not None:
            for snapshot in told:
                assert_equal(reader(target, interrupted).point("dp0", snapshot.step), snapshot)
        key = rotate_key(storage_of(target), key_file, drop_old=True)
        alone = read_key_file(key_file)
        assert alone.keys == (key,)
        for snapshot in told:
            assert_equal(reader(target, alone).point("dp0", snapshot.step), snapshot)
        assert all(path.suffix == ".enc" for path in target.rglob("*-*") if path.is_file())
        assert not list(target.rglob(".*"))


def test_a_store_that_is_written_cannot_be_rotated_or_purged(tmp_path: Path) -> None:
    store = RecoveryStore(tmp_path / "store")
    store.publish(snapshots()[0])
    for action in (lambda s: rotate_key(s, tmp_path / "key"), purge):
        with pytest.raises(StoreError, match=f"another writer has it \\(process {os.getpid()}\\)"):
            action(storage_of(tmp_path / "store"))
    assert not (tmp_path / "key").exists()
    store.close()
    (tmp_path / "store/mine").write_text("precious")
    assert purge(storage_of(tmp_path / "store")) == 3
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["mine"], "what is not ours stays"
    with pytest.raises(StoreError, match="is not a store"):
        reader(tmp_path / "store")


def test_only_one_writer(tmp_path: Path) -> None:
    told = snapshots()
    one, two = RecoveryStore(tmp_path / "a"), RecoveryStore(tmp_path / "a")
    assert one.publish(told[0]).error is None
    assert "another writer has it" in (two.publish(told[0]).error or "")
    one.close()
    assert two.publish(told[0]).error is None
    url = f"memory://writers-{tmp_path.name}"
    one, two = RecoveryStore(url), RecoveryStore(url, resume=True)
    assert one.publish(told[0]).error is None
    assert two.publish(told[1]).error is None
    assert "another writer has taken it over" in (one.publish(told[2]).error or "")


def test_keys_from_files_and_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    both = KeyRing((OTHER.primary, RING.primary), str(path))
    write_key_file(path, both)
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("# the new one\n" + path.read_text() + "\n")
    assert read_key_file(path) == both
    words = ",".join(key.secret.hex() for key in both.keys)
    found = find_keys(None, {"CHECKMATE_STORE_KEY": words})
    assert found is not None
    assert found.keys == both.keys
    assert find_keys(None, {}) is None
    for text in ("", "abc", "g" * 64):
        path.write_text(text)
        with pytest.raises(StoreError, match="64 hexadecimal digits"):
            read_key_file(path)
    path.chmod(0o640)
    with pytest.raises(StoreError, match=r"open to others than its owner \(mode 0640\)"):
        read_key_file(path)
    with pytest.raises(StoreError, match="cannot be read"):
        read_key_file(tmp_path / "none")


def test_a_store_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write(tmp_path / "store", snapshots()[:6])
    finally:
        os.umask(before)
    for path in (tmp_path / "store", *(tmp_path / "store").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    (tmp_path / "store").chmod(0o750)
    with pytest.raises(StoreError, match=r"mode 0750.*--allow-open-permissions") as caught:
        restore(tmp_path / "store")
    assert caught.value.kind is Trouble.PERMISSIONS
    assert restore(tmp_path / "store", allow_open_permissions=True).manifest.step == 6
    assert "open to others" in (RecoveryStore(tmp_path / "store").publish(snapshots()[0]).error or "")
