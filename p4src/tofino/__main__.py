"""Compile the data plane for Tofino 1 and 2, check the result, and write the summary.

python -m p4src.tofino            # needs a p4c with the Tofino backend on PATH: compile, check, write the summary
python -m p4src.tofino --check    # exit 1 if the committed summary is stale or wrong
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from p4src.tofino.artifacts import DOCUMENT, committed_problems, fresh_problems, write_committed
from p4src.tofino.compiler import TARGETS, compile_for, find_compiler
from p4src.tofino.resources import ResourceError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m p4src.tofino", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is stale or wrong")
    options = parser.parse_args(arguments)
    problems = [] if not options.check else committed_problems()
    compiler = find_compiler()
    if compiler is None:
        print("no p4c with the Tofino backend is on PATH: nothing was compiled for Tofino", file=sys.stderr)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            for target in TARGETS:
                output = Path(scratch) / target
                try:
                    compile_for(compiler, target, output)
                    problems += fresh_problems(target, output)
                    if not options.check and not problems:
                        write_committed(target, output)
                except subprocess.CalledProcessError as error:
                    problems.append(f"{target}: p4c refuses the program:\n{error.stderr}")
                except ResourceError as error:
                    problems.append(str(error))
        if not options.check and not problems:
            print(f"written: {DOCUMENT.name} and build/tofino/")
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
