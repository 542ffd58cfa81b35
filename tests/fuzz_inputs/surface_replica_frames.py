"""Replica frames: damaged, lost, doubled, in another order, with right checksums over wrong bytes.

Whatever comes: what is published is what the trainer holds, and a step whose frames are sound is published again.
"""

from __future__ import annotations

import random
import struct

from tests.fuzz_inputs.damage import damaged
from tests.shadow_rx.resync_rig import ResyncRig
from tests.shadow_rx.twin import Twin, as_bytes, make_layout
from tests.shadow_rx.wire import fix_tcp_checksum, make_job

NAME = "replica_frames"
TEST_COUNT = 400
PER_CALL = 50
_FIELDS = (0, 6, 12, 14, 15, 16, 20, 23, 24, 26, 30, 34, 36, 38, 42, 46, 47, 48, 50, 52, 54)
"""Offsets of the fields of Ethernet, IPv4 and TCP headers, and of the frame header behind them."""
_HEADER_BYTES = 64


def run(rng: random.Random, count: int) -> int:
    """Try `count` frames, among the sound ones of a job that goes on."""
    rig = _rig(rng)
    rig.begin()
    rig.step()
    tried: list[str] = []
    try:
        while len(tried) < count:
            _step(rng, rig, tried, count)
        for _ in range(70):  # requests for a state come further and further apart
            rig.step()
            rig.answer()
            if rig.core.status("dp0").replica_step == rig.twin.step:
                break
        _check(rig)
        assert rig.core.status("dp0").replica_step == rig.twin.step, "nothing is published any more"
    except Exception as error:
        shown = "\n".join(tried[-60:])
        what = f"{type(error).__name__}: {error}"
        raise AssertionError(f"{what}, after these frames among sound ones:\n{shown}") from error
    return len(tried)


def _rig(rng: random.Random) -> ResyncRig:
    hops = rng.choice(((0,), (0, 1)))
    job = make_job(ranks=3, channels=rng.choice((1, 2)), hops=hops)
    # Of the one layout each chunk is a frame, of the other several.
    layout = rng.choice((make_layout(), make_layout([(40, 30), (11,), ()], 4000)))
    return ResyncRig(job, Twin(job, layout, seed=rng.randrange(1000)), window=rng.choice((2, 3, 4)))


def _step(rng: random.Random, rig: ResyncRig, tried: list[str], count: int) -> None:
    """Train a step whose frames have a hard way."""
    frames = rig.train()
    chance = rng.choice((0.05, 0.2, 0.5))
    way: list[bytes] = []
    for frame in frames:
        if len(tried) < count and rng.random() < chance:
            wrong = _wrong(rng, frame, frames)
            tried.append(f"step {rig.twin.step}: {wrong.hex()}")
            # Instead of the right one, before it, or after it.
            way += rng.choice(([wrong], [wrong, frame], [frame, wrong]))
        elif rng.random() > 0.02:
            way += [frame] * rng.choice((1, 1, 1, 2))
    if rng.random() < 0.2:
        rng.shuffle(way)
    rig.send(way)
    rig.record()
    _check(rig)
    if rng.random() < 0.7:
        rig.answer()


def _wrong(rng: random.Random, frame: bytes, others: list[bytes]) -> bytes:
    wrong = bytearray(frame)
    match rng.randrange(5):
        case 0:
            wrong = bytearray(damaged(rng, frame))
        case 1:
            at = rng.choice(_FIELDS)
            size = rng.choice((1, 2, 4))
            value = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x80000000, 0xFFFFFFFF, rng.getrandbits(32)))
            wrong[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "big")
        case 2:
            at = 54 + rng.randrange(max(1, len(wrong) - 54))
            wrong[at : at + 1] = bytes([(wrong[at] if at < len(wrong) else 0) ^ 1 << rng.randrange(8)])
        case 3:  # another one's payload at this one's place
            wrong[54:] = rng.choice(others)[54:]
        case _:  # a piece of it, or the same position shifted by a little
            by = rng.choice((-1, 1, -_HEADER_BYTES, _HEADER_BYTES, 4, 1000))
            struct.pack_into("!I", wrong, 38, (struct.unpack_from("!I", wrong, 38)[0] + by) % (1 << 32))
    if rng.random() < 0.6 and len(wrong) >= 60:
        return _blessed(bytes(wrong))
    return bytes(wrong)


def _blessed(frame: bytes) -> bytes:
    """Return a frame with right checksums over whatever it has, as far as it still is one."""
    try:
        total = sum(struct.unpack("!10H", frame[14:24] + b"\0\0" + frame[26:34]))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        return fix_tcp_checksum(frame[:24] + struct.pack("!H", ~total & 0xFFFF) + frame[26:])
    except struct.error:
        return frame


def _check(rig: ResyncRig) -> None:
    for snapshot in rig.snapshots():
        assert as_bytes(snapshot.tensors) == rig.truth[snapshot.epoch, snapshot.step], f"step {snapshot.step} is wrong"
    rig.events.clear()
