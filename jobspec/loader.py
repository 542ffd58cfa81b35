"""Read job files: YAML in, validated `Job` out, every error with file, line, field and what was expected."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from jobspec.checks import problems_between, problems_of
from jobspec.errors import JobError, Problem
from jobspec.model import Job

Path_ = tuple[str | int, ...]
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True)
class JobFile:
    """A job and where its fields stand."""

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
        JobError: the file cannot be read or the job is not sound; lists every problem.
    """
    return load_jobs([path])[0].job


def load_jobs(paths: Sequence[Path | str]) -> list[JobFile]:
    """Read job files whose jobs share a switch, and refuse those that collide.

    Raises:
        JobError: a file cannot be read, a job is not sound, or two jobs collide; lists every problem.
    """
    files: list[JobFile] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            files.append(_load(Path(path)))
        except JobError as error:
            problems += error.problems
    if not problems:
        problems = [files[index].place(problem) for index, problem in problems_between([file.job for file in files])]
    if problems:
        raise JobError(problems)
    return files


def parse_job(text: str, file: str = "job.yaml") -> JobFile:
    """Validate the text of a job file; `file` is the name that errors carry.

    Raises:
        JobError: not YAML, or the job is not sound.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: dict[Path_, int] = {}
        data = _construct(node, (), lines) if node is not None else None
    except _Repeated as error:
        raise JobError([Problem(error.key, "the key stands twice; expected once", file, error.line)]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else None
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise JobError([Problem("(file)", f"not YAML: {what}", file, line)]) from error
    except (ValueError, RecursionError) as error:
        raise JobError([Problem("(file)", f"not YAML that can be read: {error}", file)]) from error
    if not isinstance(data, dict):
        kind = "nothing" if data is None else type(data).__name__
        raise JobError([Problem("(file)", f"holds {kind}, expected a mapping with version, name, switch, ...", file, 1)])
    try:
        job = Job.model_validate(data)
    except ValidationError as error:
        raise JobError([_problem(item, file, lines) for item in error.errors()]) from error
    loaded = JobFile(job, file, lines)
    problems = [loaded.place(problem) for problem in problems_of(job)]
    if problems:
        raise JobError(problems)
    return loaded


def _load(path: Path) -> JobFile:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise JobError([Problem("(file)", f"cannot be read: {error.strerror}", str(path))]) from error
    except UnicodeDecodeError as error:
        raise JobError([Problem("(file)", f"not UTF-8 text: {error.reason} at byte {error.start}", str(path))]) from error
    return parse_job(text, str(path))


class _Repeated(Exception):
    def __init__(self, key: str, line: int) -> None:
        self.key, self.line = key, line


def _construct(node: yaml.Node, path: Path_, lines: dict[Path_, int]) -> Any:
    """Build plain values from a YAML node tree and note the line of each (yaml.safe_load would lose them)."""
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = _scalar(key_node)
            if not isinstance(key, Hashable) or key in result:
                raise _Repeated(_dotted((*path, str(key))), key_node.start_mark.line + 1)
            result[str(key)] = _construct(value_node, (*path, str(key)), lines)
            lines[(*path, str(key))] = key_node.start_mark.line + 1
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_construct(item, (*path, index), lines) for index, item in enumerate(node.value)]
    return _scalar(node)


def _scalar(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()


def _problem(item: Any, file: str, lines: dict[Path_, int]) -> Problem:
    path: Path_ = tuple(item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "missing":
        message = "is missing; add it"
    elif item["type"] == "extra_forbidden":
        message = "is not a field of a job file; remove it or mend its name"
    elif not isinstance(item["input"], dict | list):
        message = f"{message[:1].lower()}{message[1:]}, found {item['input']!r}"
    return Problem(_dotted(path), message, file, _line_of(lines, path))


def _line_of(lines: dict[Path_, int], path: Path_) -> int | None:
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return lines.get(())


def _dotted(path: Path_) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _parse_path(field: str) -> Path_:
    return tuple(int(index) if index else name for name, index in _STEP.findall(field))
