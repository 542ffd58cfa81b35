"""The parser emitted by the Tofino backend (``pipe/*.bfa``), executed on packets.

An exit code of 0 does not prove that a compiled parser still reads the packet: compilers between p4c's pull requests
5063 and 5753 drop the match registers of every ``select``, so that each state goes to its first successor. Executing
the emitted states on packets shows what hardware would do. The format is that of p4c's assembler (``bf-asm``,
SYNTAX.yaml, section "parser"); only the parts that determine the path through the states are read: ``match``, patterns,
``load``, ``shift`` and ``next``, and from the backend's comments the headers that a row makes valid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SECTION = re.compile(r"^parser (ingress|egress)[^\n]*:\n((?:[ \t].*\n|\n)*)", re.MULTILINE)
_STATE = re.compile(r"^    (\S.*):\s*$")
_ROW = re.compile(r"^      (\*|0[xb][0-9a-fA-F*]+):\s*$")
_EXTRACT = re.compile(r"^\s+(\d+)(?:\.\.\d+)?: ")
_VALID = re.compile(r"::(hdr\.[\w.]+)\.\$valid")
_WIDTHS = {"half": 16}
"""Bits of a match register; ``byteN`` has 8."""
_COUNTERS = {"ctr_zero", "ctr_neg"}
END = "end"


class EmittedParserError(ValueError):
    """The assembly has something that this reader does not support; names the state."""

    def __init__(self, where: str, problem: str) -> None:
        """Keep the state."""
        self.where = where
        super().__init__(f"emitted parser, {where}: {problem}")


@dataclass
class Row:
    """One transition of a state: taken when its pattern is the first to match."""

    pattern: str
    """Binary digits, most significant first, with ``*`` for don't care; empty always matches."""
    next: str = END
    """The next state."""
    shift: int = 0
    """Number of bytes of the packet to consume."""
    loads: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Match register -> first and last byte, relative to the state's first byte."""
    headers: list[str] = field(default_factory=list)
    """Headers that become valid."""
    extracts: list[tuple[int, str]] = field(default_factory=list)
    """First byte, relative to the state's, and the backend's comment."""


@dataclass
class State:
    """One state of the emitted parser."""

    name: str
    """Its name, which begins with the name of the source's state."""
    match: list[str] = field(default_factory=list)
    """Match registers, in the order of the patterns' digits."""
    rows: list[Row] = field(default_factory=list)
    """In order of priority."""


@dataclass(frozen=True)
class Walk:
    """Result of parsing one packet."""

    states: tuple[str, ...]
    """The states on its path."""
    headers: frozenset[str]
    """The headers that became valid."""


@dataclass(frozen=True)
class EmittedParser:
    """The emitted parser of one direction."""

    start: str
    """Its first state."""
    states: dict[str, State]
    """By name."""

    def walk(self, packet: bytes) -> Walk:
        """Send `packet` (with the intrinsic metadata in front of it) through the states.

        Raises:
            EmittedParserError: a state is missing, none of its rows matches, or the states go round in a circle.
        """
        registers: dict[str, int] = {}
        position, name = 0, self.start
        seen: list[str] = []
        headers: set[str] = set()
        while name != END:
            state = self.states.get(name)
            if state is None:
                raise EmittedParserError(name, "is named as a successor and is not there")
            if len(seen) > 64:
                raise EmittedParserError(name, f"is reached after {len(seen)} states: the parser does not end")
            seen.append(name)
            if _COUNTERS & set(state.match):
                break  # the minimum parse depth: no more headers
            row = _first_match(state, registers)
            for register, (first, last) in row.loads.items():
                data = packet[position + first : position + last + 1]
                registers[register] = int.from_bytes(data.ljust(last - first + 1, b"\0"), "big")
            headers.update(row.headers)
            position += row.shift
            name = row.next
        return Walk(tuple(seen), frozenset(headers))

    def offset_of(self, extracted: str) -> int:
        """Return how many bytes lie before the field `extracted`, on the way of each state's first row.

        Raises:
            EmittedParserError: no row on that way extracts the field.
        """
        position, name = 0, self.start
        for _ in self.states:
            if name == END:
                break
            row = self.states[name].rows[0]
            for offset, comment in row.extracts:
                if extracted in comment:
                    return position + offset
            position += row.shift
            name = row.next
        raise EmittedParserError(self.start, f"no state extracts {extracted}")


def read_parsers(assembly: str) -> dict[str, EmittedParser]:
    """Return the parsers in the text of a ``.bfa`` file by direction, ``ingress`` and ``egress``.

    Raises:
        EmittedParserError: a direction is missing, or has no states.
    """
    found: dict[str, EmittedParser] = {}
    for match in _SECTION.finditer(assembly):
        found.setdefault(match.group(1), _read_parser(match.group(1), match.group(2)))
    for direction in ("ingress", "egress"):
        if direction not in found:
            raise EmittedParserError(direction, "is not in the assembly")
    return found


def _read_parser(direction: str, text: str) -> EmittedParser:
    start = re.search(r"^  start: (\S+)", text, re.MULTILINE)
    states: dict[str, State] = {}
    state: State | None = None
    row: Row | None = None
    for line in text.splitlines():
        if named := _STATE.match(line):
            state, row = State(named.group(1)), None
            states[state.name] = state
        elif state is not None and (pattern := _ROW.match(line)):
            row = Row(_digits(pattern.group(1)))
            state.rows.append(row)
        elif state is not None:
            _read_line(state, row, line)
    if start is None or start.group(1) not in states:
        raise EmittedParserError(direction, "has no first state")
    return EmittedParser(start.group(1), states)


def _read_line(state: State, row: Row | None, line: str) -> None:
    code, _, _ = line.partition("#")
    key, _, value = (part.strip() for part in code.partition(":"))
    if row is None:
        if key == "match":
            state.match = re.findall(r"\w+", value)
        return
    row.headers.extend(_VALID.findall(line))
    if extract := _EXTRACT.match(line):
        row.extracts.append((int(extract.group(1)), line))
    elif row.extracts and not code.strip():
        offset, comment = row.extracts[-1]
        row.extracts[-1] = (offset, comment + line)
    if key == "next":
        row.next = value
    elif key == "shift":
        row.shift = int(value)
    elif key == "load":
        for register, first, last in re.findall(r"(\w+) : (\d+)(?:\.\.(\d+))?", value):
            row.loads[register] = (int(first), int(last or first))


def _digits(pattern: str) -> str:
    """Return a pattern as binary digits; ``*`` alone always matches."""
    if pattern == "*":
        return ""
    digits = pattern[2:].replace("_", "")
    if pattern[1] == "b":
        return digits
    return "".join("****" if digit == "*" else f"{int(digit, 16):04b}" for digit in digits)


def _first_match(state: State, registers: dict[str, int]) -> Row:
    value = ""
    for register in state.match:
        if register not in registers:
            raise EmittedParserError(state.name, f"matches {register}, which no state has loaded")
        value += f"{registers[register]:0{_WIDTHS.get(register, 8)}b}"
    for row in state.rows:
        # A row whose pattern tests nothing matches whatever the registers hold, as in hardware.
        digits = row.pattern or "*" * len(value)
        if len(digits) != len(value) and set(digits) != {"*"} and value:
            raise EmittedParserError(
                state.name, f"pattern {digits} does not have the {len(value)} bits of its registers"
            )
        if all(digit in ("*", bit) for digit, bit in zip(digits, value, strict=False)):
            return row
    raise EmittedParserError(state.name, "no row matches")
