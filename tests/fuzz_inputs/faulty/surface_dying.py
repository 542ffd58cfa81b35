"""Is killed as by a crash, but for the warm-up."""

import os
import random
import signal

NAME = "dying"


def run(rng: random.Random, count: int) -> int:
    if count > 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return count
