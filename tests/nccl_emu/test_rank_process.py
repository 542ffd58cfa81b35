"""``python -m nccl_emu``: two rank processes in network namespaces, and what it says when it cannot run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from checkmate_common.stream.frame import HEADER_BYTES
from jobspec.model import Job
from nccl_emu.__main__ import main, parse_options
from shadow_rx.core import ShadowCore
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.serve.service import ShadowServer
from tests.nccl_emu.ring_tools import hop_frames
from tests.nccl_emu.tcp.kernel_net import missing
from tests.nccl_emu.training_tools import Training, make_trainers, publish, store, training_job

REASON = missing()
netns = pytest.mark.skipif(REASON is not None, reason=str(REASON))
SEED = 11


class Ranks:
    """Two namespaces joined by a veth pair, a real shadow's server, and rank processes."""

    def __init__(self, job: Job, directory: Path) -> None:
        self.job = job
        self.directory = directory
        self.names = [f"ckr{os.getpid()}{side}" for side in "ab"]
        self.job_file = directory / "job.yaml"
        self.job_file.write_text(yaml.safe_dump(job.model_dump(mode="json")))
        self.shadow = ShadowNode(ShadowCore(job, "sh0", ShadowOptions()), time.monotonic)
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Ranks:
        with contextlib.ExitStack() as undo:
            for name in self.names:
                _ip("netns", "add", name)
                undo.callback(_ip, "netns", "del", name)
            a, b = self.names
            _ip("link", "add", "nic", "netns", a, "type", "veth", "peer", "name", "nic", "netns", b)
            for name in self.names:
                _ip("-n", name, "link", "set", "nic", "mtu", str(self.job.network.mtu), "up")
            server = ShadowServer(self.shadow, f"unix:{self.directory}/shadow")
            undo.callback(server.stop)
            self.address = server.address
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def start(self, rank: int, *options: str) -> subprocess.Popen[str]:
        command = [
            *("ip", "netns", "exec", self.names[rank], sys.executable, "-m", "nccl_emu"),
            *("--job", str(self.job_file), "--group", "dp0", "--rank", str(rank), "--iface", "nic"),
            *("--side-channel", self.address, "--seed", str(SEED), *options),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._undo.callback(_end, process)
        return process

    def run(self, *options: str) -> list[list[dict[str, Any]]]:
        """Run both ranks to their end and return their events."""
        processes = [self.start(rank, *options) for rank in (0, 1)]
        events = []
        for process in processes:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            events.append([json.loads(line) for line in out.splitlines()])
        return events


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


def _events_until(process: subprocess.Popen[str], step: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "step" and event["step"] >= step:
            return
    raise AssertionError("the process ended before that step")


def _results(directory: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / f"rank-{rank}.jsonl").read_text().splitlines()]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the processes have, with which a simulation is compared
    with Ranks(training_job(2, hidden=[47], batch_size=64), tmp_path) as ranks:
        yield ranks
    torch.set_num_threads(threads)


@netns
@pytest.mark.netns
@pytest.mark.timeout(120)
def test_processes_train_bit_for_bit_like_the_simulation(ranks: Ranks, tmp_path: Path) -> None:
    job = ranks.job
    simulated = Training(make_trainers(job, SEED))
    for _ in range(3):
        simulated.step()
    events = ranks.run("--iterations", "3", "--out", str(tmp_path / "one"))
    for rank, told in enumerate(events):
        assert [event["event"] for event in told] == ["ready", "step", "step", "step", "done"]
        assert all((event["rank"], event["epoch"]) == (rank, 1) for event in told)
        assert told[-1]["accuracy"] == pytest.approx(simulated.trainers[0].accuracy())
    results = [_results(tmp_path / "one", rank) for rank in (0, 1)]
    layout = simulated.trainers[0].layout
    for step in (1, 2, 3):
        lines = [lines[step - 1] for lines in results]
        assert [line["step"] for line in lines] == [step, step]
        tagged = layout.nbytes + HEADER_BYTES * hop_frames(job, layout, 0)
        assert sum(line["tagged_bytes"] for line in lines) == tagged
        assert lines[0]["state_sha256"] == lines[1]["state_sha256"]
        state = (tmp_path / "one" / f"state-{step:08d}.safetensors").read_bytes()
        assert hashlib.sha256(state).hexdigest() == lines[0]["state_sha256"]
    assert state == simulated.trainers[0].state_safetensors()
    assert ranks.shadow.status("dp0").trained_step == 3
    assert not list(tmp_path.rglob("*.partial"))


@netns
@pytest.mark.netns
@pytest.mark.timeout(120)
def test_a_rank_whose_peer_dies_says_so_and_fails(ranks: Ranks, tmp_path: Path) -> None:
    options = ("--iterations", "1000000", "--timeout", "3", "--out", str(tmp_path))
    alive, dies = ranks.start(0, *options), ranks.start(1, *options)
    _events_until(alive, 2)
    dies.kill()
    _, err = alive.communicate(timeout=30)
    assert alive.returncode == 1
    assert "nothing moved for 3.0 s; waiting for step" in err
    assert "from r1" in err or "r1 has not acknowledged" in err


@netns
@pytest.mark.netns
@pytest.mark.timeout(120)
def test_processes_resume_bit_for_bit_until_a_signal_ends_them(ranks: Ranks, tmp_path: Path) -> None:
    simulated = Training(make_trainers(ranks.job, SEED))
    for _ in range(3):
        simulated.step()
    point = tmp_path / "point"
    point.mkdir()
    store(publish(simulated.trainers), point)
    for _ in range(2):
        simulated.step()
    options = ("--epoch", "2", "--iterations", "1000000", "--resume-from", str(point), "--out", str(tmp_path))
    peer, stopped = ranks.start(0, *options), ranks.start(1, *options)
    _events_until(stopped, 6)
    stopped.send_signal(signal.SIGTERM)
    out, err = stopped.communicate(timeout=20)
    assert stopped.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in err
    assert json.loads(out.splitlines()[-1])["event"] == "error"
    _, err = peer.communicate(timeout=20)  # long before its own timeout: the signalled rank resets its connections
    assert peer.returncode == 1
    assert "the peer reset the connection" in err
    assert [line["step"] for line in _results(tmp_path, 1)][:2] == [4, 5]
    state = (tmp_path / "state-00000005.safetensors").read_bytes()
    assert state == simulated.trainers[0].state_safetensors()
    assert ranks.shadow.status("dp0").epoch == 2


def arguments(tmp_path: Path, **changes: str) -> list[str]:
    values = {
        "job": str(tmp_path / "job.yaml"),
        "group": "dp0",
        "rank": "0",
        "iface": "no-such-nic",
        "side-channel": f"unix:{tmp_path}/shadow",
        "iterations": "3",
        "out": str(tmp_path / "out"),
        **changes,
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(training_job(2).model_dump(mode="json")))
    return [part for name, value in values.items() for part in (f"--{name}", value)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "interface no-such-nic cannot be opened for raw frames"),
        ({"job": "no-such-file.yaml"}, "no-such-file.yaml"),
        ({"group": "other"}, "group: no group is called 'other'; known: dp0"),
        ({"rank": "2"}, "rank: 2, group dp0 has ranks 0..1"),
        ({"resume-from": "no-such-directory"}, "not a recovery point"),
    ],
)
def test_what_cannot_run_says_why(
    changes: dict[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path, **changes)) == 1
    told = capsys.readouterr()
    assert message in told.err
    event = json.loads(told.out)
    assert event["event"] == "error"
    assert message in event["message"]


def test_a_run_that_is_over_already_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = Training(make_trainers(training_job(2)))
    training.step()
    store(publish(training.trainers), tmp_path)
    options = arguments(tmp_path, iterations="1", **{"resume-from": str(tmp_path)})
    assert main(options) == 1
    assert "iterations: 1, but step 1 is trained already" in capsys.readouterr().err


@pytest.mark.parametrize("changes", [{"epoch": "0"}, {"iterations": "x"}, {"timeout": "0"}, {"timeout": "nan"}])
def test_a_wrong_command_line_is_refused(changes: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(arguments(tmp_path, **changes))
    assert caught.value.code == 2
