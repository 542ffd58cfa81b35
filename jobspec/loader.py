"""Read job files: YAML in, validated `Job` out, every error with file, line, field and what was expected."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from checkmate_common.files.regular_files import read_bounded
from jobspec.checks import problems_between, problems_of
from jobspec.errors import JobError, Problem
from jobspec.model import Job

Path_ = tuple[str | int, ...]
MAX_BYTES = 1 << 18
"""Maximum size of a file in bytes."""
MAX_VALUES = 30_000
"""Maximum number of values and keys in a file, aliases expanded: a few lines of aliases can mean billions."""
MAX_DEPTH = 50
"""Maximum nesting depth; a job needs five levels."""
MAX_TEXT = 4096
"""Maximum number of characters of one value."""
_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
"""Tags of plain lists and mappings."""
_PLAIN = re.compile(r"\w{1,80}")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True)
class JobFile:
    """A job and the lines of its fields."""

    job: Job
    """The validated job."""
    file: str
    """File that it was read from."""
    lines: dict[Path_, int]
    """1-based line of each field."""

    def place(self, problem: Problem) -> Problem:
        """Return `problem` with this file and the line of its field."""
        return replace(problem, file=self.file, line=_line_of(self.lines, _parse_path(problem.field)))


def load_job(path: Path | str) -> Job:
    """Read and validate one job file.

    Raises:
        JobError: the file cannot be read or the job is invalid; lists every problem.
    """
    return load_jobs([path])[0].job


def load_jobs(paths: Sequence[Path | str]) -> list[JobFile]:
    """Read job files whose jobs share a switch, and refuse those that collide.

    Raises:
        JobError: a file cannot be read, a job is invalid, or two jobs collide; lists every problem.
    """
    files: list[JobFile] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            files.append(parse_job(read_text(Path(path)), str(path)))
        except JobError as error:
            problems += error.problems
    if not problems:
        problems = [files[index].place(problem) for index, problem in problems_between([file.job for file in files])]
    if problems:
        raise JobError(problems)
    return files


def parse_job(text: str, file: str = "job.yaml") -> JobFile:
    """Validate the text of a job file; `file` is its name in errors.

    Raises:
        JobError: not YAML, or the job is invalid.
    """
    job, lines = parse_model(text, file, Job, "a job file", "version, name, switch, ...")
    loaded = JobFile(job, file, lines)
    problems = [loaded.place(problem) for problem in problems_of(job)]
    if problems:
        raise JobError(problems)
    return loaded


M = TypeVar("M", bound=BaseModel)


def parse_model(text: str, file: str, model: type[M], what: str, fields: str) -> tuple[M, dict[Path_, int]]:
    """Validate YAML text; return the model and the line of each field.

    Args:
        text: the text.
        file: its name in errors.
        model: model to validate against.
        what: kind of file in errors, e.g. "a job file".
        fields: examples of its fields, for the error about a file without any.

    Raises:
        JobError: not YAML, or it does not fit the model.
    """
    builder = _Builder()
    try:
        node = _Composer(text).get_single_node()
        data = builder.build(node, ()) if node is not None else None
    except _Refused as refused:
        problem = Problem(_dotted(refused.path) or "(file)", refused.message, file, refused.line)
        raise JobError([problem]) from refused
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"not YAML: the character U+{ord(text[error.position]):04X} is not allowed"
        raise JobError([Problem("(file)", what, file, line)]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        what = f"not YAML: {_shortened(error.problem or error.context or 'unreadable')}"
        raise JobError([Problem("(file)", what, file, line)]) from error
    lines = builder.lines
    if not isinstance(data, dict):
        kind = "nothing" if data is None else type(data).__name__
        expected = f"expected a mapping with {fields}"
        raise JobError([Problem("(file)", f"holds {kind}, {expected}", file, 1)])
    try:
        return model.model_validate(data), lines
    except ValidationError as error:
        raise JobError([_problem(item, file, lines, what) for item in error.errors()]) from error


def read_text(path: Path) -> str:
    """Return the text of a file of at most `MAX_BYTES`.

    Raises:
        JobError: it cannot be read, or is not text.
    """
    try:
        data = read_bounded(path, MAX_BYTES)
        return data.decode("utf-8-sig")
    except OSError as error:
        raise JobError([Problem("(file)", f"cannot be read: {error.strerror}", str(path))]) from error
    except UnicodeDecodeError as error:
        what = f"not UTF-8 text: {error.reason} at byte {error.start}"
        line = data.count(b"\n", 0, error.start) + 1
        raise JobError([Problem("(file)", what, str(path), line)]) from error


class _Refused(Exception):
    """A YAML feature that job files do not allow."""

    def __init__(self, path: Path_, line: int, message: str) -> None:
        self.path, self.line, self.message = path, line, message


class _Composer(yaml.SafeLoader):
    """Composes nodes, and stops at too many or too deeply nested ones."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node; see the class."""
        line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
        self._nodes += 1
        if self._nodes > MAX_VALUES:
            raise _Refused((), line, f"holds more than {MAX_VALUES} values and keys")
        if self._depth > MAX_DEPTH:
            raise _Refused((), line, f"nested deeper than {MAX_DEPTH} levels")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _Builder:
    """Builds plain values from YAML nodes and records the line of each (yaml.safe_load loses them)."""

    def __init__(self) -> None:
        self.lines: dict[Path_, int] = {}
        self._scalars = yaml.constructor.SafeConstructor()
        self._values = 0

    def build(self, node: yaml.Node, path: Path_) -> Any:
        """Return the value of `node`, which is at `path`."""
        line = node.start_mark.line + 1
        self._values += 1
        if self._values > MAX_VALUES:
            raise _Refused((), line, f"holds more than {MAX_VALUES} values and keys; do its aliases (*name) nest?")
        if len(path) > MAX_DEPTH:
            raise _Refused((), line, f"nested deeper than {MAX_DEPTH} levels; does an alias contain itself?")
        self.lines[path] = line
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _COLLECTIONS:
            raise _Refused(path, line, f"has the tag {_shortened(node.tag)}; remove it")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise _Refused(path, line, "a key is a list or a mapping; expected the name of a field")
            key = key_node.value
            if len(key) > MAX_TEXT:
                raise _Refused(path, line, f"a key has {len(key)} characters; expected at most {MAX_TEXT}")
            if key in result:
                raise _Refused((*path, key), line, "duplicate key; expected once")
            result[key] = self.build(value_node, (*path, key))
            self.lines[(*path, key)] = line
        return result

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        line = node.start_mark.line + 1
        if len(node.value) > MAX_TEXT:
            raise _Refused(path, line, f"has {len(node.value)} characters; expected at most {MAX_TEXT}")
        try:
            value = self._scalars.construct_object(node, deep=True)
        except (ValueError, ArithmeticError) as error:  # 2026-13-45, a number of more than 4300 digits
            raise _Refused(path, line, f"cannot be read: {_shortened(str(error))}") from error
        if isinstance(value, int) and value.bit_length() > 63:
            raise _Refused(path, line, "the number is too large; expected less than 2^63")
        return value


