"""Lost, damaged, repeated and reordered packets: exact holes, and never a wrong step or recovery point."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from capture.writer import PcapWriter
from checkmate_common.files.checked_json import with_checksum, without_checksum
from checkmate_common.recovery.reasons import GapReason
from replay.errors import ReplayError
from replay.records import Records
from replay.results import ReplayReport, StepResult
from tests.replay.conftest import (
    EVERY_STEP,
    RESTART,
    RING,
    SHADOW,
    STEPS,
    Run,
    of,
    packets_of,
    replay_files,
    write_packets,
)
from tests.replay.damage import (
    flipped,
    is_syn,
    parsed,
    replicas_of_step,
    rewritten_frame,
    with_payload,
)

STEP = 3
"""The step of epoch 1 that is damaged."""


@pytest.fixture(scope="module")
def records(run: Run) -> Records:
    return Records([run.log])


@pytest.fixture(scope="module")
def right(run: Run) -> dict[tuple[int, int], StepResult]:
    return {(step.epoch, step.step): step for step in run.replay(SHADOW).steps}


def assert_only_lost(report: ReplayReport, right: dict[tuple[int, int], StepResult], lost: int) -> None:
    """All gradients but that of step `lost` of epoch 1 are right; the steps after it are no recovery points."""
    assert [(step.epoch, step.step) for step in report.steps] == EVERY_STEP
    for step in report.steps:
        known = right[step.epoch, step.step]
        assert step.complete == ((step.epoch, step.step) != (1, lost))
        assert step.sha256 == (known.sha256 if step.complete else None)
        assert step.applied == (step.epoch == 2 or step.step < lost)
        assert step.state_sha256 == (known.state_sha256 if step.applied else None)
        if step.epoch == 1 and step.step > lost:
            assert step.reason is GapReason.RESYNC_PENDING
    assert not report.complete


def test_every_lost_packet_is_an_exact_hole(run: Run, records: Records, tmp_path: Path) -> None:
    packets = packets_of(run.capture(SHADOW))
    hashes = {key: step.sha256 for key, step in ((s.step, s) for s in run.replay(SHADOW, apply=False).steps)}
    places = replicas_of_step(run.job, records, packets, STEP)
    assert len(places) > 30
    for index, flow, offset in places:
        path = write_packets(tmp_path / "lost.pcap", packets[:index] + packets[index + 1 :])
        report = replay_files([path], run.options(apply=False, compare=None))
        for step in report.steps:
            if (step.epoch, step.step) != (1, STEP):
                assert (step.complete, step.sha256) == (True, hashes[step.step])
                continue
            size = len(parsed(packets[index]).segment.payload)
            assert not step.complete
            assert {(hole.flow, hole.cause, hole.captured) for hole in step.holes} == {(flow, "lost_bytes", True)}
            assert step.holes[0].stream[0] == offset
            assert step.holes[-1].stream[1] == offset + size
            assert sum(hole.stream[1] - hole.stream[0] for hole in step.holes) == step.missing_bytes == size
            # Of elements that are cut by the hole's edge all count as missing; frame headers hold none.
            lacking = sum(hole.elements[1] - hole.elements[0] for hole in step.holes) * 4
            assert step.gradient_bytes - step.bytes <= lacking <= step.gradient_bytes - step.bytes + 6 * len(step.holes)


def test_after_a_hole_nothing_is_applied(run: Run, records: Records, right, tmp_path: Path) -> None:
    packets = packets_of(run.capture(SHADOW))
    index, _, _ = replicas_of_step(run.job, records, packets, STEP)[5]
    path = write_packets(tmp_path / "lost.pcap", packets[:index] + packets[index + 1 :])
    report = replay_files([path], run.options(out=tmp_path / "out"))
    assert_only_lost(report, right, STEP)
    assert of(report, 1, STEP).reason is GapReason.LOST_BYTES
    written = sorted(p.name for p in (tmp_path / "out/checkpoints/dp0/epoch-0001").glob("step-*"))
    assert written == [f"step-{step:08d}" for step in range(1, STEP)]
    assert not (tmp_path / f"out/gradients/dp0/epoch-0001/step-{STEP:08d}").exists()


def test_later_hops_fill_what_is_lost(run: Run, tmp_path: Path) -> None:
    """With all ports captured every reduced byte is there twice: one lost packet changes nothing."""
    packets = packets_of(run.capture(RING[0]))
    rng = random.Random(1)
    others = [run.capture(name) for name in RING[1:]]
    for index in rng.sample([i for i, p in enumerate(packets) if parsed(p).segment.payload], 8):
        path = write_packets(tmp_path / "lost.pcap", packets[:index] + packets[index + 1 :])
        report = replay_files([path, *others], run.options(apply=False, compare=None))
        assert report.complete


def test_two_captures_repair_each_other(run: Run, tmp_path: Path) -> None:
    """Each of two captures of one port lost half of the packets."""
    packets = packets_of(run.capture(SHADOW))
    halves = [
        write_packets(tmp_path / f"{half}.pcap", [p for i, p in enumerate(packets) if i % 2 == half or i < 3])
        for half in (0, 1)
    ]
    assert not replay_files(halves[:1], run.options(apply=False, compare=None)).complete
    assert replay_files(halves, run.options()).complete


@pytest.mark.parametrize("seed", range(3))
def test_repetition_and_reordering_change_nothing(run: Run, right, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    packets = packets_of(run.capture(SHADOW))
    mixed = [p for p in packets for _ in range(rng.choice((1, 1, 2, 3)))]
    # Each packet is held back by up to 20 places.
    order = sorted(range(len(mixed)), key=lambda i: i + rng.uniform(0, 20))
    report = replay_files([write_packets(tmp_path / "mixed.pcap", [mixed[i] for i in order])], run.options())
    assert report.complete
    for step in report.steps:
        assert step.state_sha256 == right[step.epoch, step.step].state_sha256
        assert step.repeated_bytes > 0


def test_a_file_cut_at_any_byte(run: Run, right, tmp_path: Path) -> None:
    """What comes before the cut is used, the cut is named, and no step that it concerns is called complete."""
    data = run.capture(SHADOW).read_bytes()
    rng = random.Random(7)
    for size in (rng.randrange(2000, len(data)) for _ in range(12)):
        path = tmp_path / "cut.pcap"
        path.write_bytes(data[:size])
        report = replay_files([path], run.options())
        assert not report.complete
        for step in report.steps:
            known = right[step.epoch, step.step]
            assert step.sha256 == (known.sha256 if step.complete else None)
            assert step.state_sha256 in (None, known.state_sha256)
        done = [s.step for s in report.steps if s.complete and s.epoch == 1]
        assert done == list(range(1, len(done) + 1))
        if len(done) < STEPS:
            partly = [s for s in report.steps if s.epoch == 1 and not s.complete]
            absent = [step for a in report.absent if a.epoch == 1 for step in range(a.first, a.last + 1)]
            assert [s.step for s in partly] + absent == list(range(len(done) + 1, STEPS + 1))
    path.write_bytes(data[: len(data) - 5])
    [problem] = replay_files([path], run.options()).problems
    assert str(path) in problem
    assert "at byte" in problem


def test_packets_cut_by_the_snapshot_length(run: Run, records: Records, right, tmp_path: Path) -> None:
    packets = packets_of(run.capture(SHADOW))
    index, flow, offset = replicas_of_step(run.job, records, packets, STEP)[4]
    with PcapWriter(tmp_path / "cut.pcap") as writer:
        for i, packet in enumerate(packets):
            data = packet.data[:200] if i == index else packet.data
            writer.write(packet.time_ns, data, len(packet.data))
    report = replay_files([tmp_path / "cut.pcap"], run.options())
    assert_only_lost(report, right, STEP)
    hole = of(report, 1, STEP).holes[0]
    assert (hole.flow, hole.stream[0]) == (flow, offset)
    assert report.discarded == {"cut": 1}


def test_nothing_but_cut_packets(run: Run, tmp_path: Path) -> None:
    with PcapWriter(tmp_path / "cut.pcap") as writer:
        for packet in packets_of(run.capture(SHADOW)):
            writer.write(packet.time_ns, packet.data[:96], len(packet.data))
    with pytest.raises(ReplayError, match="cut off"):
        replay_files([tmp_path / "cut.pcap"], run.options())


def test_a_flipped_bit(run: Run, records: Records, right, tmp_path: Path) -> None:
    packets = packets_of(run.capture(SHADOW))
    index, flow, _ = replicas_of_step(run.job, records, packets, STEP)[4]
    packets[index] = flipped(packets[index], 100)
    report = replay_files([write_packets(tmp_path / "flipped.pcap", packets)], run.options())
    assert_only_lost(report, right, STEP)
    assert report.discarded == {"bad_tcp_checksum": 1}
    assert {(hole.flow, hole.cause) for hole in of(report, 1, STEP).holes} == {(flow, "lost_bytes")}


def test_a_flipped_bit_with_a_checksum_that_fits(run: Run, records: Records, right, tmp_path: Path) -> None:
    """Only the frame's CRC finds it; another capture has the right bytes."""
    packets = packets_of(run.capture(SHADOW))
    index, flow, _ = replicas_of_step(run.job, records, packets, STEP)[4]
    payload = bytearray(parsed(packets[index]).segment.payload)
    payload[-3] ^= 1
    packets[index] = with_payload(packets[index], bytes(payload))
    path = write_packets(tmp_path / "forged.pcap", packets)
    report = replay_files([path], run.options())
    assert_only_lost(report, right, STEP)
    assert of(report, 1, STEP).reason is GapReason.CORRUPT_FRAME
    assert {(hole.flow, hole.cause) for hole in of(report, 1, STEP).holes} == {(flow, "corrupt_frame")}
    for files in ([path, run.capture(SHADOW)], [run.capture(SHADOW), path]):
        merged = replay_files(files, run.options())
        assert merged.complete
        assert of(merged, 1, STEP).conflicts == 1


