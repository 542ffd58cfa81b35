"""`checkmate switch` as people and programs use it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from checkmate.switch_commands import app
from controlplane.desired import desired_state
from controlplane.target import Target
from softswitch.p4rt import Device, serve
from tests.controlplane.jobs import EXAMPLE, JobText, other_job


@pytest.fixture
def address() -> Iterator[str]:
    with serve(Device(1)) as server:
        yield server.address


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def run_json(code: int, *arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_install_diff_show_of_the_example(address: str) -> None:
    before = run("diff", EXAMPLE, "--target", address)
    assert before.exit_code == 1
    assert "runs no program yet" in before.stdout
    first = run("install", EXAMPLE, "--target", address)
    assert first.exit_code == 0
    assert "+ replicate 10.0.0.10 (r0) -> 10.0.0.11 (r1) port 4000 dscp 3: replicate_flow" in first.stdout
    assert "21 inserted, 0 modified, 0 deleted, 0 unchanged" in first.stdout
    second = run("install", EXAMPLE, "--target", address)
    assert second.exit_code == 0
    assert second.stdout.startswith("nothing to change")
    assert run("diff", EXAMPLE, "--target", address).exit_code == 0
    shown = run("show", "--target", address, "--job", EXAMPLE)
    assert shown.exit_code == 0
    for words in ("10.0.0.13 (r3)", "digits/dp0 r3->r0 channel 0", "(flood)", "unknown_isn", "flow_start_t"):
        assert words in shown.stdout
    assert "(r3)" not in run("show", "--target", address).stdout


def test_several_files_are_several_jobs_on_one_switch(address: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(JobText().text())
    two.write_text(other_job().text())
    done = run_json(0, "install", one, two, "-t", address)
    wanted = desired_state([JobText().job(), other_job().job()])
    assert (done["pipeline"], done["inserted"], done["dry_run"]) == ("missing", len(wanted.entities), False)
    with Target.connect(address, 1) as switch:
        assert switch.read_state() == wanted
    assert run_json(0, "diff", two, one, "-t", address)["equal"] is True
    left = run_json(1, "diff", one, "-t", address)
    assert left["equal"] is False
    assert (left["inserted"], left["modified"]) == (0, 1)
    assert {change["change"] for change in left["changes"]} == {"delete", "modify"}


def test_a_dry_run_changes_nothing(address: str) -> None:
    planned = run_json(0, "install", EXAMPLE, "-t", address, "--dry-run")
    assert planned["dry_run"] is True
    assert planned["inserted"] == 21
    assert run_json(2, "show", "-t", address)["error"]["kind"] == "no_pipeline"


def test_what_show_says_as_json(address: str) -> None:
    run("install", EXAMPLE, "-t", address)
    shown = run_json(0, "show", "-t", address, "--job", EXAMPLE)
    sizes = {table: len(entries) for table, entries in shown["tables"].items()}
    assert sizes == {
        "shadow_ports": 1,
        "l2_forward": 9,
        "replicate": 4,
        "flow_base": 0,
        "replicate_rdma_ipv4": 0,
        "replicate_rdma_ipv6": 0,
        "shadow": 1,
    }
    (shadow,) = shown["tables"]["shadow"]
    assert shadow["params"]["base_port"] == 20000
    assert shadow["shown"]["mac"] == "02:00:00:00:02:00 (sh0)"
    assert (shadow["packets"], shadow["bytes"]) == (0, 0)
    assert [group["group"] for group in shown["groups"]][:4] == [1, 2, 3, 4]
    assert shown["groups"][0]["replicas"] == [{"port": 2, "rid": 0}, {"port": 9, "rid": 1}]
    assert shown["not_replicated"]["late_connection"] == {"packets": 0, "bytes": 0}
    assert shown["digests"][0]["digest"] == "flow_start_t"


def test_a_wrong_file_is_told_before_the_switch_is_touched(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(JobText().text().replace("ring: [h0, h1, h2]", "ring: [h0, h1, h0]"))
    # Nothing listens at port 1: had the switch been asked first, that would be the error.
    result = run("install", wrong, "--target", "127.0.0.1:1")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"{wrong}:14: groups[0].ring[2]: " in result.stderr
    document = run_json(2, "install", wrong, "--target", "127.0.0.1:1")
    assert document["error"]["problems"][0]["line"] == 14


def test_jobs_that_collide_are_refused_together(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(JobText().text())
    two.write_text(other_job(first_port=3).text())
    result = run("diff", one, two, "--target", "127.0.0.1:1")
    assert result.exit_code == 2
    assert f"{two}:7: hosts[0].port: switch port 3 belongs to h2 of job 'one'" in result.stderr


def test_trouble_with_the_switch_is_exit_code_2(address: str, tmp_path: Path) -> None:
    nobody = run_json(2, "install", EXAMPLE, "--target", "127.0.0.1:1")
    assert nobody["error"]["kind"] == "unreachable"
    assert nobody["error"]["hint"]
    wrong = run_json(2, "install", EXAMPLE, "-t", address, "--device-id", "4")
    assert wrong["error"]["kind"] == "wrong_device"
    with Target.connect(address, 1, election_id=5):
        held = run("install", EXAMPLE, "-t", address)
        assert held.exit_code == 2
        assert "--election-id 6" in held.stderr
        assert run("install", EXAMPLE, "-t", address, "--election-id", "6").exit_code == 0


def test_rebound_flows_are_printed(address: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JobText(ring=(0, 1, 2)).text())
    run("install", job, "-t", address)
    job.write_text(JobText(ring=(0, 2, 1)).text())
    result = run("install", job, "-t", address)
    assert re.search(r"^flow 1 ", result.stdout, flags=re.M)


def test_help_has_examples_and_exit_codes() -> None:
    for command in ("install", "diff", "show"):
        result = run(command, "--help")
        assert result.exit_code == 0
        assert f"checkmate switch {command}" in result.stdout
        assert "Exit code" in result.stdout
