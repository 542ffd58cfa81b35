"""However a testbed run ends, what it started is gone, and the next run starts clean."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobspec.loader import load_job
from topology.fabric.mininet_net import MininetNetwork

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits.yaml"
pytestmark = pytest.mark.mininet


def launch(out: Path, iterations: int) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "checkmate.cli", "testbed", "run", str(EXAMPLE), "--fabric", "mininet", "--ranks", "2",
        "--iterations", str(iterations), "--out", str(out),
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def descendants(pid: int) -> Iterator[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for child in children.read_text().split() if children.exists() else ():
        yield int(child)
        yield from descendants(int(child))


def alive(pids: set[int]) -> set[int]:
    """Return those of `pids` that run (a zombie waits for its parent only)."""
    running = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.add(pid)
    return running


def switch_interfaces() -> list[str]:
    shown = subprocess.run(["ip", "-json", "link"], capture_output=True, text=True, check=True)
    return [link["ifname"] for link in json.loads(shown.stdout) if link["ifname"].startswith("s1-eth")]


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path, blow: signal.Signals) -> None:
    log = tmp_path / "first" / "uninterrupted" / "rank-0.jsonl"
    run = launch(tmp_path / "first", 5000)
    try:
        wait_for(lambda: run.poll() is not None or (log.exists() and log.stat().st_size > 0))
        started = set(descendants(run.pid))
        assert started
        run.send_signal(blow)
        run.wait(60)
    finally:
        if run.poll() is None:
            run.kill()
    assert run.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[blow]
    wait_for(lambda: not alive(started))
    if blow is signal.SIGKILL:  # what it could not remove, the next run does
        again = launch(tmp_path / "second", 2)
        out, err = again.communicate(timeout=120)
        assert again.returncode == 0, out + err
    assert switch_interfaces() == []


def test_the_machines_limits_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    set_anyway = []
    monkeypatch.setattr("mininet.net.fixLimits", lambda: set_anyway.append(True))
    monkeypatch.setattr("mininet.net.Mininet.inited", False)
    job = load_job(EXAMPLE)
    MininetNetwork(job, job.hosts[:2]).stop()
    assert set_anyway == []
