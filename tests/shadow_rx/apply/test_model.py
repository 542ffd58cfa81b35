"""The optimizer step on a shadow equals the trainer's, bit for bit, or does not happen at all."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from checkmate_common.recovery.point import decode_recovery_point
from checkmate_common.recovery.reasons import GapReason
from checkmate_common.stream.dtypes import DType
from shadow_rx.publish.snapshot import encode, to_recovery_point
from shadow_rx.trainer.description import OPTIMIZERS
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.twin import Twin, as_bytes, make_layout
from tests.shadow_rx.wire import make_job

# Lengths around the vector widths of CPU kernels, and several parameters in one bucket at odd offsets.
SHAPES = ((1,), (3,), (7, 9), (33,), (), (64,), (129,), (2, 3, 5))
CASES: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "fused": True}),
    ("AdamW", {"lr": 0.01, "foreach": True}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "betas": [0.8, 0.99]}),
    ("Adam", {"lr": 0.01, "maximize": True, "weight_decay": 0.3}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "foreach": True}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.01, "initial_accumulator_value": 0.3}),
    ("Adadelta", {"lr": 1.0}),
    ("Adamax", {"lr": 0.01}),
    ("NAdam", {"lr": 0.01}),
    ("RAdam", {"lr": 0.01}),
    ("ASGD", {"lr": 0.01, "t0": 2.0}),
    ("Rprop", {"lr": 0.01}),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_every_optimizer_that_is_offered_is_compared() -> None:
    assert {name for name, _ in CASES} == set(OPTIMIZERS)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_state_equals_the_trainers_after_every_step(name: str, options: dict[str, Any]) -> None:
    job = make_job(2)
    rig = Rig(job, Twin(job, make_layout(SHAPES, 500), name, options, groups=2))
    rig.begin()
    for step in range(1, 5):
        rig.send(rig.train(lr=options["lr"] / step))
        rig.record()
    assert len(rig.replicated()) == 4
    rig.check_truth()
    point = to_recovery_point(rig.snapshots()[-1])
    assert [g.options["lr"] for g in point.manifest.optimizer.groups] == [options["lr"] / 4] * 2
    # From the middle of a run: state that is uploaded is gone on with, not begun anew.
    late = Rig(job, rig.twin)
    late.begin()
    late.step()
    assert late.replicated() == [(1, 5)]
    late.check_truth()


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_every_element_type(dtype: DType, name: str) -> None:
    job = make_job(3)
    rig = Rig(job, Twin(job, make_layout(SHAPES, 700, dtype), name, {"lr": 0.05}))
    rig.begin()
    for _ in range(3):
        rig.step()
    assert len(rig.replicated()) == 3
    rig.check_truth()


def test_not_a_number_and_infinity_are_values_like_others() -> None:
    rig = Rig()
    rig.begin()
    gradient = rig.twin.draw_gradient()
    gradient[0] = b"\x00\x00\xc0\x7f\x00\x00\x80\x7f" + gradient[0][8:]
    rig.send(rig.train(gradient=gradient))
    for message in rig.twin.records(1):
        message.loss = float("nan")
        rig.send_record(message, 1.0)
    rig.check_truth()
    (snapshot,) = rig.snapshots()
    assert any(t.isnan().any() for t in snapshot.tensors.values())
    encoded = encode(snapshot)
    manifest = decode_recovery_point(encoded.manifest_json, encoded.state).manifest
    assert [math.isnan(record.loss) for record in manifest.records] == [True] * 3, "it can be read back"


def test_published_values_never_come_from_the_future() -> None:
    rig = Rig()
    rig.begin()
    rig.step()
    (snapshot,) = rig.snapshots()
    before = as_bytes(snapshot.tensors)
    for _ in range(3):
        rig.step()
    assert as_bytes(snapshot.tensors) == before


def test_a_step_that_raises_half_way_leaves_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.begin()
    rig.step()
    held = rig.snapshots()[-1]
    replay = rig.core.group("dp0").progress.state._model
    real = replay._optimizer.step

    def torn() -> None:
        real()
        next(iter(replay._params.values())).fill_(7)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(replay._optimizer, "step", torn)
    rig.step()
    (lost,) = rig.lost()
    assert (lost.gap.step, lost.gap.reason) == (2, GapReason.DIGEST_MISMATCH)
    assert "out of memory" in lost.gap.detail
    assert as_bytes(replay.snapshot()) == as_bytes(held.tensors)
    assert rig.group.ledger.point(0) is held
    assert rig.core.status("dp0").replica_step == 1


def test_a_first_step_that_raises_leaves_the_uploaded_state(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    start = rig.twin.state()
    rig.begin()
    replay = rig.core.group("dp0").progress.state._model
    real = replay._optimizer.step

    def torn() -> None:
        real()
        raise ValueError("no")

    monkeypatch.setattr(replay._optimizer, "step", torn)
    rig.step()
    assert len(rig.lost()) == 1
    assert as_bytes(replay.snapshot()) == as_bytes(start)


def test_ranks_that_used_different_options_are_refused() -> None:
    rig = Rig()
    rig.begin()
    rig.send(rig.train())
    messages = rig.twin.records(1)
    options = json.loads(messages[2].group_options_json[0])
    messages[2].group_options_json[0] = json.dumps({**options, "lr": 0.5})
    for message in messages:
        rig.send_record(message, 1.0)
    (lost,) = rig.lost()
    assert lost.gap.reason is GapReason.DIGEST_MISMATCH
    assert "ranks 0 and 2" in lost.gap.detail
    assert rig.replicated() == []


def test_digests_verify_the_parameters() -> None:
    job = make_job(digests=True)
    rig = Rig(job, Twin(job, make_layout()))
    rig.begin()
    rig.send(rig.train())
    rig.record(digest=True)
    assert rig.replicated() == [(1, 1)]
    # A change of the optimizer that nobody announced: the trainer used another rate than it told.
    rig.send(rig.train(lr=0.2))
    for message in rig.twin.records(1, digest=True):
        options = json.loads(message.group_options_json[0])
        message.group_options_json[0] = json.dumps({**options, "lr": 0.01})
        rig.send_record(message, 1.0)
    (lost,) = rig.lost()
    assert (lost.gap.step, lost.gap.reason) == (2, GapReason.DIGEST_MISMATCH)
    assert rig.replicated() == [(1, 1)]
    rig.send(rig.train())
    rig.record(digest=True)
    assert rig.group.progress.explain(3).reason is GapReason.RESYNC_PENDING
    rig.check_truth()


def test_ranks_with_different_parameters_are_told_apart() -> None:
    rig = Rig()
    rig.begin()
    rig.send(rig.train())
    messages = rig.twin.records(1, digest=True)
    messages[1].parameter_digest = bytes(32)
    for message in messages:
        rig.send_record(message, 1.0)
    (lost,) = rig.lost()
    assert "ranks 0 and 1 have different parameters" in lost.gap.detail
