"""The command line, without starting anything."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from softswitch.options import Options, TlsFiles, parse_options


def test_everything_at_once(tmp_path: Path) -> None:
    arguments = ["--no-p4", "-i", "1@veth1", "--interface", "2@s1-eth2", "--device-id", "7"]
    arguments += [f"--pcap={tmp_path}", "--log-console", "--thrift-port", "9090", "--nanolog", "ipc:///x"]
    server = ["--grpc-server-addr", "10.0.0.1:9559", "--cpu-port", "255", "--drop-port", "500"]
    assert parse_options([*arguments, "--", *server, "--priority-queues", "8"]) == Options(
        interfaces=((1, "veth1"), (2, "s1-eth2")),
        device_id=7,
        program=None,
        pcap_dir=tmp_path,
        log_level=logging.INFO,
        log_file=None,
        grpc_address="10.0.0.1:9559",
        tls=None,
        cpu_port=255,
        drop_port=500,
        ignored=("--thrift-port", "--nanolog", "--priority-queues"),
    )


def test_defaults_are_those_of_bmv2_but_for_the_address() -> None:
    options = parse_options(["program.json"])
    assert options.program == Path("program.json")
    assert (options.device_id, options.grpc_address) == (0, "127.0.0.1:9559")
    assert (options.cpu_port, options.drop_port, options.pcap_dir) == (None, 511, None)
    assert options.ignored == ()


def test_bare_pcap_is_the_current_directory_and_takes_no_word() -> None:
    options = parse_options(["--pcap", "program.json"])
    assert (options.pcap_dir, options.program) == (Path(), Path("program.json"))


def test_no_p4_wins_over_a_file_which_is_mentioned() -> None:
    options = parse_options(["--no-p4", "program.json", "-L", "error"])
    assert (options.program, options.ignored, options.log_level) == (None, ("program.json",), logging.ERROR)


def test_unix_socket_and_tls() -> None:
    pem = ["--grpc-server-cert", "c.pem", "--grpc-server-key", "k.pem", "--grpc-server-cacert", "a.pem"]
    server = [
        "--grpc-server-addr",
        "unix:/tmp/x",
        "--grpc-server-ssl",
        *pem,
        "--grpc-server-with-client-auth",
    ]
    options = parse_options(["--no-p4", "--", *server])
    assert options.grpc_address == "unix:/tmp/x"
    files = (Path("c.pem"), Path("k.pem"), Path("a.pem"))
    assert options.tls == TlsFiles(*files, require_client=True, allow_open_key=False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "BMv2 JSON file, or --no-p4"),
        (["--no-p4", "-i", "veth1"], "'veth1' is not PORT@IFACE"),
        (["--no-p4", "-i", "512@veth1"], "'512@veth1' is not PORT@IFACE"),
        (["--no-p4", "--interface=-1@veth1"], "'-1@veth1' is not PORT@IFACE"),
        (["--no-p4", "-i", "1@"], "'1@' is not PORT@IFACE"),
        (["--no-p4", "-i", "1@a", "-i", "1@b"], "port 1 is given more than once"),
        (["--no-p4", "-i", "1@a", "-i", "2@a"], "interface a is given more than once"),
        (["--no-p4", "-i", "9@a", "--", "--cpu-port", "9"], "port 9 is the CPU port"),
        (["--no-p4", "--pcap=/does/not/exist"], "'/does/not/exist' does not exist"),
        (["--no-p4", "--device-id", "x"], "--device-id"),
        (["--no-p4", "--device-id", "-1"], "-1 is not in 0.."),
        (["--no-p4", "--cpu-port", "1"], "unrecognized arguments: --cpu-port"),
        (["--no-p4", "--", "--cpu-port", "0"], "0 is not in 1..511"),
        (["--no-p4", "--", "--cpu-port", "512"], "512 is not in 1..511"),
        (["--no-p4", "--", "--cpu-port", "7", "--drop-port", "7"], "port 7 is the drop port"),
        (["--no-p4", "--", "--grpc-server-addr", "9559"], "'9559' is neither HOST:PORT nor unix:/PATH"),
        (["--no-p4", "--", "--grpc-server-addr", "h:65536"], "'h:65536' is neither"),
        (["--no-p4", "--", "--grpc-server-ssl"], "needs --grpc-server-cert"),
        (["--no-p4", "--", "--grpc-server-cert", "x"], "without --grpc-server-ssl"),
        (["--no-p4", "--", "--grpc-server-with-client-auth"], "needs --grpc-server-ssl"),
        (
            [
                "--no-p4",
                "--",
                "--grpc-server-ssl",
                "--grpc-server-cert",
                "c",
                "--grpc-server-key",
                "k",
                "--grpc-server-with-client-auth",
            ],
            "needs --grpc-server-cacert",
        ),
        (["--no-p4", "--", "--frobnicate"], "--frobnicate"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(arguments)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_help_shows_examples_and_both_groups_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for part in ("examples:", "PORT@IFACE", "--grpc-server-addr", "--cpu-port", '"event": "ready"'):
        assert part in text
    assert "thrift" not in text
