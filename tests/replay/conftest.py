"""One small testbed run a session, whose captures the tests replay."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from capture.model import Packet
from capture.reader import open_capture
from capture.writer import PcapWriter
from jobspec.loader import load_job
from jobspec.model import Job
from replay.results import ReplayReport, StepResult
from replay.run import ReplayOptions, replay
from topology.progress import RunProgress
from topology.testbed import TestbedOptions, run_testbed

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"
STEPS = 5
RESTART = 2
SHADOW = "s1-eth9_out"
RING = [f"s1-eth{port}_in" for port in (1, 2, 3)]


@dataclass(frozen=True)
class Run:
    """A finished testbed run of three ranks with frames of several packets and chunks of several frames."""

    folder: Path

    @property
    def job(self) -> Job:
        return load_job(self.folder / "job.yaml")

    @property
    def log(self) -> Path:
        return self.folder / "side-channel.bin"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def capture(self, name: str) -> Path:
        return self.folder / f"{name}.pcap"

    def options(self, **changes: object) -> ReplayOptions:
        given: dict[str, object] = {"job": self.job, "records": (self.log,), "compare": self.checkpoints}
        return ReplayOptions(**{**given, **changes})  # type: ignore[arg-type]

    def replay(self, *names: str, **changes: object) -> ReplayReport:
        return replay_files([self.capture(name) for name in names], self.options(**changes))


def replay_files(paths: Sequence[Path], options: ReplayOptions) -> ReplayReport:
    return replay(paths, options, lambda what, done, total: None)


def packets_of(path: Path) -> list[Packet]:
    with open_capture(path) as reader:
        return list(reader)


def write_packets(path: Path, packets: Sequence[Packet]) -> Path:
    writer = PcapWriter(path)
    for packet in packets:
        writer.write(packet.time_ns, packet.data)
    writer.close()
    return path


def of(report: ReplayReport, epoch: int, step: int) -> StepResult:
    [found] = [result for result in report.steps if (result.epoch, result.step) == (epoch, step)]
    return found


EVERY_STEP = [(1, step) for step in range(1, STEPS + 1)] + [(2, step) for step in range(RESTART + 1, STEPS + 1)]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("testbed")
    job = load_job(EXAMPLE)
    group = job.groups[0].model_copy(update={"ring": [host.name for host in job.hosts[:3]]})
    framing = job.framing.model_copy(update={"payload_bytes": 4096})
    workload = job.workload.model_copy(update={"batch_size": 24})
    job = job.model_copy(update={"groups": [group], "framing": framing, "workload": workload, "digests": True})
    options = TestbedOptions(folder, iterations=STEPS, restart_at=RESTART)
    result = run_testbed(job, options, RunProgress(Console(file=io.StringIO())))
    assert result.passed
    return Run(folder)
