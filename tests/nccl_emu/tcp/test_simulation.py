"""Two endpoints over a bad link, for hundreds of seeds: each byte once, in order, with its DSCP."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict

import pytest

from nccl_emu.tcp import Segment, TcpConfig, TcpEndpoint, TcpErrorKind, TcpFlags, TcpState
from tests.nccl_emu.tcp.tcp_sim import LinkFaults, Side, Simulation, assert_tags

SEEDS = range(240)
BLOCK = 30
DSCPS = (0, 0, 3, 11, 63)

Written = list[tuple[bytes, int]]


def random_config(rng: random.Random) -> TcpConfig:
    scale = rng.choice([None, 0, 3, 7])
    return TcpConfig(
        mss=rng.choice([64, 100, 536, 1460, 8960]),
        receive_window=rng.randint(1 << (scale or 0), 60_000),
        window_scale=scale,
        send_buffer=rng.choice([1, 1000, 100_000]),
        initial_cwnd=rng.randint(1, 10),
        delayed_ack=rng.choice([0.0, 0.04]),
        syn_dscp=rng.choice([0, 3]),
        rto_max=rng.choice([1.0, 5.0]),
        max_retransmissions=60,
        time_wait=300.0,  # longer than any run of lost FINs, so that a reset means an error
    )


def random_isn(rng: random.Random) -> int:
    return rng.choice([rng.getrandbits(32), (1 << 32) - rng.randint(1, 3000)])


def random_writes(rng: random.Random) -> Written:
    sizes = [rng.choice([0, 1, 7, rng.randint(0, 3000), rng.randint(0, 9000)]) for _ in range(rng.randint(0, 6))]
    return [(rng.randbytes(size), rng.choice(DSCPS)) for size in sizes]


def build(seed: int) -> tuple[Simulation, tuple[Written, Written]]:
    """Return the scenario of `seed`: everything in it is drawn from the seed."""
    rng = random.Random(seed)
    written = (random_writes(rng), random_writes(rng))
    simultaneous = rng.random() < 0.1
    knows_peer = simultaneous or rng.random() < 0.5
    sides = []
    for index in (0, 1):
        peer = 1001 - index if index == 0 or knows_peer else None
        side = Side(TcpEndpoint(random_config(rng), 1000 + index, peer, random_isn(rng)))
        side.writes = list(written[index])
        side.read_limit = rng.choice([None, None, rng.randint(1, 2000)])
        side.read_pause = rng.choice([0.0, 0.0, 0.01, 0.5])
        sides.append(side)
    faults = LinkFaults(
        loss=rng.choice([0.0, 0.02, 0.1, 0.2]),
        duplicate=rng.choice([0.0, 0.1]),
        corrupt=rng.choice([0.0, 0.1]),
        delay=rng.choice([(0.005, 0.005), (0.001, 0.05)]),
    )
    sides[0].endpoint.open(0.0)
    if simultaneous:
        sides[1].endpoint.open(0.0)
    else:
        sides[1].endpoint.listen()
    return Simulation((sides[0], sides[1]), faults, seed), written


def run_and_check(seed: int) -> Simulation:
    simulation, written = build(seed)
    simulation.run()
    for index, side in enumerate(simulation.sides):
        assert side.endpoint.error is None, seed
        other = simulation.sides[1 - index]
        assert bytes(other.received) == b"".join(data for data, _ in written[index]), seed
        assert other.endpoint.peer_closed, seed
        assert side.endpoint.stats.bytes_acked == len(other.received), seed
        assert_tags(side, written[index])
    return simulation


@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, BLOCK))
def test_every_byte_arrives_once_in_order_with_its_tag(first: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        simulation = run_and_check(seed)
        for side in simulation.sides:
            totals.update(asdict(side.endpoint.stats))
        totals["damaged"] += simulation.damaged
    # Every block of seeds exercises what it is there for.
    for name in ("timeouts", "fast_retransmits", "dup_acks", "out_of_order", "unacceptable", "damaged"):
        assert totals[name] > 0, name


def test_a_seed_reproduces_exactly() -> None:
    digests = [run_and_check(seed).trace.hexdigest() for seed in (7, 7, 8)]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def quiet_pair(config: TcpConfig, data: bytes, *, isn: int = 0, dscp: int = 0) -> Simulation:
    """Return a simulation on a perfect link in which side 0 sends `data` and side 1 nothing."""
    first = Side(TcpEndpoint(config, 1, 2, isn), [(data, dscp)])
    second = Side(TcpEndpoint(config, 2, None, isn))
    first.endpoint.open(0.0)
    second.endpoint.listen()
    return Simulation((first, second), LinkFaults(), 0)


def is_data(segment: Segment) -> bool:
    return bool(segment.payload)


def test_perfect_link_sends_nothing_twice_and_ends_soon() -> None:
    data = random.Random(1).randbytes(300_000)
    simulation = quiet_pair(TcpConfig(time_wait=0.5), data, isn=(1 << 32) - 150_000)
    simulation.run()
    sender, receiver = simulation.sides
    assert bytes(receiver.received) == data
    assert (sender.endpoint.stats.retransmits, receiver.endpoint.stats.retransmits) == (0, 0)
    data_segments = sum(is_data(segment) for _, segment in sender.sent)
    assert data_segments == -(-len(data) // 1460)
    acks = len(receiver.sent)
    assert acks <= data_segments // 2 + 8
    assert simulation.now < 1.0
    wrapped = [segment.seq for _, segment in sender.sent if is_data(segment)]
    assert max(wrapped) > (1 << 32) - 1461
    assert min(wrapped) < 1460


@pytest.mark.parametrize("lost", [0, 1, 5, 40])
def test_one_lost_segment_in_a_stream_costs_one_retransmission_and_no_timeout(lost: int) -> None:
    data = random.Random(2).randbytes(200_000)
    simulation = quiet_pair(TcpConfig(), data, dscp=11)
    count = 0

    def drop(source: int, segment: Segment, _index: int) -> bool:
        nonlocal count
        if source == 0 and is_data(segment):
            count += 1
            return count == lost + 1
        return False

    simulation.drop = drop
    simulation.run()
    stats = simulation.sides[0].endpoint.stats
    assert bytes(simulation.sides[1].received) == data
    assert (stats.retransmits, stats.fast_retransmits, stats.timeouts) == (1, 1, 0)
    assert_tags(simulation.sides[0], [(data, 11)])


def test_several_losses_in_one_window_are_repaired_without_a_timeout() -> None:
    data = random.Random(3).randbytes(300_000)
    simulation = quiet_pair(TcpConfig(), data)
    lost = {30, 33, 37}
    data_index = 0

    def drop(source: int, segment: Segment, _index: int) -> bool:
        nonlocal data_index
        if source == 0 and is_data(segment):
            data_index += 1
            return data_index in lost
        return False

    simulation.drop = drop
    simulation.run()
    stats = simulation.sides[0].endpoint.stats
    assert bytes(simulation.sides[1].received) == data
    assert (stats.retransmits, stats.fast_retransmits, stats.timeouts) == (3, 1, 0)


def test_lost_tail_is_repaired_by_the_timer() -> None:
    data = random.Random(4).randbytes(20_000)
    simulation = quiet_pair(TcpConfig(), data)
    seen = 0

    def drop(source: int, segment: Segment, _index: int) -> bool:
        nonlocal seen
        if source == 0 and is_data(segment) and len(segment.payload) < 1460:
            seen += 1
            return seen == 1
        return False

    simulation.drop = drop
    simulation.run()
    assert bytes(simulation.sides[1].received) == data
    assert simulation.sides[0].endpoint.stats.timeouts == 1


def test_lost_window_update_is_found_by_a_probe() -> None:
    config = TcpConfig(mss=1000, receive_window=4000, window_scale=None, rto_max=2.0)
    data = random.Random(5).randbytes(12_000)
    simulation = quiet_pair(config, data, dscp=3)
    simulation.sides[1].read_pause = 3.0
    simulation.sides[1].next_read = 3.0
    closed = False

    def drop(source: int, segment: Segment, _index: int) -> bool:
        nonlocal closed
        if source == 1 and segment.window == 0:
            closed = True
        # The one segment that reopens the window: nothing but a probe brings it again.
        if source == 1 and closed and segment.window > 0 and TcpFlags.FIN not in segment.flags:
            closed = False
            return True
        return False

    simulation.drop = drop
    simulation.run()
    assert bytes(simulation.sides[1].received) == data
    assert simulation.sides[0].endpoint.stats.zero_window_probes > 0
    assert_tags(simulation.sides[0], [(data, 3)])


def test_a_dead_link_fails_the_connection_and_names_the_reason() -> None:
    config = TcpConfig(max_retransmissions=4, rto_max=2.0)
    simulation = quiet_pair(config, bytes(100_000))
    simulation.drop = lambda _source, segment, index: index > 20
    first, second = simulation.sides

    def gone() -> bool:
        return first.endpoint.state is TcpState.CLOSED

    simulation.run(stop=gone)
    assert first.endpoint.error is not None
    assert first.endpoint.error.kind is TcpErrorKind.RETRANSMISSION_LIMIT
    assert second.endpoint.peer_closed is False


@pytest.mark.parametrize("seed", range(6))
def test_late_segments_of_an_old_connection_never_enter_the_new_one(seed: int) -> None:
    """Same ports, another ISN: what the old connection had in flight is refused by position."""
    rng = random.Random(seed)
    old, _ = build(1000 + seed)
    old.run()
    late = [segment for side in old.sides for _, segment in side.sent if TcpFlags.RST not in segment.flags]
    count = len(late)
    config = TcpConfig(mss=500, receive_window=20_000, window_scale=None, time_wait=100.0)
    sides, written = [], []
    for index, old_side in enumerate(old.sides):
        isn = (old_side.endpoint.isn + (1 << 30) + rng.randint(0, 1 << 30)) % (1 << 32)
        written.append(rng.randbytes(9000))
        sides.append(Side(TcpEndpoint(config, 1000 + index, 1001 - index, isn), [(written[index], 0)]))
    new = Simulation((sides[0], sides[1]), LinkFaults(loss=0.05, delay=(0.001, 0.03)), seed)

    def inject(_source: int, _segment: Segment, _index: int) -> bool:
        if late and rng.random() < 0.5:
            segment = late.pop(rng.randrange(len(late)))
            target = sides[segment.dst_port - 1000].endpoint
            if target.state not in (TcpState.CLOSED, TcpState.LISTEN, TcpState.SYN_SENT):
                target.on_segment(segment, new.now)
        return False

    new.drop = inject
    sides[0].endpoint.open(0.0)
    sides[1].endpoint.listen()
    new.run()
    assert count - len(late) > 10
    assert sum(side.endpoint.stats.unacceptable + side.endpoint.stats.challenge_acks for side in sides) > 5
    for index in (0, 1):
        assert bytes(sides[1 - index].received) == written[index]
        assert sides[index].endpoint.error is None
