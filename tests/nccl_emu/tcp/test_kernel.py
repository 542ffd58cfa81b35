"""Interoperability with the Linux kernel's TCP over a veth pair between two network namespaces."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from nccl_emu.tcp import TcpConfig, TcpEndpoint, TcpErrorKind, TcpState
from tests.nccl_emu.tcp.kernel_net import KERNEL_IP, OUR_IP, KernelNet, RawDriver, missing
from tests.nccl_emu.tcp.tcp_sim import Side, assert_tags

_REASON = missing()
pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(_REASON is not None, reason=f"kernel TCP interoperability: {_REASON}"),
]

PORT = 7000
ISN = (1 << 32) - 40_000  # wraps during each test
TAGGED = 11


@pytest.fixture(scope="module", params=[1500, 9000])
def net(request: pytest.FixtureRequest) -> Iterator[KernelNet]:
    with KernelNet(request.param) as made:
        yield made


def config(net: KernelNet, **changes: int | float) -> TcpConfig:
    return TcpConfig(**({"mss": net.mtu - 40, "time_wait": 0.05, "syn_dscp": TAGGED} | changes))  # type: ignore[arg-type]


def writes(total: int) -> list[tuple[bytes, int]]:
    rng = random.Random(total)
    result = []
    while total > 0:
        size = min(total, rng.randint(1, 60_000))
        result.append((rng.randbytes(size), rng.choice([0, TAGGED])))
        total -= size
    return result


class Echo:
    """A server that sends back what it gets, on a socket of the kernel."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.pending = bytearray()
        self.at_end = False

    def work(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = self.connection.recv(1 << 16)
            self.pending += data
            self.at_end = self.at_end or not data
        if self.pending:
            with contextlib.suppress(BlockingIOError):
                del self.pending[: self.connection.send(self.pending)]


@contextlib.contextmanager
def connected(
    net: KernelNet,
    tcp: TcpConfig,
    port: int,
    *,
    loss: tuple[float, float] = (0.0, 0.0),
    receive_buffer: int | None = None,
) -> Iterator[tuple[RawDriver, socket.socket]]:
    """Yield (driver of an established endpoint that opened actively, the kernel's accepted socket)."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(net.kernel_socket())
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer is not None:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        server.bind((KERNEL_IP, port))
        server.listen()
        endpoint = TcpEndpoint(tcp, 40_000 + port % 1000, port, ISN)
        driver = stack.enter_context(contextlib.closing(RawDriver(net, endpoint, loss=loss, seed=port)))
        endpoint.open(0.0)
        driver.run(lambda: endpoint.state is TcpState.ESTABLISHED)
        connection = stack.enter_context(server.accept()[0])
        yield driver, connection


def exchange(driver: RawDriver, connection: socket.socket, written: list[tuple[bytes, int]]) -> None:
    """Send `written` through the echo, close in good order, and check every byte and every tag."""
    endpoint, echo = driver.endpoint, Echo(connection)
    to_write, received = list(written), bytearray()
    total = sum(len(data) for data, _ in written)

    def work() -> None:
        echo.work()
        received.extend(endpoint.read())
        while to_write and endpoint.writable:
            endpoint.write(*to_write.pop(0))

    driver.run(lambda: len(received) >= total, work)
    endpoint.close(time.monotonic())
    driver.run(lambda: echo.at_end, work)
    connection.shutdown(socket.SHUT_WR)
    driver.run(lambda: endpoint.state is TcpState.CLOSED, work)
    assert bytes(received) == b"".join(data for data, _ in written)
    assert endpoint.error is None
    assert endpoint.peer_closed
    assert_tags(Side(endpoint, sent=driver.sent), written)
    assert driver.bad_checksums == 0


def test_echo(net: KernelNet) -> None:
    with connected(net, config(net), PORT) as (driver, connection):
        mss = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        assert mss == net.mtu - 40
        exchange(driver, connection, writes(1_500_000))
        assert driver.endpoint.send_mss == net.mtu - 40


@pytest.mark.parametrize("scale", [None, 0, 14])
def test_window_scale_is_understood_alike(net: KernelNet, scale: int | None) -> None:
    window = 1 << 20 if scale == 14 else 50_000
    tcp = config(net, window_scale=scale, receive_window=window)  # type: ignore[arg-type]
    with connected(net, tcp, PORT + 1) as (driver, connection):
        exchange(driver, connection, writes(400_000))


@pytest.mark.parametrize("loss", [(0.08, 0.0), (0.0, 0.06), (0.05, 0.05)], ids=["ours", "kernels", "both"])
def test_losses_are_repaired(net: KernelNet, loss: tuple[float, float]) -> None:
    with connected(net, config(net), PORT + 2, loss=loss) as (driver, connection):
        exchange(driver, connection, writes(200 * (net.mtu - 40)))
        assert [lost > 0 for lost in driver.lost] == [share > 0 for share in loss]
        stats = driver.endpoint.stats
        assert stats.retransmits > 0 or loss[0] == 0
        assert stats.out_of_order > 0 or loss[1] == 0


def test_the_kernel_connects_to_us(net: KernelNet) -> None:
    endpoint = TcpEndpoint(config(net), PORT + 3, None, ISN)
    endpoint.listen()
    with (
        net.kernel_socket() as client,
        contextlib.closing(RawDriver(net, endpoint)) as driver,
    ):
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.connect((OUR_IP, PORT + 3))
        driver.run(lambda: endpoint.state is TcpState.ESTABLISHED)
        assert endpoint.remote_port == client.getsockname()[1]
        exchange(driver, client, writes(300_000))


def test_the_kernel_closes_its_window_and_we_probe(net: KernelNet) -> None:
    tcp = config(net, rto_initial=0.4, rto_max=0.5)
    with connected(net, tcp, PORT + 4, receive_buffer=4096) as (driver, connection):
        driver.endpoint.write(bytes(150_000), TAGGED)
        driver.run(lambda: driver.endpoint.stats.zero_window_probes >= 3)
        assert 0 < driver.endpoint.stats.bytes_acked < 150_000
        assert driver.endpoint.error is None
        connection.setblocking(False)
        got = 0

        def read_all() -> None:
            nonlocal got
            with contextlib.suppress(BlockingIOError):
                got += len(connection.recv(1 << 20))

        driver.run(lambda: got == 150_000, read_all)


def test_we_close_our_window_and_the_kernel_waits(net: KernelNet) -> None:
    tcp = config(net, receive_window=20_000, window_scale=None)  # type: ignore[arg-type]
    with connected(net, tcp, PORT + 5) as (driver, connection):
        endpoint = driver.endpoint
        connection.setblocking(False)
        data = random.Random(5).randbytes(100_000)
        data = data[: connection.send(data)]
        assert len(data) > 20_000
        driver.run(lambda: endpoint.readable == 20_000)
        before = endpoint.stats.segments_received
        driver.run(lambda: endpoint.stats.segments_received >= before + 2)  # the kernel's own probes
        assert endpoint.readable == 20_000
        received = bytearray()
        driver.run(lambda: len(received) == len(data), lambda: received.extend(endpoint.read()))
        assert received == data


def test_reset_by_the_kernel(net: KernelNet) -> None:
    with connected(net, config(net), PORT + 6) as (driver, connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        driver.run(lambda: driver.endpoint.state is TcpState.CLOSED)
        assert driver.endpoint.error is not None
        assert driver.endpoint.error.kind is TcpErrorKind.RESET


def test_our_abort_resets_the_kernel(net: KernelNet) -> None:
    with connected(net, config(net), PORT + 7) as (driver, connection):
        driver.endpoint.abort(time.monotonic())
        driver.run(lambda: True)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_refused_by_the_kernel(net: KernelNet) -> None:
    endpoint = TcpEndpoint(config(net), 40_000, PORT + 8, ISN)
    with contextlib.closing(RawDriver(net, endpoint)) as driver:
        endpoint.open(0.0)
        driver.run(lambda: endpoint.state is TcpState.CLOSED)
    assert endpoint.error is not None
    assert endpoint.error.kind is TcpErrorKind.REFUSED
