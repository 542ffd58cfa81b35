"""Job files as people write them: every mistake is told with file, line, field and what was expected."""

from __future__ import annotations

import json
import os
import random
import string
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checkmate_common.fields import MAX_PORT
from jobspec.errors import JobError, Problem
from jobspec.loader import MAX_VALUES, load_job, load_jobs, parse_job
from jobspec.model import Job

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"
TEXT = EXAMPLE.read_text()
LINES = TEXT.splitlines()


def line_of(words: str) -> int:
    """Return the 1-based line of the example that begins with `words`, leading blanks aside."""
    (found,) = [number for number, line in enumerate(LINES, 1) if line.strip().startswith(words)]
    return found


def problems(text: str) -> list[Problem]:
    with pytest.raises(JobError) as caught:
        parse_job(text, "job.yaml")
    assert all(problem.file == "job.yaml" for problem in caught.value.problems)
    return caught.value.problems


def only(text: str) -> Problem:
    (problem,) = problems(text)
    return problem


def test_the_example_is_sound() -> None:
    job = load_job(EXAMPLE)
    assert (job.name, job.id, job.switch.ports, job.mss) == ("digits", 7, list(range(1, 10)), 1460)
    assert [host.name for host in job.hosts] == [f"r{i}" for i in range(8)]
    assert [(flow.id, flow.source.name, flow.target.name) for flow in job.flows] == [
        (0, "r0", "r1"),
        (1, "r1", "r2"),
        (2, "r2", "r3"),
        (3, "r3", "r0"),
    ]
    assert job.workload.optimizer.options == {"lr": 0.003, "weight_decay": 0.01}


# (what stands in the example, what is written instead, field, words of the message)
MISTAKES = [
    ("version: 1", "version: 2", "version", "1 2"),
    ("name: digits", "name: no", "name", ""),
    ("name: digits", "name: 7up", "name", ""),
    ("id: 7", "id: seven", "id", "'seven'"),
    ("id: 7", "id: 65536", "id", "65535 65536"),
    ("id: 7", "id: 0x" + "f" * 20, "id", ""),
    ("id: 7", "id: " + "9" * 4000, "id", ""),
    ("id: 7", "id: " + "9" * 5000, "id", "5000 4096"),
    ("id: 7", "id: 2026-13-45", "id", "1..12"),
    ("id: 7", "id: [7]", "id", ""),
    ("device_id: 1", "device_id: 0", "switch.device_id", "1 0"),
    ("ports: 9", "ports: 0", "switch.ports", "1"),
    ("ports: 9", "ports: 99999999999", "switch.ports[0]", f"{MAX_PORT} 99999999999"),
    ("ports: 9", "ports: [1, 2, 3, x]", "switch.ports[3]", "'x'"),
    ("mtu: 1500", "mtu: 500", "network.mtu", "576 500"),
    ("mtu: 1500", "mut: 1500", "network.mut", ""),
    ("primary: 3", "primary: 4", "dscp.primary", "2"),
    ("redundant: 7", "redundant: 3", "dscp.redundant", "dscp.primary 3"),
    ("- {name: r7,", "- {name: r6,", "hosts[7].name", "r6 hosts[6].name"),
    ("r1, port: 2,", "r1, port: 1,", "hosts[1].port", "1 hosts[0]"),
    ("r1, port: 2,", "r1, port: 12,", "hosts[1].port", "s1 12 1..9"),
    ("- {name: r1, port: 2,", "- {name: r1,", "hosts[1].port", ""),
    ("02:00:00:00:01:01", "03:00:00:00:01:01", "hosts[1].mac", ""),
    (
        "02:00:00:00:01:01",
        "02:00:00:00:01",
        "hosts[1].mac",
        "02:00:00:00:00:01",
    ),
    (
        "02:00:00:00:01:01",
        "02-00-00-00-01-00",
        "hosts[1].mac",
        "02:00:00:00:01:00 hosts[0].mac",
    ),
    (
        '"02:00:00:00:01:01"',
        "12:00:00:00:01:01",
        "hosts[1].mac",
        "9331200061",
    ),
    ("10.0.0.11", "10.0.0.10", "hosts[1].ip", "10.0.0.10 hosts[0].ip"),
    ("10.0.0.11", "10.0.0.256", "hosts[1].ip", "'10.0.0.256'"),
    ("10.0.1.100", "10.0.0.17", "shadows[0].ip", "10.0.0.17 hosts[7].ip"),
    ("base_port: 20000", "base_port: 65533", "shadows[0].base_port", "65533 3 65535"),
    ("rid: 1}", "rid: 0}", "shadows[0].rid", "1 0"),
    ("ring: [r0, r1, r2, r3]", "ring: [r0, r1, r2, r0]", "groups[0].ring[3]", "r0"),
    (
        "ring: [r0, r1, r2, r3]",
        "ring: [r0, r9]",
        "groups[0].ring[1]",
        "'r9' r0 r1",
    ),
    ("ring: [r0, r1, r2, r3]", "ring: [r0, sh0]", "groups[0].ring[1]", "'sh0'"),
    ("ring: [r0, r1, r2, r3]", "ring: [r0]", "groups[0].ring", "2"),
    (
        "shadows: [sh0]",
        "shadows: [sh1]",
        "groups[0].shadows[0]",
        "'sh1' sh0",
    ),
    ("shadows: [sh0]", "shadows: [sh0, sh0]", "groups[0].shadows[1]", "sh0"),
    ("channels: 1", "channels: 17", "groups[0].channels", "16 17"),
    ("tcp_port: 4000", "tcp_port: 65536", "groups[0].tcp_port", "65535"),
    (
        "payload_bytes: 65536",
        "payload_bytes: 1",
        "framing.payload_bytes",
        "512 1",
    ),
    ("kind: digits-mlp", "kind: gpt", "workload.kind", "'digits-mlp' 'gpt'"),
    ("hidden: [96, 50]", "hidden: [96, 0]", "workload.hidden[1]", "1 0"),
    ("dropout: 0.1", "dropout: .nan", "workload.dropout", ""),
    ("name: AdamW", "name: Adamw", "workload.optimizer.name", "'AdamW'"),
    ("total_steps: 100", "total_steps: -1", "workload.schedule.total_steps", "-1"),
]


