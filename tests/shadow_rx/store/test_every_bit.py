"""Every byte of every object counts: what is changed, exchanged or renamed is refused, never restored."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from checkmate_common.files.checked_json import with_checksum, without_checksum
from checkmate_common.recovery.point import RecoveryPointError, decode_manifest, join_state
from shadow_rx.store.api import recoverable
from shadow_rx.store.opening import read_description, storage_of
from shadow_rx.store.segment import SegmentDamage, decode_segment
from tests.shadow_rx.store.stores import assert_equal, policy, reader, snapshots, write

STEPS = 6
OBJECTS = ("store.json", "step-00000004/manifest.json", "step-00000004/state.safetensors", "log-00000003-00000003")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "store"
    write(root, snapshots(STEPS), policy=policy(base_every=3))
    return root


def at(root: Path, name: str) -> Path:
    return root / name if name == "store.json" else root / "dp0/epoch-0001" / name


def flips(data: bytes) -> list[bytes]:
    return [
        data[:place] + bytes([data[place] ^ 1 << (place * 5 + more) % 8]) + data[place + 1 :]
        for place in range(len(data))
        for more in range(0, 8, 4)
    ]


def test_two_bits_of_every_byte_are_noticed_where_they_are_decoded(sound: Path, tmp_path: Path) -> None:
    manifest, state = at(sound, OBJECTS[1]).read_bytes(), at(sound, OBJECTS[2]).read_bytes()
    right = decode_manifest(manifest.decode())
    for bad in flips(manifest):
        with pytest.raises((RecoveryPointError, UnicodeDecodeError)):
            decode_manifest(bad.decode())
    for bad in flips(state):
        with pytest.raises(RecoveryPointError):
            join_state(right, bad)
    log = at(sound, OBJECTS[3]).read_bytes()
    (record,) = decode_segment(log).records
    for bad in flips(log):
        try:
            found = decode_segment(bad)
        except SegmentDamage:
            continue
        assert found.damage is not None
        # A record before the damage is as it was: each has a checksum of its own.
        assert all((r.text(), bytes(r.body)) == (record.text(), bytes(record.body)) for r in found.records)
    storage, path = storage_of(tmp_path), tmp_path / "store.json"
    for bad in flips(at(sound, "store.json").read_bytes()):
        path.write_bytes(bad)
        with pytest.raises(RecoveryPointError):
            read_description(storage)


@pytest.mark.parametrize("name", OBJECTS)
def test_a_flipped_bit_never_gives_another_point(sound: Path, tmp_path: Path, name: str) -> None:
    """From the store's directory to the restored point."""
    root, rng = tmp_path / "store", random.Random(name)
    shutil.copytree(sound, root)
    path = at(root, name)
    right = path.read_bytes()
    for _ in range(8):
        place = rng.randrange(len(right))
        path.write_bytes(right[:place] + bytes([right[place] ^ 1 << rng.randrange(8)]) + right[place + 1 :])
        if name == "store.json":
            with pytest.raises(RecoveryPointError, match=r"store\.json"):
                recoverable(root)
            continue
        assert not recoverable(root).sound
        found = reader(root)
        for snapshot in snapshots(STEPS):
            with suppress(RecoveryPointError):
                assert_equal(found.point("dp0", snapshot.step), snapshot)


def test_objects_in_each_other_s_place_are_refused(tmp_path: Path) -> None:
    """Between steps, epochs and groups."""
    told = snapshots(3, epochs=2)
    both = [*told, *(replace(snapshot, group="dp1") for snapshot in told)]
    root = tmp_path / "store"
    write(root, both, policy=policy(base_every=2))
    names = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.name not in ("lock",))
    truth = {(snapshot.group, snapshot.epoch, snapshot.step): snapshot for snapshot in both}
    rng = random.Random(1)
    for one, other in rng.sample([(a, b) for a in names for b in names if a < b], 40):
        first, second = (root / one).read_bytes(), (root / other).read_bytes()
        (root / one).write_bytes(second)
        (root / other).write_bytes(first)
        with suppress(RecoveryPointError):
            assert not recoverable(root).sound
        with suppress(RecoveryPointError):
            found = reader(root)
            for key in rng.sample(sorted(truth), 3):
                with suppress(RecoveryPointError):
                    assert_equal(found.point(key[0], key[2], key[1]), truth[key])
        (root / one).write_bytes(first)
        (root / other).write_bytes(second)


def make_old(root: Path) -> None:
    """Rewrite a store as programs wrote it before there were checksums."""
    for path in (root / "store.json", *root.rglob("manifest.json")):
        text = json.loads(without_checksum(path.read_text())[0])
        path.write_text(json.dumps({**text, "schema_version": 1}, indent=1))


def test_a_store_without_checksums_is_read_and_says_what_they_do_not_cover(tmp_path: Path) -> None:
    told = snapshots(STEPS)
    write(tmp_path, told[:5], policy=policy(base_every=3))
    make_old(tmp_path)
    report = recoverable(tmp_path)
    assert report.sound
    assert report.epochs[0].unchecked == ((1, 1), (4, 4))
    for snapshot in told[:5]:
        assert reader(tmp_path).point("dp0", snapshot.step).manifest.optimizer.groups
    write(tmp_path, told[5:], resume=True, policy=policy(base_every=3))
    assert recoverable(tmp_path).epochs[0].unchecked == ((1, 1), (4, 4)), "the new base has one"
    # What replay leads to is compared with all of the manifest: damage shows although no checksum covers it.
    path = tmp_path / "dp0/epoch-0001/step-00000004/manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"weight_decay": 0.01', '"weight_decay": 0.05', 1))
    assert path.read_text() != text
    assert not recoverable(tmp_path).sound


def test_a_manifest_without_checksum_in_a_store_that_has_them_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, snapshots(STEPS)[:1])
    path = tmp_path / "dp0/epoch-0001/step-00000001/manifest.json"
    text = json.loads(without_checksum(path.read_text())[0])
    path.write_text(json.dumps({**text, "schema_version": 1}))
    with pytest.raises(RecoveryPointError, match="has no checksum"):
        reader(tmp_path).point("dp0", 1)
    path.write_text(with_checksum(json.dumps({**text, "schema_version": 1})))
    with pytest.raises(RecoveryPointError, match="ends differently"):
        reader(tmp_path).point("dp0", 1)
