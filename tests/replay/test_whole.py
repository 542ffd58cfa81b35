"""Whole captures of any port give every step, bit for bit as the run published it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from checkmate_common.recovery.point import read_recovery_point
from replay.run import ReplayOptions
from tests.replay.conftest import EVERY_STEP, RING, SHADOW, STEPS, Run, of, replay_files

RANK_BOTH_WAYS = ("s1-eth1_in", "s1-eth1_out")


def assert_as_published(report) -> None:
    assert [(step.epoch, step.step) for step in report.steps] == EVERY_STEP
    for step in report.steps:
        assert (step.complete, step.crc, step.holes, step.conflicts) == (True, "ok", (), 0)
        assert (step.applied, step.compared, step.reason) == (True, True, None), step.detail
        assert step.parameter_digest is not None
    assert report.problems == []
    assert report.complete


def test_replicas_of_the_shadow_port(run: Run) -> None:
    report = run.replay(SHADOW)
    assert_as_published(report)
    assert {(stream.kind, stream.sync) for stream in report.streams} == {("replica", "syn")}
    # Each byte of the gradient once, with the frame headers, and nothing else.
    assert all(step.wire_bytes == step.bytes + 64 * step.frames and not step.repeated_bytes for step in report.steps)


def test_both_directions_of_one_rank_are_enough(run: Run) -> None:
    """A rank sends all reduced chunks but one, and receives that one."""
    report = run.replay(*RANK_BOTH_WAYS)
    assert_as_published(report)
    assert {stream.kind for stream in report.streams} == {"original"}
    assert all(step.repeated_bytes for step in report.steps)


def test_one_direction_of_a_rank_lacks_exactly_one_chunk(run: Run) -> None:
    report = run.replay("s1-eth1_in")
    assert not report.complete
    for step in report.steps:
        assert not step.complete
        assert not step.applied
        # Rank 0 of 3 sends reduced chunks 1 and 0; chunk 2 is rank 1's.
        assert {(hole.chunk, hole.rank, hole.captured) for hole in step.holes} == {(2, 1, False)}
        assert step.bytes + sum((h.elements[1] - h.elements[0]) * 4 for h in step.holes) == step.gradient_bytes


def test_through_the_switch_program(run: Run) -> None:
    report = run.replay(*RING, through_switch=True)
    assert_as_published(report)
    shadow = run.replay(SHADOW)
    assert [s.wire_bytes for s in report.steps] == [s.wire_bytes for s in shadow.steps]


def test_captures_of_all_ports_agree(run: Run) -> None:
    report = run.replay(SHADOW, *RING, *RANK_BOTH_WAYS[1:])
    assert_as_published(report)
    assert all(step.repeated_bytes > step.gradient_bytes for step in report.steps)


@pytest.mark.parametrize("names", [(SHADOW,), RANK_BOTH_WAYS], ids=["shadow", "rank"])
@pytest.mark.parametrize("with_job", [True, False])
def test_frame_headers_alone_give_the_same_gradients(run: Run, names: tuple[str, ...], with_job: bool) -> None:
    """Without the side-channel log the layout is inferred; without the job the ring is, too."""
    report = run.replay(*names, records=(), compare=None, job=run.job if with_job else None)
    told = run.replay(*names)
    assert [step.sha256 for step in report.steps] == [step.sha256 for step in told.steps]
    assert all(step.complete and not step.applied and step.reason is None for step in report.steps)
    assert report.complete


def test_output_holds_gradients_and_recovery_points(run: Run, tmp_path) -> None:
    report = run.replay(SHADOW, out=tmp_path / "out")
    for step in report.steps:
        ours = read_recovery_point(
            tmp_path / "out" / "checkpoints" / "dp0" / f"epoch-{step.epoch:04d}" / f"step-{step.step:08d}"
        )
        assert ours.manifest.state_sha256 == step.state_sha256
        folder = tmp_path / "out" / "gradients" / "dp0" / f"epoch-{step.epoch:04d}" / f"step-{step.step:08d}"
        about = json.loads((folder / "step.json").read_text())
        buckets = [np.load(folder / bucket["file"]) for bucket in about["buckets"]]
        assert [bucket.size for bucket in buckets] == [bucket["elements"] for bucket in about["buckets"]]
        assert sum(bucket.nbytes for bucket in buckets) == step.gradient_bytes
        assert all(bucket.dtype == np.float32 and np.isfinite(bucket).all() for bucket in buckets)


def test_beginning_from_a_recovery_point(run: Run) -> None:
    """The steps up to the checkpoint are not applied again, those after it are, and are the run's."""
    point = run.checkpoints / "dp0" / "epoch-0001" / "step-00000002"
    report = run.replay(SHADOW, checkpoints=(point,))
    for epoch, step in EVERY_STEP:
        result = of(report, epoch, step)
        assert result.complete
        assert result.applied == (step > 2)
        assert result.compared is (True if step > 2 else None)
    assert report.complete
    assert STEPS > 2


def test_rotated_captures_are_one(run: Run, tmp_path) -> None:
    """A capture that was cut in files gives what it gives in one, in whatever order the files are named."""
    from tests.replay.conftest import packets_of, write_packets

    packets = packets_of(run.capture(SHADOW))
    third = len(packets) // 3
    parts = [
        write_packets(tmp_path / f"{i}.pcap", packets[i * third : (i + 1) * third + (i == 2) * 3]) for i in range(3)
    ]
    for order in ([0, 1, 2], [2, 0, 1]):
        assert_as_published(replay_files([parts[i] for i in order], run.options()))


def test_pcapng_is_read_as_pcap_is(run: Run, tmp_path) -> None:
    from capture.writer import PcapngWriter
    from tests.replay.conftest import packets_of

    with PcapngWriter(tmp_path / "shadow.pcapng", ["eth9"]) as writer:
        for packet in packets_of(run.capture(SHADOW)):
            writer.write(packet.time_ns, packet.data)
    assert_as_published(replay_files([tmp_path / "shadow.pcapng"], run.options()))


def test_no_options_at_all(run: Run) -> None:
    report = replay_files([run.capture(SHADOW)], ReplayOptions())
    assert report.complete
    assert {step.group for step in report.steps} == {"group-0"}
    assert {stream.flow for stream in report.streams} == {None}
