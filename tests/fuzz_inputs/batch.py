"""A batch of inputs of one surface, in this process: what `make fuzz-inputs` starts as a child.

Its standard output is a JSON document a line: before each call ``{"call": N}``, at the end the `Outcome`. A call that
hangs ends the process; standard error has the stacks then.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz_inputs.surfaces import load_surface

GROWTH_BYTES = 1 << 30
"""By which the process may grow after the warm-up."""
HANG_SECONDS = 10.0
"""That one call may take."""
_WARM_UP_SECONDS = 120.0
"""For imports, and the first call."""


@dataclass(frozen=True)
class Outcome:
    """What became of a batch."""

    inputs: int
    """Inputs tried."""
    calls: int
    """Calls that ended well."""
    seconds: float
    """That they took, the warm-up not counted."""
    growth_bytes: int
    """By which the resident memory was above that after the warm-up, at its peak."""
    failure: str | None = None
    """Why the last call failed."""


def run_batch(
    module: str, seed: int, first: int, calls: int, seconds: float, *, growth_bytes: int, hang_seconds: float
) -> Outcome:
    """Make `calls` calls of a surface, beginning with the one of number `first`; end after `seconds`.

    A failure ends the batch. Memory of the process stays limited afterwards.
    """
    faulthandler.dump_traceback_later(_WARM_UP_SECONDS, exit=True)
    surface = load_surface(module)
    inputs = done = 0
    began, before, failure = time.monotonic(), 0, None
    try:
        _tell({"call": "warm-up"})
        surface.run(surface.rng(seed, -1), 1)
        _limit(growth_bytes)
        began, before = time.monotonic(), _reset_peak()
        while done < calls and time.monotonic() - began < seconds:
            _tell({"call": first + done})
            faulthandler.dump_traceback_later(hang_seconds, exit=True)
            inputs += surface.run(surface.rng(seed, first + done), surface.per_call)
            done += 1
    except AssertionError as error:
        failure = str(error) or traceback.format_exc()
    except BaseException:  # SystemExit and KeyboardInterrupt too: nothing but the surface's own calls may end a batch
        failure = traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    return Outcome(inputs, done, time.monotonic() - began, max(0, _memory("VmHWM") - before), failure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_inputs.batch", description=__doc__)
    parser.add_argument("module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no call after so many")
    parser.add_argument("--growth-bytes", type=int, default=GROWTH_BYTES)
    parser.add_argument("--hang-seconds", type=float, default=HANG_SECONDS)
    _tell(asdict(run_batch(**vars(parser.parse_args(arguments)))))
    # Surfaces keep servers and threads for the whole process; nothing of them is waited for.
    sys.stdout.flush()
    os._exit(0)


def _tell(what: dict[str, object]) -> None:
    # What a surface prints itself must not be taken for ours: it went to standard error.
    print(json.dumps(what), file=_REPORT, flush=True)


def _limit(growth_bytes: int) -> None:
    """Let the address space, which can only be larger than the resident memory, grow by so much and no more."""
    limit = _memory("VmSize") + growth_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _reset_peak() -> int:
    """Let the kernel measure the peak anew, and return the resident memory of now in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    """Return a value of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [kibibytes] = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(kibibytes) << 10


if __name__ == "__main__":
    # Reports go to the standard output that we were started with; whatever else is printed goes to standard error.
    _REPORT = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main()
