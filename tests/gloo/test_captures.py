"""Captures of real jobs: gradients, and with a declared optimizer its state, are what the job says they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from jobspec.trainer import TrainerFile, parse_trainer
from replay.gloo import GlooOptions, GlooReport, replay_gloo

JOBS = ("ranks2-adamw", "ranks3-accumulate", "ranks3-fp16", "ranks3-host-offload", "ranks4-batchnorm")
SQUARE_ROOTS = ("AdamW",)
"""Optimizers whose parameters depend on the processor that made the truth: the last bit of MKL's square roots."""


def trainer_of(truth: dict[str, Any]) -> TrainerFile:
    arguments = truth["arguments"]
    declared: dict[str, Any] = {
        "optimizer": {"name": arguments["optimizer"], "options": json.loads(arguments["options"])},
        "parameters": list(truth["parameters"]),
    }
    if arguments["scheduler"]:
        options = json.loads(arguments["scheduler_options"])
        declared["scheduler"] = {"name": arguments["scheduler"], "options": options}
    if arguments["clip"]:
        declared["clip_norm"] = arguments["clip"]
    return parse_trainer(yaml.safe_dump(declared))


def replayed(paths: list[Path], trainer: TrainerFile | None = None) -> GlooReport:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return replay_gloo(paths, GlooOptions(trainer, unfinished_checksums=True), lambda *told: None)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", JOBS)
def test_all_captures_and_each_alone_give_the_truth(shared_gloo, name):
    folder = shared_gloo / name
    truth = json.loads((folder / "truth.json").read_text())
    captures = sorted(folder.glob("*.pcap"))
    for selected in (captures, captures[:1], captures[-1:]):
        report = replayed(selected, trainer_of(truth))
        (group,) = report.to_json()["gloo"]
        assert group["ranks"] == truth["ranks"]
        assert group["initial_parameters_sha256"] == truth["initial_parameters_sha256"]
        assert [step["step"] for step in group["steps"]] == [step["step"] for step in truth["steps"]]
        for step, true in zip(group["steps"], truth["steps"], strict=True):
            assert step["gradients"] == list(true["gradient_sha256"].values())
            assert step["optimizer"] == list(true["optimizer_sha256"].values())
            if truth["arguments"]["optimizer"] not in SQUARE_ROOTS:
                assert step["parameters"] == list(true["parameters_sha256"].values())
            assert (step["complete"], step["status"], step["missing"]) == (True, "declared", [])
        assert report.complete


def test_a_parameter_that_nobody_used_is_left_alone(shared_gloo):
    folder = shared_gloo / "ranks2-unused-parameter"
    truth = json.loads((folder / "truth-0.json").read_text())
    declared = {"optimizer": {"name": "SGD", "options": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}}}
    report = replayed([folder / "p1.pcap"], parse_trainer(yaml.safe_dump(declared)))
    (group,) = report.to_json()["gloo"]
    assert len(group["steps"]) == len(truth)
    for step, true in zip(group["steps"], truth, strict=True):
        assert [digest[:16] for digest in step["parameters"]] == list(true["params_sha256"].values())
        assert [digest is None for digest in step["gradients"]] == [False, False] + [true["b_grad_is_none"]] * 2


@pytest.mark.parametrize(
    ("name", "steps", "reason"),
    [
        ("join", 4, None),
        ("pg2", 4, None),
        ("powersgd", 2, "PowerSGD of rank 1"),
        ("sparse", 0, "sparse gradients"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_by_name(shared_gloo, name, steps, reason):
    folder = shared_gloo / "refuse-or-partial" / name
    truth = json.loads((folder / "truth.json").read_text())
    for selected in (sorted(folder.glob("*.pcap")), [folder / "p1.pcap"]):
        report = replayed(selected)
        (group,) = report.to_json()["gloo"]
        assert sum(step["complete"] for step in group["steps"][: len(truth["steps"])]) == steps
        for step, true in zip(group["steps"], truth["steps"][:steps], strict=False):
            assert step["gradients"] == list(true["gradient_sha256"].values())
        if reason is not None:
            assert not report.complete
            assert group["steps"][-1]["status"] == "refused"
            assert reason in group["steps"][-1]["missing"][-1]["reason"]


def test_unfinished_checksums_are_taken_only_when_asked_for(shared_gloo):
    paths = sorted((shared_gloo / "ranks3-host-offload").glob("*.pcap"))
    report = replay_gloo(paths, GlooOptions(), lambda *told: None)
    assert not report.complete
    assert any("--unfinished-checksums" in problem for problem in report.problems)
