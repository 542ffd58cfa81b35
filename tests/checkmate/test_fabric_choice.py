"""Nothing is installed on the user's machine unless it is asked for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from checkmate.cli import app
from checkmate.testbed_commands import FabricName, choose_fabric
from topology.errors import TestbedError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="packages are installed by root alone")


@pytest.fixture
def without_mininet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that an apt-get, all that this PATH has of Mininet's installation, writes its arguments to."""
    tools = tmp_path / "bin"
    tools.mkdir()
    called = tmp_path / "called"
    (tools / "apt-get").write_text(f'#!/bin/sh\necho "$@" >> {called}\n')
    (tools / "apt-get").chmod(0o755)
    for name in ("sh", "unshare", "true"):
        (tools / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tools))
    return called


def test_auto_falls_back_and_says_how_to_get_mininet(without_mininet: Path, tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as said:
        assert choose_fabric(FabricName.AUTO, Console(file=said, width=200)) == "inproc"
        with pytest.raises(TestbedError, match=r"apt-get install mininet.*--install"):
            choose_fabric(FabricName.MININET, Console(file=said))
        said.seek(0)
        said_text = said.read()
        assert "apt-get install mininet" in said_text
        assert "--install" in said_text
    assert not without_mininet.exists()


def test_it_is_installed_and_announced_where_that_is_asked_for(without_mininet: Path, tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as said:
        assert choose_fabric(FabricName.AUTO, Console(file=said, width=200), install=True) == "inproc"
        said.seek(0)
        assert "installing Debian's mininet package" in said.read()
    assert "mininet" in without_mininet.read_text()


def test_the_list_of_fabrics_installs_nothing(without_mininet: Path) -> None:
    assert CliRunner().invoke(app, ["testbed", "fabrics", "--json"]).exit_code == 0
    assert not without_mininet.exists()
