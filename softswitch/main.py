"""Starting and ending the switch as a program of its own."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from types import FrameType

import grpc

from jobspec.tls.errors import TlsError
from jobspec.tls.files import check_owner, read_authorities, read_pair
from softswitch.driver import SwitchDriver
from softswitch.errors import SwitchError
from softswitch.netio import EthernetPort
from softswitch.options import Options, TlsFiles, parse_options
from softswitch.p4rt import Device, P4RuntimeError, serve


def main(argv: Sequence[str] | None = None) -> int:
    """Run the switch until SIGTERM or SIGINT.

    Args:
        argv: arguments without the program's name; None takes those of the process.

    Returns:
        The exit status: 0 after a signal, 1 when the switch could not start.
    """
    options = parse_options(sys.argv[1:] if argv is None else argv)
    log = logging.Logger("softswitch", options.log_level)
    try:
        _add_handler(log, options)
        for name in options.ignored:
            log.warning("%s means nothing to this switch and is ignored", name)
        _run(options, log)
    except (SwitchError, P4RuntimeError, TlsError) as error:
        _explain(log, str(error))
        return 1
    except OSError as error:
        _explain(log, f"{error.filename or 'input/output'}: {error.strerror or error}")
        return 1
    return 0


def _run(options: Options, log: logging.Logger) -> None:
    start_ns = time.monotonic_ns()
    device = Device(
        options.device_id,
        cpu_port=options.cpu_port,
        drop_port=options.drop_port,
        time_origin_ns=time.time_ns(),
    )
    if options.program is not None:
        device.load(options.program.read_bytes())
    with ExitStack() as stack:
        ports: list[EthernetPort] = []
        for number, interface in options.interfaces:
            port = EthernetPort(number, interface)
            stack.callback(port.close)
            ports.append(port)
        driver = SwitchDriver(device, ports, log=log, start_ns=start_ns, pcap_dir=options.pcap_dir)
        stack.callback(driver.close)
        server = serve(device, options.grpc_address, credentials=_credentials(options.tls, log))
        stack.callback(server.close)

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
        print(json.dumps(ready), flush=True)
        log.info("ready: P4Runtime at %s, ports %s", server.address, ready["ports"])
        driver.run()


def _credentials(tls: TlsFiles | None, log: logging.Logger) -> grpc.ServerCredentials | None:
    if tls is None:
        return None
    now = datetime.now(UTC)
    authority = read_authorities(tls.authority, now) if tls.authority is not None else None
    certificate, key = read_pair(tls.certificate, tls.key, now)
    try:
        check_owner(tls.key)
    except TlsError:  # only told: BMv2, whose command line this is, takes any
        log.warning("%s is open to others than its owner; run chmod 600 on it", tls.key)
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
    """Say why the switch did not start: in the log, and always on standard error too."""
    log.critical("%s", text)
    if not any(getattr(handler, "stream", None) is sys.stderr for handler in log.handlers):
        print(f"softswitch CRITICAL: {text}", file=sys.stderr)
