"""The sender's core under seeded trouble: records arrive in order, none is skipped, and it ends when it should."""

from __future__ import annotations

import random
from typing import Any

import pytest

from checkmate_common.sidechannel.side_channel_pb2 import RecordReply, StepRecord
from nccl_emu.errors import SideChannelError
from nccl_emu.shadow_client.sender_core import SenderCore, Turn
from nccl_emu.shadow_client.shadow_session import ShadowSession


class FlakyChannel:
    """Takes records; requests and replies get lost, and some records are refused."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.trouble = rng, 0.3
        self.taken: list[int] = []
        self.refused: list[int] = []

    def record_step(self, record: StepRecord) -> RecordReply:
        if self.rng.random() < self.trouble:
            raise SideChannelError("RecordStep", "UNAVAILABLE", "the request was lost")
        if record.step % 7 == 0:
            self.refused.append(record.step)
            raise SideChannelError("RecordStep", "INVALID_ARGUMENT", "refused")
        self.taken.append(record.step)
        if self.rng.random() < self.trouble:
            raise SideChannelError("RecordStep", "UNAVAILABLE", "the reply was lost")
        return RecordReply()


def make(rng: random.Random) -> tuple[SenderCore, FlakyChannel, list[int]]:
    channel, lost = FlakyChannel(rng), list[int]()
    opaque: Any = channel
    session = ShadowSession(opaque, "dp0", 1, (), lambda step, reason: lost.append(step))
    return SenderCore(session), channel, lost


def go_on(core: SenderCore) -> None:
    if core.turn is Turn.SEND:
        core.send()
    elif core.turn is Turn.RETRY:
        core.retry()


@pytest.mark.parametrize("seed", range(50))
def test_every_record_arrives_in_order_or_is_told_as_lost(seed: int) -> None:
    rng = random.Random(f"sender/{seed}")
    core, channel, lost = make(rng)
    step = 0
    for _ in range(100):
        if rng.random() < 0.4:
            step += 1
            core.offer(StepRecord(step=step))
        else:
            go_on(core)
    core.finish()
    for _ in range(1000):
        go_on(core)
    assert core.turn is Turn.OVER
    assert channel.taken == sorted(channel.taken), "a later record never comes first"
    assert sorted({*channel.taken, *lost}) == list(range(1, step + 1)), "none is skipped"
    assert lost == [each for each in range(1, step + 1) if each % 7 == 0], "only what is refused is told as lost"


def test_nothing_is_sent_while_the_shadow_is_away_or_after_it_was_given_up() -> None:
    core, channel, _ = make(random.Random(0))
    assert core.turn is Turn.IDLE
    channel.trouble = 1.0
    core.offer(StepRecord(step=1))
    core.send()
    core.offer(StepRecord(step=2))
    assert core.turn is Turn.RETRY, "what is offered meanwhile does not make it sooner"
    core.finish()
    assert core.turn is Turn.RETRY, "what waits is still to be sent"
    core.retry()
    assert core.turn is Turn.SEND
    core.abandon()
    assert core.turn is Turn.OVER
    assert channel.taken == []
