"""Every surface, with a fixed seed."""

from __future__ import annotations

import pytest

from tests.fuzz_inputs.surfaces import load_surface, module_names


@pytest.mark.parametrize("module", module_names())
def test_damaged_inputs_break_nothing(module: str) -> None:
    surface = load_surface(module)
    assert surface.run(surface.rng(0, 0), surface.test_count) > 0
