"""Real captures, where they are at hand."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NAMES = (
    "allreduce+partial_p2p.pcapng",
    "iter_40000_p2p.pcapng",
    "iter_40000_p2p_iter10.pcapng",
    "iter_40000_p2p_iter2.pcapng",
    "iter_80000.pcapng",
    "rdma32.pcapng",
)


@pytest.fixture(scope="session")
def shared_captures() -> Path:
    """Return the folder of the FlowCheck captures: CHECKMATE_CAPTURES, or ../shared/captures."""
    folder = Path(os.environ.get("CHECKMATE_CAPTURES") or Path(__file__).parents[3] / "shared" / "captures")
    missing = [name for name in (*NAMES, "truth.json") if not (folder / name).is_file()]
    if missing:
        pytest.skip(f"no FlowCheck captures here ({', '.join(missing)}); name their folder in CHECKMATE_CAPTURES")
    return folder


@pytest.fixture(scope="session")
def truth(shared_captures: Path) -> dict[str, Any]:
    """Return what two independent decoders agree on, by file."""
    return json.loads((shared_captures / "truth.json").read_text())


@pytest.fixture(scope="session")
def shared() -> Callable[[str, str], Path]:
    """Return where a file of ../shared is: called with ``captures`` or ``cases``, and its name."""

    def find(folder: str, name: str) -> Path:
        root = os.environ.get(f"CHECKMATE_{folder.upper()}") or Path(__file__).parents[3] / "shared" / folder
        path = Path(root) / name
        if not path.is_file():
            pytest.skip(f"{name} is not here; name its folder in CHECKMATE_{folder.upper()}")
        return path

    return find
