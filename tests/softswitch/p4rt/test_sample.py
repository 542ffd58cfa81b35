"""The committed build of the sample program is the one that p4c makes of its source."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.softswitch.p4rt_client import PROGRAMS


def without_paths(path: Path) -> dict[str, Any]:
    program: dict[str, Any] = json.loads(path.read_text())
    # The name of the preprocessed file depends on where p4c was called.
    del program["program"]
    return program


@pytest.mark.skipif(shutil.which("p4c") is None, reason="p4c is not installed")
def test_sample_program_is_not_stale(tmp_path: Path) -> None:
    source = shutil.copy(PROGRAMS / "p4rt_sample.p4", tmp_path)
    arguments = ["--target", "bmv2", "--arch", "v1model", "--p4runtime-files", "p4rt_sample.p4info.txtpb"]
    subprocess.run(
        ["p4c", *arguments, "-o", ".", Path(source).name],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert without_paths(tmp_path / "p4rt_sample.json") == without_paths(PROGRAMS / "p4rt_sample.json")
    info = "p4rt_sample.p4info.txtpb"
    assert (tmp_path / info).read_text() == (PROGRAMS / info).read_text()
