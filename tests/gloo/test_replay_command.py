"""`checkmate replay` of captures of DDP jobs: options, errors, files."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from capture.writer import PcapWriter
from checkmate.cli import app
from tests.gloo.encoder import Made, Traffic, make

TRAINER = """\
optimizer: {name: SGD, options: {lr: 0.1, momentum: 0.9}}
scheduler: {name: StepLR, options: {step_size: 2}}
clip_norm: 1.5
parameters: [a.weight, a.bias, b.weight, b.bias]
"""


@pytest.fixture(scope="module")
def made() -> Made:
    return make(Traffic(layout=((2, 3), (0, 1)), unused=(frozenset(), frozenset({2, 3}), frozenset({0}))))


@pytest.fixture(scope="module")
def captures(made, tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("captures")
    return [write(folder / f"rank{rank}.pcap", made, rank) for rank in range(3)]


def write(path: Path, made: Made, rank: int, skip: int = -1) -> Path:
    with PcapWriter(path) as writer:
        for number, packet in enumerate(made.capture(rank)):
            if number != skip:
                writer.write(made.sent.index(packet) * 1000, packet.data)
    return path


def checkmate(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["replay", *map(str, words)], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, " ".join(done.stderr.split())


def stepped(made: Made) -> list[list[torch.Tensor]]:
    """Return the parameters after each step as plain torch makes them."""
    parameters = [
        torch.nn.Parameter(torch.from_numpy(value.copy()).view(shape))
        for value, shape in zip(made.initial, made.traffic.shapes, strict=True)
    ]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    found = []
    for gradients in made.gradients:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else torch.from_numpy(gradient.copy()).view(parameter.shape)
        torch.nn.utils.clip_grad_norm_(parameters, 1.5)
        optimizer.step()
        scheduler.step()
        found.append([parameter.detach().clone() for parameter in parameters])
    return found


def sha(data) -> str:
    return hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()


def test_parameters_of_every_step_and_checkpoints(made, captures, tmp_path):
    trainer = tmp_path / "trainer.yaml"
    trainer.write_text(TRAINER)
    for selected in (captures, captures[1:2]):
        out = tmp_path / f"out{len(selected)}"
        code, text, errors = checkmate(*selected, "--trainer", trainer, "--out", out, "--json")
        assert (code, errors) == (0, "")
        (group,) = json.loads(text)["gloo"]
        assert list(group) == ["ranks", "group", "initial_parameters_sha256", "steps"]
        assert group["initial_parameters_sha256"] == sha(np.concatenate(made.initial))
        true = stepped(made)
        for step, gradients, parameters in zip(group["steps"], made.gradients, true, strict=True):
            names = ["step", "complete", "gradients", "missing", "parameters", "optimizer", "status"]
            assert list(step) == names
            assert step["gradients"] == [None if g is None else sha(g) for g in gradients]
            assert step["parameters"] == [sha(parameter) for parameter in parameters]
            assert all(list(state) == ["momentum_buffer"] for state in step["optimizer"])
            assert step["status"] == "declared"
            saved = torch.load(out / f"step-{step['step']}.pt", weights_only=True)
            assert list(saved["model"]) == ["a.weight", "a.bias", "b.weight", "b.bias"]
            assert all(map(torch.equal, saved["model"].values(), parameters))
            assert saved["optimizer"]["param_groups"][0]["lr"] == 0.1 * 0.1 ** (step["step"] // 2)


def test_gradients_alone_and_a_table(made, captures, tmp_path):
    code, text, errors = checkmate(captures[0], "--out", tmp_path / "out")
    assert (code, errors) == (0, "")
    assert "3 of 3 steps complete" in text
    saved = torch.load(tmp_path / "out" / "step-2.pt", weights_only=True)
    assert saved["gradients"][3] is None
    assert sha(saved["gradients"][0].numpy()) == sha(made.gradients[1][0])


def test_a_lost_packet_ends_the_parameters_and_is_named(made, tmp_path):
    skip = next(n for n, p in enumerate(made.capture(1)) if any(c[0] == 2 for c in p.carries) and 0 in p.ends)
    trainer = tmp_path / "trainer.yaml"
    trainer.write_text(TRAINER)
    path = write(tmp_path / "rank1.pcap", made, 1, skip)
    code, text, _ = checkmate(path, "--trainer", trainer, "--json")
    steps = json.loads(text)["gloo"][0]["steps"]
    complete = [step["complete"] for step in steps]
    assert code == (0 if all(complete) else 1)
    assert complete[0]
    assert steps[0]["status"] == "declared"
    if not complete[1]:
        assert steps[1]["missing"][0]["bytes"]
        assert steps[2]["parameters"] == [None] * 4


def test_it_goes_on_from_a_checkpoint(made, captures, tmp_path):
    names = ["a.weight", "a.bias", "b.weight", "b.bias"]
    values = [torch.from_numpy(v.copy()).view(s) for v, s in zip(made.initial, made.traffic.shapes, strict=True)]
    trainer, start = tmp_path / "trainer.yaml", tmp_path / "start.pt"
    trainer.write_text(TRAINER)
    momentum = {i: {"momentum_buffer": torch.ones_like(value)} for i, value in enumerate(values)}
    optimizer = torch.optim.SGD(values, lr=0.5, momentum=0.9)
    state = {"state": momentum, "param_groups": optimizer.state_dict()["param_groups"]}
    torch.save({"model": dict(zip(names, values, strict=True)), "optimizer": state}, start)
    code, text, errors = checkmate(captures[0], "--trainer", trainer, "--checkpoint", start, "--json")
    assert (code, errors) == (0, "")
    plain = json.loads(checkmate(captures[0], "--trainer", trainer, "--json")[1])["gloo"][0]["steps"]
    assert json.loads(text)["gloo"][0]["steps"][0]["parameters"] != plain[0]["parameters"]
    torch.save({"model": dict(zip(names, [value + 1 for value in values], strict=True))}, start)
    code, _, errors = checkmate(captures[0], "--trainer", trainer, "--checkpoint", start)
    assert code == 2
    assert "not what rank 0 broadcast" in errors


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ("optimizer: {name: LBFGS}\n", 1, "optimizer.name"),
        ("clip_norm: 1\noptimizer: {name: SGD, options: {lr: 0.1, speed: 3}}\n", 2, "optimizer.options"),
        ("optimizer: {name: SGD}\nscheduler: {name: LambdaLR}\n", 2, "scheduler.name"),
        ("optimizer: {name: SGD}\nclip_norm: -1\n", 2, "clip_norm"),
        ("optimizer: {name: SGD}\nparameters: [a, b]\n", 2, "parameters"),
        ("optimizer: {name: SGD}\nparameters: [a, b, c, a]\n", 2, "parameters"),
        ("optimizer: {name: SGD}\ndtypes: int8\n", 2, "dtypes"),
        ("optimiser: {name: SGD}\n", 1, "optimiser"),
        ("- x\n", 1, "(file)"),
    ],
)
def test_wrong_trainer_files_are_refused_with_line_and_field(captures, tmp_path, text, line, field):
    path = tmp_path / "trainer.yaml"
    path.write_text(text)
    code, _, errors = checkmate(captures[0], "--trainer", path)
    assert code == 2
    assert f"trainer.yaml:{line}: {field}" in errors


def test_options_that_do_not_apply_are_refused(captures, tmp_path):
    for words in (["--use-p2p"], ["--no-records"], ["--checkpoint", captures[0]], ["--dtype", "float32"]):
        code, _, errors = checkmate(captures[0], *words)
        assert code == 2, errors
        assert words[0] in errors


def test_declared_types_that_do_not_fit_give_nothing_wrong(made, captures, tmp_path):
    path = tmp_path / "trainer.yaml"
    path.write_text("optimizer: {name: SGD}\ndtypes: float64\n")
    code, text, _ = checkmate(captures[0], "--trainer", path, "--json")
    assert code == 1
    (group,) = json.loads(text)["gloo"]
    assert group["initial_parameters_sha256"] is None
    assert not any(step["complete"] for step in group["steps"])


def test_a_checkpoint_that_is_no_file_is_not_waited_for(captures, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "trainer.yaml").write_text(TRAINER)
    code, _, errors = checkmate(captures[0], "--trainer", tmp_path / "trainer.yaml", "--checkpoint", tmp_path / "pipe")
    assert code == 2
    assert "it is a FIFO" in errors
