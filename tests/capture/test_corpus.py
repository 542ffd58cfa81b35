"""Each file of the corpus is read up to the offset that the table in its README gives."""

from __future__ import annotations

import pytest

from capture.errors import CaptureError
from capture.reader import open_capture
from tests.capture.make_corpus import CORPUS, contents

ROWS = {
    cells[0]: (int(cells[1]), cells[2].split(":")[0])
    for line in (CORPUS / "README.md").read_text().splitlines()
    if line.startswith("| ") and "|---|" not in line and not line.startswith("| file |")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}


def test_table_and_folder_hold_the_same() -> None:
    files = {path.name: path.stat().st_size for path in CORPUS.iterdir() if path.name != "README.md"}
    assert set(files) == set(ROWS) == set(contents())
    assert max(files.values()) < 2000


@pytest.mark.parametrize("name", sorted(ROWS))
def test_file_is_read_as_the_table_says(name: str) -> None:
    count, then = 0, "end"
    try:
        with open_capture(CORPUS / name) as reader:
            for packet in reader:
                count += 1
                assert packet.number == count
    except CaptureError as error:
        then = str(error.offset)
    assert (count, then) == ROWS[name]


@pytest.mark.parametrize("name", sorted(name for name in ROWS if not name.endswith(".gz")))
def test_file_is_the_one_that_would_be_made(name: str) -> None:
    # (How gzip compresses depends on the version of zlib.)
    assert (CORPUS / name).read_bytes() == contents()[name][0]
