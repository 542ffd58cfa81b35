"""Captures of our own making: every gradient is the true one, from all ranks' captures and from one alone."""

from __future__ import annotations

import pytest

from gloo.decoder import Decoder
from packets.batch import PacketBatch
from packets.decode import decode
from tests.gloo.encoder import Made, Traffic, feed, make

JOBS = {
    "two ranks": Traffic(ranks=2),
    "three ranks": Traffic(),
    "five ranks, serial": Traffic(ranks=5, at_once=False),
    "IPv6": Traffic(ipv6=True),
    "loopback": Traffic(ranks=4, same_host=True),
    "fp16": Traffic(halved=True),
    "buffers": Traffic(buffers=7),
    "unused": Traffic(layout=((2, 3), (0, 1)), unused=(frozenset(), frozenset({2, 3}), frozenset({0}))),
    "other group": Traffic(other_group=True),
    "not closed": Traffic(close=False),
    "large segments": Traffic(ranks=2, shapes=((600, 1200), (3,)), layout=((1, 0),), steps=2, mss=60000),
    "channels and scalars of one": Traffic(shapes=((2, 3, 1, 1), (1,), (1, 2), (2, 2, 3, 3)), layout=((3,), (2, 1, 0))),
}


def check(made: Made, steps, complete: bool = True) -> None:
    """Every gradient that is there is the true one; `complete` says that all must be."""
    by_group: dict[int, list[int]] = {}
    for group, step in steps:
        by_group.setdefault(group.number, []).append(step.number)
    # A SYN that comes after its data looks like a second connection, and so like a second group.
    assert all(numbers == sorted(set(numbers)) for numbers in by_group.values())
    if complete:
        assert list(by_group.values()) == [list(range(1, made.traffic.steps + 1))]
    for _, step in steps:
        assert step.complete or not complete, (step.number, step.problem, step.missing)
        if step.problem is not None:
            continue
        missing = {hole.parameter for hole in step.missing}
        for index, (found, true) in enumerate(zip(step.gradients, made.gradients[step.number - 1], strict=True)):
            if index in missing:
                assert found is None
            elif true is None:
                assert found is None
                assert index in step.unused
            else:
                assert found is not None
                assert found.tobytes() == true.tobytes(), (step.number, index)


@pytest.mark.parametrize("name", JOBS)
def test_every_gradient_from_all_captures_and_from_one(name):
    made = make(JOBS[name])
    ranks = range(made.traffic.ranks)
    selections = [list(ranks)] if made.traffic.same_host else [list(ranks), *([rank] for rank in ranks)]
    for selected in selections:
        decoder = Decoder()
        steps = feed(decoder, [[packet.data for packet in made.capture(rank)] for rank in selected])
        check(made, steps)
        (group,) = [group for group in decoder.groups if group.ddp.begun]
        assert group.ranks == made.traffic.ranks
        assert group.problem is group.ddp.problem is None
        assert group.ddp.initial.values is not None
        for found, true in zip(group.ddp.initial.values, made.initial, strict=True):
            assert found.tobytes() == true.tobytes()


def test_a_small_window_gives_the_same_and_keeps_little():
    made = make(Traffic(steps=12, shapes=((40, 50), (40,), (50, 40)), layout=((2, 1), (0,)), mss=1400))
    decoder = Decoder(window=1 << 16)
    held = 0
    frames = [packet.data for packet in made.capture(1)]
    steps = []
    for at in range(0, len(frames), 20):
        steps += feed_more(decoder, frames[at : at + 20])
        held = max(held, sum(flow.stream.nbytes for flow in decoder.intake.flows))
    decoder.finish()
    check(made, steps + list(decoder.steps()))
    total = sum(len(frame) for frame in frames)
    assert held < 2 * total / 3


def feed_more(decoder, frames):
    batch = PacketBatch.of(frames)
    decoder.feed(0, batch, decode(batch))
    return list(decoder.steps())
