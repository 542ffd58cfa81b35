"""Programs made to harm the switch: text that would be code, and demands beyond what a switch has."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from finsy.proto import U128, p4i, p4r
from google.protobuf import text_format
from google.protobuf.message import Message

from p4src.artifacts import device_config, p4info_text
from softswitch.core import SwitchCore
from softswitch.errors import UnsupportedProgram
from softswitch.p4rt import Device, P4RuntimeError
from tests.softswitch.core_rig import PROGRAMS, config
from tests.softswitch.hostile import CANARY, TEXTS, constant, format_words, operation, strings, substituted
from tests.softswitch.p4rt_rig import held_device

FRAMES = (b"", bytes(64), bytes(range(256)), b"\xff" * 200)


@pytest.fixture(autouse=True)
def executed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """What hostile text appends to; nothing may be in it at the end of a test."""
    canary: list[int] = []
    monkeypatch.setattr(builtins, CANARY, canary, raising=False)
    yield canary
    assert canary == []


def push(device: Device, program: bytes, info: p4i.P4Info) -> bool:
    """Push a program with VERIFY, then with VERIFY_AND_COMMIT, and send frames through it; return whether it loads."""
    actions = p4r.SetForwardingPipelineConfigRequest
    loaded = []
    for action in (actions.VERIFY, actions.VERIFY_AND_COMMIT):
        request = actions(device_id=1, action=action, election_id=U128.encode(1))
        request.config.p4_device_config = program
        request.config.p4info.CopyFrom(info)
        try:
            device.set_pipeline(request)
            loaded.append(True)
        except P4RuntimeError:
            loaded.append(False)
    assert loaded[0] == loaded[1]
    for port, frame in enumerate(FRAMES):
        device.inject(port, frame, port)
    return loaded[1]


def renamed(message: Message, change: Mapping[str, str]) -> None:
    """Replace strings of a message wherever they stand."""
    for field, value in message.ListFields():
        if isinstance(value, MutableMapping):
            for key in list(value):
                renamed(value[key], change)
                if key in change:
                    value[change[key]].CopyFrom(value[key])
                    del value[key]
            continue
        values = value if field.is_repeated else [value]
        for number, item in enumerate(values):
            if isinstance(item, Message):
                renamed(item, change)
            elif isinstance(item, str) and item in change and field.is_repeated:
                value[number] = change[item]
            elif isinstance(item, str) and item in change:
                setattr(message, field.name, change[item])


def encodable(text: str) -> bool:
    """Whether a text can be in a protobuf message."""
    return not any(0xD800 <= ord(character) < 0xE000 for character in text)


def source(name: str) -> tuple[dict[str, Any], p4i.P4Info]:
    """Return a program and its P4Info."""
    if name == "checkmate":
        return json.loads(device_config()), text_format.Parse(p4info_text(), p4i.P4Info())
    info = (PROGRAMS / f"{name}.p4info.txtpb").read_text()
    return json.loads(config(name)), text_format.Parse(info, p4i.P4Info())


PROGRAMS_UNDER_TEST = ("checkmate", "p4rt_sample", "replication", "stacks")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", PROGRAMS_UNDER_TEST)
def test_no_name_of_a_program_is_executed(name: str, text: str) -> None:
    program, info = source(name)
    fixed = format_words(program)
    change = {old: old + TEXTS[text] for old in strings(program) if old not in fixed}
    assert len(change) > 40
    renamed(info, {old: new for old, new in change.items() if encodable(new)})
    loaded = push(held_device(), json.dumps(substituted(program, change)).encode(), info)
    # P4Info cannot hold a surrogate, and then does not fit: the program is loaded and refused after that.
    assert loaded or not encodable(TEXTS[text])


@pytest.mark.parametrize("name", ["p4rt_sample", "replication", "stacks"])
def test_no_word_of_the_format_is_executed(name: str) -> None:
    """Each word alone, with one text after the other: it is refused by name, or means nothing."""
    program, _ = source(name)
    texts = list(TEXTS.values())
    for number, word in enumerate(sorted(format_words(program) & set(strings(program)))):
        try:
            core = SwitchCore(substituted(program, {word: word + texts[number % len(texts)]}))
        except UnsupportedProgram:
            continue
        core.process(1, FRAMES[2])


def test_names_that_generated_code_uses_itself_hide_nothing() -> None:
    """Headers, fields, actions and parameters may have the names of builtins, and of the target's variables."""
    program = json.loads(config("branching"))
    reserved = ["bool", "len", "min", "tuple", "packets", "copies", "copy_port", "entry", "Struct", "range", "None"]
    names = [text for text in strings(program["header_types"]) if text not in format_words(program)]
    changed = SwitchCore(substituted(program, dict(zip(names, reserved, strict=False))))
    plain = SwitchCore(program)
    for frame in (bytes([data, mode, 0, 0]) for data in range(0, 256, 7) for mode in (0, 1, 2, 3, 4, 0xF0)):
        assert changed.process(1, frame) == plain.process(1, frame)


