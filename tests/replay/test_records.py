"""What ranks told, found again in logs of several sessions and several files."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from checkmate_common.files.rotating_file import LogLimits, older_files
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel.log import SideChannelLog, pack
from checkmate_common.sidechannel.upload import state_chunks, state_header
from replay.records import Records

ATTACH = pb.AttachRequest(job="digits", group="dp0", epoch=1, first_step=1, layout_json="{}")
STATE = bytes(range(256)) * 40


def upload(pieces: int | None = None) -> list[pb.StateChunk]:
    """Return the entries of an upload, of which a killed process wrote only so many."""
    header = state_header("dp0", 1, STATE)
    chunks = state_chunks(header, STATE, 1000)
    return [pb.StateChunk(header=header, data=chunk.data) for chunk in islice(chunks, pieces)]


def session(path: Path, *messages: pb.AttachRequest | pb.StateChunk | pb.StepRecord) -> None:
    log = SideChannelLog(path)
    log.append(pack(message) for message in messages)
    log.close()


@pytest.mark.parametrize("first", [0, 3, None], ids=["none", "half", "whole"])
def test_a_state_of_two_sessions_is_one_state(tmp_path: Path, first: int | None) -> None:
    path = tmp_path / "side-channel.bin"
    session(path, ATTACH, *upload(first))
    session(path, ATTACH, *upload(), *upload())
    records = Records([path])
    assert records.problems == []
    assert records.state("dp0", 1) == STATE
    assert Records([path, path]).state("dp0", 1) == STATE, "several nodes were given the same one"


def test_the_files_of_a_log_are_read_together(tmp_path: Path) -> None:
    path = tmp_path / "side-channel.bin"
    log = SideChannelLog(path, LogLimits(1 << 16, 4))
    log.append(pack(message) for message in (ATTACH, *upload()))
    for step in range(1, 200):
        record = pb.StepRecord(group="dp0", epoch=1, step=step)
        record.objects["x"].raw = bytes(1000)
        packed = pack(record)
        log.append([packed], len(packed.entry))
    log.close()
    files = older_files(path)
    assert len(files) > 2
    records = Records(reversed(files))
    assert records.problems == []
    assert records.state("dp0", 1) == STATE
    assert all(len(records.of_step("dp0", 1, step)) == 1 for step in range(1, 200))
    assert Records([path]).problems == [], "each file says what is in force"