@pytest.mark.parametrize(("good", "bad", "field", "facts"), MISTAKES, ids=lambda value: value[:24])
def test_a_mistake_is_told_with_its_line_and_field(good: str, bad: str, field: str, facts: str) -> None:
    number, line = next((number, line) for number, line in enumerate(LINES, 1) if good in line)
    changed = [*LINES[: number - 1], line.replace(good, bad), *LINES[number:]]
    problem = only("\n".join(changed))
    assert (problem.field, problem.line) == (field, number)
    assert all(fact in problem.message for fact in facts.split()), problem.message
    assert str(problem).startswith(f"job.yaml:{number}: {field}: ")


def test_a_missing_section_is_told_with_the_file() -> None:
    start, end = line_of("groups:"), line_of("framing:")
    problem = only("\n".join([*LINES[: start - 1], *LINES[end - 1 :]]))
    assert problem.field == "groups"
    assert "rdma" in problem.message
    start, end = line_of("hosts:"), line_of("- {name: sh0") - 1
    problem = only("\n".join([*LINES[: start - 1], *LINES[end - 1 :]]))
    assert problem.field == "hosts"


def test_all_mistakes_are_told_at_once() -> None:
    text = TEXT.replace("mtu: 1500", "mtu: 1").replace("channels: 1", "channels: 0").replace("rid: 1}", "rid: x}")
    found = {(problem.field, problem.line) for problem in problems(text)}
    assert found == {
        ("network.mtu", line_of("mtu:")),
        ("groups[0].channels", line_of("channels:")),
        ("shadows[0].rid", line_of("- {name: sh0")),
    }


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "holds nothing, expected a mapping"),
        ("# only a comment\n", 1, "holds nothing"),
        ("- 1\n", 1, "holds list, expected a mapping"),
        ("hello", 1, "holds str"),
        ("version: 1\nname: [a\nid: 7\n", 3, "not YAML"),
        ("version: 1\n\tname: a\n", 2, "not YAML"),
        ("a: *nowhere\n", 1, "not YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", 2, "not YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", 1, "has the tag tag:yaml.org,2002:python/object/apply:os.getcwd"),
        ("a: !python x\n", 1, "not YAML: could not determine a constructor for the tag"),
        ("version: 1\nversion: 1\n", 2, "duplicate key"),
        ("version: 1\n? [a, b]\n: 1\n", 2, "a key is a list or a mapping"),
        ("a: &a\n  - *a\n", 1, "nested deeper than 50 levels"),
        ("a: " + "[" * 60 + "]" * 60, 1, "nested deeper"),
        ("[" * 1200, 1, "nested deeper"),
        ("- a\n- " + "{a: " * 60, 2, "nested deeper"),
        ("\n\n" + "? " * 60, 3, "nested deeper"),
        ("a: \0", 1, "not YAML: the character U+0000 is not allowed"),
        ("a: 1\r\n\r\nb: '\x1b'\n", 3, "not YAML: the character U+001B is not allowed"),
        ("a: !python []\n", 1, "has the tag !python; remove it"),
        ("a: 1\nb: !!set {a}\n", 2, "has the tag tag:yaml.org,2002:set; remove it"),
    ],
)
def test_what_is_no_job_file_is_told(text: str, line: int | None, words: str) -> None:
    found = problems(text)
    assert any(words in problem.message for problem in found)
    assert next(problem.line for problem in found if words in problem.message) == line


