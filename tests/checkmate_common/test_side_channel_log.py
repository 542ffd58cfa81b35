"""The log of side-channel messages: what was appended is read, damage is named, whole entries before it stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkmate_common.files.rotating_file import LogLimits, older_files
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel.log import SideChannelLog, SideChannelLogError, pack, read_entry, read_log

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
        log.append([pack(message)])
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


def again(path: Path, *messages: pb.StepRecord) -> None:
    """Open a log as a shadow node does that is started again, and add to it."""
    log = SideChannelLog(path)
    log.append(pack(message) for message in messages)
    log.close()


def test_a_restart_adds_to_the_log(path: Path) -> None:
    later = pb.StepRecord(group="dp0", epoch=1, step=2, rank=0)
    again(path, later)
    again(path)
    entries = list(read_log(path))
    assert [entry.message for entry in entries] == [*MESSAGES, later]
    assert [entry.session for entry in entries] == [0] * len(MESSAGES) + [1]
    assert [read_entry(path, entry.offset) for entry in entries] == [*MESSAGES, later]


def test_what_a_killed_process_left_unfinished_is_cut_off_by_the_next(path: Path) -> None:
    data, later = path.read_bytes(), pb.StepRecord(group="dp0", epoch=1, step=2, rank=0)
    ends = [*(entry.offset for entry in read_log(path)), len(data)]
    for size in range(8, len(data)):
        path.write_bytes(data[:size])
        again(path, later)
        whole = sum(end <= size for end in ends) - 1
        assert [entry.message for entry in read_log(path)] == [*MESSAGES[:whole], later]
    # A power cut may leave the length right and the bytes wrong.
    path.write_bytes(data[:-3] + b"abc")
    again(path, later)
    assert [entry.message for entry in read_log(path)] == [*MESSAGES[:-1], later]


def test_a_log_that_is_damaged_in_the_middle_is_kept_aside(path: Path) -> None:
    second = list(read_log(path))[1].offset
    damaged = bytearray(path.read_bytes())
    damaged[second] = 99
    path.write_bytes(damaged)
    again(path, MESSAGES[-1])
    assert [entry.message for entry in read_log(path)] == [MESSAGES[-1]]
    assert path.with_name("side-channel.bin.1").read_bytes() == damaged


@pytest.mark.parametrize("content", [b"x", b"a file of somebody else's", bytes(100)])
def test_a_file_that_is_no_log_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(SideChannelLogError, match="at byte 0"):
        SideChannelLog(path)
    assert path.read_bytes() == content


def test_a_log_does_not_grow_without_end_and_each_file_says_what_is_in_force(tmp_path: Path) -> None:
    limits = LogLimits(1 << 16, 2)
    log = SideChannelLog(tmp_path / "log", limits)
    in_force = [MESSAGES[0], MESSAGES[2], MESSAGES[3]]
    log.append(pack(message) for message in in_force)
    for step in range(1, 400):
        record = pb.StepRecord(group="dp0", epoch=1, step=step)
        record.objects["x"].raw = bytes(1000)
        packed = pack(record)
        log.append([packed], len(packed.entry))
    log.close()
    files = older_files(tmp_path / "log")
    assert [file.name for file in files] == ["log.2", "log.1", "log"]
    assert all(file.stat().st_size <= limits.nbytes for file in files)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    steps = []
    for file in files:
        messages = [entry.message for entry in read_log(file)]
        assert messages[:3] == in_force
        steps += [message.step for message in messages[3:] if isinstance(message, pb.StepRecord)]
    assert steps == list(range(steps[0], 400)), "nothing is missing between the files"


def test_a_full_disk_leaves_no_half_entry(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SideChannelLog(path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
    with pytest.raises(OSError, match="20 of"):
        log.append([pack(MESSAGES[-1])])
    monkeypatch.undo()
    log.append([pack(MESSAGES[-1])])
    log.close()
    assert [entry.message for entry in read_log(path)] == [*MESSAGES, MESSAGES[-1]]
