"""The log of side-channel messages: what was appended is read, damage is named, whole entries before it stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobspec.sidechannel import side_channel_pb2 as pb
from jobspec.sidechannel.log import SideChannelLog, SideChannelLogError, read_entry, read_log

MESSAGES = [
    pb.AttachRequest(job="digits", group="dp0", epoch=1, first_step=1, layout_json="{}"),
    pb.StateChunk(header=pb.StateHeader(group="dp0", epoch=1), data=bytes(range(96))),
    pb.OpenFlowRequest(group="dp0", epoch=1, flow_id=2, source_port=4711),
    pb.ChangeRequest(group="dp0", epoch=1, effective_step=3, layout_json="[]"),
    pb.StepRecord(group="dp0", epoch=1, step=1, rank=0, loss=0.5),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log = SideChannelLog(tmp_path / "run" / "side-channel.bin")
    for message in MESSAGES:
        log.append(message)
    log.close()
    return tmp_path / "run" / "side-channel.bin"


def test_messages_come_back_in_order(path: Path) -> None:
    entries = list(read_log(path))
    assert [entry.message for entry in entries] == MESSAGES
    assert [read_entry(path, entry.offset) for entry in entries] == MESSAGES


def test_a_file_cut_anywhere_gives_the_whole_entries_before_the_cut(path: Path) -> None:
    data = path.read_bytes()
    ends = [*(entry.offset for entry in read_log(path)), len(data)]
    for size in range(len(data)):
        path.write_bytes(data[:size])
        if size in ends:
            assert len(list(read_log(path))) == ends.index(size)
            continue
        entries = read_log(path)
        for message in MESSAGES[: len([end for end in ends[1:] if end <= size])]:
            assert next(entries).message == message
        with pytest.raises(SideChannelLogError) as caught:
            next(entries)
        assert caught.value.offset == (0 if size < ends[0] else max(end for end in ends if end <= size))
        assert str(path) in str(caught.value)


def test_a_flipped_bit_is_found(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(SideChannelLogError):
            list(read_log(path))


def test_reading_where_no_entry_is(path: Path) -> None:
    with pytest.raises(SideChannelLogError):
        read_entry(path, path.stat().st_size)