def test_long_keys_and_many_keys_are_refused_with_their_line() -> None:
    [problem] = problems("\n? " + "k" * 5000 + "\n: 1\n")
    assert (problem.line, problem.message) == (2, "a key has 5000 characters; expected at most 4096")
    [problem] = problems("".join(f"k{i}:\n" for i in range(MAX_VALUES)))
    assert problem.line == MAX_VALUES // 2  # the mapping counts too
    assert f"more than {MAX_VALUES} values and keys" in problem.message


def test_a_file_of_three_megabytes_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("".join(f"key{i}: value\n" for i in range(200_000)))
    monkeypatch.setattr(yaml.SafeLoader, "__init__", None)  # whoever composes fails
    with pytest.raises(
        JobError, match=r"large.yaml: \(file\): cannot be read: it has 3,\d+,\d+ bytes, more than 262,144"
    ):
        load_jobs([path])


def test_a_byte_order_mark_is_skipped_and_a_pipe_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert load_jobs([tmp_path / "job.yaml"])[0].job == parse_job(TEXT).job
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(JobError, match="expected a regular file"):
        load_jobs([tmp_path / "pipe"])


@pytest.mark.parametrize("key", ["k" * 3000, "\x85", "a b", "\u202e"], ids=["long", "new line", "space", "override"])
def test_a_key_is_shown_short_and_printable(key: str) -> None:
    [problem] = problems(f"{TEXT}\n{json.dumps(key)}: 1\n")
    assert str(problem).isprintable()
    assert len(str(problem)) < 300


