"""Runs the benchmarks whose figures are ratios, prints a table and writes ``bench.json``.

    python -m bench.run [--quick] [--out FOLDER] [NAME ...]

``bench.json`` is one object: name -> {ratio, measured, reference, unit, spread, aim, reached}.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.ratios import Ratio

MODULES = ("bench_apply", "bench_live", "bench_placement", "bench_publish", "bench_replay", "bench_rocev2")
"""Modules with a function ``measure(quick) -> {name: Ratio}``."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds: for CI")
    parser.add_argument(
        "--out", type=Path, default=Path("out/bench"), help="folder for bench.json (default: out/bench)"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.modules) - set(MODULES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    console = Console(width=None if sys.stdout.isatty() else 140)
    figures: dict[str, Ratio] = {}
    for name in options.modules or MODULES:
        measure: Callable[[bool], dict[str, Ratio]] = importlib.import_module(f"bench.{name}").measure
        with console.status(f"{name} …"):
            figures.update(measure(options.quick))
    console.print(_table(figures))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "bench.json"
    values = {name: {**asdict(ratio), "reached": ratio.reached} for name, ratio in figures.items()}
    path.write_text(json.dumps(values, indent=1) + "\n")
    console.print(f"written to {path}")


def _table(figures: dict[str, Ratio]) -> Table:
    table = Table("figure", "ratio", "spread", "measured", "reference", "aim")
    for column in table.columns:
        column.no_wrap = True
    for name, ratio in figures.items():
        low, high = ratio.spread
        aim = "" if ratio.aim is None else f"{'at most' if ratio.most else 'at least'} {ratio.aim:g}"
        table.add_row(
            name,
            f"{ratio.ratio:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{ratio.measured:.4g} {ratio.unit}",
            f"{ratio.reference:.4g} {ratio.unit}",
            aim if ratio.reached else f"[red]{aim}[/red]",
        )
    return table


if __name__ == "__main__":
    main()
