"""Hangs, but for the warm-up."""

import random
import time

NAME = "hanging"


def run(rng: random.Random, count: int) -> int:
    if count > 1:
        time.sleep(600)
    return count
