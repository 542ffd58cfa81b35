"""Running the switch as a program."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from types import FrameType

import grpc

from checkmate_common.files.regular_files import read_bounded
from checkmate_common.tls.errors import TlsError
from checkmate_common.tls.files import check_owner, read_authorities, read_pair
from softswitch.driver import SwitchDriver
from softswitch.errors import SwitchError
from softswitch.netio import EthernetPort
from softswitch.options import Options, TlsFiles, parse_options
from softswitch.p4rt import Device, P4RuntimeError, ServerHandle, serve
from softswitch.program.limits import MAX_TEXT

_OPEN = (
    "anyone who can reach it can replace the program; use --grpc-server-ssl with --grpc-server-with-client-auth, "
    "or --grpc-server-addr 127.0.0.1:PORT"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the switch until SIGTERM or SIGINT.

    Args:
        argv: arguments without the program's name; None: those of the process.

    Returns:
        The exit status: 0 after a signal, 1 if the switch could not start or failed.
    """
    options = parse_options(sys.argv[1:] if argv is None else argv)
    log = logging.Logger("softswitch", options.log_level)
    try:
        _add_handler(log, options)
        for name in options.ignored:
            log.warning("%s has no effect on this switch and is ignored", name)
        _run(options, log)
    except (SwitchError, P4RuntimeError, TlsError) as error:
        _explain(log, str(error))
        return 1
    except OSError as error:
        _explain(log, f"{error.filename or 'input/output'}: {error.strerror or error}")
        return 1
    except Exception as error:
        log.critical("the switch failed", exc_info=True)
        _explain(log, f"the switch failed: {type(error).__name__}: {error}")
        return 1
    return 0


def is_local(address: str) -> bool:
    """Return whether a server's address can be reached only from its own host."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = {str(item[4][0]) for item in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(item.partition("%")[0]).is_loopback for item in found)


def _end(server: ServerHandle, log: logging.Logger) -> None:
    """Close the server; end the process at once if a request is still running that nobody waits for."""
    if not server.close():
        log.error("ending although requests are still running")
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _run(options: Options, log: logging.Logger) -> None:
    start_ns = time.monotonic_ns()
    device = Device(
        options.device_id,
        cpu_port=options.cpu_port,
        drop_port=options.drop_port,
        time_origin_ns=time.time_ns(),
    )
    if options.program is not None:
        device.load(read_bounded(options.program, MAX_TEXT))
    with ExitStack() as stack:
        ports: list[EthernetPort] = []
        for number, interface in options.interfaces:
            port = EthernetPort(number, interface)
            stack.callback(port.socket.close)
            ports.append(port)
        driver = SwitchDriver(device, ports, log=log, start_ns=start_ns, pcap_dir=options.pcap_dir)
        stack.callback(driver.close)
        server = serve(device, options.grpc_address, credentials=_credentials(options.tls), log=log)
        stack.callback(_end, server, log)

        def stop(number: int, _: FrameType | None) -> None:
            log.info("ending after %s", signal.Signals(number).name)
            driver.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            stack.callback(signal.signal, number, signal.signal(number, stop))
        ready = {
            "event": "ready",
            "device_id": options.device_id,
            "grpc": server.address,
            "ports": {str(port.number): port.interface for port in ports},
        }
        if options.tls is None and not is_local(options.grpc_address):
            ready["warning"] = f"P4Runtime at {server.address} is in plain text and open to other hosts: {_OPEN}"
            print(f"softswitch WARNING: {ready['warning']}", file=sys.stderr, flush=True)
        print(json.dumps(ready), flush=True)
        log.info("ready: P4Runtime at %s, ports %s", server.address, ready["ports"])
        driver.run()


def _credentials(tls: TlsFiles | None) -> grpc.ServerCredentials | None:
    if tls is None:
        return None
    now = datetime.now(UTC)
    authority = read_authorities(tls.authority, now) if tls.authority is not None else None
    certificate, key = read_pair(tls.certificate, tls.key, now)
    if not tls.allow_open_key:
        check_owner(tls.key)
    return grpc.ssl_server_credentials(
        [(key, certificate)],
        root_certificates=authority,
        require_client_auth=tls.require_client,
    )


def _add_handler(log: logging.Logger, options: Options) -> None:
    handler: logging.Handler = (
        logging.FileHandler(options.log_file, encoding="utf-8")
        if options.log_file is not None
        else logging.StreamHandler(sys.stderr)
    )
    handler.setFormatter(logging.Formatter("%(asctime)s softswitch %(levelname)s: %(message)s"))
    log.addHandler(handler)


def _explain(log: logging.Logger, text: str) -> None:
    """Report why the switch did not start: in the log, and always on standard error too."""
    log.critical("%s", text)
    if not any(getattr(handler, "stream", None) is sys.stderr for handler in log.handlers):
        print(f"softswitch CRITICAL: {text}", file=sys.stderr)
