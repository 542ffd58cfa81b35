"""`checkmate switch controller` as a program."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.desired import desired_state
from controlplane.digests import flow_base_entry
from controlplane.errors import ControlPlaneError
from controlplane.journal_file import read_journal
from controlplane.target import Target
from p4src.names import Table
from softswitch.p4rt import Device, serve
from tests.controlplane.jobs import JobText
from tests.controlplane.rig import eventually
from tests.controlplane.test_flow_starts import FLOW, ISN, JOB, expected, segment, syn

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JobText().text())
    return path


class Controller:
    """The program, read line by line."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "checkmate.cli", "switch", "controller", *map(str, arguments), "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def until(self, event: str, switch: str) -> dict[str, Any]:
        """Return the next event of a kind and a switch."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found: dict[str, Any] = json.loads(line)
            if (found["event"], found["switch"]) == (event, switch):
                return found
        raise AssertionError(f"it ended without {event}: {self.process.communicate()[1]}")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=20)
        return self.process.returncode


@pytest.fixture
def started() -> Iterator[list[Controller]]:
    found: list[Controller] = []
    yield found
    for controller in found:
        controller.process.kill()
        controller.process.communicate()


def test_switches_are_kept_installed_and_the_standby_prepared(
    job_file: Path, tmp_path: Path, started: list[Controller]
) -> None:
    journal = tmp_path / "journal.json"
    first, second = Device(1), Device(1)
    with serve(first) as server, serve(second) as spare:
        one, two = server.address, spare.address
        controller = Controller(job_file, "--target", one, "--standby", two, "--journal", journal)
        started.append(controller)
        ready = {name: controller.until("installed", name) for name in (one,)}
        assert ready[one]["pipeline"] == "missing"
        eventually(lambda: holds(two), "the standby holds the job")
        syn(first, FLOW, 40000, ISN)
        assert controller.until("connection", one)["isn"] == ISN
        assert controller.until("mirrored", two)["connections"] == 1
        with Target.connect(two, 1) as reader:
            assert reader.read_state().table(Table.FLOW_BASE) == (flow_base_entry(expected(FLOW, 40000, ISN)),)
        assert read_journal(journal) == (expected(FLOW, 40000, ISN),)
        assert controller.end(signal.SIGINT) == 0
        server.close(0)
        # The controller restarts and the switch too: all that is known is in the file.
        fresh = Device(1)
        with serve(fresh, one):
            again = Controller(job_file, "--target", one, "--journal", journal)
            started.append(again)
            assert again.until("installed", one)["connections"] == 1
            data = segment(JOB, FLOW, port=40000, seq=(ISN + 1) % 2**32, payload=b"x")
            assert len(fresh.inject(FLOW.source.port, data, 0)) == 2
            assert again.end() == 0


def holds(address: str) -> bool:
    with Target.connect(address, 1) as reader:
        return reader.plan(desired_state([JOB])).changes_nothing


def test_what_cannot_be_used_is_said_before_anything_is_touched(job_file: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal.json"
    journal.write_text("{}")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: [")
    for arguments, words in (
        ([job_file, "--target", "nowhere"], "nowhere: "),
        ([job_file, "--target", "127.0.0.1:1", "--journal", journal], f"journal {journal}"),
        ([wrong, "--target", "127.0.0.1:1"], "wrong.yaml"),
    ):
        controller = Controller(*arguments)
        output, errors = controller.process.communicate(timeout=60)
        assert (controller.process.returncode, output) == (2, "")
        assert words in errors
        assert "Traceback" not in errors


def test_a_switch_that_does_not_answer_is_waited_for(job_file: Path, started: list[Controller]) -> None:
    with serve(Device(1)) as server:
        address = server.address
    controller = Controller(job_file, "--target", address)
    started.append(controller)
    assert "no switch answers" in controller.until("trouble", address)["message"]
    with serve(Device(1), address):
        assert controller.until("installed", address)["updates"] > 0
        with Target.connect(address, 1, election_id=9):
            # Another controller takes over; it is told, and this one comes back when the other has gone.
            assert "another controller" in controller.until("lost", address)["message"]
            assert "another controller" in controller.until("trouble", address)["message"]
        assert controller.until("installed", address)["pipeline"] == "current"
        assert controller.end() == 0


def restarted(address: str) -> None:
    """Serve an empty switch at the address of one that is gone, and wait until it holds the job."""
    with serve(Device(1), address):
        eventually(lambda: holds_program(address), "the restarted switch holds the job")


def holds_program(address: str) -> bool:
    try:
        return holds(address)
    except ControlPlaneError:
        return False


@pytest.mark.parametrize("reader", ["gone", "asleep"])
def test_a_reader_that_goes_away_or_sleeps_does_not_stop_control(
    job_file: Path, started: list[Controller], reader: str
) -> None:
    with serve(Device(1)) as server:
        address = server.address
        controller = Controller(job_file, "--target", address)
        started.append(controller)
        controller.until("installed", address)
        pipe = controller.process.stdout
        assert pipe is not None
        if reader == "gone":
            pipe.close()
        else:  # what the pipe holds at most is already in it
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, 4096)
            with open(f"/proc/{controller.process.pid}/fd/1", "wb", buffering=0) as full:  # noqa: PTH123
                os.set_blocking(full.fileno(), False)
                with contextlib.suppress(BlockingIOError):
                    while full.write(bytes(512)):
                        pass
                os.set_blocking(full.fileno(), True)
    restarted(address)
    controller.process.send_signal(signal.SIGTERM)
    assert controller.process.wait(20) == 0
    assert controller.process.stderr is not None
    errors = controller.process.stderr.read()
    assert ("events are not shown" in errors) == (reader == "gone")
    assert "Traceback" not in errors, errors
    controller.process.stdout = None


def test_the_former_name_of_the_command_still_works(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "checkmate.cli", "switch", "control", str(tmp_path / "none.yaml"), "--target", "x:1"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "none.yaml" in done.stderr


def test_an_error_of_the_controller_itself_ends_the_program_with_a_message(job_file: Path) -> None:
    """The connection's thread gets what nobody expects; it must not just be gone."""
    code = (
        "import sys\n"
        "from controlplane.digests import FlowStarts\n"
        "from checkmate.cli import main\n"
        "def broken(self, timeout_s): raise ValueError('a digest of another kind')\n"
        "FlowStarts.wait = broken\n"
        "main(sys.argv[1:])\n"
    )
    with serve(Device(1)) as server:
        words = ["switch", "controller", str(job_file), "--target", server.address]
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 2
    assert "the controller failed: ValueError: a digest of another kind" in done.stderr