def nested_aliases() -> list[str]:
    """Return nine short lists, the last of which stands for 9^9 values."""
    lists = ["&a [x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lists.append(f"&{name} [{', '.join([f'*{before}'] * 9)}]")
    return lists


def test_a_few_aliases_that_stand_for_billions_are_refused() -> None:
    found = problems("\n".join(["bomb:", *(f"  - {text}" for text in nested_aliases())]))
    assert f"more than {MAX_VALUES} values" in found[0].message


def test_aliases_in_a_key_are_refused_unread() -> None:
    found = problems(f"? [{', '.join(nested_aliases())}]\n: 1\n")
    assert "a key is a list or a mapping" in found[0].message


def test_aliases_are_welcome() -> None:
    text = TEXT.replace("ring: [r0, r1, r2, r3]", "ring: &ring [r0, r1, r2, r3]").replace(
        "framing:", "  - {name: dp1, id: 1, ring: *ring, tcp_port: 5000, shadows: [sh0]}\nframing:"
    )
    job = parse_job(text).job
    assert job.groups[1].ring == job.groups[0].ring
    assert len(job.flows) == 8


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"name: \xff\xfe")
    with pytest.raises(JobError) as caught:
        load_jobs([tmp_path / "none.yaml", tmp_path, binary])
    texts = [str(problem) for problem in caught.value.problems]
    assert texts == [
        f"{tmp_path}/none.yaml: (file): cannot be read: No such file or directory",
        f"{tmp_path}: (file): cannot be read: Is a directory",
        f"{binary}:1: (file): not UTF-8 text: invalid start byte at byte 6",
    ]


def test_jobs_that_collide_are_told_in_the_later_file(tmp_path: Path) -> None:
    copy = tmp_path / "copy.yaml"
    copy.write_text(TEXT)
    with pytest.raises(JobError) as caught:
        load_jobs([EXAMPLE, copy])
    assert {problem.file for problem in caught.value.problems} == {str(copy)}
    places = {problem.field: problem.line for problem in caught.value.problems}
    assert places["name"] == line_of("name: digits")
    assert places["hosts[2].mac"] == line_of("- {name: r2")
    assert places["shadows[0].rid"] == line_of("- {name: sh0")
    # The field is not written in the file: its place is the file's begin.
    assert places["first_flow_id"] == line_of("version")


def job_or_problems(text: str) -> Job | list[Problem]:
    """Return what comes out; any other exception fails the test."""
    try:
        return parse_job(text, "job.yaml").job
    except JobError as error:
        return error.problems


def mutated(seed: int) -> str:
    """Return the example with a few seeded edits, of the kinds that slips of the hand make and worse."""
    dice = random.Random(seed)
    lines = list(LINES)
    junk = [
        "",
        "~",
        "-1",
        "0",
        "1e999",
        "[]",
        "{}",
        "*x",
        "&x",
        "!!binary aGk=",
        "'",
        "\t",
        "true",
        "2026-01-01",
        "0x7f" * 9,
    ]
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(lines))
        match dice.randrange(7):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[dice.randrange(len(lines))])
            case 2:
                lines[at] = lines[at].replace(dice.choice(lines[at] or " "), dice.choice(string.printable), 1)
            case 3:
                lines[at] = dice.choice(["  ", "    "]) + lines[at]
            case 4:
                name, colon, _ = lines[at].partition(":")
                lines[at] = f"{name}{colon} {dice.choice(junk)}"
            case 5:
                words = lines[at].split(" ")
                words[dice.randrange(len(words))] = dice.choice(junk)
                lines[at] = " ".join(words)
            case _:
                other = dice.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
        lines = lines or [""]
    return "\n".join(lines)


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_no_slip_of_the_hand_crashes_the_loader(seed: int) -> None:
    text = mutated(seed)
    found = job_or_problems(text)
    if isinstance(found, Job):
        assert found.flows
    else:
        assert found
        lines = text.count("\n") + 1
        for problem in found:
            assert problem.file == "job.yaml"
            assert problem.field
            assert problem.message
            assert problem.line is None or 1 <= problem.line <= lines + 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50)
@given(
    st.sampled_from(["id", "switch", "network", "dscp", "hosts", "shadows", "first_flow_id", "groups", "workload"]),
    VALUES,
)
@example("first_flow_id", 10**30)
def test_any_value_in_any_field_is_a_job_or_a_problem(field: str, value: object) -> None:
    document = yaml.safe_load(TEXT)
    document[field] = value
    found = job_or_problems(yaml.safe_dump(document))
    assert isinstance(found, Job) or all(problem.line is not None for problem in found)


@settings(max_examples=100)
@given(st.text(max_size=60))
def test_any_text_is_a_problem(text: str) -> None:
    assert problems(text)
