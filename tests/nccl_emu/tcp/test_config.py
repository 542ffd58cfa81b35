"""A wrong value is refused where it is written, with its name."""

from __future__ import annotations

import math

import pytest

from nccl_emu.tcp import TcpConfig, TcpEndpoint, TcpError, TcpErrorKind, TcpState


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mss", 63),
        ("mss", 65496),
        ("mss", 1460.0),
        ("mss", True),
        ("receive_window", 0),
        ("receive_window", 127),  # not expressible with the default scale of 7
        ("receive_window", (65535 << 7) + 1),
        ("receive_window", (1 << 30) + 1),
        ("window_scale", -1),
        ("window_scale", 15),
        ("window_scale", "7"),
        ("send_buffer", 0),
        ("initial_cwnd", 0),
        ("max_retransmissions", 0),
        ("syn_dscp", 64),
        ("syn_dscp", -1),
        ("rto_initial", 0.1),
        ("rto_initial", 61),
        ("rto_min", 0),
        ("rto_min", math.nan),
        ("rto_max", 0.1),
        ("rto_max", math.inf),
        ("delayed_ack", -0.1),
        ("delayed_ack", 0.6),
        ("time_wait", -1),
        ("time_wait", None),
    ],
)
def test_wrong_value_is_named(field: str, value: object) -> None:
    with pytest.raises(TcpError, match=rf"TcpConfig\.{field}: ") as caught:
        TcpConfig(**{field: value})  # type: ignore[arg-type]
    assert (caught.value.kind, caught.value.field) == (TcpErrorKind.INVALID_VALUE, f"TcpConfig.{field}")
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "ports"),
    [("local_port", (0, 5, 0)), ("remote_port", (5, 65536, 0)), ("isn", (5, 6, 1 << 32))],
)
def test_wrong_identity_is_named(field: str, ports: tuple[int, int, int]) -> None:
    with pytest.raises(TcpError, match=field) as caught:
        TcpEndpoint(TcpConfig(), *ports)
    assert caught.value.field == field


def test_calls_that_the_state_does_not_allow() -> None:
    endpoint = TcpEndpoint(TcpConfig(send_buffer=15), 1, 2, 0)
    with pytest.raises(TcpError, match="write") as caught:
        endpoint.write(b"x")
    assert caught.value.kind is TcpErrorKind.INVALID_STATE
    assert (caught.value.local_port, caught.value.remote_port, caught.value.state) == (1, 2, "CLOSED")
    endpoint.open(5.0)
    with pytest.raises(TcpError, match="opened once"):
        endpoint.open(5.0)
    with pytest.raises(TcpError, match="opened once"):
        endpoint.listen()
    with pytest.raises(TcpError, match="dscp"):
        endpoint.write(b"x", 64)
    with pytest.raises(TcpError, match="limit"):
        endpoint.read(-1)
    endpoint.write(bytes(14))
    assert endpoint.writable
    endpoint.write(bytes(1))
    assert not endpoint.writable
    with pytest.raises(TcpError, match="send_buffer") as caught:
        endpoint.write(b"x")
    assert caught.value.kind is TcpErrorKind.BUFFER_FULL
    assert endpoint.unsent == 15
    with pytest.raises(TcpError, match="backwards"):
        endpoint.on_timer(4.0)
    with pytest.raises(TcpError, match="backwards"):
        endpoint.take_output(math.nan)


def test_an_active_open_needs_the_peer_port() -> None:
    endpoint = TcpEndpoint(TcpConfig(), 1, None, 0)
    with pytest.raises(TcpError, match="remote_port"):
        endpoint.open(0.0)
    endpoint.listen()
    assert endpoint.state is TcpState.LISTEN


def test_closing_before_the_handshake() -> None:
    unused = TcpEndpoint(TcpConfig(), 1, 2, 0)
    unused.listen()
    unused.close(0.0)
    assert unused.state is TcpState.CLOSED
    waiting = TcpEndpoint(TcpConfig(), 1, 2, 0)
    waiting.open(0.0)
    waiting.write(b"last words")
    waiting.close(0.0)
    assert waiting.state is TcpState.SYN_SENT
    assert not waiting.writable
    with pytest.raises(TcpError, match="write"):
        waiting.write(b"more")
