"""Whatever arrives, and however the calls are mixed: no exception, no unbounded memory, no broken promise."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_emu.tcp import Segment, TcpConfig, TcpEndpoint, TcpFlags, TcpState, seq_add
from nccl_emu.tcp.segment import FLAGS_OF
from tests.nccl_emu.tcp.tcp_peer import IRS, ISN, Peer

MSS, WINDOW = 100, 700
CONFIG = TcpConfig(mss=MSS, receive_window=WINDOW, window_scale=2, initial_cwnd=3, max_retransmissions=4)

# Numbers near what the endpoint expects reach far more code than uniform ones; a few are anywhere.
near = st.one_of(st.integers(-3, 40), st.integers(-900, 1500), st.integers(-(1 << 31), (1 << 31) - 1))
usual = st.sampled_from([int(TcpFlags.ACK)] * 6 + [0x18, 0x11, 0x12, 0x02, 0x04, 0x14, 0x00])
segments = st.fixed_dictionaries(
    {
        "seq": near,
        "ack": near,
        "flags": st.one_of(usual, st.integers(0, 255)),
        "window": st.sampled_from([0, 0, 1, 50, 300, 65535]),
        "size": st.sampled_from([0, 0, 0, 1, 10, 100, 900]),
        "mss": st.sampled_from([None, 0, 90, 65535]),
        "window_scale": st.sampled_from([None, 0, 14, 255]),
    }
)
steps = st.one_of(
    st.tuples(st.just("segment"), segments),
    st.tuples(st.just("timer"), st.floats(0, 3)),
    st.tuples(st.just("write"), st.tuples(st.integers(0, 400), st.sampled_from([0, 11]))),
    st.tuples(st.just("read"), st.one_of(st.none(), st.integers(0, 300))),
    st.tuples(st.sampled_from(["close", "abort"]), st.none()),
)


def fresh(opening: str) -> TcpEndpoint:
    if opening == "established":
        peer = Peer(CONFIG)
        peer.connect(window_scale=2)
        return peer.endpoint
    endpoint = TcpEndpoint(CONFIG, 1000, 2000, ISN)
    if opening == "active":
        endpoint.open(0.0)
    elif opening == "passive":
        endpoint.listen()
    return endpoint


def apply(endpoint: TcpEndpoint, kind: str, value: Any, now: float, written: list[int]) -> None:
    if kind == "segment":
        sequence, ack = seq_add(IRS, value["seq"]), seq_add(ISN, value["ack"])
        payload = bytes(value["size"])
        options = (value["mss"], value["window_scale"])
        flags = FLAGS_OF[value["flags"]]
        endpoint.on_segment(Segment(2000, 1000, sequence, ack, flags, value["window"], payload, 0, *options), now)
    elif kind == "timer":
        endpoint.on_timer(now)
    elif kind == "write" and endpoint.writable:
        size, dscp = value
        endpoint.write(bytes([dscp]) * size, dscp)
        written[0] += size
    elif kind == "read":
        endpoint.read(value)
    elif kind == "close":
        endpoint.close(now)
    elif kind == "abort":
        endpoint.abort(now)


def check_output(segment: Segment) -> None:
    assert (segment.src_port, segment.dst_port) == (1000, 2000)
    assert 0 <= segment.seq < 1 << 32
    assert 0 <= segment.ack < 1 << 32
    assert 0 <= segment.window <= 65535
    assert len(segment.payload) <= MSS
    assert set(segment.payload) <= {segment.dscp}
    if TcpFlags.FIN in segment.flags or TcpFlags.RST in segment.flags or TcpFlags.SYN in segment.flags:
        assert (segment.payload, segment.dscp) == (b"", 0)


@given(
    st.sampled_from(["closed", "active", "passive", "established", "established"]),
    st.lists(st.tuples(steps, st.booleans()), max_size=60),
)
@settings(max_examples=300, deadline=None)
def test_nothing_that_arrives_breaks_the_endpoint(opening: str, program: list[tuple[tuple[str, Any], bool]]) -> None:
    endpoint = fresh(opening)
    now, written = 0.0, [0]
    for (kind, value), batched in program:
        now += value if kind == "timer" else 0.01
        apply(endpoint, kind, value, now, written)
        if batched:  # several events before the next output
            continue
        for segment in endpoint.take_output(now):
            check_output(segment)
        assert endpoint.take_output(now) == []  # everything due was given: a driver can rely on it
        receiver = endpoint._tcb.receiver
        stored = sum(len(block) for block in receiver.data._blocks)
        assert endpoint.readable + stored <= WINDOW
        assert endpoint.unsent + endpoint.unacked <= written[0]
        timer = endpoint.next_timer()
        if endpoint.state is TcpState.CLOSED:
            assert timer is None
        elif endpoint.unacked:
            assert timer is not None  # data in flight always has a timer behind it


@given(st.lists(steps.filter(lambda step: step[0] != "abort"), max_size=30))
@settings(max_examples=150, deadline=None)
def test_every_connection_ends_when_the_peer_falls_silent(program: list[tuple[str, Any]]) -> None:
    """Timers alone bring an endpoint with something to say to its end: it waits for ever in no state."""
    endpoint = fresh("established")
    now, written = 0.0, [0]
    for kind, value in program:
        now += value if kind == "timer" else 0.01
        apply(endpoint, kind, value, now, written)
        endpoint.take_output(now)
    if endpoint.writable:
        endpoint.write(b"\0")
        endpoint.take_output(now)
        assert endpoint.unsent + endpoint.unacked > 0
    had_something_to_say = endpoint.unsent + endpoint.unacked > 0
    for _ in range(60):
        timer = endpoint.next_timer()
        if timer is None:
            break
        now = max(now, timer)
        endpoint.on_timer(now)
        endpoint.take_output(now)
    assert endpoint.next_timer() is None
    if had_something_to_say:
        assert endpoint.state is TcpState.CLOSED
        assert endpoint.error is not None