def _problem(item: Any, file: str, lines: dict[Path_, int], what: str) -> Problem:
    path: Path_ = tuple(item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "missing":
        message = "is missing; add it"
    elif item["type"] == "extra_forbidden":
        message = f"is not a field of {what}; remove it or correct its name"
    elif item["type"] == "string_type":
        # YAML reads an unquoted 12:00:00:00:01:00 as a number, and `no` as a boolean.
        message = f"expected text, found {_shown(item['input'])}; put it in quotes"
    elif not isinstance(item["input"], dict | list):
        message = f"{message[:1].lower()}{message[1:]}, found {_shown(item['input'])}"
    return Problem(_dotted(path), message, file, _line_of(lines, path))


def _shown(value: Any) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 80
    return short.repr(value)


def _shortened(text: str) -> str:
    return text if len(text) <= 200 and text.isprintable() else _shown(text)


def _line_of(lines: dict[Path_, int], path: Path_) -> int | None:
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return lines.get(())


def _dotted(path: Path_) -> str:
    text = ""
    for part in path:
        # Field names consist of letters; any other key is quoted and shortened.
        name = f"[{part}]" if isinstance(part, int) else part if _PLAIN.fullmatch(part) else _shown(part)
        text += name if isinstance(part, int) or not text else f".{name}"
    return text


def _parse_path(field: str) -> Path_:
    return tuple(int(index) if index else name for name, index in _STEP.findall(field))
