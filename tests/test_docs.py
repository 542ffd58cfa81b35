"""The commands that the documents show are run, and the files that they name exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from softswitch.p4rt.device import Device
from softswitch.p4rt.server import serve
from tests.program import run_program

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ADDRESS = "127.0.0.1:9559"


def blocks() -> Iterator[tuple[str, list[str]]]:
    """Yield document and commands of each block: they build on each other, and share the folder ``out/``."""
    for document in DOCUMENTS:
        for block in re.findall(r"```sh\n(.*?)```", document.read_text(), flags=re.S):
            lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
            yield document.name, [line for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def switch_address() -> Iterator[str]:
    with serve(Device(1), "127.0.0.1:0") as server:
        yield server.address


@pytest.mark.parametrize(("document", "commands"), list(blocks()))
def test_commands(document: str, commands: list[str], switch_address: str, tmp_path: Path) -> None:
    for command in commands:
        check(document, command, switch_address, tmp_path)


def check(document: str, command: str, switch_address: str, tmp_path: Path) -> None:
    words = shlex.split(command.replace(ADDRESS, switch_address))
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert re.search(rf"^{re.escape(words[1])}:", makefile, flags=re.M), f"{document}: no such target"
        return
    assert words[0].removeprefix(".venv/bin/") == "checkmate", f"{document}: {command} is not covered by this test"
    words = [str(tmp_path / word.removeprefix("out/")) if word.startswith("out/") else word for word in words[1:]]
    done = run_program(*words)
    # A run with a fault reports that not everything is proven, which is what it is shown for.
    assert done.returncode == (1 if "--fault" in words else 0), f"{document}: {command}\n{done.stdout}{done.stderr}"


TARGETS = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.M)
VARIABLES = [(), ("FABRIC=inproc",), ("FABRIC=mininet", "RANKS=3", "MTU=9000"), ("QUICK=1", "SEEDS=1"), ("PUSH=1",)]


@pytest.mark.parametrize("variables", VARIABLES, ids=" ".join)
@pytest.mark.parametrize("target", TARGETS)
def test_a_shell_can_read_what_make_would_run(target: str, variables: tuple[str, ...]) -> None:
    shown = subprocess.run(
        ["make", "--dry-run", "--always-make", target, *variables], cwd=ROOT, capture_output=True, text=True, check=True
    )
    parsed = subprocess.run(["sh", "-n"], input=shown.stdout, capture_output=True, text=True, check=False)
    assert parsed.returncode == 0, f"{parsed.stderr}\n{shown.stdout}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_exist(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"
    for name in re.findall(r"`((?:[a-z0-9_]+/)+[a-z0-9_.]*)`", text):
        if not name.startswith("out/") and not name.startswith("checkpoints/"):
            assert (ROOT / name).exists(), f"{document.name} names {name}"
    packages = "checkmate_common|jobspec|nccl_emu|shadow_rx|softswitch|controlplane|topology|p4src"
    for module in re.findall(rf"`((?:{packages})(?:\.[a-z_0-9]+)+)", text):
        path = ROOT / module.replace(".", "/")
        parents = [path, path.with_suffix(".py"), path.parent.with_suffix(".py")]
        assert any(p.exists() for p in (parents[0], Path(f"{path}.py"), parents[2])), f"{document.name} names {module}"
