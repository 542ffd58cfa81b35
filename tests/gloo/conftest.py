"""Real captures of DDP jobs, where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_gloo() -> Path:
    """Return the folder of the captures of gloo: in CHECKMATE_CAPTURES, or ../shared/captures."""
    folder = Path(os.environ.get("CHECKMATE_CAPTURES") or Path(__file__).parents[3] / "shared" / "captures") / "gloo"
    if not (folder / "ranks2-adamw" / "truth.json").is_file():
        pytest.skip("no captures of gloo here; name the folder that holds gloo/ in CHECKMATE_CAPTURES")
    return folder
