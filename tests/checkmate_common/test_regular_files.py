"""Small files: what is no file, or too large, is refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkmate_common.files.regular_files import read_bounded


def test_a_file_of_the_allowed_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    assert read_bounded(tmp_path / "file", 4) == b"1234"
    with pytest.raises(OSError, match="it has 4 bytes, more than 3"):
        read_bounded(tmp_path / "file", 3)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path / "pipe", "it is a FIFO"), (Path("/dev/zero"), "it is a device"),
        (tmp_path, "directory"), (tmp_path / "none", "No such file"),
    ):  # fmt: skip
        with pytest.raises(OSError, match=reason):
            read_bounded(path, 100)


def test_a_sparse_file_of_a_terabyte_takes_no_memory(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="1,099,511,627,776 bytes"):
        read_bounded(tmp_path / "sparse", 100)
