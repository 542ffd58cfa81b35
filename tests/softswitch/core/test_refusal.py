"""What is refused at load, with which words; and input that is no program at all."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from softswitch.core import SwitchCore
from softswitch.errors import ErrorKind, SwitchError, UnsupportedProgram
from softswitch.state import ActionCall, Exact, TableEntry
from tests.softswitch.core_rig import PROGRAMS, config, load, only

PROGRAM_NAMES = ("arithmetic", "branching", "checksums", "matching", "parsing", "replication", "stacks", "stateful")


@pytest.mark.parametrize(
    ("name", "construct", "place"),
    [
        ("assert", "the primitive 'assert'", "(refused_assert.p4:18)"),
        ("hash", "the hash algorithm 'random'", "calculations[0]"),
        ("loop", "a loop in an action", "'TestIngress.sum' (refused_loop.p4:19)"),
        ("meter", "a meter", "'TestIngress.limiter' (refused_meter.p4:18)"),
        ("profile", "an action profile", "'TestIngress.profile' (refused_profile.p4:18)"),
        ("union", "a header union", "header_unions[0] 'u'"),
        ("value_set", "a parser value set", "'TestParser.known'"),
    ],
)
def test_what_is_not_supported_is_refused_with_its_name_and_place(name: str, construct: str, place: str) -> None:
    with pytest.raises(UnsupportedProgram) as caught:
        SwitchCore((PROGRAMS / f"refused_{name}.json").read_bytes())
    assert caught.value.kind is ErrorKind.UNIMPLEMENTED
    assert construct in caught.value.what
    assert place in caught.value.place
    assert isinstance(caught.value, SwitchError)


def test_every_refused_program_is_tested() -> None:
    marks = getattr(test_what_is_not_supported_is_refused_with_its_name_and_place, "pytestmark")  # noqa: B009
    tested = {f"refused_{row[0]}" for row in marks[0].args[1]}
    assert tested == {path.stem for path in PROGRAMS.glob("refused_*.json")}


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"__meta__": {"version": [2, 23]}}', b"\xff\xfe"])
def test_text_that_is_no_bmv2_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(UnsupportedProgram) as caught:
        SwitchCore(text)
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT


def test_a_json_of_another_major_version_is_refused() -> None:
    program = json.loads(config("branching"))
    program["__meta__"]["version"] = [3, 0]
    with pytest.raises(UnsupportedProgram, match="version 3"):
        SwitchCore(program)


def test_a_reference_to_nothing_names_what_is_missing() -> None:
    program = json.loads(config("branching"))
    program["pipelines"][0]["init_table"] = "nowhere"
    with pytest.raises(UnsupportedProgram, match="nowhere") as caught:
        SwitchCore(program)
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT
    assert "pipelines[0]" in caught.value.place


def test_control_flow_with_a_cycle_is_refused() -> None:
    program = json.loads(config("branching"))
    pipeline = program["pipelines"][0]
    condition = pipeline["conditionals"][0]
    condition["true_next"] = condition["false_next"] = pipeline["init_table"]
    with pytest.raises(UnsupportedProgram, match="cycle"):
        SwitchCore(program)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything inside a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    found = [(value, key) for key in keys]
    for key in keys:
        found += places(value[key])
    return found


JUNK: tuple[Any, ...] = (
    *(None, 0, -1, 1, 255, 10**6, 1.5, True, "", "0x", "0x01", "-0x5", "field", "header", "hexstr", "expression"),
    *([], {}, [1], ["a", "b"], "NoAction"),
)


@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_damaged_programs_are_refused_or_run_but_never_crash(name: str) -> None:
    """Delete, replace or swap random parts of a program; loading must end in UnsupportedProgram or a switch."""
    original = json.loads(config(name))
    rng = random.Random(name)
    refused = 0
    for _ in range(30):
        program = copy.deepcopy(original)
        container, key = rng.choice(places(program))
        match rng.randrange(3):
            case 0:
                del container[key]
            case 1:
                container[key] = rng.choice(JUNK)
            case _:
                other, other_key = rng.choice(places(program))
                container[key] = copy.deepcopy(other[other_key])
        try:
            core = SwitchCore(program)
        except UnsupportedProgram:
            refused += 1
            continue
        core.process(1, rng.randbytes(rng.randrange(60)))
    assert refused > 5


@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_random_packets_never_crash_a_program(name: str) -> None:
    core = load(name)
    rng = random.Random(name)
    for _ in range(500):
        frame = rng.randbytes(rng.randrange(70))
        for port, out in core.process(rng.randrange(512), frame, rng.randrange(1 << 50)).packets:
            assert 0 <= port < 512
            assert isinstance(out, bytes)


def test_the_generated_source_points_to_the_p4_source() -> None:
    source = load("checksums").generated_source
    assert "# table TestIngress.routes (checksums.p4:" in source
    assert "ipv4_ttl = " in source
    assert "def ingress(" in source
    assert "def egress(" in source


def test_the_same_program_always_gives_the_same_source() -> None:
    assert load("replication").generated_source == load("replication").generated_source


def test_a_table_with_idle_timeout_is_loaded() -> None:
    core = load("timeout")
    table = core.tables["TestIngress.t"]
    table.insert(TableEntry((Exact(7),), 0, ActionCall("TestIngress.set", (9,))))
    assert only(core, bytes([7, 0])) == (0, bytes([7, 9]))
