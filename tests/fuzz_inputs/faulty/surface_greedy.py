"""Takes as much memory as there is, but for the warm-up."""

import random

NAME = "greedy"


def run(rng: random.Random, count: int) -> int:
    if count > 1:
        bytearray(1 << 29)
    return count
