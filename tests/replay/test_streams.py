"""Streams made by hand: sequence numbers that wrap, several channels, layouts that change, gaps, many packets."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from capture.writer import PcapWriter
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel.log import SideChannelLog, pack
from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.layout import Layout, ParamSpec, build_layout
from jobspec.model import Job
from replay.errors import ReplayError
from replay.results import ReplayReport
from replay.run import ReplayOptions
from tests.replay.conftest import of, replay_files
from tests.shadow_rx.wire import Stretch, cut, make_job, primary_stretches, segment, step_length

PORT = 50000


def layout_of(elements: Sequence[int], version: int = 1, dtype: DType = DType.FLOAT32) -> Layout:
    params = [ParamSpec(f"p{i}", (size,), dtype) for i, size in enumerate(elements)]
    return build_layout(params, 4000, version)


def gradients(layout: Layout, step: int) -> list[bytes]:
    rng = random.Random(step)
    return [rng.randbytes(bucket.nbytes) for bucket in layout.buckets]


def stretches(job: Job, layout: Layout, first: int, last: int, since: int = 1) -> Iterator[tuple[int, Stretch]]:
    """Yield (step, replicated bytes) of all flows, cut into packets; position 0 is the first byte of step `since`."""
    for step in range(first, last + 1):
        for flow in job.flows:
            for stretch in primary_stretches(job, flow, layout, 1, since, step, gradients(layout, step)):
                for part in cut(stretch, itertools.repeat(700)):
                    yield step, part


def write(path: Path, job: Job, parts: Iterator[tuple[int, Stretch]], shift: int = 0) -> Path:
    with PcapWriter(path) as writer:
        for time, (_, part) in enumerate(parts):
            moved = Stretch(part.flow, part.position + shift, part.data)
            writer.write(time * 1000, segment(job, moved, PORT))
    return path


def assert_gradients(report: ReplayReport, layout: Layout, steps: Sequence[int]) -> None:
    assert [step.step for step in report.steps] == list(steps)
    for step in report.steps:
        assert step.complete, step.holes
        assert step.sha256 == hashlib.sha256(b"".join(gradients(layout, step.step))).hexdigest()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("with_job", [True, False])
def test_sequence_numbers_wrap(tmp_path: Path, channels: int, with_job: bool) -> None:
    job, layout = make_job(3, channels), layout_of([700, 811, 5])
    shift = (1 << 32) - step_length(job.flows[0], layout) * 2
    path = write(tmp_path / "wrap.pcap", job, stretches(job, layout, 1, 6), shift)
    assert_gradients(replay_files([path], ReplayOptions(job if with_job else None)), layout, range(1, 7))


def test_bfloat16_is_kept_as_its_bits(tmp_path: Path) -> None:
    job, layout = make_job(2), layout_of([600, 33], dtype=DType.BFLOAT16)
    path = write(tmp_path / "bf16.pcap", job, stretches(job, layout, 1, 2))
    report = replay_files([path], ReplayOptions(job, out=tmp_path / "out"))
    assert_gradients(report, layout, [1, 2])
    folder = tmp_path / "out/gradients/dp0/epoch-0001/step-00000002"
    about = json.loads((folder / "step.json").read_text())
    assert {bucket["dtype"] for bucket in about["buckets"]} == {"bfloat16"}
    found = b"".join(np.load(folder / bucket["file"]).tobytes() for bucket in about["buckets"])
    assert found == b"".join(gradients(layout, 2))


def log_of(path: Path, job: Job, layout: Layout, changes: Sequence[tuple[int, Layout]] = (), first: int = 1) -> Path:
    """Write a log of a run that trains with SGD and tells nothing but layouts."""
    names = [slot.param.name for slot in layout.slots]
    options = torch.optim.SGD([torch.zeros(1)], lr=0.1).param_groups[0]
    text = json.dumps({key: value for key, value in options.items() if key != "params"})
    optimizer = pb.OptimizerDescription(name="SGD", groups=[pb.ParamGroup(params=names, options_json=text)])
    log = SideChannelLog(path)
    attach = pb.AttachRequest(job=job.name, group="dp0", epoch=1, first_step=first, layout_json=layout.to_json())
    attach.optimizer.CopyFrom(optimizer)
    log.append([pack(attach)])
    for flow in job.flows:
        log.append([pack(pb.OpenFlowRequest(group="dp0", epoch=1, flow_id=flow.id, source_port=PORT))])
    for step, changed in changes:
        change = pb.ChangeRequest(group="dp0", epoch=1, effective_step=step, layout_json=changed.to_json())
        change.optimizer.CopyFrom(optimizer)
        log.append([pack(change)])
    log.close()
    return path


def test_a_layout_that_changes_within_an_epoch(tmp_path: Path) -> None:
    job = make_job(3)
    before, after = layout_of([700, 811, 5]), layout_of([5, 811, 700], version=2)
    names = {slot.param.name: slot.param for slot in before.slots}
    after = build_layout([names["p0"], names["p1"], names["p2"]], 3000, 2)
    assert len(after.buckets) != len(before.buckets)
    lengths = {flow.id: step_length(flow, before) * 3 for flow in job.flows}
    early = stretches(job, before, 1, 3)
    late = (
        (step, Stretch(part.flow, part.position + lengths[part.flow.id], part.data))
        for step, part in stretches(job, after, 4, 9, since=4)
    )
    path = write(tmp_path / "changing.pcap", job, itertools.chain(early, late))
    log = log_of(tmp_path / "side-channel.bin", job, before, [(4, after)])
    report = replay_files([path], ReplayOptions(job, (log,), apply=False))
    assert [step.step for step in report.steps] == list(range(1, 10))
    for step in report.steps:
        layout = before if step.step < 4 else after
        assert step.complete, (step.step, step.holes)
        assert step.sha256 == hashlib.sha256(b"".join(gradients(layout, step.step))).hexdigest()
    with pytest.raises(ReplayError, match="layout versions"):
        replay_files([path], ReplayOptions(job))


def test_a_long_gap_costs_nothing(tmp_path: Path) -> None:
    """Steps 3 to 999,997 were not captured: one entry, and the position of what follows is known all the same."""
    job, layout = make_job(2), layout_of([50])
    parts = itertools.chain(stretches(job, layout, 1, 2), stretches(job, layout, 999_998, 1_000_000))
    path = write(tmp_path / "gap.pcap", job, parts)
    report = replay_files([path], ReplayOptions(job))
    assert [step.step for step in report.steps] == [1, 2, 999_998, 999_999, 1_000_000]
    assert all(step.complete for step in report.steps)
    assert [(a.first, a.last) for a in report.absent] == [(3, 999_997)]
    assert not report.complete


def test_a_layout_that_cannot_be_inferred(tmp_path: Path) -> None:
    """The last chunk's flow was not captured, so the size of the buckets is not known."""
    job, layout = make_job(3), layout_of([700, 811])
    parts = ((step, part) for step, part in stretches(job, layout, 1, 3) if part.flow.rank != 1)
    path = write(tmp_path / "part.pcap", job, parts)
    with pytest.raises(ReplayError, match="no frame of bucket 0's last chunk"):
        replay_files([path], ReplayOptions(job))
    log = log_of(tmp_path / "side-channel.bin", job, layout)
    report = replay_files([path], ReplayOptions(job, (log,), apply=False))
    assert {(hole.rank, hole.chunk) for step in report.steps for hole in step.holes} == {(1, 2)}
    assert of(report, 1, 2).bytes > 0


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capture.source._CHUNK_BYTES", 1 << 16)  # so that both files have several
    job, layout = make_job(3), layout_of([700, 811, 5])
    peaks = []
    for number, steps in enumerate((60, 60, 360)):  # what the first one allocates once does not count
        path = write(tmp_path / f"{number}.pcap", job, stretches(job, layout, 1, steps))
        gc.collect()
        tracemalloc.start()
        report = replay_files([path], ReplayOptions(job))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(report.steps) == steps
        assert report.complete
    # What is kept of a step is its result, not its bytes.
    assert (tmp_path / "2.pcap").stat().st_size > 2_500_000
    assert peaks[2] - peaks[1] < 300 * 2000  # a gradient has 6064 bytes
