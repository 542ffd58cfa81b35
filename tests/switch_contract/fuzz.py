"""Differential fuzz of two switches: random states and frames must have equal outcomes.

    python -m tests.switch_contract.fuzz --packets 20000 --seed 1

Needs root, network namespaces and both switches. A difference ends the run with the smallest scenario that shows it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.switch_contract.rig import Rig, run
from tests.switch_contract.scenario import Scenario, Tally, differences, play
from tests.switch_contract.strategies import scenarios
from tests.switch_contract.targets import BMV2, SOFTSWITCH, TARGETS, missing

ROUND = 20
"""Scenarios of one hypothesis run; its seed is the command line's plus the number of the round."""


class Different(AssertionError):
    """Two switches made different things of a scenario."""


def compare(left: Rig, right: Rig, scenario: Scenario, tally: Tally | None = None) -> None:
    """Play a scenario on both; raises Different, with all that is needed to see it again."""
    ours, theirs = play(left, scenario), play(right, scenario)
    found = differences(scenario, (left.name, right.name), ours, theirs)
    if found:
        raise Different("\n".join([repr(scenario), *found]))
    if tally is not None:
        tally.add(scenario, ours)


def fuzz_round(left: Rig, right: Rig, number: int, tally: Tally, *, shrink: bool = True) -> None:
    """Compare `ROUND` scenarios that follow from the seed `number`; `shrink` takes minutes when something is found."""

    @seed(number)
    @settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(scenarios())
    def check(scenario: Scenario) -> None:
        compare(left, right, scenario, tally)

    check()


def fuzz(left: Rig, right: Rig, packets: int, first_seed: int, say: Callable[[str], None]) -> Tally:
    """Run rounds until `packets` frames went through both switches."""
    tally = Tally()
    begin = time.monotonic()
    number = first_seed
    while tally.frames < packets:
        fuzz_round(left, right, number, tally)
        number += 1
        say(f"{tally.frames} of {packets} frames, {tally.scenarios} scenarios, {time.monotonic() - begin:.0f} s")
    return tally


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.switch_contract.fuzz", description=__doc__)
    parser.add_argument("--packets", type=int, default=20000, help="frames to send at least")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round; equal seeds, equal frames")
    parser.add_argument("--left", choices=TARGETS, default=SOFTSWITCH)
    parser.add_argument("--right", choices=TARGETS, default=BMV2)
    options = parser.parse_args(arguments)
    names = (options.left, options.right)
    for name in names:
        if reason := missing(name):
            print(f"{name}: {reason}", file=sys.stderr)
            return 2
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rigs: list[Rig] = []
        for side, name in zip(("left", "right"), names, strict=True):
            (folder / side).mkdir()
            rigs.append(stack.enter_context(run(name, folder / side)))
        try:
            tally = fuzz(rigs[0], rigs[1], options.packets, options.seed, lambda text: print(text, flush=True))
        except Different as error:
            print(f"DIFFERENT: {error}", file=sys.stderr)
            return 1
    print(f"{options.left} and {options.right} agree on {tally.frames} frames in {tally.scenarios} scenarios:")
    print(f"  {tally.packets} packets came out, {tally.rewritten} of them rewritten, {tally.digests} digests")
    print("  " + ", ".join(f"{name} {count}" for name, count in sorted(tally.reasons.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
