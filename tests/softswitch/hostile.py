"""Hostile texts and hostile programs, for the tests of loading and for those of P4Runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

CANARY = "softswitch_canary"
"""Name that hostile text calls `append` of: a test makes it a list in `builtins`."""

_CALL = f"{CANARY}.append(1)"
TEXTS: Mapping[str, str] = {
    "docstring": f'"""\n{_CALL}\n"""',
    "newline": f"\n{_CALL}\n#",
    "newline in a function": f"\n        {_CALL}\n        #",
    "newline in a nested function": f"\n                {_CALL}\n                #",
    "carriage return": f"\r{_CALL}\r#",
    "form feed": f"\f\n{_CALL}",
    "line separator": f"\u2028{_CALL}\u2029\x85{_CALL}",
    "single quote": f"'] or {_CALL} or ['",
    "double quote": f'"] or {_CALL} or ["',
    "quote and newline": f"'\n{_CALL}\n'",
    "backslash": "\\",
    "braces": f"{{{_CALL}}}",
    "parenthesis": f"({_CALL})",
    "nul": f"\0{_CALL}",
    "surrogate": "\ud800",
    "not ascii": "é ж 名 \u202e",
    "keyword": " None",
    "very long": "x" * 5_000,
}


def strings(value: Any, found: dict[str, None] | None = None) -> list[str]:
    """Return all strings of a JSON value, keys too, each once, in order of their appearance."""
    found = {} if found is None else found
    if isinstance(value, str):
        found[value] = None
    elif isinstance(value, dict):
        for key, item in value.items():
            found[key] = None
            strings(item, found)
    elif isinstance(value, list):
        for item in value:
            strings(item, found)
    return list(found)


def substituted(value: Any, change: Mapping[str, str]) -> Any:
    """Return a JSON value with strings replaced wherever they stand, keys too."""
    if isinstance(value, str):
        return change.get(value, value)
    if isinstance(value, dict):
        return {change.get(key, key): substituted(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [substituted(item, change) for item in value]
    return value


def format_words(program: dict[str, Any]) -> set[str]:
    """Return the strings that mean something in the format or to the target: all others are names of the program."""
    words = {"", "*", "default", "ingress", "egress", "$valid$", "__HIT__", "__MISS__"}

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            named = {"op", "type", "match_type", "algo"}
            words.update(item for key, item in value.items() if key in named and isinstance(item, str))
            words.update(key for key in value if key not in program_names)
            if value.get("type") == "hexstr" or set(value) >= {"next_state", "value"}:
                words.update(item for item in (value["value"], value.get("mask")) if isinstance(item, str))
            for key in ("action_data", "key", "mask", "start", "end"):
                items = value.get(key)
                words.update(item for item in (items if isinstance(items, list) else [items]) if _is_number(item))
            for item in value.values():
                collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    program_names = {action["name"] for action in program["actions"]}
    collect(program)
    for header in program["headers"]:
        if header["name"] == "standard_metadata":
            kind = next(item for item in program["header_types"] if item["name"] == header["header_type"])
            words.update(("standard_metadata", *(field[0] for field in kind["fields"])))
    words.update(alias[0] for alias in program["field_aliases"])
    words.update(error[0] for error in program["errors"])
    return words


def _is_number(value: object) -> bool:
    return isinstance(value, str) and value.lower().startswith("0x")


def constant(value: str) -> dict[str, Any]:
    return {"type": "hexstr", "value": value}


def operation(op: str, left: Any, right: Any) -> dict[str, Any]:
    return {"type": "expression", "value": {"op": op, "left": left, "right": right}}


def huge_programs(base: dict[str, Any]) -> Iterator[tuple[str, str | bytes | dict[str, Any]]]:
    """Yield programs, by name, that ask for more than a switch has; `base` is a program with a condition."""

    def changed() -> dict[str, Any]:
        copy: dict[str, Any] = json.loads(json.dumps(base))
        return copy

    def condition(left: Any) -> dict[str, Any]:
        program = json.loads(json.dumps(base))
        comparison = {"type": "expression", "value": {"op": "==", "left": left, "right": constant("0x1")}}
        program["pipelines"][0]["conditionals"][0]["expression"] = comparison
        return dict(program)

    def nested(op: str, depth: int, leaf: Any) -> Any:
        for _ in range(depth):
            leaf = operation(op, leaf, constant("0x1"))
        return leaf

    def doubled(op: str, depth: int) -> Any:
        """Every level refers to the one below twice, so the tree doubles and the object does not."""
        leaf: Any = {"type": "field", "value": ["standard_metadata", "ingress_port"]}
        for _ in range(depth):
            leaf = operation(op, leaf, leaf)
        return leaf

    def right(op: str, depth: int) -> Any:
        """The right operand is written twice into the code, level by level."""
        leaf: Any = {"type": "field", "value": ["standard_metadata", "ingress_port"]}
        for _ in range(depth):
            leaf = operation(op, constant("0x1"), leaf)
        return leaf

    yield "JSON of 100,000 levels", '{"a":' * 100_000 + "1" + "}" * 100_000
    yield "unfinished JSON of 100,000 levels", "[" * 100_000
    yield "not UTF-8", b"\x80\x81{}"
    yield "integer of 10^6 digits", '{"__meta__":{"version":[' + "9" * 10**6 + ",18]}}"
    yield "17 MiB of blanks", " " * (17 << 20)
    for name, size, keys in (
        ("register_arrays", 1 << 24, {"bitwidth": 32}),
        ("register_arrays", 1 << 20, {"bitwidth": 16384}),
        ("counter_arrays", 1 << 24, {"is_direct": False}),
    ):
        program = changed()
        items = [{"name": f"x{number}", "id": 900 + number, "size": size, **keys} for number in range(20)]
        program[name] = [*program[name], *items]
        yield f"20 {name} of {size} with {keys}", program
    program = changed()
    program["header_types"].append({"name": "wide", "id": 99, "fields": [["f", 16384, False]]})
    for number in range(200):
        header = {"name": f"wide{number}", "id": 900 + number, "header_type": "wide", "metadata": False}
        program["headers"].append({**header, "pi_omit": True})
    yield "200 headers of 2 KiB", program
    for op in ("usat_cast", "sat_cast", "two_comp_mod"):
        for width in ("0x200000000", "0x0", "-0x1", "0x4001"):
            yield f"{op} to {width} bits", condition(operation(op, constant("0x1"), constant(width)))
    yield "constant of 20 MB", condition(constant("0x" + "f" * 20_000_000))
    yield "sum 150 deep", condition(nested("+", 150, constant("0x1")))
    yield "'&' with 2^60 leaves", condition(doubled("&", 60))
    for op in ("<<", "/", "%"):
        yield f"'{op}' with 2^90 operands in the code", condition(right(op, 90))
    yield "two_comp_mod 90 deep", condition(nested("two_comp_mod", 90, constant("0x1")))
    program = changed()
    node = program["pipelines"][0]["conditionals"][0]
    for number in range(3000):
        program["pipelines"][0]["conditionals"].append({**node, "name": f"more{number}"})
    yield "3,000 conditions", program
