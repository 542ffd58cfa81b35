"""Limits of a program, so that nobody who can push a program can exhaust the switch.

Together they keep loading a program below about 700 MiB and one minute, whatever its text. They are far above the needs
of compiled programs; a program that exceeds one is refused with its name and place.
"""

from __future__ import annotations

MAX_TEXT = 16 << 20
"""Bytes of the BMv2 JSON; parsed, it takes up to 25 times as much memory."""

MAX_SIZE = 1 << 24
"""Cells of a register or counter array, and entries of a table."""

MAX_STATE_BYTES = 256 << 20
"""Bytes of all register and counter arrays. They are allocated when the program is loaded, so three times as much is
used while one program runs, one is saved and one is verified."""

MAX_WIDTH = 1 << 14
"""Bits of a field, register cell, action parameter, constant or cast."""

MAX_FIELDS = 1 << 16
"""Fields of all header and metadata instances."""

MAX_HEADER_BYTES = 1 << 18
"""Bytes of all header instances."""

MAX_NODES = 2048
"""Tables and conditions of a pipeline, or states of the parser."""

MAX_EXPRESSION_DEPTH = 100
"""Nested operators in one expression: Python nests at most 200 parentheses, and some operators take two or three."""

MAX_EXPRESSIONS = 100_000
"""Operators and operands of all expressions."""

MAX_EXPRESSION_TEXT = 1 << 16
"""Characters of the generated code of one expression."""

MAX_PRIMITIVES = 200_000
"""Primitives of the actions of all tables, each counted once per table that has the action."""

MAX_SOURCE = 2 << 20
"""Characters of generated code; compiling one takes up to about 200 bytes of memory."""

MAX_PARSER_STEPS = 1 << 16
"""States that the parser visits for one packet; then it stops with ParserTimeout. BMv2 continues forever."""
