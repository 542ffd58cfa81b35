"""Whatever lies in place of an object: a clear error with its name, no wait, no memory."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from checkmate_common.files.regular_files import UnreadableFile, read_regular
from shadow_rx.store.api import recoverable
from shadow_rx.store.errors import StoreError, Trouble
from shadow_rx.store.segment import SegmentDamage, decode_segment
from shadow_rx.store.storage.local import LocalStorage
from tests.shadow_rx.store.stores import policy, reader, snapshots, write


def a_socket(path: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)
        os.close(here)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)


THINGS: dict[str, tuple[Callable[[Path], None], str]] = {
    "FIFO": (os.mkfifo, "is a FIFO"),
    "socket": (a_socket, "is a socket"),
    "directory": (Path.mkdir, "is a directory"),
    "link to a device": (lambda path: path.symlink_to("/dev/zero"), "is a symbolic link"),
    "link to nothing": (lambda path: path.symlink_to("nowhere"), "is a symbolic link"),
    "huge": (sparse, r"has \d+ bytes"),
}


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize(
    "name", ["step-00000001/manifest.json", "step-00000001/state.safetensors", "log-00000002-00000002"]
)
def test_what_is_not_a_regular_file_is_not_opened(tmp_path: Path, thing: str, name: str) -> None:
    write(tmp_path, snapshots()[:2])
    path = tmp_path / "dp0/epoch-0001" / name
    path.unlink()
    make, reason = THINGS[thing]
    make(path)
    with pytest.raises(StoreError, match=reason) as caught:
        reader(tmp_path).point("dp0", 2)
    assert caught.value.kind is Trouble.DAMAGED
    assert name.split("/")[0] in str(caught.value)
    report = recoverable(tmp_path)
    assert not report.sound


@pytest.mark.parametrize("thing", THINGS)
def test_the_store_s_own_file(tmp_path: Path, thing: str) -> None:
    THINGS[thing][0](tmp_path / "store.json")
    with pytest.raises(StoreError, match=r"store\.json"):
        reader(tmp_path)


def test_devices_are_not_read() -> None:
    with pytest.raises(UnreadableFile, match="is a device"):
        read_regular(Path("/dev/zero"), 1 << 20)


def test_names_that_claim_what_cannot_be_are_not_the_store_s(tmp_path: Path) -> None:
    write(tmp_path, snapshots()[:3])
    epoch = tmp_path / "dp0/epoch-0001"
    names = [
        "log-00000001-99999999999999", "log-00000004-00010004", f"log-{'9' * 60}-{'9' * 60}",
        "step-99999999999999999999", "log-00000005-00000004", "log-٠٠٠٠٠٠٠٤-٠٠٠٠٠٠٠٤", "step-0000000001",
        "log-00000004-00000004.bak", "a\x1b[31mb",
    ]  # fmt: skip
    for name in names:
        (epoch / name).write_bytes(b"")
    (tmp_path / "dp0" / f"epoch-{'9' * 200}").mkdir()
    report = recoverable(tmp_path)
    assert (len(report.epochs), report.epochs[0].recoverable, report.epochs[0].steps) == (1, ((1, 3),), 3)
    assert len(report.epochs[0].others) == len(names)
    assert not any("\x1b" in name for name in report.epochs[0].others)
    assert list(reader(tmp_path).epochs("dp0")[0].steps) == [1, 2, 3]


class Counting(LocalStorage):
    reads = 0

    def get(self, name: str, limit: int) -> bytes:
        self.reads += 1
        return super().get(name, limit)


def test_each_object_is_read_once(tmp_path: Path) -> None:
    """However many there are, and also where they overlap or claim more steps than they hold."""
    from shadow_rx.store.opening import open_for_reading
    from shadow_rx.store.recover import StoreReader
    from shadow_rx.store.verify import verify_store

    write(tmp_path, snapshots()[:6], policy=policy(base_every=3))
    for first in range(10, 610):
        (tmp_path / f"dp0/epoch-0001/log-{first:08d}-{first + first % 7 * 1000:08d}").write_bytes(b"")
    storage = Counting(tmp_path)
    report = verify_store(StoreReader(open_for_reading(storage)))
    assert not report.sound
    assert report.epochs[0].recoverable == ((1, 6),)
    assert len(report.epochs[0].unrecoverable) <= 600, "ranges, not steps"
    assert storage.reads <= 2 * 2 + 5 + 600 + 1
    with pytest.raises(StoreError):
        reader(tmp_path).point("dp0", 5000)


def test_a_small_text_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    from tests.fuzz_inputs.surface_store import _bombs, _record

    for bomb in _bombs():
        record = decode_segment(_segment(_record(bomb, b""))).records[0]
        with pytest.raises(SegmentDamage):
            _decode(record)


def _segment(record: bytes) -> bytes:
    from shadow_rx.store.segment import encode_segment

    return b"".join(encode_segment({"group": "dp0", "epoch": 1, "first": 2, "last": 2}, [(record,)]))


def _decode(record: object) -> None:
    from shadow_rx.store.steplog import decode_step

    decode_step(record)  # type: ignore[arg-type]
