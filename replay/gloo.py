"""Captures of DDP jobs over gloo: decoded by `gloo`, and stepped with the declared optimizer."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkmate_common.files.private_files import make_private_folder, private
from gloo.ddp import Step
from gloo.decoder import Decoder, Group
from jobspec.trainer import TrainerFile
from replay.errors import ReplayError
from replay.gloo_source import Captures, Progress
from replay.gloo_trainer import TrainerReplay, gradient_file, load_starting_point
from replay.output import prepare


@dataclass(frozen=True)
class GlooOptions:
    """How to replay."""

    trainer: TrainerFile | None = None
    """What the training script does with gradients; None: gradients alone."""
    checkpoint: Path | None = None
    """Checkpoint that the job began from."""
    out: Path | None = None
    """New folder for checkpoints or gradients."""
    unfinished_checksums: bool = False
    """Whether segments are taken whose checksum the sender's card had to fill in."""


@dataclass(frozen=True)
class StepReport:
    """One step."""

    step: int
    """From 1 on."""
    gradients: tuple[str | None, ...]
    """SHA-256 of each parameter's reduced gradient; None where it is unused, or missing."""
    unused: tuple[int, ...]
    """Parameters that no rank used."""
    missing: tuple[dict[str, Any], ...]
    """What is missing: ``parameter``, ``bytes`` and ``reason``."""
    parameters: tuple[str | None, ...]
    """SHA-256 of each parameter after the step; None where it is not known."""
    optimizer: tuple[dict[str, str] | None, ...]
    """SHA-256 of each tensor of the optimizer's state, by key; None where it is not known."""
    status: str
    """``declared``: parameters follow from complete gradients and the declared optimizer; ``gradients``: those are
    complete; ``incomplete``: they are not; ``refused``: such steps cannot be rebuilt."""

    @property
    def complete(self) -> bool:
        """Whether every gradient is known."""
        return self.status in ("declared", "gradients")

    def to_json(self) -> dict[str, Any]:
        """Return it as ``--json`` prints it."""
        return {
            "step": self.step,
            "complete": self.complete,
            "gradients": list(self.gradients),
            "missing": list(self.missing),
            "parameters": list(self.parameters),
            "optimizer": list(self.optimizer),
            "status": self.status,
        }


@dataclass
class GroupReport:
    """One process group whose gradients were reduced by DDP."""

    group: int
    """Number, in order of appearance."""
    ranks: int
    """Its ranks."""
    names: tuple[str, ...] = ()
    """Names of the parameters."""
    initial_parameters_sha256: str | None = None
    """SHA-256 of all initial parameters, None where they are not known."""
    initial_problem: str | None = None
    """Why they are not known."""
    steps: list[StepReport] = field(default_factory=list)
    """Steps in order."""
    problem: str | None = None
    """Why nothing, or nothing more, can be rebuilt."""
    replay_problem: str | None = None
    """Why there are no parameters (any more) although an optimizer is declared."""

    def to_json(self) -> dict[str, Any]:
        """Return it as ``--json`` prints it."""
        return {
            "ranks": self.ranks,
            "group": self.group,
            "initial_parameters_sha256": self.initial_parameters_sha256,
            "steps": [step.to_json() for step in self.steps],
        }


