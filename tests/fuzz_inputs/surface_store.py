"""Stores: objects that storage has damaged, exchanged or lost, and objects that somebody made, checksums included."""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from checkmate_common.files.checked_json import with_checksum, without_checksum
from checkmate_common.recovery.point import RecoveryPoint, RecoveryPointError
from shadow_rx.publish.snapshot import to_recovery_point
from shadow_rx.store.export import torch_checkpoint
from shadow_rx.store.names import STORE_FILE
from shadow_rx.store.opening import open_for_reading, storage_of
from shadow_rx.store.recover import StoreReader
from shadow_rx.store.segment import decode_segment, encode_segment
from shadow_rx.store.storage.crypto import Key, KeyRing, encrypt
from shadow_rx.store.verify import verify_store
from shadow_rx.store.writer import RecoveryStore
from tests.fuzz_inputs.damage import damaged
from tests.shadow_rx.store.stores import policy, snapshots, write
from tests.shadow_rx.twin import as_bytes

NAME = "store"
TEST_COUNT = 40
PER_CALL = 2
_STEPS = 5
_RING = KeyRing((Key(bytes(range(32))),))
Tree = dict[str, bytes]
"""Contents of the objects by name."""


@dataclass
class _Store:
    """A store that is written once, and damaged again and again."""

    folder: Path
    ring: KeyRing | None
    tree: Tree

    def put(self, tree: Tree) -> None:
        """Write what differs from the sound store."""
        for name in self.tree.keys() - tree.keys():
            (self.folder / name).unlink()
        for name, data in tree.items():
            if self.tree.get(name) == data:
                continue
            with suppress(FileExistsError, IsADirectoryError, NotADirectoryError):  # hostile names that exclude others
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).write_bytes(data)

    def reset(self) -> None:
        """Make the store sound again."""
        shutil.rmtree(self.folder)
        for name, data in self.tree.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(data)
        self.folder.chmod(0o700)


@cache
def _truth() -> dict[tuple[str, int], tuple[dict[str, bytes], str]]:
    points = (to_recovery_point(snapshot) for snapshot in snapshots(_STEPS))
    return {("dp0", point.manifest.step): _plain(point) for point in points}


def _plain(point: RecoveryPoint) -> tuple[dict[str, bytes], str]:
    return as_bytes(point.tensors), json.dumps(point.manifest.model_dump(mode="json"), sort_keys=True)


@cache
def _stores() -> tuple[_Store, ...]:
    root = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    found = []
    for number, ring in enumerate((None, _RING)):
        folder = root / str(number)
        write(folder, snapshots(_STEPS)[:1], ring=ring, policy=policy(base_every=3))
        # A run that is superseded, then the one that counts.
        write(folder, snapshots(_STEPS), ring=ring, policy=policy(base_every=3, every=2))
        files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
        tree = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        found.append(_Store(folder, ring, tree))
    return tuple(found)


def run(rng: random.Random, count: int) -> int:
    """See the package."""
    _bombs()  # takes seconds once
    for _ in range(count):
        store = rng.choice((*_stores(), _stores()[0]))
        kind = rng.choice(_KINDS)
        tree = dict(store.tree)
        forged = kind(rng, store, tree)
        try:
            store.put(tree)
            _look(rng, store, f"{kind.__name__}: {_difference(store.tree, tree)}", forged)
            if rng.random() < 0.1:
                _write_on(store)
        finally:
            store.reset()
    return count


def _difference(before: Tree, after: Tree) -> str:
    changed = {name: after.get(name, b"gone")[:300] for name in before.keys() | after.keys()
               if before.get(name) != after.get(name)}  # fmt: skip
    return repr(changed)[:4000]


