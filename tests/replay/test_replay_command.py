"""`checkmate replay` as a user meets it: help, tables, JSON, exit codes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from checkmate.cli import app
from tests.replay.conftest import EVERY_STEP, RING, SHADOW, Run, packets_of, write_packets
from tests.replay.damage import parsed


def checkmate(*words: object) -> Result:
    command = ["replay", *map(str, words)]
    return CliRunner().invoke(app, command, env={"COLUMNS": "200", "TERMINAL_WIDTH": "200", "NO_COLOR": "1"})


def test_help_has_examples() -> None:
    done = checkmate("--help")
    assert done.exit_code == 0
    assert len(re.findall(r"checkmate replay \S+", done.stdout)) >= 5
    for option in ("--job", "--records", "--checkpoint", "--through-switch", "--use-p2p", "--json", "--send"):
        assert option in done.stdout


def test_everything_beside_the_capture_is_found(run: Run) -> None:
    done = checkmate(run.capture(SHADOW), "--compare", run.checkpoints)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "8 of 8 steps complete, 8 recovery points, 8 of 8 equal to the run's"
    assert done.stderr == ""


def test_json_of_a_whole_capture(run: Run) -> None:
    done = checkmate(*(run.capture(name) for name in RING), "--through-switch", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kind"], found["job"], found["complete"], found["through_switch"]) == ("tcp", "digits", True, True)
    assert [(step["epoch"], step["step"]) for step in found["steps"]] == EVERY_STEP
    assert all(step["complete"] and step["applied"] and step["crc"] == "ok" for step in found["steps"])
    published = json.loads((run.folder / "summary.json").read_text())
    assert found["steps"][0]["gradient_bytes"] == published["gradient_bytes_per_iteration"]


def test_json_of_a_hole(run: Run, tmp_path: Path) -> None:
    packets = packets_of(run.capture(SHADOW))
    index = next(i for i, packet in enumerate(packets) if parsed(packet).segment.payload)
    path = write_packets(tmp_path / "lost.pcap", packets[:index] + packets[index + 1 :])
    done = checkmate(path, "--job", run.folder / "job.yaml", "--records", run.log, "--json")
    assert done.exit_code == 1
    [step] = [step for step in json.loads(done.stdout)["steps"] if not step["complete"]]
    assert (step["epoch"], step["step"], step["reason"], step["sha256"]) == (1, 1, "lost_bytes", None)
    size = len(parsed(packets[index]).segment.payload)
    assert sum(hole["stream"][1] - hole["stream"][0] for hole in step["holes"]) == size
    text = checkmate(path, "--job", run.folder / "job.yaml", "--records", run.log).stdout
    hole = step["holes"][0]
    assert f"flow {hole['flow']} bytes [{hole['stream'][0]}, " in text
    assert "7 of 8 steps complete, 3 recovery points" in text


def test_frame_headers_alone(run: Run, tmp_path: Path) -> None:
    """Far from the run's folder neither job nor log is found."""
    path = shutil.copy(run.capture(SHADOW), tmp_path / "alone.pcap")
    done = checkmate(path, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["job"], found["records"]) == (None, [])
    assert len(found["steps"]) == len(EVERY_STEP)


def test_a_cut_file_is_incomplete(run: Run, tmp_path: Path) -> None:
    data = run.capture(SHADOW).read_bytes()
    path = tmp_path / "cut.pcap"
    path.write_bytes(data[:-7])
    done = checkmate(path, "--job", run.folder / "job.yaml", "--records", run.log)
    assert done.exit_code == 1
    assert f"problem: {path}: at byte" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.pcap"], "missing.pcap: cannot be read: No such file"),
        (["-"], "CAPTURE: "),
        (["{folder}/job.yaml"], "job.yaml: "),
        (["{folder}/s1-eth9_in.pcap"], "no gradient frames in 0 packets"),
        (["{shadow}", "--job", "missing.yaml"], "missing.yaml"),
        (["{shadow}", "--records", "{folder}/summary.json"], "summary.json: "),
        (["{shadow}", "--checkpoint", "{folder}/missing"], "not a recovery point"),
        (["{shadow}", "--compare", "{folder}/missing"], "is not a store"),
        (["{shadow}", "--compare", "{folder}"], "is not a store"),
        (["{shadow}", "--compare", "{shadow}"], "is a file"),
        (["{shadow}", "--out", "{folder}"], "is not empty"),
        (["{shadow}", "--use-p2p"], "--use-p2p: "),
        (["{shadow}", "--kind", "rocev2", "--compare", "x"], "--compare: "),
        (["{shadow}", "--rate", "10"], "--send"),
        (["{shadow}", "--records", "{folder}/side-channel.bin", "--no-records"], "--records and --no-records: "),
    ],
)
def test_input_that_cannot_be_used(run: Run, words: list[str], message: str) -> None:
    places = {"folder": run.folder, "shadow": run.capture(SHADOW)}
    done = checkmate(*(word.format(**places) for word in words))
    assert done.exit_code == 2, done.stdout
    assert message in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
