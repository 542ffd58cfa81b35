"""Job files: YAML of people who err, and of people who want to do harm."""

from __future__ import annotations

import random
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from checkmate.cli import app
from controlplane.desired import desired_state
from jobspec.errors import JobError
from jobspec.loader import MAX_BYTES, load_job
from tests.fuzz_inputs.damage import damaged

NAME = "job_file"
TEST_COUNT = 60
PER_CALL = 4
EXAMPLES = Path(__file__).parents[2] / "examples"
MAX_MESSAGE = 2000
"""Characters of one problem."""
_WORDS = [
    b"\x00", b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3\x28", b"\r", b"\t", b"\xc2\x85", b"\xe2\x80\xa8", b"\x1b[31m",
    b"---\n", b"...\n", b"%YAML 9.9\n---\n", b"!!python/object/apply:os.system [x]", b"!!binary |\n ////\n",
    b"!!timestamp 2026-13-45", b"!!int x", b"!!float x", b"!!set {a}", b"!!omap [a: 1]", b"!x y", b"&a ", b"*a", b"*b",
    b"<<: *a", b"<<: {}", b"? [a]\n: b", b"{", b"}", b"[", b"]", b": ", b"- ", b"| ", b"> ", b"'", b'"', b"#", b"~",
    b".nan", b"-.inf", b"1e999", b"0x" + b"f" * 40, b"9" * 30, b"9" * 5000, b"-1", b"1:00:00:00", b"yes", b"null",
]  # fmt: skip
_VALUES: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, float("nan"), float("inf"), 1e308, "", " ", "a",
    "a" * 300, "a" * 70_000, "\x85", "\u2028", "é", "\U0001f600", "r0", "../..", "0.0.0.0", "255.255.255.255", "::",
    "::1", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", [], {}, [[]], [None], {"": ""}, {"a": {}}, list(range(300)),
]  # fmt: skip


def run(rng: random.Random, count: int) -> int:
    """Try `count` job files."""
    path = _folder() / "job.yaml"
    for _ in range(count):
        kind = rng.choice((_bytes, _bytes, _lines, _structure, _structure, _structure, _hostile))
        data = kind(rng)
        path.write_bytes(data)
        try:
            _check(rng, path)
        except Exception as error:
            shown = data if len(data) < 20_000 else data[:500] + b" ... " + data[-500:]
            what = f"{type(error).__name__}: {error}"[:3000]
            raise AssertionError(f"{kind.__name__} made a job file of {len(data)} bytes: {what}\n{shown!r}") from error
    return count


def _check(rng: random.Random, path: Path) -> None:
    try:
        job = load_job(path)
    except JobError as error:
        for problem in error.problems:
            assert problem.file == str(path), f"no file: {problem!r}"
            if path.stat().st_size > MAX_BYTES:
                break  # not read, so there is no line
            assert problem.line is not None, f"no line: {problem!r}"
            assert 1 <= problem.line <= path.read_bytes().count(b"\n") + 2, f"no such line: {problem!r}"
            assert len(str(problem)) < MAX_MESSAGE, f"a message of {len(str(problem))} characters"
            assert str(problem).isprintable(), f"not printable: {problem!r}"
        expected = 2
    else:
        assert type(job).model_validate(job.model_dump()) == job, "it is another job when it is read again"
        for switch in job.switches:
            desired_state([job], switch.name)
        expected = 0
    if rng.random() < 0.1:
        words = ["job", "check", str(path), *(["--json"] if rng.random() < 0.5 else [])]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == expected, f"exit status {done.exit_code}: {done.output[:1000]} {done.exception!r}"


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="checkmate-fuzz-"))


@cache
def _examples() -> list[bytes]:
    return [path.read_bytes() for path in sorted(EXAMPLES.glob("*.yaml"))]


def _bytes(rng: random.Random) -> bytes:
    return damaged(rng, rng.choice(_examples()), _WORDS)


def _lines(rng: random.Random) -> bytes:
    lines = rng.choice(_examples()).splitlines(keepends=True)
    for _ in range(rng.randint(1, 5)):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        match rng.randrange(5):
            case 0 if len(lines) > 1:
                del lines[at]
            case 1:
                lines.insert(other, lines[at])
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                lines[at] = b" " * rng.randint(1, 3) + lines[at]
            case _:
                numbers = re.sub(
                    rb"\d+", lambda _: str(rng.choice((0, 1, 7, 70000, 2**40))).encode(), lines[at], count=1
                )
                lines[at] = numbers
    return b"".join(lines)


def _structure(rng: random.Random) -> bytes:
    """Put hostile values, and values of other places, where others stood."""
    plain = yaml.safe_load(rng.choice(_examples()))
    for _ in range(rng.randint(1, 3)):
        places = list(_places(plain))
        holder, key = rng.choice(places)
        match rng.randrange(4):
            case 0:
                del holder[key]
            case 1:
                source, name = rng.choice(places)
                holder[key] = source.get(name) if isinstance(source, dict) else source[name % max(1, len(source))]
            case 2 if isinstance(holder, dict):
                holder[rng.choice(("x", "", "a" * 5000, "\x85", 7, None, 2.5, True))] = holder.pop(key)
            case _:
                holder[key] = rng.choice(_VALUES)
        if not plain:
            break
    try:
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=rng.choice((None, True)))
    except (RecursionError, ValueError):  # a value within itself; a number of more than 4300 digits
        return b"{}"
    return text.encode()


def _places(plain: Any) -> list[tuple[Any, Any]]:
    found, waiting = [], [plain]
    while waiting and len(found) < 2000:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])
    return found


def _hostile(rng: random.Random) -> bytes:
    """Return what is built to exhaust somebody: nesting, aliases, keys, numbers, lines without end."""
    size = rng.choice((10, 60, 60, 400, 400, 3000, 30_000))
    many = rng.choice((size, size, 10 * size))
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, min(size, 400)))
    texts = [
        "[" * size, "{a: " * size, "- " * size, "? " * size, "[" * size + "]" * size, "!!x " * size, "&a " * size,
        "a: &a [*a]", "a: &a {b: *a}", "&a *a", bomb, bomb + "<<: *a5\n", "".join(f"k{i}: {i}\n" for i in range(many)),
        "{" + ",".join(f"k{i}" for i in range(many)) + "}", "x: 1\n" * size, "a: " + "9" * many, "a: 0x" + "f" * many,
        "a: " + "1:" * many + "1", "a: 1" + "_" * many, "x" * many + ": 1", "a: " + "x" * many, "a: '" + "\n" * many,
        "a: |\n" + "  x\n" * size, "a: \"" + "\\x41" * size + "\"", "#" * many, "\n" * many, " " * many,
        "%TAG ! tag:x,2000:\n" * 2 + "--- a", "a: !!binary " + "A" * many, "? " + "[" * 40 + "]" * 40 + "\n: b",
        "--- a\n" * size, "a: !!python/name:os.system", "a: 1e" + "9" * min(size, 4000), "- {a: 1}\n" * size,
    ]  # fmt: skip
    text = rng.choice(texts).encode()
    if rng.random() < 0.3:
        text = rng.choice(_examples()) + b"\n" + text
    return text.decode().encode("utf-16") if rng.random() < 0.05 else text
