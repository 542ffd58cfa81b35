"""p4runtime-shell beside other controllers, and batches of which one update is bad."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from controlplane.desired import desired_state
from controlplane.errors import ControlPlaneError, ErrorKind
from controlplane.target import Target
from jobspec.loader import load_job
from p4src.names import Table
from tests.switch_clients.entries import EXAMPLES
from tests.switch_clients.shell_tools import ROOT, Shell, ShellError, needs_shell

pytestmark = needs_shell
JOB = ROOT / "examples" / "digits.yaml"
NOT_PRIMARY = "You are not the primary client, you only have read access to the server"


def test_the_lower_election_id_only_reads_and_takes_over_when_the_primary_goes(address: str) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(Shell(address, (0, 20)))
        primary("insert", EXAMPLES[0].plain())
        backup = stack.enter_context(Shell(address, (0, 10), config=None))
        assert backup.said == [NOT_PRIMARY]
        assert len(backup("read", EXAMPLES[0].table)) == 1
        assert _refused(backup) == "PERMISSION_DENIED"
        primary("insert", EXAMPLES[1].plain())
        primary.close()
        code, highest = backup("arbitration")
        # Upstream BMv2 makes it the primary; the specification, and our switch, wait until it asks.
        if code == "NOT_FOUND":
            assert highest == [0, 20]
            assert _refused(backup) == "PERMISSION_DENIED"
            backup("bid", *highest)
        else:
            assert code == "OK"
        backup("delete", EXAMPLES[0].plain())
        assert backup("read", EXAMPLES[0].table) == []


def _refused(shell: Shell) -> object:
    with pytest.raises(ShellError) as caught:
        shell("delete", EXAMPLES[0].plain())
    return caught.value.error


def test_an_operator_reads_beside_a_running_controller(address: str) -> None:
    """What `make shell` does: election id 0 never takes the switch from a controller."""
    with Target.connect(address, 1, election_id=1) as controller:
        desired = desired_state([load_job(JOB)])
        controller.install(desired)
        with Shell(address, (0, 0), config=None) as shell:
            assert shell.said == [NOT_PRIMARY]
            shown = {table: len(shell("read", table)) for table in Table}
            assert shown == {table: len(desired.table(table)) for table in Table}
            assert len(shell("groups")) == len(desired.groups())
            assert _refused(shell) == "PERMISSION_DENIED"
            assert controller.is_primary
        assert controller.install(desired).changes_nothing


def test_an_operator_takes_the_switch_when_asked(address: str) -> None:
    desired = desired_state([load_job(JOB)])
    with Target.connect(address, 1, election_id=1) as controller:
        controller.install(desired)
        with Shell(address, (0, 2), config=None) as shell:
            shell("group", "delete", 1)
            assert "1" not in shell("groups")
            with pytest.raises(ControlPlaneError) as caught:
                controller.install(desired)
            assert caught.value.kind is ErrorKind.NOT_PRIMARY


def test_a_batch_reports_exactly_the_bad_update(address: str) -> None:
    missing = {**EXAMPLES[-1].plain(), "match": {"rid": 77}, "action": None}
    good = EXAMPLES[:2]
    with Shell(address) as shell:
        for bad in range(3):
            updates: list[tuple[str, dict[str, object]]] = [("INSERT", example.plain()) for example in good]
            updates.insert(bad, ("DELETE", missing))
            assert shell("batch", updates) == ["NOT_FOUND" if index == bad else "OK" for index in range(3)]
            assert [len(shell("read", example.table)) for example in good] == [1, 1]
            assert shell("batch", [("DELETE", example.plain()) for example in good]) == ["OK", "OK"]


def test_write_of_a_file(address: str) -> None:
    with Shell(address) as shell:
        shell("write_file", [("INSERT", example.plain()) for example in EXAMPLES])
        assert len(shell("read", Table.REPLICATE)) == 2
        # All of it is refused: with an OK among the errors this version of the shell would never return.
        with pytest.raises(ShellError) as caught:
            shell("write_file", [("INSERT", example.plain()) for example in EXAMPLES[:3]])
        assert [(index, code) for index, code, _ in caught.value.error] == [
            (index, "ALREADY_EXISTS") for index in range(3)
        ]


def test_a_switch_without_a_program(address: str, target: str) -> None:
    if target == "bmv2":
        with pytest.raises(ShellError, match="No forwarding pipeline config set for this device"):
            Shell(address, config=None)
    else:
        with Shell(address, config=None) as shell:
            assert shell("tables") == []


def test_a_program_that_is_not_one(address: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("no JSON")
    info = ROOT / "p4src" / "build" / "checkmate.p4info.txtpb"
    with pytest.raises(ShellError, match="Error when setting config"):
        Shell(address, config=(str(info), str(broken)))
