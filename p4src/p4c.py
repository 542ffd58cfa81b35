"""Finding p4c, whose backends are chosen when it is built."""

from __future__ import annotations

import shutil
import subprocess


def find_p4c(target: str) -> str | None:
    """Return the path of a p4c on PATH that supports `target` (see ``p4c --target-help``), None if there is none."""
    path = shutil.which("p4c")
    if path is None:
        return None
    targets = subprocess.run([path, "--target-help"], check=False, capture_output=True, text=True).stdout
    return path if target in targets else None
