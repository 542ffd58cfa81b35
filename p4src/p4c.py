"""Finding p4c, which is built with the backends that one asks for."""

from __future__ import annotations

import shutil
import subprocess


def find_p4c(target: str) -> str | None:
    """Return the path of a p4c on PATH that compiles for a target, as ``p4c --target-help`` names it; None without."""
    path = shutil.which("p4c")
    if path is None:
        return None
    targets = subprocess.run([path, "--target-help"], check=False, capture_output=True, text=True).stdout
    return path if target in targets else None
