"""The switch as a process without interfaces: start, ready line, server, end. Needs no rights."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from softswitch.p4rt import Device, serve
from tests.softswitch.p4rt_client import PROGRAMS, Call, Controller, load_config
from tests.softswitch.switch_process import SwitchProcess, run_to_end

FREE = ("--", "--grpc-server-addr", "127.0.0.1:0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_start_serve_and_clean_end_with_a_client_connected(number: signal.Signals) -> None:
    with SwitchProcess("--no-p4", "--device-id", "3", *FREE) as process:
        address = process.ready["grpc"]
        assert process.ready == {"event": "ready", "device_id": 3, "grpc": address, "ports": {}}
        assert address.startswith("127.0.0.1:")
        with Controller(address, device_id=3) as controller:
            assert controller.arbitrate(1) == 0
            controller.set_pipeline(Call.VERIFY_AND_COMMIT, load_config(5))
            assert controller.get_pipeline(1).config.cookie.cookie == 5
            assert process.end(number) == 0
            assert controller.stream_error() == ("UNAVAILABLE", "the switch is shutting down")
        assert process.said() == ""


def test_taken_port_fails_loudly() -> None:
    with serve(Device(1)) as server:
        result = run_to_end("--no-p4", "--", "--grpc-server-addr", server.address)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"cannot listen at {server.address}" in result.stderr


def test_program_from_a_file(tmp_path: Path) -> None:
    with SwitchProcess(str(PROGRAMS / "p4rt_sample.json"), "--log-file", str(tmp_path / "log"), *FREE) as process:
        with Controller(process.ready["grpc"], device_id=0) as controller:
            assert not controller.get_pipeline().HasField("config")
        assert process.end() == 0
        assert process.said() == ""
    assert "ending after SIGTERM" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("content", "text"), [("{", "JSON"), ('{"program": "x"}', ""), (None, "No such file or directory")]
)
def test_bad_program_file_fails_loudly(tmp_path: Path, content: str | None, text: str) -> None:
    path = tmp_path / "program.json"
    if content is not None:
        path.write_text(content)
    result = run_to_end(str(path), *FREE)
    assert (result.returncode, result.stdout) == (1, "")
    assert "CRITICAL" in result.stderr
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_unreadable_certificate_and_unwritable_log_fail_loudly(tmp_path: Path) -> None:
    pem = ("--grpc-server-ssl", "--grpc-server-cert", "/nowhere/c.pem", "--grpc-server-key", "/nowhere/k.pem")
    result = run_to_end("--no-p4", *FREE, *pem)
    assert (result.returncode, result.stdout) == (1, "")
    assert "/nowhere/c.pem: cannot be read: No such file or directory" in result.stderr
    result = run_to_end("--no-p4", "--log-file", str(tmp_path / "nowhere" / "log"), *FREE)
    assert (result.returncode, result.stdout) == (1, "")
    assert "nowhere/log: No such file or directory" in result.stderr
    assert "Traceback" not in result.stderr


def test_options_without_meaning_are_mentioned() -> None:
    with SwitchProcess("--no-p4", "--thrift-port", "9090", *FREE) as process:
        assert process.end() == 0
        assert "--thrift-port means nothing to this switch" in process.said()