def test_two_valid_frames_that_contradict_each_other(run: Run, right, tmp_path: Path) -> None:
    """Nobody can tell which is right, so the step is not complete."""
    packets = packets_of(run.capture(RING[0]))
    index, forged = next((i, f) for i, p in enumerate(packets) if (f := rewritten_frame(p)) is not None)
    packets[index] = forged
    path = write_packets(tmp_path / "forged.pcap", packets)
    report = replay_files([run.capture(SHADOW), path], run.options())
    [bad] = [step for step in report.steps if not step.complete]
    assert (bad.reason, bad.applied) == (GapReason.CORRUPT_FRAME, False)
    assert [hole.detail for hole in bad.holes] == ["valid headers say different CRCs"]
    assert all(step.state_sha256 in (None, right[step.epoch, step.step].state_sha256) for step in report.steps)


def test_without_syn_positions_are_proven_by_headers(run: Run, tmp_path: Path) -> None:
    packets = [packet for packet in packets_of(run.capture(SHADOW)) if not is_syn(packet)]
    report = replay_files([write_packets(tmp_path / "no-syn.pcap", packets)], run.options())
    assert report.complete
    assert {stream.sync for stream in report.streams} == {"header"}


def test_original_traffic_without_syn(run: Run, tmp_path: Path) -> None:
    files = []
    for name in ("s1-eth1_in", "s1-eth1_out"):
        packets = [packet for packet in packets_of(run.capture(name)) if not is_syn(packet)]
        files.append(write_packets(tmp_path / f"{name}.pcap", packets))
    assert replay_files(files, run.options()).complete
    with pytest.raises(ReplayError, match="unknown_isn"):
        replay_files(files, run.options(through_switch=True))


