"""The surfaces that a package holds."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable
from dataclasses import dataclass

PACKAGE = "tests.fuzz_inputs"
"""Package whose modules ``surface_*`` are run."""


@dataclass(frozen=True)
class Surface:
    """One surface; see the package's docstring."""

    name: str
    """What users call it."""
    module: str
    """Full name of its module."""
    run: Callable[[random.Random, int], int]
    """Tries inputs."""
    test_count: int
    """Inputs in `make test`."""
    per_call: int
    """Inputs of one call."""

    def rng(self, seed: int, call: int) -> random.Random:
        """Return what the inputs of one call follow from."""
        return random.Random(f"{self.name}/{seed}/{call}")


def load_surface(module: str) -> Surface:
    """Import the surface of a module."""
    found = importlib.import_module(module)
    return Surface(
        found.NAME, module, found.run, getattr(found, "TEST_COUNT", 200), max(1, getattr(found, "PER_CALL", 20))
    )


def module_names(package: str = PACKAGE) -> list[str]:
    """Return the names of all surfaces' modules; none is imported."""
    folder = importlib.import_module(package).__path__
    names = sorted(module.name for module in pkgutil.iter_modules(folder))
    return [f"{package}.{name}" for name in names if name.startswith("surface_")]
