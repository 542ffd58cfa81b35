"""Whatever a run writes holds gradients, states or keys: its owner alone may open it, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from checkmate.cli import app
from jobspec.loader import load_job
from topology.processes.switch_events import SwitchEvent
from topology.progress import RunProgress
from topology.testbed import TestbedOptions, run_testbed

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits.yaml"


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """Return what others than the owner may do something with, `folder` itself too."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode != (0o700 if path.is_dir() else 0o600):
            found[str(path.relative_to(folder.parent))] = f"{mode:04o}"
    return found


def run(out: Path, *, tls: bool = False, events: tuple[str, ...] = (), fabric: str = "inproc") -> None:
    options = TestbedOptions(
        out=out, fabric=fabric, iterations=3, ranks=2, restart_at=1, tls=tls,
        events=tuple(SwitchEvent.parse(event) for event in events),
    )  # fmt: skip
    with Path(os.devnull).open("w") as nothing, RunProgress(Console(file=nothing)) as progress:
        run_testbed(load_job(EXAMPLE), options, progress)


def test_a_run_and_replays_of_its_captures(tmp_path: Path) -> None:
    run(tmp_path / "above" / "out")
    assert open_to_others(tmp_path / "above") == {}
    assert len(list((tmp_path / "above" / "out").rglob("*"))) > 20
    words = [
        "replay",
        str(tmp_path / "above" / "out" / "s1-eth9_out.pcap"),
        "--out",
        str(tmp_path / "new" / "replayed"),
    ]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert list((tmp_path / "new").rglob("*.npy"))
    assert open_to_others(tmp_path / "new") == {}


def test_a_run_under_tls_with_a_restart_of_the_shadow_node(tmp_path: Path) -> None:
    run(tmp_path / "out", tls=True, events=("restart-shadow:1",))
    assert list((tmp_path / "out").rglob("*.key"))
    assert open_to_others(tmp_path / "out") == {}


@pytest.mark.mininet
def test_a_run_in_mininet_with_a_restart_of_the_switch(tmp_path: Path) -> None:
    run(tmp_path / "out", tls=True, events=("restart-switch:1",), fabric="mininet")
    assert open_to_others(tmp_path / "out") == {}


def test_files_of_an_earlier_run_that_were_open_to_others(tmp_path: Path) -> None:
    for name in ("summary.json", "events.jsonl", "s1-eth9_out.pcap"):
        (tmp_path / name).write_text("old")
    (tmp_path / "mine.txt").write_text("mine")
    tmp_path.chmod(0o755)
    run(tmp_path)
    assert open_to_others(tmp_path) == {tmp_path.name: "0755", f"{tmp_path.name}/mine.txt": "0666"}