def _look(rng: random.Random, store: _Store, how: str, forged: bool) -> None:
    """Read everything; assert that what is given back is the truth, unless checksums were made to fit."""
    try:
        reader = StoreReader(open_for_reading(storage_of(store.folder), store.ring))
    except RecoveryPointError:
        return
    for group in reader.groups():
        for step in (*rng.sample(range(1, _STEPS + 1), 2), None):
            with suppress(RecoveryPointError):
                point = reader.latest(group) if step is None else reader.point(group, step)
                told = (point.manifest.group, point.manifest.step)
                assert told == (group, step or told[1]), how
                assert forged or _plain(point) == _truth().get(told), f"{told} is wrong: {how}"
                torch_checkpoint(point)
    report = verify_store(reader)
    json.dumps([[damage.reason for damage in epoch.damage] for epoch in report.epochs])
    recoverable = [span for epoch in report.epochs if not epoch.superseded for span in epoch.recoverable]
    for first, last in recoverable:
        assert forged or 1 <= first <= last <= _STEPS, how
    whole = any(first == 1 and last == _STEPS for first, last in recoverable)
    # Objects that are missing at the end of the log leave no trace; all else shows.
    start = not recoverable or (len(recoverable) == 1 and recoverable[0][0] == 1)
    told = not report.sound or any(epoch.unrecoverable or epoch.others for epoch in report.epochs)
    assert forged or whole or start or told, f"{recoverable}, called sound: {how}"


def _write_on(store: _Store) -> None:
    writer = RecoveryStore(store.folder, ring=store.ring, resume=True, policy=policy(steps=3))
    try:
        with suppress(RecoveryPointError):
            writer.points("dp0")
        writer.publish(snapshots(_STEPS)[-1])
    finally:
        writer.close()


def _bytes_change(rng: random.Random, store: _Store, tree: Tree) -> bool:
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(sorted(tree))
        tree[name] = damaged(rng, tree[name], (b'"step":', b"9" * 30, b"null", b"[" * 300, b"\x1b[2J"))
    return False


def _a_bit_flips(rng: random.Random, store: _Store, tree: Tree) -> bool:
    name = rng.choice(sorted(tree))
    data = bytearray(tree[name])
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    tree[name] = bytes(data)
    return False


def _objects_are_cut(rng: random.Random, store: _Store, tree: Tree) -> bool:
    name = rng.choice(sorted(tree))
    tree[name] = tree[name][: rng.randrange(len(tree[name]))]
    return False


def _objects_change_places(rng: random.Random, store: _Store, tree: Tree) -> bool:
    # An object of an earlier run in place of the one of this name cannot be told from it.
    names = sorted(name for name in tree if ".old-" not in name)
    one, other = rng.choice(names), rng.choice(names)
    match rng.randrange(4):
        case 0:
            tree[one], tree[other] = tree[other], tree[one]
        case 1:
            tree[one] = tree[other]
        case 2:
            del tree[one]
        case _:
            names = [_hostile_name(rng), one.replace("dp0", "dp1"), one.replace("0001", "0002", 1)]
            tree[rng.choice(names)] = tree.pop(one)
    return False


def _names_are_hostile(rng: random.Random, store: _Store, tree: Tree) -> bool:
    for _ in range(rng.choice((1, 1, 1, 300))):
        name = f"dp0/epoch-0001/{_hostile_name(rng)}"
        if len(name.rpartition("/")[2]) < 250:
            tree[name] = rng.choice((b"", b"CKMTLOG1", *store.tree.values()))
    return False


def _hostile_name(rng: random.Random) -> str:
    digits = rng.choice(("8", "9" * 8, "1" + "0" * rng.randrange(40), "٣" * 8, f"{rng.randrange(20):08d}", "9" * 19))
    more = rng.choice((digits, "9" * 14, f"{rng.randrange(30):08d}"))
    return rng.choice((
        f"log-{digits}-{more}", f"step-{digits}/manifest.json", f"step-{digits}", f".new-step-{digits}/x", "\x1b[31m",
        f"log-{digits}-{more}.enc", f"epoch-{digits}", "[/red]", "log-00000003-00010000", f".old-log-{digits}-{more}",
    ))  # fmt: skip


def _files_are_none(rng: random.Random, store: _Store, tree: Tree) -> bool:
    name = rng.choice(sorted(tree))
    path = store.folder / name
    path.unlink()
    match rng.randrange(5):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to("/dev/zero")
        case 2:
            path.mkdir()
        case 3:
            with path.open("wb") as file:
                file.truncate(1 << rng.choice((33, 42)))
        case _:
            path.symlink_to(store.folder / rng.choice(sorted(tree)))
    return False


