"""The switch as a process without interfaces: start, ready line, server, end. Needs no rights."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from checkmate_common.tls import Identity, Role
from softswitch.main import is_local
from softswitch.p4rt import Device, serve
from tests.softswitch.p4rt_client import PROGRAMS, Call, Controller, load_config
from tests.softswitch.switch_process import ROOT, SwitchProcess, run_to_end
from tests.tls_tools import TestCertificates

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
    assert f"cannot listen on {server.address}" in result.stderr


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
        assert "--thrift-port has no effect" in process.said()


@pytest.mark.parametrize("method", ["StreamChannel", "Write", "Read", "SetForwardingPipelineConfig"])
def test_requests_that_are_no_messages_are_refused_and_do_not_keep_the_switch_from_ending(method: str) -> None:
    with SwitchProcess("--no-p4", *FREE) as process, grpc.insecure_channel(process.ready["grpc"]) as channel:
        call = channel.stream_stream(f"/p4.v1.P4Runtime/{method}", lambda data: data, lambda data: data)
        for _ in range(8):  # gRPC itself loses about every second of them
            with pytest.raises(grpc.RpcError) as caught:
                list(call(iter([b"\xff\xff\xff"]), timeout=10))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert process.end() == 0


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:0", True),
        ("127.5.6.7:9559", True),
        ("[::1]:0", True),
        ("unix:/tmp/socket", True),
        ("0.0.0.0:9559", False),
        ("[::]:9559", False),
        ("192.0.2.1:9559", False),
        ("no-such-host.invalid:9559", False),
    ],
)
def test_which_addresses_other_hosts_cannot_reach(address: str, local: bool) -> None:
    assert is_local(address) == local


def test_plain_text_for_other_hosts_is_said_loudly() -> None:
    with SwitchProcess("--no-p4", "-L", "off", "--", "--grpc-server-addr", "0.0.0.0:0") as process:
        assert "plain text" in process.ready["warning"]
        assert process.wait_for_text("WARNING: P4Runtime at 0.0.0.0:")
        assert process.end() == 0


def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    files = TestCertificates.make(tmp_path).options(Identity(Role.SWITCH, name="s1")).files()
    assert files is not None
    files.key.chmod(0o640)
    pem = ("--grpc-server-cert", str(files.cert), "--grpc-server-key", str(files.key))
    result = run_to_end("--no-p4", *FREE, "--grpc-server-ssl", *pem)
    assert (result.returncode, result.stdout) == (1, "")
    assert "(mode 0640)" in result.stderr
    with SwitchProcess("--no-p4", *FREE, "--grpc-server-ssl", *pem, "--tls-allow-open-key") as process:
        assert process.end() == 0


def test_the_command_line_program_hands_over_everything_after_its_name() -> None:
    """`--` too, which the parser of the program around it would take for itself."""
    program = [sys.executable, "-m", "checkmate.cli", "softswitch"]
    shown = subprocess.run([*program, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "simple_switch_grpc" in shown.stdout
    words = ["--no-p4", "--device-id", "5", "--", "--grpc-server-addr", "127.0.0.1:0", "--cpu-port", "510"]
    with subprocess.Popen([*program, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b'"device_id": 5' in process.stdout.readline()
        process.terminate()
        assert process.wait(30) == 0