def test_a_capture_that_begins_late(run: Run, records: Records, right, tmp_path: Path) -> None:
    packets = packets_of(run.capture(SHADOW))
    begin = replicas_of_step(run.job, records, packets, STEP)[6][0]
    report = replay_files([write_packets(tmp_path / "late.pcap", packets[begin:])], run.options())
    assert [(a.first, a.last) for a in report.absent] == [(1, STEP - 1)]
    assert not of(report, 1, STEP).complete
    for step in report.steps:
        if (step.epoch, step.step) != (1, STEP):
            assert step.sha256 == right[step.epoch, step.step].sha256
        assert step.applied == (step.epoch == 2)


def test_a_torn_log_of_the_side_channel(run: Run, right, tmp_path: Path) -> None:
    log = tmp_path / "side-channel.bin"
    log.write_bytes(run.log.read_bytes()[: run.log.stat().st_size * 2 // 5])
    report = replay_files([run.capture(SHADOW)], run.options(records=(log,)))
    assert not report.complete
    assert any("side-channel.bin: at byte" in problem for problem in report.problems)
    assert all(step.complete for step in report.steps)
    assert all(step.state_sha256 in (None, right[step.epoch, step.step].state_sha256) for step in report.steps)
    missing = [step for step in report.steps if step.reason is GapReason.SIDE_CHANNEL_MISSING]
    assert len(missing) == 1
    assert not any(step.applied for step in report.steps if (step.epoch, step.step) > (1, missing[0].step))


def test_a_checkpoint_of_another_run(run: Run, tmp_path: Path) -> None:
    """Equal step numbers, other losses."""
    source = run.checkpoints / "dp0" / "epoch-0001" / "step-00000001"
    folder = tmp_path / "epoch-0001" / "step-00000001"
    shutil.copytree(source, folder)
    manifest = json.loads(without_checksum((folder / "manifest.json").read_text())[0])
    manifest["records"][1]["loss"] += 0.5
    (folder / "manifest.json").write_text(with_checksum(json.dumps(manifest)))
    with pytest.raises(ReplayError, match="another step 1"):
        replay_files([run.capture(SHADOW)], run.options(checkpoints=(folder,)))


def test_another_jobs_frames_are_left_out(run: Run) -> None:
    other = run.job.model_copy(update={"id": 8})
    with pytest.raises(ReplayError, match="job number 7"):
        replay_files([run.capture(SHADOW)], run.options(job=other))


def test_streams_from_foreign_addresses_are_left_out(run: Run, tmp_path: Path) -> None:
    """A stream with frames of a flow that another host sends fills nothing, not even holes."""
    packets = packets_of(run.capture(SHADOW))
    hosts = run.job.hosts
    old, new = hosts[0].ip.packed, hosts[5].ip.packed
    forged = [replace(p, data=p.data[:26] + new + p.data[30:]) if p.data[26:30] == old else p for p in packets]
    report = replay_files([write_packets(tmp_path / "foreign.pcap", forged)], run.options())
    assert not report.complete
    assert not any(step.complete for step in report.steps)
    assert len([stream for stream in report.streams if stream.problem is not None]) == 2
    assert RESTART < STEPS
