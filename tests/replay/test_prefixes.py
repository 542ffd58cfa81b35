"""Captures that end anywhere: without the log, a layout that was seen in part is not taken for the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from capture.writer import PcapWriter
from replay.errors import ReplayError
from replay.run import ReplayOptions, replay
from tests.replay.conftest import SHADOW, Run, packets_of


@pytest.mark.parametrize("with_job", [True, False])
def test_no_prefix_has_a_complete_step_that_is_not_the_trainers(run: Run, tmp_path: Path, with_job: bool) -> None:
    told = {(step.epoch, step.step): step.sha256 for step in run.replay(SHADOW).steps}
    packets = packets_of(run.capture(SHADOW))
    options = ReplayOptions(run.job if with_job else None)
    complete = 0
    for count in (*range(1, min(40, len(packets))), *range(40, len(packets), 17), len(packets)):
        path = tmp_path / "prefix.pcap"
        with PcapWriter(path) as writer:
            for packet in packets[:count]:
                writer.write(packet.time_ns, packet.data)
        try:
            report = replay([path], options, lambda *_: None)
        except ReplayError:
            continue
        for step in report.steps:
            if step.complete:
                assert step.sha256 == told[step.epoch, step.step], f"the first {count} packets"
                complete = count
    assert complete == len(packets), "the whole capture has complete steps"
