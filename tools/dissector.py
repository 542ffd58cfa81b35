"""Keeps `tools/checkmate.lua` at one with the frame format: `python -m tools.dissector [--check]`.

What the Lua file needs to know of the format stands in `jobspec.frame`, `jobspec.ring` and `jobspec.dtypes`; the part
of it between two marks is written from there.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobspec.dtypes import DType
from jobspec.frame import FIELDS, HEADER_BYTES, MAGIC, VERSION
from jobspec.ring import Phase

SCRIPT = Path(__file__).with_name("checkmate.lua")
BEGIN = "-- Generated from jobspec/frame.py by `python -m tools.dissector`; do not edit between these lines.\n"
END = "-- End of what is generated.\n"


def generated() -> str:
    """Return the lines between the marks."""
    lines = [
        f'local MAGIC = "{MAGIC.decode()}"',
        f"local VERSION = {VERSION}",
        f"local HEADER_BYTES = {HEADER_BYTES}",
        _table("PHASES", {int(phase): f'"{_words(phase.name)}"' for phase in Phase}),
        _table("DTYPES", {int(dtype): f'"{dtype.label}"' for dtype in DType}),
        _table("ITEMSIZES", {int(dtype): str(dtype.itemsize) for dtype in DType}),
        "local FIELDS = {",
    ]
    offset = 0
    for name, code in FIELDS:
        size = struct.calcsize(f"!{code}")
        label = _words(name).capitalize().replace("crc", "CRC32C")
        lines.append(f'    {{ name = "{name}", label = "{label}", offset = {offset}, size = {size} }},')
        offset += size
    return "\n".join([*lines, "}", ""])


def renewed(text: str) -> str:
    """Return the Lua script `text` with the generated part as it must be.

    Raises:
        ValueError: the marks are not there, once each and in order.
    """
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended) or BEGIN in rest or END in before + after:
        raise ValueError(f"{SCRIPT.name}: the two lines that frame the generated part are not there once each")
    return before + BEGIN + generated() + END + after


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the script anew, or check it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.dissector", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when the script is stale")
    options = parser.parse_args(arguments)
    text = SCRIPT.read_text(encoding="utf-8")
    wanted = renewed(text)
    if text == wanted:
        return 0
    if options.check:
        print(f"{SCRIPT.name} is not what the frame format asks for; run: python -m tools.dissector", file=sys.stderr)
        return 1
    SCRIPT.write_text(wanted, encoding="utf-8")
    return 0


def _table(name: str, values: Mapping[int, str]) -> str:
    return f"local {name} = {{ {', '.join(f'[{key}] = {value}' for key, value in values.items())} }}"


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


if __name__ == "__main__":
    sys.exit(main())
