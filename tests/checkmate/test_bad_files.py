"""What is no file of the kind that a command wants, and output that goes nowhere: one line, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from capture.writer import PcapWriter
from tests.program import run_program

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "digits.yaml")
READERS = [
    ["job", "check", "BAD"],
    ["job", "check", "--json", "BAD"],
    ["testbed", "run", "BAD", "--fabric", "inproc", "--out", "NEW"],
    ["switch", "install", "BAD", "--target", "127.0.0.1:1", "--dry-run"],
    ["switch", "controller", "BAD", "--target", "127.0.0.1:1"],
    ["switch", "controller", EXAMPLE, "--target", "127.0.0.1:1", "--journal", "BAD"],
    ["certs", "NEW", "--job", "BAD"],
    ["inspect", "BAD"],
    ["inspect", "CAPTURE", "--job", "BAD"],
    ["replay", "BAD"],
    ["replay", "CAPTURE", "--job", "BAD"],
    ["replay", "CAPTURE", "--records", "BAD"],
    ["replay", "CAPTURE", "--checkpoint", "BAD"],
    ["replay", "CAPTURE", "--compare", "BAD", "--job", EXAMPLE],
    ["replay", "BAD", "--send", "lo"],
    ["status", "unix:/nowhere", "--tls-ca", "BAD", "--tls-cert", "BAD", "--tls-key", "BAD"],
    ["softswitch", "BAD"],
    ["restore", "BAD", "--to", "NEW"],
    ["verify", "BAD"],
    ["shadow", "--job", "BAD", "--shadow", "sh0", "--iface", "lo", "--listen", "unix:NEW"],
    ["rank", "--job", "BAD", "--group", "dp0", "--rank", "0", "--iface", "lo", "--iterations", "1", "--out", "NEW"],
]
WRITERS = [
    ["testbed", "run", EXAMPLE, "--fabric", "inproc", "--out", "BAD"],
    ["acceptance", "--quick", "--out", "BAD"],
    ["certs", "BAD", "--job", EXAMPLE],
    ["replay", "CAPTURE", "--out", "BAD"],
]


@pytest.fixture
def made(tmp_path: Path) -> dict[str, str]:
    """Return what stands for the words in capitals, and files that are none of those that are wanted."""
    with PcapWriter(tmp_path / "empty.pcap"):
        pass
    (tmp_path / "folder").mkdir()
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "nothing").touch()
    os.mkfifo(tmp_path / "pipe")
    names = ("folder", "noise", "nothing", "pipe")
    return {name: str(tmp_path / name) for name in names} | {
        "below a file": str(tmp_path / "noise" / "x"), "below proc": "/proc/checkmate/x", "device": "/dev/zero",
        "CAPTURE": str(tmp_path / "empty.pcap"), "NEW": str(tmp_path / "new"),
    }  # fmt: skip


def check(words: Sequence[str], made: dict[str, str], bad: str) -> None:
    chosen = made | {"BAD": made[bad]}
    arguments = [chosen.get(word, word.replace("NEW", made["NEW"])) for word in words]
    done = run_program(*arguments, timeout=120)
    assert done.returncode in (1, 2), f"{words} of {bad}: {done.returncode} {done.stderr}"
    assert "Traceback" not in done.stderr, f"{words} of {bad}: {done.stderr}"
    assert done.stderr.strip() or "--json" in words


def _id(words: list[str]) -> str:
    return " ".join(words[:2]) + " " + words[words.index("BAD") - 1]


@pytest.mark.parametrize("words", READERS, ids=_id)
def test_every_command_refuses_what_is_no_file_of_its_kind(words: list[str], made: dict[str, str]) -> None:
    check(words, made, "pipe")
    # Each of the others with some of the commands: a process for each pair would take minutes.
    others = ("folder", "noise", "nothing", "device")
    check(words, made, others[READERS.index(words) % len(others)])


@pytest.mark.parametrize("words", WRITERS, ids=lambda words: words[0])
def test_every_command_refuses_an_output_that_cannot_be_written(words: list[str], made: dict[str, str]) -> None:
    for bad in ("below a file", "below proc"):
        check(words, made, bad)


@pytest.mark.parametrize("words", [["job", "check", EXAMPLE], ["job", "check", "--json", EXAMPLE], ["--help"]])
def test_a_full_disk_under_standard_output(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run_program(*words, stdout=full.fileno())
    assert (done.returncode, done.stderr) == (2, "error: output: No space left on device\n")


@pytest.mark.parametrize("words", [["job", "check", EXAMPLE], ["job", "check", "--json", EXAMPLE], ["--help"]])
def test_a_standard_output_that_was_closed(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run_program(*words, stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_interrupt_while_modules_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    path = os.pathsep.join([str(tmp_path), str(Path(EXAMPLE).parents[1])])
    words = [sys.executable, "-m", "checkmate.cli", "--help"]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