def test_a_program_beyond_the_limits_is_refused_within_a_gibibyte() -> None:
    """In a process of its own, whose address space is limited: the interpreter and its libraries take a part."""
    code = (
        "import json, sys, resource\n"
        "from p4src.artifacts import device_config\n"
        "from softswitch.core import SwitchCore\n"
        "from softswitch.errors import UnsupportedProgram\n"
        "from tests.softswitch.hostile import huge_programs\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "for name, program in huge_programs(json.loads(device_config())):\n"
        "    try:\n"
        "        SwitchCore(program)\n"
        "    except UnsupportedProgram as error:\n"
        "        assert str(error).isprintable() and len(str(error)) < 1500, name\n"
        "    else:\n"
        "        sys.exit(f'accepted: {name}')\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_parser_that_goes_round_for_ever_stops() -> None:
    program = json.loads(config("branching"))
    state = program["parsers"][0]["parse_states"][0]
    state["parser_ops"] = []
    state["transitions"] = [{"type": "default", "value": None, "mask": None, "next_state": state["name"]}]
    assert len(SwitchCore(program).process(1, bytes(64)).packets) <= 1


def test_a_shift_by_a_negative_number_does_not_end_the_switch() -> None:
    for op in (">>", "<<"):
        program = json.loads(config("branching"))
        minus = operation("-", constant("0x0"), constant("0x1"))
        comparison = operation("==", operation(op, constant("0x8"), minus), constant("0x0"))
        program["pipelines"][0]["conditionals"][0]["expression"] = comparison
        SwitchCore(program).process(1, bytes(64))


@pytest.mark.parametrize(("part", "key"), [("headers", "name"), ("register_arrays", "name"), ("actions", "id")])
def test_two_objects_of_one_name_are_refused(part: str, key: str) -> None:
    program = json.loads(config("stateful"))
    program[part][1][key] = program[part][0][key]
    with pytest.raises(UnsupportedProgram, match="duplicate"):
        SwitchCore(program)


def test_a_table_of_each_pipeline_with_one_name_is_refused() -> None:
    program = json.loads(device_config())
    names = [pipeline["tables"][0]["name"] for pipeline in program["pipelines"]]
    program["pipelines"][1] = substituted(program["pipelines"][1], {names[1]: names[0]})
    with pytest.raises(UnsupportedProgram, match="duplicate name"):
        SwitchCore(program)


def test_a_validity_bit_that_a_parser_sets_is_named() -> None:
    program = json.loads(config("parsing"))
    header = next(item["name"] for item in program["headers"] if not item["metadata"])
    operation = {
        "op": "set",
        "parameters": [{"type": "field", "value": [header, "$valid$"]}, {"type": "hexstr", "value": "0x01"}],
    }
    program["parsers"][0]["parse_states"][0]["parser_ops"].append(operation)
    with pytest.raises(UnsupportedProgram) as caught:
        SwitchCore(program)
    assert f"{header}.$valid$" in caught.value.what
    assert "not a valid BMv2 JSON" not in str(caught.value)
