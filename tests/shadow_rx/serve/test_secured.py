"""The side channel under mutual TLS, over real connections: who gets in, and what everybody else is told."""

from __future__ import annotations

import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import yaml

from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel import side_channel_pb2_grpc as rpc
from checkmate_common.tls import ClientTls, Identity, Role, open_channel, server_name
from nccl_emu.__main__ import main as rank_main
from nccl_emu.errors import SideChannelError
from nccl_emu.shadow_client.side_channel import GrpcSideChannel
from shadow_rx.__main__ import main as shadow_main
from shadow_rx.core import ShadowCore
from shadow_rx.logs.access_log import AccessLog
from shadow_rx.node import ShadowNode
from shadow_rx.peers.driver import PeerDriver
from shadow_rx.serve.guard import Admission
from shadow_rx.serve.metrics import MetricsServer
from shadow_rx.serve.service import ShadowServer
from tests.shadow_rx.twin import Twin, make_layout
from tests.shadow_rx.wire import make_job
from tests.tls_tools import TestCertificates, rank, shadow

EXPECTED = server_name(Role.SHADOW, "test")
R0, R1 = rank("test", "r0"), rank("test", "r1")
OPERATOR = Identity(Role.OPERATOR)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> TestCertificates:
    return TestCertificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/s.sock"


@contextmanager
def serving(
    certificates: TestCertificates | None, address: str = "127.0.0.1:0", **options: object
) -> Iterator[ShadowServer]:
    node = ShadowNode(ShadowCore(make_job(), "sh0"), time.monotonic)
    own = certificates.server(shadow("test", "sh0")) if certificates is not None else None
    server = ShadowServer(node, address, Admission(own, **options))  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.stop(0)
        node.close()


def status(address: str, tls: ClientTls | None) -> pb.Status:
    channel = GrpcSideChannel(address, 20.0, tls)
    try:
        return channel.status("dp0")
    finally:
        channel.close()


def refused(address: str, tls: ClientTls | None) -> SideChannelError:
    begun = time.monotonic()
    with pytest.raises(SideChannelError) as caught:
        status(address, tls)
    assert time.monotonic() - begun < 10, "told at once, not after the timeout"
    return caught.value


def test_a_rank_of_the_job_is_served(certificates: TestCertificates, address: str) -> None:
    with serving(certificates, address) as server:
        assert status(server.address, certificates.client(R1, EXPECTED)).group == "dp0"


def told_by_server(capfd: pytest.CaptureFixture[str]) -> str:
    deadline = time.monotonic() + 5
    text = ""
    while "Handshake failed" not in text and time.monotonic() < deadline:
        text += capfd.readouterr().err
        time.sleep(0.01)
    return text


