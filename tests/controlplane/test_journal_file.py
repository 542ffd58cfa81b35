"""The journal of connections on storage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controlplane.digests import ConnectionJournal
from controlplane.journal_file import JournalError, read_journal, write_journal
from tests.controlplane.test_controller import start


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    assert read_journal(path) == ()
    journal = ConnectionJournal([start(1, isn=2**32 - 1), start(0)])
    write_journal(path, journal.starts())
    assert read_journal(path) == (start(0), start(1, isn=2**32 - 1))
    write_journal(path, [])
    assert read_journal(path) == ()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"format": 2, "connections": []}', '{"format": 1, "connections": [{}]}', '{"format": 1}',
        '{"format": 1, "connections": 5}', "\\x00",
    ],
)  # fmt: skip
def test_what_is_no_journal_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal.json"
    path.write_text(text)
    with pytest.raises(JournalError, match=r"journal\.json"):
        read_journal(path)


@pytest.mark.parametrize(
    ("field", "value"), [("isn", 1 << 32), ("isn", True), ("src_port", -1), ("src_addr", "r0"), ("flow_id", "1")]
)
def test_impossible_values_are_refused(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "journal.json"
    write_journal(path, [start()])
    document = json.loads(path.read_text())
    document["connections"][0][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(JournalError) as caught:
        read_journal(path)
    assert caught.value.path == path


def test_a_missing_folder_is_an_error_at_start(tmp_path: Path) -> None:
    path = tmp_path / "none" / "journal.json"
    with pytest.raises(JournalError) as caught:
        read_journal(path)
    assert caught.value.path == path
