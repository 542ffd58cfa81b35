"""Generate `constants.p4`, compile the data plane with p4c, and check whether the committed artifacts are current.

python -m p4src.compile            # generate and, if p4c is on PATH, compile
python -m p4src.compile --check    # exit 1 if a committed file is stale
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from p4src.artifacts import BUILD, COMPILER_FILE, CONFIG_FILE, DIGEST_FILE, P4INFO_FILE, ROOT, digest_of
from p4src.constants import P4_CONSTANTS
from p4src.naming import NAMES_FILE, render_names
from p4src.p4c import find_p4c

CONSTANTS_FILE = ROOT / "include" / "constants.p4"
MAIN = ROOT / "v1model" / "checkmate.p4"


def render_constants() -> str:
    """Return the text of `constants.p4`."""
    lines = [
        "// Generated from p4src/constants.py by `make p4`; do not edit.",
        "#ifndef CHECKMATE_CONSTANTS",
        "#define CHECKMATE_CONSTANTS",
        "",
    ]
    for name, (p4_type, value) in P4_CONSTANTS.items():
        lines.append(f"const {p4_type} {name} = {value};" if p4_type else f"#define {name} {value}")
    return "\n".join([*lines, "", "#endif", ""])


def source_digest() -> str:
    """Return the SHA-256 over names and contents of all P4 sources, which the artifacts record."""
    return digest_of(ROOT, "include/*.p4", "v1model/*.p4")


def compile_to(directory: Path) -> None:
    """Compile the v1model program into `directory`: BMv2 JSON and P4Info.

    Raises:
        subprocess.CalledProcessError: p4c refuses the program; its messages are on standard error.
    """
    command = ["p4c", "--target", "bmv2", "--arch", "v1model", "--std", "p4-16", "-o", str(directory),
               "--p4runtime-files", str(directory / P4INFO_FILE), "v1model/checkmate.p4"]  # fmt: skip
    # Run in the source folder, so that the JSON's source references contain no path of this machine.
    subprocess.run(command, check=True, cwd=ROOT)
    config = directory / CONFIG_FILE
    text = config.read_text()
    config.write_text(re.sub(r'"program" : "[^"]*"', '"program" : "v1model/checkmate.p4"', text))


def compiler_version() -> str | None:
    """Return the version of the installed p4c, None if none with the BMv2 backend is on PATH."""
    compiler = find_p4c("bmv2-v1model")
    if compiler is None:
        return None
    return subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout.strip()


def stale() -> list[str]:
    """Return what is stale, one sentence each; if p4c is installed, its output is compared too."""
    found: list[str] = []
    if not CONSTANTS_FILE.exists() or CONSTANTS_FILE.read_text() != render_constants():
        found.append("include/constants.p4 does not match constants.py; run `make p4`")
    if not (BUILD / DIGEST_FILE).exists() or (BUILD / DIGEST_FILE).read_text().strip() != source_digest():
        found.append("build/ was not compiled from these sources; run `make p4` with p4c installed")
        return found
    if NAMES_FILE.read_text() != render_names((BUILD / P4INFO_FILE).read_text()):
        found.append("names.py does not match the P4Info; run `make p4`")
    version = compiler_version()
    if version is not None:
        with tempfile.TemporaryDirectory() as scratch:
            compile_to(Path(scratch))
            # Another version of p4c may number and order things differently; only the same one must agree exactly.
            same = version == (BUILD / COMPILER_FILE).read_text().strip()
            for name in (CONFIG_FILE, P4INFO_FILE):
                if same and (Path(scratch) / name).read_bytes() != (BUILD / name).read_bytes():
                    found.append(f"build/{name} differs from the installed p4c's output for these sources")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m p4src.compile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is stale")
    options = parser.parse_args(arguments)
    if not options.check:
        CONSTANTS_FILE.write_text(render_constants())
        version = compiler_version()
        if version is not None:
            # In a temporary folder: p4c leaves its preprocessed input beside the output.
            with tempfile.TemporaryDirectory() as scratch:
                compile_to(Path(scratch))
                BUILD.mkdir(exist_ok=True)
                for name in (CONFIG_FILE, P4INFO_FILE):
                    shutil.copyfile(Path(scratch) / name, BUILD / name)
            (BUILD / COMPILER_FILE).write_text(version + "\n")
            (BUILD / DIGEST_FILE).write_text(source_digest() + "\n")
            NAMES_FILE.write_text(render_names((BUILD / P4INFO_FILE).read_text()))
        else:
            print("no p4c with the BMv2 backend is on PATH: the data plane was not recompiled", file=sys.stderr)
    problems = stale()
    for problem in problems:
        print(f"stale: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
