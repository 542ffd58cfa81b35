"""Finds something wrong at the third call."""

import random

NAME = "wrong"
PER_CALL = 5
_calls = []


def run(rng: random.Random, count: int) -> int:
    _calls.append(count)
    assert len(_calls) < 4, f"input {rng.getrandbits(32):08x} was accepted"
    return count
