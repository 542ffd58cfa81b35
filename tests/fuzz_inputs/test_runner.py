"""The runner sees every kind of failure, and says how to see it again."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.fuzz_inputs.runner import ROOT, Plan, Runner
from tests.fuzz_inputs.surfaces import load_surface, module_names

FAULTY = "tests.fuzz_inputs.faulty"
LIMITS = Plan(seed=7, first=2, inputs=95, growth_bytes=1 << 28, hang_seconds=2.0)


def test_every_kind_of_failure_is_found_and_names_its_call() -> None:
    surfaces = [load_surface(module) for module in module_names(FAULTY)]
    found = {tally.surface.name: tally for tally in Runner(LIMITS).run(surfaces, 2)}
    failures = {name: tally.failure or "" for name, tally in found.items()}
    assert re.match("input [0-9a-f]{8} was accepted", failures["wrong"])
    assert found["wrong"].inputs == 10
    assert found["wrong"].again == "make fuzz-inputs SURFACE=wrong SEED=7 FIRST=4 COUNT=5"
    assert "LookupError: no such thing" in failures["raising"]
    assert "may take 2 s" in failures["hanging"]
    assert "surface_hanging.py" in failures["hanging"]
    assert found["hanging"].again == "make fuzz-inputs SURFACE=hanging SEED=7 FIRST=2 COUNT=20"
    assert "MemoryError" in failures["greedy"]
    assert "status -11" in failures["dying"]
    assert (found["sound"].failure, found["sound"].inputs) == (None, 100)
    assert 1 << 24 < found["sound"].growth_bytes < 1 << 26


def test_an_unknown_surface_is_refused_with_those_that_there_are() -> None:
    words = [sys.executable, "-m", "tests.fuzz_inputs", "--surface", "nothing"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
