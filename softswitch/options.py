"""The command line of `python -m softswitch`, the same as that of `simple_switch_grpc`."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_EXAMPLES = """
General options come first, options of the P4Runtime server after `--`, as with simple_switch_grpc.

examples:
  python -m softswitch --no-p4 --device-id 1 -i 1@s1-eth1 -i 2@s1-eth2 -- \\
      --grpc-server-addr 127.0.0.1:9559 --cpu-port 510
  python -m softswitch program.json -i 1@veth1 -i 2@veth2 --pcap=/tmp/captures
  python -m softswitch --no-p4 -- --grpc-server-addr 127.0.0.1:0     (picks a free port and prints it)

When packets flow and the server answers, one line of JSON is printed on standard output:
  {"event": "ready", "device_id": 1, "grpc": "127.0.0.1:9559", "ports": {"1": "s1-eth1", "2": "s1-eth2"}}
Everything else goes to standard error. SIGTERM and SIGINT end the switch with exit status 0.
"""

DEFAULT_ADDRESS = "127.0.0.1:9559"
"""BMv2's is 0.0.0.0:9559. Anyone who can reach a P4Runtime server in plain text can replace the program."""

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}

_IGNORED_GENERAL = (
    "--thrift-port",
    "--nanolog",
    "--notifications-addr",
    "--debugger-addr",
    "--max-port-count",
)
_IGNORED_GENERAL_FLAGS = ("--debugger", "--log-flush")
_IGNORED_TARGET = ("--priority-queues", "--max-mc-groups", "--max-l1-entries", "--max-l2-entries")
_IGNORED_TARGET_FLAGS = ("--disable-swap",)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the P4Runtime server.

    Attributes:
        certificate: chain of the server.
        key: private key of the server.
        authority: certificate authority that must have signed the clients' certificates, None for no check.
        require_client: whether clients must present a certificate (mutual TLS).
        allow_open_key: whether users other than its owner may read the key.
    """

    certificate: Path
    key: Path
    authority: Path | None
    require_client: bool
    allow_open_key: bool


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed command line.

    Attributes:
        interfaces: (port number, interface name) pairs.
        device_id: P4Runtime device id.
        program: BMv2 JSON to start with, None to wait for a client's.
        pcap_dir: directory for captures, None for none.
        log_level: level of the `logging` module.
        log_file: file for the log, None for standard error.
        grpc_address: `host:port` or `unix:/path` of the P4Runtime server.
        tls: its PEM files, None for plain text.
        cpu_port: port of packet-in and packet-out, None for none.
        drop_port: port that stands for "drop".
        ignored: given options of BMv2 that have no effect here.
    """

    interfaces: tuple[tuple[int, str], ...]
    device_id: int
    program: Path | None
    pcap_dir: Path | None
    log_level: int
    log_file: Path | None
    grpc_address: str
    tls: TlsFiles | None
    cpu_port: int | None
    drop_port: int
    ignored: tuple[str, ...]


