"""P4Runtime under mutual TLS, on both switches: who gets in, and what everybody else is told."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checkmate.cli import app
from checkmate_common.tls import ClientTls, Identity, Role
from checkmate_common.tls.options import TlsOptions
from controlplane.controller import ControllerCore, ControllerEvent, EventKind
from controlplane.controller_driver import ControllerDriver
from controlplane.desired import desired_state
from controlplane.errors import ControlPlaneError, ErrorKind
from controlplane.target import Target
from jobspec.certificates import CertificateSet
from jobspec.loader import load_job
from jobspec.model import SwitchSpec
from softswitch.p4rt import Device, serve
from tests.tls_tools import TestCertificates
from topology.fabric.run_tls import RunTls
from topology.processes.switch_process import start_switch

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"
CONTROLLER, SWITCH = Identity(Role.CONTROLLER), Identity(Role.SWITCH, name="s1")
SPEC = SwitchSpec(ports=[1])


def run_tls(made: TestCertificates) -> RunTls:
    """Return the certificates of a test as those of a run."""
    return RunTls("digits", _Made(made))


class _Made(CertificateSet):
    def __init__(self, made: TestCertificates) -> None:
        super().__init__(made.folder)
        object.__setattr__(self, "made", made)

    def options(self, identity: Identity) -> TlsOptions:
        made: TestCertificates = self.made  # type: ignore[attr-defined]
        return made.options(identity)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> TestCertificates:
    return TestCertificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=["softswitch", "bmv2"])
def switch(
    request: pytest.FixtureRequest, certificates: TestCertificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """Yield the address of a switch, and its log."""
    if request.param == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("BMv2 is not installed")
    folder = tmp_path_factory.mktemp("switch")
    log = folder / "switch.log"
    child, address = start_switch(request.param, SPEC, {}, folder, log, tls=run_tls(certificates))
    yield address, log
    child.stop()


def refused(address: str, tls: ClientTls | None) -> ControlPlaneError:
    begun = time.monotonic()
    with pytest.raises(ControlPlaneError) as caught:
        Target.connect(address, 1, tls=tls)
    assert time.monotonic() - begun < 8
    assert caught.value.kind is ErrorKind.TLS
    return caught.value


def test_a_controller_installs_a_job(switch: tuple[str, Path], certificates: TestCertificates) -> None:
    with Target.connect(switch[0], 1, election_id=1, tls=certificates.client(CONTROLLER, None)) as target:
        assert target.install(desired_state([load_job(EXAMPLE)])).plan.updates


def test_who_is_refused(switch: tuple[str, Path], certificates: TestCertificates, tmp_path: Path) -> None:
    address, log = switch
    plain = refused(address, None)
    assert "--tls-ca" in str(plain)
    other = TestCertificates.make(tmp_path).client(CONTROLLER, None)
    assert "its certificate is not accepted" in str(refused(address, other))
    stranger = replace(other, credentials=replace(other.credentials, ca=certificates.authority.pem))
    refused(address, stranger)
    refused(address, certificates.client(CONTROLLER, None, expired=True))
    assert "expected the name switch.example.org" in str(
        refused(address, certificates.client(CONTROLLER, "switch.example.org"))
    )
    deadline = time.monotonic() + 5
    while "andshake failed" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "andshake failed" in log.read_text(), "the switch says so too"


def test_tls_to_a_switch_in_plain_text(certificates: TestCertificates) -> None:
    with serve(Device(1)) as server:
        error = refused(server.address, certificates.client(CONTROLLER, None))
    assert "it speaks plain text, and we speak TLS" in str(error)


def test_the_commands(switch: tuple[str, Path], certificates: TestCertificates) -> None:
    said = certificates.options(CONTROLLER)
    words = ["switch", "install", str(EXAMPLE), "--target", switch[0], *said.arguments()]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    variables = {
        "CHECKMATE_TLS_CA": str(said.ca),
        "CHECKMATE_TLS_CERT": str(said.cert),
        "CHECKMATE_TLS_KEY": str(said.key),
    }
    done = CliRunner().invoke(app, ["switch", "diff", str(EXAMPLE), "--target", switch[0]], env=variables)
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["switch", "show", "--target", switch[0], "--json"])
    assert done.exit_code == 2
    assert json.loads(done.output)["error"]["kind"] == "tls"
    done = CliRunner().invoke(app, ["switch", "show", "--target", switch[0], "--tls-ca", str(said.ca)])
    assert done.exit_code == 2
    assert "--tls-cert and --tls-key: is missing" in done.output


@contextmanager
def controlled(
    address: str, tls: ClientTls | None, seen: Callable[[ControllerEvent], None]
) -> Iterator[ControllerDriver]:
    core = ControllerCore([address], desired_state([load_job(EXAMPLE)]))
    with ControllerDriver(core, 1, tls=tls, on_event=seen) as driver:
        yield driver


def test_a_controller_waits_for_a_switch_under_tls_and_says_why_one_refuses_it(
    certificates: TestCertificates, tmp_path: Path
) -> None:
    said: list[ControllerEvent] = []
    with serve(Device(1)) as plain:
        address = plain.address
        with controlled(address, certificates.client(CONTROLLER, None), said.append) as driver:
            assert driver.wait(lambda core: any(event.kind is EventKind.TROUBLE for event in said), 20)
            assert "it speaks plain text" in next(e for e in said if e.kind is EventKind.TROUBLE).message
            plain.close(0)
            child, _ = start_switch("softswitch", SPEC, {}, tmp_path, tmp_path / "log", address, run_tls(certificates))
            try:
                assert driver.wait_ready(30)
            finally:
                child.stop()


def test_a_switch_with_a_wrong_key_does_not_start(certificates: TestCertificates) -> None:
    own, other = certificates.options(SWITCH), certificates.options(CONTROLLER)
    command = [sys.executable, "-m", "softswitch", "--no-p4", "--", "--grpc-server-addr", "127.0.0.1:0"]
    command += ["--grpc-server-ssl", "--grpc-server-cert", str(own.cert), "--grpc-server-key", str(other.key)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"{other.key}: " in done.stderr
