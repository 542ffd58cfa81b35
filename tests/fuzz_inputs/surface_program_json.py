"""Compiled programs (BMv2 JSON), damaged and hostile: refused as UnsupportedProgram, or loaded and run with frames."""

from __future__ import annotations

import builtins
import functools
import json
import random
from typing import Any

from p4src.artifacts import device_config
from softswitch.core import SwitchCore
from softswitch.errors import UnsupportedProgram
from tests.fuzz_inputs.damage import damaged
from tests.softswitch.core_rig import PROGRAMS
from tests.softswitch.hostile import CANARY, TEXTS, constant, operation

NAME = "program_json"
TEST_COUNT = 60
PER_CALL = 5

_NUMBERS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 8, 255, 511, 1 << 14, 1 << 24, 1 << 31, 1 << 63, -(1 << 63), 1 << 64, 10**400),
    *(1.5, float("inf"), float("nan"), 1e300),
)
_WORDS = (
    *("", "*", "0x", "0x0", "0x1", "-0x1", "0xffffffffffffffffffff", "0x" + "f" * 5000, "1e9", "$valid$", "default"),
    *("field", "header", "hexstr", "expression", "lookahead", "stack_field", "runtime_data", "bool", "header_stack"),
    *("two_comp_mod", "usat_cast", "sat_cast", "d2b", "b2d", "?", "<<", ">>", "/", "%", "-", "*", "valid", "and"),
    *("exact", "lpm", "ternary", "range", "optional", "valid", "egress", "ingress", "NoAction", "standard_metadata"),
    *("_jump", "_jump_if_zero", "exit", "push", "pop", "recirculate", "resubmit", "truncate", "register_write"),
    *("extract", "extract_VL", "set", "verify", "advance", "primitive", "assign_header", "mark_to_drop", "count"),
)
_OTHERS: tuple[Any, ...] = ([], {}, [1], ["a", "b"], [[0, 8], 8], {"type": "hexstr", "value": "0x1"})


@functools.cache
def _programs() -> dict[str, bytes]:
    """Return the programs that are damaged, by name."""
    paths = [path for path in sorted(PROGRAMS.glob("*.json")) if not path.stem.startswith("refused")]
    return {**{path.stem: path.read_bytes() for path in paths}, "checkmate": device_config()}


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything inside a JSON value."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        keys = list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        for key in keys:
            found.append((item, key))
            waiting.append(item[key])
    return found


def _replacement(rng: random.Random, before: Any) -> Any:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(_NUMBERS)
    if kind == 1:
        return rng.choice(_WORDS)
    if kind == 2:
        return rng.choice(list(TEXTS.values()))
    if kind == 3:
        return json.loads(json.dumps(rng.choice(_OTHERS)))
    if kind == 4 and isinstance(before, str):
        return before + rng.choice(list(TEXTS.values()))
    if kind == 4 and isinstance(before, int):
        return before + rng.choice((-1, 1, 1 << 16))
    nested: Any = constant("0x1")
    op = rng.choice(("+", "<<", ">>", "/", "two_comp_mod", "usat_cast", "&", "=="))
    for _ in range(rng.randrange(1, 130)):
        nested = operation(op, nested, constant(rng.choice(("0x1", "0x0", "-0x1", "0x20"))))
    return nested


def damage(rng: random.Random, text: bytes) -> tuple[str, bytes]:
    """Return a damaged program, and how it was damaged."""
    if rng.randrange(5) == 0:
        data = damaged(rng, text, [word.encode(errors="surrogatepass") for word in (*_WORDS, *TEXTS.values())])
        return f"bytes damaged: {data!r}", data
    program = json.loads(text)
    said = []
    for _ in range(rng.choice((1, 1, 1, 1, 2))):
        container, key = rng.choice(places(program))
        kind = rng.randrange(4)
        before = json.dumps(container[key])[:60]
        if kind == 0:
            del container[key]
            said.append(f"{key!r} removed: {before}")
        elif kind == 1 and isinstance(container, list):
            container.insert(rng.randrange(len(container) + 1), json.loads(json.dumps(container[key])))
            said.append(f"{key!r} doubled: {before}")
        elif kind == 2:
            other, other_key = rng.choice(places(program))
            container[key] = json.loads(json.dumps(other[other_key]))
            said.append(f"{key!r}: {before} becomes what is at {other_key!r}")
        else:
            container[key] = _replacement(rng, container[key])
            said.append(f"{key!r}: {before} becomes {json.dumps(container[key])[:200]}")
        if not places(program):
            break
    return "; ".join(said), json.dumps(program).encode()


def run(rng: random.Random, count: int) -> int:
    """Try `count` damaged programs."""
    executed: list[int] = []
    setattr(builtins, CANARY, executed)
    try:
        for _ in range(count):
            name, text = rng.choice(list(_programs().items()))
            how, program = damage(rng, text)
            frames = [rng.randbytes(rng.choice((0, 1, 14, 60, 300))) for _ in range(3)]
            _try(f"program {name}, {how}", program, frames)
            assert not executed, f"text of a program was executed: program {name}, {how}"
    finally:
        delattr(builtins, CANARY)
    return count


def _try(what: str, program: bytes, frames: list[bytes]) -> None:
    refusal, core = None, None
    try:
        core = SwitchCore(program, cpu_port=510)
    except UnsupportedProgram as error:
        refusal = str(error)
    except Exception as error:
        raise AssertionError(f"{what}: loading raises {error!r}") from error
    if core is None:
        assert refusal is not None
        assert refusal.isprintable(), what
        return
    for frame in frames:
        try:
            output = core.process(1, frame, 1000)
        except Exception as error:
            raise AssertionError(f"{what}: frame {frame.hex()} raises {error!r}") from error
        for port, out in output.packets:
            assert 0 <= port < 512, f"{what}: frame {frame.hex()} leaves port {port}"
            assert isinstance(out, bytes), what