def test_an_expired_certificate(
    certificates: TestCertificates, address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(certificates, address) as server:
        error = refused(server.address, certificates.client(R0, EXPECTED, expired=True))
        assert error.code == "UNAUTHENTICATED"
        assert error.address == server.address
        assert "certificate has expired" in told_by_server(capfd)
    assert re.search("expired|does it accept our certificate", error.detail)


def test_an_authority_that_the_server_does_not_know(
    certificates: TestCertificates, address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = TestCertificates.make(tmp_path / "other")
    stranger = other.client(R0, EXPECTED)
    # It knows the server's authority, so that only the server has a reason to refuse.
    stranger = replace(stranger, credentials=replace(stranger.credentials, ca=certificates.authority.pem))
    with serving(certificates, address) as server:
        error = refused(server.address, stranger)
        assert error.code == "UNAUTHENTICATED"
        assert "CERTIFICATE_VERIFY_FAILED" in told_by_server(capfd)
        back = refused(server.address, other.client(R0, EXPECTED))
    assert back.code == "UNAUTHENTICATED"
    assert "its certificate is not accepted: unable to get local issuer certificate" in back.detail


def test_no_certificate(certificates: TestCertificates, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(certificates) as server:
        credentials = grpc.ssl_channel_credentials(certificates.authority.pem)
        with grpc.secure_channel(server.address, credentials) as channel, pytest.raises(grpc.RpcError) as caught:
            rpc.ShadowStub(channel).GetStatus(pb.StatusRequest(group="dp0"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in told_by_server(capfd)


def test_plain_text_to_a_server_with_tls(
    certificates: TestCertificates, address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(certificates, address) as server:
        error = refused(server.address, None)
        assert error.code == "UNAUTHENTICATED"
        assert "--tls-ca" in error.detail
        assert "WRONG_VERSION_NUMBER" in told_by_server(capfd)


def test_tls_to_a_server_in_plain_text(certificates: TestCertificates, address: str) -> None:
    with serving(None, address) as server:
        error = refused(server.address, certificates.client(R0, EXPECTED))
        assert error.code == "UNAUTHENTICATED"
        assert "it speaks plain text, and we speak TLS" in error.detail
        assert status(server.address, None).group == "dp0", "it goes on serving"


def test_another_server_than_the_jobs_shadow(certificates: TestCertificates, address: str) -> None:
    with serving(certificates, address) as server:
        error = refused(server.address, certificates.client(R0, server_name(Role.SHADOW, "other")))
        assert error.code == "UNAUTHENTICATED"
        assert "expected the name shadow.other.checkmate" in error.detail


def test_another_jobs_certificate(certificates: TestCertificates, address: str, tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.jsonl")
    with serving(certificates, address, access_log=log) as server:
        channel = GrpcSideChannel(server.address, 10.0, certificates.client(rank("other", "r0"), EXPECTED))
        twin = Twin(make_job(), make_layout())
        calls = [
            lambda: channel.status("dp0"),
            lambda: channel.attach(twin.attach(1)),
            lambda: channel.upload_state("dp0", 1, twin.state_bytes()),
            lambda: channel.open_flow("dp0", 1, 3, 4000),
            lambda: channel.record_step(pb.StepRecord(group="dp0", epoch=1, step=1, rank=0)),
            lambda: channel.change(pb.ChangeRequest(group="dp0", epoch=1)),
            lambda: channel.recovery_point("dp0"),
            lambda: channel.wait_for_step("dp0", 1, 0.0),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(
                SideChannelError, match="rank r0 of job other may not speak to a shadow node of job"
            ) as c:
                call()
            assert c.value.code == "PERMISSION_DENIED"
        channel.close()
        assert status(server.address, certificates.client(R0, EXPECTED)).epoch == 0, "nothing was taken"
    log.close()
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [line["result"] for line in lines] == ["PERMISSION_DENIED"] * len(calls) + ["OK"]
    assert {line["who"] for line in lines[:-1]} == {"spiffe://checkmate/job/other/rank/r0"}
    assert [line["what"] for line in lines] == [
        "GetStatus", "Attach", "UploadState", "OpenFlow", "RecordStep", "Change", "GetRecoveryPoint", "WaitForStep",
        "GetStatus",
    ]  # fmt: skip
    assert all("may not speak" in line["detail"] for line in lines[:-1])


def test_any_client_serves_whom_the_authority_has_signed(certificates: TestCertificates) -> None:
    with serving(certificates, any_client=True) as server:
        assert status(server.address, certificates.client(rank("other", "r0"), EXPECTED)).group == "dp0"


def test_the_access_log_of_a_job(certificates: TestCertificates, tmp_path: Path) -> None:
    twin = Twin(make_job(), make_layout())
    log = AccessLog(tmp_path / "access.jsonl", clock=lambda: 0.0)
    with serving(certificates, access_log=log) as server:
        channel = GrpcSideChannel(server.address, 10.0, certificates.client(R0, EXPECTED))
        assert channel.attach(twin.attach(1)).need_state
        data = twin.state_bytes()
        channel.upload_state("dp0", 1, data)
        with pytest.raises(SideChannelError, match="rank r0 of job test does not run rank 1"):
            channel.record_step(pb.StepRecord(group="dp0", epoch=1, step=1, rank=1))
        channel.close()
    log.close()
    assert (log.path.stat().st_mode & 0o777) == 0o600
    attach, upload, record = (json.loads(line) for line in log.path.read_text().splitlines())
    assert attach["time"] == "1970-01-01T00:00:00.000+00:00"
    assert (attach["who"], attach["what"], attach["on"], attach["step"]) == (R0.uri, "Attach", "sh0", 1)
    assert attach["peer"].startswith("ipv4:127.0.0.1:")
    assert attach["bytes_in"] == twin.attach(1).ByteSize()
    assert upload["bytes_in"] > len(data)
    assert (record["step"], record["result"]) == (1, "PERMISSION_DENIED")


def test_without_tls_the_log_has_addresses(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.jsonl")
    with serving(None, access_log=log) as server:
        status(server.address, None)
    log.close()
    line = json.loads(log.path.read_text())
    assert (line["who"], line["what"], line["group"], line["result"]) == ("anonymous", "GetStatus", "dp0", "OK")


@pytest.mark.parametrize("secured", [True, False])
def test_what_cannot_be_read_and_what_there_is_not_is_logged(
    certificates: TestCertificates, tmp_path: Path, secured: bool
) -> None:
    log = AccessLog(tmp_path / "access.jsonl")

    def said(channel: grpc.Channel, call: str, data: bytes) -> str:
        ask = channel.unary_unary(f"/checkmate.v1.Shadow/{call}", lambda raw: raw, lambda raw: raw)
        with pytest.raises(grpc.RpcError) as refused:
            ask(data, timeout=10)
        return str(refused.value.code().name)

    calls = [("GetStatus", b"\xff\xff"), ("Attach", b"\x0a\xff"), ("UploadState", b"\xff"), ("GetFrames", b"\x07"),
             ("Nope", b"\xff\xff"), ("GetRecoveryPoint_", b"")]  # fmt: skip
    with (
        serving(certificates if secured else None, access_log=log) as server,
        open_channel(server.address, certificates.client(OPERATOR, EXPECTED) if secured else None) as channel,
    ):
        codes = [said(channel, call, data) for call, data in calls]
    log.close()
    assert codes == ["INVALID_ARGUMENT"] * 4 + ["UNIMPLEMENTED"] * 2
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [(line["what"], line["result"]) for line in lines] == [
        (call, code) for (call, _), code in zip(calls, codes, strict=True)
    ]
    assert {line["who"] for line in lines} == {OPERATOR.uri if secured else "anonymous"}


def test_peers_under_tls(certificates: TestCertificates) -> None:
    """A shadow node of another job is refused, and both are told."""
    job = make_job(shadows=2)
    node = ShadowNode(ShadowCore(job, "sh1"), time.monotonic)
    with serving(certificates) as server:
        for identity, code in ((shadow("test", "sh0"), None), (shadow("other", "sh1"), "PERMISSION_DENIED")):
            tls = certificates.client(identity, EXPECTED)
            driver = PeerDriver(node, {"sh0": server.address}, tls)
            peer = driver._peers["sh0"]
            request = pb.FramesRequest(job="test", group="dp0", epoch=1, step=1)
            if code is None:
                assert list(peer.frames(request)) == []
                assert peer.trouble is None
            else:
                with pytest.raises(ConnectionError, match=code):
                    list(peer.frames(request))
                assert peer.trouble == "shadow sh1 of job other may not speak to a shadow node of job test"
            peer.close()
    node.close()


def test_metrics_are_for_operators(certificates: TestCertificates, tmp_path: Path) -> None:
    node = ShadowNode(ShadowCore(make_job(), "sh0"), time.monotonic)
    log = AccessLog(tmp_path / "access.jsonl")
    own = certificates.server(shadow("test", "sh0"))
    server = MetricsServer(node, "127.0.0.1:0", Admission(own, access_log=log))
    url = f"https://{server.address}/metrics"

    def scrape(identity: Identity | None) -> bytes:
        context = ssl.create_default_context(cadata=certificates.authority.pem.decode())
        if identity is not None:
            files = certificates.options(identity)
            assert files.cert is not None
            context.load_cert_chain(files.cert, files.key)
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:
            return bytes(answer.read())

    try:
        assert b"checkmate_shadow_" in scrape(OPERATOR)
        assert b"checkmate_shadow_" in scrape(Identity(Role.OPERATOR, "test"))
        for stranger in (R0, Identity(Role.OPERATOR, "other")):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                scrape(stranger)
        with pytest.raises(OSError, match=r"(?i)certificate required|reset|closed|EOF"):
            scrape(None)
        with pytest.raises(OSError, match=r"(?i)reset|closed|remote end"):
            urllib.request.urlopen(url.replace("https", "http"), timeout=10)
    finally:
        server.stop()
        node.close()
    log.close()
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert sorted((line["who"], line["result"]) for line in lines) == sorted([
        (OPERATOR.uri, "OK"), (Identity(Role.OPERATOR, "test").uri, "OK"), (R0.uri, "PERMISSION_DENIED"),
        (Identity(Role.OPERATOR, "other").uri, "PERMISSION_DENIED"), ("anonymous", "UNAUTHENTICATED"),
        ("anonymous", "UNAUTHENTICATED"),
    ])  # fmt: skip


def test_an_operator_sees_the_status_of_all_groups(certificates: TestCertificates) -> None:
    with serving(certificates) as server:
        for identity, allowed in ((OPERATOR, True), (R0, False)):
            with open_channel(server.address, certificates.client(identity, EXPECTED)) as channel:
                ask = rpc.ShadowStub(channel).GetNodeStatus
                if allowed:
                    assert [group.group for group in ask(pb.NodeStatusRequest(), timeout=10).groups] == ["dp0"]
                else:
                    with pytest.raises(grpc.RpcError, match="rank r0 of job test may not call GetNodeStatus"):
                        ask(pb.NodeStatusRequest(), timeout=10)


@pytest.mark.parametrize("program", [shadow_main, rank_main])
def test_a_key_that_others_can_read_is_refused_by_every_program(
    certificates: TestCertificates, tmp_path: Path, capsys: pytest.CaptureFixture[str], program: Callable[..., int]
) -> None:
    files = certificates.options(R0)
    assert files.key is not None
    key = tmp_path / "open.key"
    key.write_bytes(files.key.read_bytes())
    key.chmod(0o640)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(make_job().model_dump(mode="json")))
    options = {"--job": tmp_path / "job.yaml", "--iface": "lo", "--tls-ca": files.ca, "--tls-cert": files.cert,
               "--tls-key": key}  # fmt: skip
    if program is shadow_main:
        options |= {"--shadow": "sh0", "--listen": "127.0.0.1:0"}
    else:
        options |= {"--group": "dp0", "--rank": "0", "--side-channel": "127.0.0.1:1", "--iterations": "1",
                    "--out": tmp_path / "out"}  # fmt: skip
    assert program([str(part) for pair in options.items() for part in pair]) != 0
    assert "(mode 0640)" in capsys.readouterr().err
