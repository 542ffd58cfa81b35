"""`make shell`, as an operator uses it."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from controlplane.desired import desired_state
from controlplane.target import Target
from jobspec.loader import load_job
from p4src.names import Table
from tests.switch_clients.shell_tools import ENVIRONMENT, ROOT, TIMEOUT_S, needs_shell

pytestmark = [needs_shell, pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")]
NOT_PRIMARY = "You are not the primary client, you only have read access to the server"


def make_shell(address: str, lines: list[str], **variables: str) -> str:
    """Run `make shell` with `lines` as its input; return what it prints."""
    settings = {"TARGET": address, "SHELL_VENV": str(ENVIRONMENT), **variables}
    # -o: the environment is there, a test does not install anything.
    command = ["make", "--no-print-directory", "-o", f"{ENVIRONMENT}/.installed", "shell"]
    done = subprocess.run(
        [*command, *(f"{name}={value}" for name, value in settings.items())],
        cwd=ROOT,
        input="\n".join([*lines, "exit", ""]),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout + done.stderr)


def test_the_program_is_pushed_only_when_asked(address: str) -> None:
    write = [
        "tables()",
        "te = table_entry['shadow_ports'](action='drop_from_shadow')",
        "te.match['ingress_port'] = '3'",
        "te.insert()",
    ]
    first = make_shell(address, write, PUSH="1", ELECTION_ID="0,1")
    assert NOT_PRIMARY not in first
    for table in Table:
        assert table in first
    second = make_shell(address, ["table_entry['shadow_ports'].read(lambda te: print(te))"])
    assert "drop_from_shadow" in second
    assert "Traceback" not in first + second


def test_it_takes_no_switch_from_a_controller(address: str) -> None:
    with Target.connect(address, 1, election_id=1) as controller:
        controller.install(desired_state([load_job(ROOT / "examples" / "digits.yaml")]))
        beside = make_shell(address, ["multicast_group_entry(50).add(1).insert()"])
        assert NOT_PRIMARY in beside
        assert "PERMISSION_DENIED" in beside
        asked = make_shell(address, ["multicast_group_entry(50).add(1).insert()"], ELECTION_ID="0,2")
        assert NOT_PRIMARY not in asked
        assert "PERMISSION_DENIED" not in asked
