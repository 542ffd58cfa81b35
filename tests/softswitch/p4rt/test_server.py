"""Servers in a process: several at a time, taken addresses, too many streams, TLS, and how they end."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r

from softswitch.p4rt import Code, Device, P4RuntimeError, serve
from softswitch.p4rt.server import MAX_STREAMS
from tests.softswitch.p4rt_client import Call, Controller, dmac, ether, load_config, mac, status_of


def test_several_servers_in_one_process_are_independent() -> None:
    with ExitStack() as stack:
        devices = [Device(number) for number in (1, 1, 7)]
        servers = [stack.enter_context(serve(device)) for device in devices]
        assert len({server.port for server in servers}) == 3
        for number, (device, server) in enumerate(zip(devices, servers, strict=True)):
            client = stack.enter_context(Controller(server.address, device.device_id))
            client.arbitrate(1)
            client.set_pipeline(Call.VERIFY_AND_COMMIT, load_config())
            client.insert(dmac(1, number))
        frame = ether(mac(1), mac(2))
        assert [device.inject(9, frame, 0) for device in devices] == [[(n, frame)] for n in range(3)]


def test_taken_address_is_refused_and_names_it() -> None:
    with serve(Device(1)) as first:
        with pytest.raises(P4RuntimeError, match=first.address) as caught:
            serve(Device(2), first.address)
        assert caught.value.code is Code.FAILED_PRECONDITION
        with Controller(first.address) as client:
            assert client.arbitrate(1) == Code.OK
    with serve(Device(3), first.address) as again:
        assert again.port == first.port


def test_address_of_another_host_is_refused() -> None:
    with pytest.raises(P4RuntimeError, match=r"cannot listen on 192\.0\.2\.1:0"):
        serve(Device(1), "192.0.2.1:0")


def test_capabilities() -> None:
    with serve(Device(4)) as server, Controller(server.address, 4) as client:
        for device_id in (0, 4):
            answer = client.stub.Capabilities(p4r.CapabilitiesRequest(device_id=device_id))
            assert answer.p4runtime_api_version == "1.4.0"
        with pytest.raises(grpc.RpcError) as caught:
            client.stub.Capabilities(p4r.CapabilitiesRequest(device_id=5))
        assert status_of(caught.value)[0] == "NOT_FOUND"


def test_one_stream_too_many_is_refused_and_unary_calls_still_work() -> None:
    with serve(Device(1)) as server, ExitStack() as stack:
        clients = [stack.enter_context(Controller(server.address)) for _ in range(MAX_STREAMS)]
        for number, client in enumerate(clients):
            client.arbitrate(number)
        last = stack.enter_context(Controller(server.address))
        last.send(arbitration=last.arbitration(99))
        assert last.stream_error()[0] == "RESOURCE_EXHAUSTED"
        clients[-1].set_pipeline(Call.VERIFY_AND_COMMIT, load_config())
        clients[0].close()
        # The place is free again once the server has seen the end of the stream.
        for _ in range(1000):
            late = stack.enter_context(Controller(server.address))
            late.send(arbitration=late.arbitration(99))
            try:
                late.receive("arbitration")
            except AssertionError:
                continue
            break
        else:
            pytest.fail("the place of the closed stream never became free")


def test_close_ends_streams_and_refuses_new_calls() -> None:
    server = serve(Device(1))
    with Controller(server.address) as client:
        client.arbitrate(1)
        server.close()
        assert client.stream_error() == ("UNAVAILABLE", "the switch is shutting down")
        with pytest.raises(grpc.RpcError) as caught:
            client.get_pipeline()
        assert status_of(caught.value)[0] == "UNAVAILABLE"
    server.close()


def test_message_of_a_stream_that_has_ended_does_not_revive_it() -> None:
    """A reader thread may hand over a message after its RPC has ended."""
    device = Device(1)
    received: list[p4r.StreamMessageResponse] = []

    def deliver(message: p4r.StreamMessageResponse) -> bool:
        received.append(message)
        return True

    def arbitration() -> p4r.StreamMessageRequest:
        update = p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=5))
        return p4r.StreamMessageRequest(arbitration=update)

    ghost = device.open_stream(deliver)
    device.close_stream(ghost)
    device.receive(ghost, arbitration())
    assert received == []
    device.receive(device.open_stream(deliver), arbitration())
    assert [message.arbitration.status.code for message in received] == [Code.OK]


def test_client_that_vanishes_without_a_word_is_noticed() -> None:
    with serve(Device(1)) as server, Controller(server.address) as watcher:
        gone = Controller(server.address)
        gone.arbitrate(5)
        watcher.arbitrate(3)
        gone.channel.close()
        assert watcher.receive("arbitration").status.code == Code.NOT_FOUND


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=60)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_mutual_tls(tmp_path: Path) -> None:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(tmp_path, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    (tmp_path / "san").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    for name in ("server", "client"):
        openssl(tmp_path, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "san")
        openssl(tmp_path, "x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")

    def pem(name: str) -> bytes:
        return (tmp_path / name).read_bytes()

    credentials = grpc.ssl_server_credentials(
        [(pem("server.key"), pem("server.pem"))], root_certificates=pem("ca.pem"), require_client_auth=True
    )
    known = grpc.ssl_channel_credentials(pem("ca.pem"), pem("client.key"), pem("client.pem"))
    unknown = grpc.ssl_channel_credentials(pem("ca.pem"))
    with serve(Device(1), credentials=credentials) as server:
        with Controller(server.address, credentials=known) as client:
            assert client.arbitrate(1) == Code.OK
        with Controller(server.address, credentials=unknown) as stranger:
            stranger.send(arbitration=stranger.arbitration(2))
            assert stranger.stream_error()[0] == "UNAVAILABLE"


def test_requests_that_cannot_be_read_are_counted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with serve(Device(1)) as server, grpc.insecure_channel(server.address) as channel:
        write = channel.unary_unary("/p4.v1.P4Runtime/Write")
        stream = channel.stream_stream("/p4.v1.P4Runtime/StreamChannel")
        for number in range(9):
            call = (lambda data: list(stream(iter([data])))) if number % 2 else write
            with pytest.raises(grpc.RpcError) as caught:
                call(b"\xff" * 9)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    told = [record.getMessage() for record in caplog.records]
    assert [int(text.split("so far ")[1].split()[0]) for text in told] == [1, 2, 4, 8]
    assert "WriteRequest" in told[0]
    assert "StreamMessageRequest" in told[1]
    assert all("127.0.0.1" in text for text in told)
