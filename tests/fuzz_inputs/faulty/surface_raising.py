"""Ends with an exception that nobody expects."""

import random

NAME = "raising"


def run(rng: random.Random, count: int) -> int:
    raise LookupError("no such thing")
