"""Finds nothing; prints, which must not get in the way."""

import random

NAME = "sound"
PER_CALL = 10


def run(rng: random.Random, count: int) -> int:
    print("something")
    bytearray(1 << 25)
    return count
