"""Compiled kernels: by whom they are compiled, and which are loaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_KERNELS = """
import numpy as np
from packets.compiled import jit

@jit
def total(values):
    found = 0
    for value in values:
        found += value
    return found
"""
_REGISTERS = """
import numpy as np
from packets.compiled import Kernel

def _total(values):
    return int(sum(values))

total = Kernel(_total, "{kernels}:total", lambda: (np.zeros(1, np.int64),))
"""
_SCRIPT = """
import json, sys
from importlib import import_module
import numpy as np
from packets import compiled

early = import_module("early").total
first, second = compiled.load(), None
hits = [sum(early.compiled().stats.cache_hits.values())]
late = import_module("late").total
second = compiled.load()
hits.append(sum(late.compiled().stats.cache_hits.values()))
values = np.arange(5)
runs = [kernel._run is kernel.compiled() for kernel in (early, late)]
print(json.dumps({"notices": [first, second], "hits": hits, "runs": runs, "sums": [early(values), late(values)]}))
"""


def test_a_process_of_its_own_compiles_and_late_kernels_are_loaded_too(tmp_path: Path) -> None:
    for name in ("early", "late"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}_kernels.py").write_text(_KERNELS + f"# {tmp_path}\n")
        (folder / f"{name}.py").write_text(_REGISTERS.format(kernels=f"{name}_kernels"))
    paths = os.pathsep.join(map(str, (ROOT, tmp_path / "early", tmp_path / "late")))
    shown = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    for folder in (ROOT / "packets" / "__pycache__").glob("kernels-*"):
        if any(folder.rglob("early_kernels*")):
            shutil.rmtree(folder)
    seen = json.loads(shown.stdout)
    assert seen == {"notices": [None, None], "hits": [1, 1], "runs": [True, True], "sums": [10, 10]}, shown.stderr


def test_a_compiler_that_fails_leaves_the_references_running(tmp_path: Path) -> None:
    (tmp_path / "early_kernels.py").write_text(_KERNELS.replace("found += value", "found += undefined(value)"))
    (tmp_path / "early.py").write_text(_REGISTERS.format(kernels="early_kernels"))
    script = "from packets import compiled; import early; print(compiled.load()); print(early.total([1, 2]))"
    shown = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))},
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    notice, total = shown.stdout.splitlines()
    assert "plain Python" in notice
    assert total == "3"


def test_the_kernels_of_live_capture_all_compile() -> None:
    """One kernel whose example does not compile would leave every reference in use."""
    script = (
        "import capture.walk, packets.decode, placement.assembler\n"
        "from packets import compiled\n"
        "print(compiled.load())\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout == "None\n", shown.stdout + shown.stderr