def _values() -> tuple[Any, ...]:
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    return (
        0, -1, 1, 2, 10**12, 10**30, 1 << 63, 1e308, float("nan"), float("inf"), None, True, "", "x", "\x1b[31m",
        "\ud800", "a" * 5000, [], {}, [1], ["x"], [10**6, 10**6], {"a": 1}, deep, [[]] * 1000, "dp0", "Adam", "SGD",
        "NoSuch", "float16", "../../x", 3.5,
    )  # fmt: skip


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        yield value, key
        yield from _places(inner)


def _edit(rng: random.Random, value: Any) -> Any:
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            break
        inside, key = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del inside[key]
            case 1 if isinstance(inside, dict):
                inside[rng.choice(("extra", "step", "name"))] = rng.choice(_values())
            case 2 if isinstance(inside, list):
                inside.insert(key, inside[key])
            case _:
                inside[key] = rng.choice(_values())
    return value


def _json_is_forged(rng: random.Random, store: _Store, tree: Tree) -> bool:
    plain = _stores()[0].tree
    name = rng.choice(sorted(name for name in plain if name.endswith(".json")))
    value = _edit(rng, json.loads(without_checksum(plain[name].decode())[0]))
    text = json.dumps(value, ensure_ascii=rng.random() < 0.9).encode(errors="surrogatepass")
    with suppress(UnicodeDecodeError, UnicodeEncodeError):
        text = with_checksum(text.decode()).encode()
    _forge(store, tree, name, text)
    return True


def _records_are_forged(rng: random.Random, store: _Store, tree: Tree) -> bool:
    plain = _stores()[0].tree
    name = rng.choice(sorted(name for name in plain if "/log-" in name))
    segment = decode_segment(plain[name])
    header = _edit(rng, dict(segment.header)) if rng.random() < 0.2 else segment.header
    records = []
    for record in segment.records:
        text, body = dict(record.text()), bytes(record.body)
        if rng.random() < 0.4:
            manifest = json.loads(without_checksum(text["manifest"])[0])
            text["manifest"] = with_checksum(json.dumps(_edit(rng, manifest)))
        elif rng.random() < 0.5:
            text = _edit(rng, text)
        if rng.random() < 0.2:
            body = damaged(rng, body)
        packed = zlib.compress(json.dumps(text).encode(), 1)
        if rng.random() < 0.05:
            packed = _bomb(rng)
        records.append((_record(packed, body),))
    records += records * rng.choice((0, 0, 0, 0, 1, 100))
    _forge(store, tree, name, b"".join(encode_segment(header, records)))
    return True


@cache
def _bombs() -> tuple[bytes, ...]:
    """Small packed texts that are large or deep."""
    return (
        zlib.compress(b'{"a":[' + b"0," * (4 << 20) + b"0]}", 1),
        zlib.compress(b" " * (70 << 20), 1),
        zlib.compress(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 9),
        zlib.compress(b'{"manifest":"' + b"[" * 100_000 + b'"}', 9),
        zlib.compress(b'{"state_bytes":' + b"9" * 5000 + b"}", 9),
    )


def _bomb(rng: random.Random) -> bytes:
    return rng.choice(_bombs())


def _record(packed: bytes, body: bytes) -> bytes:
    from checkmate_common.stream.frame import crc32c

    data = struct.pack("<B3xIQ", 1, len(packed), len(body)) + packed + body
    return data + struct.pack("<I", crc32c(data))


def _forge(store: _Store, tree: Tree, name: str, data: bytes) -> None:
    if store.ring is None or name == STORE_FILE:
        tree[name] = data
        return
    store_id = json.loads(store.tree[STORE_FILE])["id"]
    tree[f"{name}.enc"] = b"".join(encrypt(store.ring.primary, store_id, name, [data]))


_Kind = Callable[[random.Random, _Store, Tree], bool]
_KINDS: tuple[_Kind, ...] = (
    _bytes_change, _a_bit_flips, _objects_are_cut, _objects_change_places, _names_are_hostile, _files_are_none,
    _json_is_forged, _records_are_forged,
)  # fmt: skip