@dataclass(frozen=True)
class GlooReport:
    """What captures of gloo hold."""

    groups: tuple[GroupReport, ...]
    """Process groups with a DDP model, or that might have one."""
    problems: tuple[str, ...]
    """What cannot be decoded, and files that ended early."""
    discarded: Counter[str]
    """TCP segments with payload that were not used, by cause."""
    trainer: bool
    """Whether an optimizer was declared."""

    @property
    def complete(self) -> bool:
        """Whether there are steps, and each is complete and has, with a declared optimizer, its parameters."""
        wanted = "declared" if self.trainer else "gradients"
        each = all(group.steps and all(step.status == wanted for step in group.steps) for group in self.groups)
        return bool(self.groups) and each and not self.problems and not any(group.problem for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        """Return it as ``--json`` prints it."""
        return {
            "gloo": [group.to_json() for group in self.groups],
            "problems": [*self.problems, *(f"group {g.group}: {g.problem}" for g in self.groups if g.problem)],
            "discarded": dict(self.discarded),
        }


def replay_gloo(paths: Sequence[Path], options: GlooOptions, progress: Progress) -> GlooReport:
    """Rebuild the steps of the DDP jobs in captures of one network, of one rank or several.

    Raises:
        JobError: what ``trainer.yaml`` declares does not fit the job.
        ReplayError: a file or an option cannot be used.
    """
    if options.checkpoint is not None and options.trainer is None:
        raise ReplayError("--checkpoint", "a checkpoint needs an optimizer", "declare it: --trainer trainer.yaml")
    if options.out is not None:
        prepare(options.out)
    kinds = None
    if options.trainer is not None and options.trainer.trainer.dtypes is not None:
        kinds = options.trainer.trainer.kinds
    decoder = Decoder(unfinished_checksums=options.unfinished_checksums, kinds=kinds)
    captures = Captures(paths, progress)
    replays: dict[int, _GroupReplay] = {}

    def take() -> None:
        for group, step in decoder.steps():
            if group.number not in replays:
                replays[group.number] = _GroupReplay(group, options)
            replays[group.number].take(step)

    for headers in captures.survey():
        decoder.expect(headers)
    for number, batch, headers in captures:
        decoder.feed(number, batch, headers)
        take()
    decoder.finish()
    take()
    reports = []
    for group in decoder.groups:
        done = replays.get(group.number)
        if done is None and not (group.ddp.begun or group.problem):
            continue
        report = (done or _GroupReplay(group, options)).report
        report.problem = group.problem or group.ddp.problem
        reports.append(report)
    problems = [*decoder.problems, *captures.problems]
    unfinished = decoder.intake.discarded.get("unfinished_checksum", 0)
    if unfinished and not options.unfinished_checksums:
        problems.append(
            f"{unfinished} segments have checksums that the sender's network card had to fill in, as captures on a "
            "host with offloads have: take them with --unfinished-checksums"
        )
    if not reports and not problems:
        problems.append("no DistributedDataParallel job begins in the captures")
    return GlooReport(tuple(reports), tuple(problems), decoder.intake.discarded, options.trainer is not None)


class _GroupReplay:
    """Turns the steps of one group into reports and files."""

    def __init__(self, group: Group, options: GlooOptions) -> None:
        ddp = group.ddp
        self.report = GroupReport(group.number, group.ranks)
        self._group, self._options = group, options
        self._trainer: TrainerReplay | None = None
        values = ddp.initial.values
        if values is not None:
            self.report.initial_parameters_sha256 = hashlib.sha256(
                b"".join(value.tobytes() for value in values)
            ).hexdigest()
        else:
            self.report.initial_problem = ddp.initial.problem
        if ddp.parameters is not None:
            self.report.names = tuple(f"parameter-{number}" for number in range(len(ddp.parameters)))
        if options.trainer is not None and ddp.parameters is not None and ddp.types is not None:
            first = options.checkpoint is not None and not group.number
            start = load_starting_point(options.checkpoint) if first and options.checkpoint is not None else None
            self._trainer = TrainerReplay(options.trainer, ddp, start)
            self.report.names = self._trainer.names
            self.report.replay_problem = self._trainer.problem

    def take(self, step: Step) -> None:
        """Report a step and, where it is complete and all before it were, step the optimizer."""
        report = self.report
        status = "refused" if step.problem is not None else "gradients" if step.complete else "incomplete"
        missing: list[dict[str, Any]] = [
            {"parameter": report.names[hole.parameter], "bytes": [list(r) for r in hole.ranges], "reason": hole.reason}
            for hole in step.missing
        ]
        if step.problem is not None:
            missing.append({"parameter": None, "bytes": [], "reason": step.problem})
        parameters: list[str | None] = [None] * len(step.gradients)
        optimizer: list[dict[str, str] | None] = [None] * len(step.gradients)
        if self._trainer is not None:
            if report.replay_problem is None and not step.complete:
                report.replay_problem = f"step {step.number} is not complete"
            if report.replay_problem is None:
                self._trainer.step(step.gradients)
                parameters[:], optimizer[:] = self._trainer.parameter_digests(), self._trainer.optimizer_digests()
                status = "declared"
            elif step.complete:
                missing.append({"parameter": None, "bytes": [], "reason": f"no parameters: {report.replay_problem}"})
        digests = [None if data is None else hashlib.sha256(data.data).hexdigest() for data in step.gradients]
        report.steps.append(
            StepReport(
                step.number, tuple(digests), tuple(sorted(step.unused)), tuple(missing), tuple(parameters),
                tuple(optimizer), status,
            )
        )  # fmt: skip
        self._write(step, status)

    def _write(self, step: Step, status: str) -> None:
        if self._options.out is None or status not in ("declared", "gradients"):
            return
        if (status == "declared") != (self._trainer is not None):
            return
        folder = self._options.out
        if self._group.number:
            folder = folder / f"group-{self._group.number}"
        if self._trainer is not None:
            data = self._trainer.checkpoint(step.number)
        else:
            data = gradient_file(step.number, step.gradients, self._group.ddp)
        try:
            make_private_folder(folder)
            with open(folder / f"step-{step.number}.pt", "xb", opener=private) as file:
                file.write(data)
        except OSError as error:
            problem = f"{folder} cannot be written: {error.strerror}"
            raise ReplayError("--out", problem, "free space, or choose another folder") from error
