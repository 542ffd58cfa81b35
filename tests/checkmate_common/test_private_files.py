"""Files and folders that only their owner may open, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkmate_common.files.private_files import make_private_folder, private, write_private


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("how", ["wb", "xb", "ab", "w+b"])
def test_new_files_are_their_owners(tmp_path: Path, how: str) -> None:
    with open(tmp_path / "secret", how, opener=private) as file:
        assert mode(tmp_path / "secret") == 0o600
        file.write(b"x")
    assert (tmp_path / "secret").read_bytes() == b"x"


@pytest.mark.parametrize(("how", "kept"), [("wb", b"new"), ("ab", b"oldnew")])
def test_a_file_that_was_open_to_others_is_closed_to_them_first(tmp_path: Path, how: str, kept: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o666)
    with open(path, how, opener=private) as file:
        assert mode(path) == 0o600
        file.write(b"new")
    assert path.read_bytes() == kept


def test_reading_and_devices_change_no_mode(tmp_path: Path) -> None:
    path = tmp_path / "public"
    path.write_bytes(b"old")
    path.chmod(0o644)
    with open(path, "rb", opener=private) as file:
        assert file.read() == b"old"
    assert mode(path) == 0o644
    before = mode(Path("/dev/null"))
    write_private(Path("/dev/null"), "x")
    assert mode(Path("/dev/null")) == before


def test_all_folders_that_are_made_are_their_owners_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)
    make_private_folder(tmp_path / "shared" / "a" / "b")
    make_private_folder(tmp_path / "shared" / "a" / "b")
    assert [mode(tmp_path / name) for name in ("shared", "shared/a", "shared/a/b")] == [0o755, 0o700, 0o700]
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=str(tmp_path / "file")):
            make_private_folder(path)