def parse_options(argv: Sequence[str]) -> Options:
    """Return the options of a command line (without the program's name).

    Raises:
        SystemExit: status 0 after `--help`, 2 after an error that was printed on standard error.
    """
    arguments = list(argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    # A bare --pcap means the current directory; argparse would take the next argument as its value.
    words = ["--pcap=." if word == "--pcap" else word for word in arguments[:cut]]
    parser, target_parser = _general_parser(), _target_parser()
    general = parser.parse_args(words)
    target = target_parser.parse_args(arguments[cut + 1 :])
    if general.program is None and not general.no_p4:
        parser.error("give a BMv2 JSON file, or --no-p4 to wait for a P4Runtime client's program")
    ignored = [name for name in (*_IGNORED_GENERAL, *_IGNORED_GENERAL_FLAGS) if _given(general, name)]
    ignored += [name for name in (*_IGNORED_TARGET, *_IGNORED_TARGET_FLAGS) if _given(target, name)]
    if general.no_p4 and general.program is not None:
        ignored.append(str(general.program))
    _check_interfaces(parser, general.interface, target.cpu_port)
    if target.cpu_port == target.drop_port:
        target_parser.error(f"port {target.cpu_port} is the drop port and cannot be the CPU port")
    if general.pcap is not None and not general.pcap.is_dir():
        parser.error(f"--pcap: directory {str(general.pcap)!r} does not exist")
    level = general.log_level or ("info" if general.log_console or general.log_file else "warn")
    return Options(
        interfaces=tuple(general.interface),
        device_id=general.device_id,
        program=None if general.no_p4 else general.program,
        pcap_dir=general.pcap,
        log_level=_LEVELS[level],
        log_file=general.log_file,
        grpc_address=target.grpc_server_addr,
        tls=_tls(target_parser, target),
        cpu_port=target.cpu_port,
        drop_port=target.drop_port,
        ignored=tuple(ignored),
    )


def _general_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m softswitch",
        usage="python -m softswitch [options] (--no-p4 | FILE.json) [-- server options]",
        description="A software switch that runs compiled P4 (BMv2 JSON) and serves P4Runtime.",
        epilog=_EXAMPLES + "\n" + _target_parser().format_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("program", nargs="?", type=Path, metavar="FILE.json", help="BMv2 JSON to start with")
    parser.add_argument(
        "-i",
        "--interface",
        action="append",
        default=[],
        type=_interface,
        metavar="PORT@IFACE",
        help="attach network interface IFACE as port PORT; repeatable",
    )
    parser.add_argument(
        "--device-id",
        type=_number(0, 2**64 - 1),
        default=0,
        metavar="ID",
        help="device id (default 0, like BMv2)",
    )
    parser.add_argument("--no-p4", action="store_true", help="start without a program")
    parser.add_argument(
        "--pcap",
        type=Path,
        metavar="DIR",
        help="write IFACE_in.pcap and IFACE_out.pcap; --pcap=DIR, or --pcap for the current directory",
    )
    parser.add_argument("--log-console", action="store_true", help="log to standard error")
    parser.add_argument("--log-file", type=Path, metavar="FILE", help="log to a file")
    parser.add_argument(
        "-L",
        "--log-level",
        choices=list(_LEVELS),
        metavar="LEVEL",
        help=f"lowest level that is logged: {', '.join(_LEVELS)}",
    )
    _add_ignored(parser, _IGNORED_GENERAL, _IGNORED_GENERAL_FLAGS)
    return parser


def _target_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m softswitch ... --",
        usage=argparse.SUPPRESS,
        description="server options, after `--`:",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--grpc-server-addr",
        type=_address,
        default=DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help=f"address of the P4Runtime server (default {DEFAULT_ADDRESS}, for this host only); port 0 picks a free "
        "one, and unix:/PATH is a socket in the file system, reachable from every network namespace",
    )
    parser.add_argument("--cpu-port", type=_number(1, 511), metavar="PORT", help="port of packet-in and packet-out")
    parser.add_argument(
        "--drop-port", type=_number(0, 511), default=511, metavar="PORT", help="drop port (default 511)"
    )
    parser.add_argument("--grpc-server-ssl", action="store_true", help="serve TLS")
    parser.add_argument("--grpc-server-cert", type=Path, metavar="PEM", help="certificate of the server")
    parser.add_argument("--grpc-server-key", type=Path, metavar="PEM", help="private key of the server")
    parser.add_argument(
        "--grpc-server-cacert", type=Path, metavar="PEM", help="authority that signs the clients' certificates"
    )
    parser.add_argument("--grpc-server-with-client-auth", action="store_true", help="clients must have a certificate")
    parser.add_argument(
        "--tls-allow-open-key",
        action="store_true",
        help="accept a private key that users other than its owner can read",
    )
    _add_ignored(parser, _IGNORED_TARGET, _IGNORED_TARGET_FLAGS)
    return parser


def _add_ignored(parser: argparse.ArgumentParser, valued: Sequence[str], flags: Sequence[str]) -> None:
    for name in valued:
        parser.add_argument(name, default=None, help=argparse.SUPPRESS)
    for name in flags:
        parser.add_argument(name, action="store_const", const="given", default=None, help=argparse.SUPPRESS)


def _given(namespace: argparse.Namespace, option: str) -> bool:
    return getattr(namespace, option.lstrip("-").replace("-", "_")) is not None


def _check_interfaces(
    parser: argparse.ArgumentParser, interfaces: Sequence[tuple[int, str]], cpu_port: int | None
) -> None:
    numbers = [number for number, _ in interfaces]
    names = [name for _, name in interfaces]
    for number, name in interfaces:
        if numbers.count(number) > 1:
            parser.error(f"port {number} is given more than once")
        if names.count(name) > 1:
            parser.error(f"interface {name} is given more than once")
        if number == cpu_port:
            parser.error(f"port {number} is the CPU port; interface {name} needs another one")


def _tls(parser: argparse.ArgumentParser, target: argparse.Namespace) -> TlsFiles | None:
    if not target.grpc_server_ssl:
        if target.grpc_server_cert or target.grpc_server_key or target.grpc_server_cacert:
            parser.error("PEM files are given without --grpc-server-ssl; the server would be in plain text")
        if target.grpc_server_with_client_auth:
            parser.error("--grpc-server-with-client-auth needs --grpc-server-ssl")
        return None
    if target.grpc_server_cert is None or target.grpc_server_key is None:
        parser.error("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")
    if target.grpc_server_with_client_auth and target.grpc_server_cacert is None:
        parser.error("--grpc-server-with-client-auth needs --grpc-server-cacert")
    return TlsFiles(
        certificate=target.grpc_server_cert,
        key=target.grpc_server_key,
        authority=target.grpc_server_cacert,
        require_client=target.grpc_server_with_client_auth,
        allow_open_key=target.tls_allow_open_key,
    )


class _number:
    """An argparse type: an integer within bounds."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high

    def __call__(self, text: str) -> int:
        value = int(text, 0) if text.lower().startswith("0x") else int(text)
        if not self._low <= value <= self._high:
            raise argparse.ArgumentTypeError(f"{value} is not in {self._low}..{self._high}")
        return value


def _interface(text: str) -> tuple[int, str]:
    number, separator, name = text.partition("@")
    if not separator or not name or not number.isdecimal() or int(number) > 511:
        raise argparse.ArgumentTypeError(f"{text!r} is not PORT@IFACE with a port in 0..511")
    return int(number), name


def _address(text: str) -> str:
    if text.startswith("unix:/"):
        return text
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is neither HOST:PORT nor unix:/PATH")
    return text
