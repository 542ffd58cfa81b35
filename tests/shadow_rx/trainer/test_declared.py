"""Every object of the trainer's state is declared, comes from where it is declared, and is there: or it is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from checkmate_common.recovery.point import Origin, decode_recovery_point, pack_tensors
from checkmate_common.recovery.reasons import GapReason
from checkmate_common.recovery.state import (
    DEFAULT_STATE,
    StateManifest,
    StateRule,
    default_state,
    inventory_digest,
    value_digest,
)
from checkmate_common.sidechannel import side_channel_pb2 as pb
from shadow_rx.errors import Refusal, ShadowError
from shadow_rx.publish.snapshot import encode
from shadow_rx.status.events import Attached
from shadow_rx.trainer.rank_step import MAX_OBJECTS
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.twin import Twin, make_layout
from tests.shadow_rx.wire import make_job

Message = pb.StepRecord


def rules(**changes: str | StateRule | None) -> dict[str, StateRule]:
    """Return the default section with changes; None removes a line; ``__`` in a name stands for ``.*``."""
    found = default_state()
    for name, rule in changes.items():
        name = name.replace("__", ".*")
        if rule is None:
            del found[name]
        else:
            found[name] = rule if isinstance(rule, StateRule) else StateRule(origin=Origin(rule))
    return found


def rig_with(state: dict[str, StateRule]) -> Rig:
    job = make_job(2).model_copy(update={"state": state})
    return Rig(job, Twin(job, make_layout()))


def told(rig: Rig, change: Callable[[Message], None], listed: bool = True) -> None:
    """Record the last step of all ranks, each changed; `listed`: the lists' digests are made right again."""
    for message in rig.twin.records(rig.epoch):
        change(message)
        if listed:
            ordered = sorted(message.state_objects, key=lambda item: item.name)
            del message.state_objects[:]
            message.state_objects.extend(ordered)
            message.state_digest = inventory_digest(ordered)
        rig.send_record(message, rig.now)


def add(message: Message, name: str, kind: str = "tensor", shape: tuple[int, ...] = (3,)) -> None:
    dtype = "float32" if kind == "tensor" else ""
    message.state_objects.append(pb.StateObjectInfo(name=name, kind=kind, shape=shape, dtype=dtype))


def test_the_most_specific_line_applies() -> None:
    manifest = StateManifest(rules(**{"model.a.*": "side_channel", "model.a.b": "constant", "x[0].?": "snapshot"}))
    origins = {name: manifest.find(name) for name in ("model.z", "model.a.z", "model.a.b", "x[0].1", "x[0].12", "y")}
    found = {name: declared.origin.value if declared else None for name, declared in origins.items()}
    assert found == {
        "model.z": "replay", "model.a.z": "side_channel", "model.a.b": "constant", "x[0].1": "snapshot",
        "x[0].12": None, "y": None,
    }  # fmt: skip
    assert set(DEFAULT_STATE) <= set(manifest.rules)


UNDECLARED: list[tuple[dict[str, Any], Callable[[Message], None], GapReason, str]] = [
    ({}, lambda m: add(m, "scaler.scale", "json"), GapReason.UNDECLARED_STATE,
     "scaler.scale not declared: add a line to the job's section state, e.g. scaler.scale: side_channel"),
    ({}, lambda m: add(m, "model.mean"), GapReason.UNDECLARED_STATE,
     "model.mean is declared replay (by 'model.*'), but it is not trained: declare it constant (frozen) or"),
    ({"rng__": "replay"}, lambda m: None, GapReason.UNDECLARED_STATE, "gradients do not determine it: declare it side"),
    ({"model.layer.0": "side_channel"}, lambda m: None, GapReason.UNDECLARED_STATE, "gradients advance it: declare it"),
    ({"ema": "side_channel"}, lambda m: None, GapReason.UNDECLARED_STATE,
     "ema is declared (side_channel), but the trainer has no such object: remove the line"),
    ({"model.mean": "side_channel"}, lambda m: add(m, "model.mean"), GapReason.SIDE_CHANNEL_MISSING,
     "model.mean is declared side_channel, but its record of this step does not carry it"),
    ({}, lambda m: m.objects["data"].CopyFrom(pb.StateObject(json='{"epoch": 0}')), GapReason.SIDE_CHANNEL_MISSING,
     "data.position is declared side_channel"),
    ({}, lambda m: m.objects.pop("rng.torch"), GapReason.SIDE_CHANNEL_MISSING, "rng.torch is declared side_channel"),
    ({"model.c": "constant"}, lambda m: add(m, "model.c"), GapReason.SIDE_CHANNEL_MISSING,
     "model.c is declared constant, but it was not uploaded"),
    ({"data.epoch": StateRule(origin=Origin.SNAPSHOT, every=2)}, lambda m: None, GapReason.SIDE_CHANNEL_MISSING,
     "data.epoch is captured every 2 steps (snapshot), not at this one"),
    ({}, lambda m: add(m, "optimizer.layer.0.max_exp_avg_sq"), GapReason.UNDECLARED_STATE,
     "optimizer.layer.0.max_exp_avg_sq has no counterpart in the shadow's optimizer"),
    ({}, lambda m: m.state_objects.remove(next(o for o in m.state_objects if o.name.endswith(".exp_avg"))),
     GapReason.UNDECLARED_STATE, "it has no optimizer state layer.0/exp_avg, which the shadow keeps"),
    ({}, lambda m: m.state_objects.remove(next(o for o in m.state_objects if o.name == "model.layer.3")),
     GapReason.UNDECLARED_STATE, "its model has no parameter layer.3, which is in the layout"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "change", "reason", "detail"), UNDECLARED, ids=[case[3][:40] for case in UNDECLARED])
def test_what_is_not_accounted_for_blocks_publication_by_name(
    state: dict[str, Any], change: Callable[[Message], None], reason: GapReason, detail: str
) -> None:
    rig = rig_with(rules(**state))
    rig.begin()
    rig.send(rig.train())
    told(rig, change)
    (lost,) = rig.lost()
    assert (lost.gap.step, lost.gap.reason) == (1, reason)
    assert detail in lost.gap.detail
    assert rig.group.ledger.point(0) is None
    gap = rig.group.progress.explain(1)
    assert gap is not None
    assert gap.reason is reason


def test_publication_goes_on_where_all_is_accounted_for_again() -> None:
    """The state is advanced through the steps between: nothing has to be uploaded."""
    rig = rig_with(rules())
    rig.begin()
    rig.step()
    for _ in range(2):
        rig.send(rig.train())
        told(rig, lambda message: add(message, "cache.hits", "json"))
    rig.step()
    assert rig.replicated() == [(1, 1), (1, 4)]
    assert [(lost.gap.step, lost.gap.reason) for lost in rig.lost()] == [
        (step, GapReason.UNDECLARED_STATE) for step in (2, 3)
    ]
    rig.check_truth()


def test_an_object_that_comes_unannounced_is_noticed_at_once() -> None:
    rig = rig_with(rules())
    rig.begin()
    rig.step()
    rig.send(rig.train())

    def unlisted(message: Message) -> None:
        del message.state_objects[:]
        message.state_digest = b"\1" * 32

    told(rig, unlisted, listed=False)
    (lost,) = rig.lost()
    assert lost.gap.reason is GapReason.UNDECLARED_STATE
    assert "rank 0 must list its state objects, but refers to a list that did not arrive" in lost.gap.detail


def test_a_rank_that_lists_nothing_is_never_published() -> None:
    rig = rig_with(rules())
    rig.begin()
    rig.send(rig.train())

    def silent(message: Message) -> None:
        del message.state_objects[:]
        message.state_digest = b""

    told(rig, silent, listed=False)
    assert [lost.gap.reason for lost in rig.lost()] == [GapReason.UNDECLARED_STATE]
    assert not rig.replicated()


def test_lists_that_are_not_repeated_hold_until_they_change() -> None:
    rig = rig_with(rules())
    rig.begin()
    rig.step()
    for _ in range(3):
        rig.send(rig.train())
        told(rig, lambda message: message.ClearField("state_objects"), listed=False)
    assert len(rig.replicated()) == 4


def test_tensors_of_the_side_channel_are_published_as_they_are() -> None:
    rig = rig_with(rules(**{"model.count": "side_channel"}))
    rig.begin()
    rig.send(rig.train())

    def counted(message: Message) -> None:
        message.state_objects.append(pb.StateObjectInfo(name="model.count", kind="tensor", dtype="int64"))
        message.objects["model.count"].tensor.CopyFrom(
            pb.TensorValue(dtype="int64", data=(7 + message.rank).to_bytes(8, "little"))
        )

    told(rig, counted)
    encoded = encode(rig.snapshots()[0])
    point = decode_recovery_point(encoded.manifest_json, encoded.state)
    assert [point.tensors[f"rank/{rank}/model.count"] for rank in range(2)] == [7, 8]
    assert point.tensors["rank/0/model.count"].dtype is torch.int64


REFUSED: list[tuple[Callable[[Message], None], str]] = [
    (lambda m: setattr(m.objects["data"], "step", 7), "objects['data'].step"),
    (lambda m: m.objects["x"].tensor.CopyFrom(pb.TensorValue(dtype="complex64", data=b"1234")), "tensor.dtype"),
    (lambda m: m.objects["x"].tensor.CopyFrom(pb.TensorValue(dtype="int8", shape=[1 << 62, 8])), "tensor.data"),
    (lambda m: m.objects["x"].tensor.CopyFrom(pb.TensorValue(dtype="int8", shape=[1 << 63, 0])), "tensor.shape"),
    (lambda m: m.objects["x"].tensor.CopyFrom(pb.TensorValue(dtype="bool", shape=[3], data=b"ab")), "tensor.data"),
    (lambda m: setattr(m, "gradient_scale", float("nan")), "gradient_scale"),
    (lambda m: setattr(m, "state_digest", b"short"), "state_digest"),
    (lambda m: setattr(m, "state_digest", b"\0" * 32), "state_digest"),
    (lambda m: add(m, "a"), "state_objects"),
    (lambda m: add(m, "z" * 513), "state_objects"),
    (lambda m: add(m, "zz", "pickle"), "kind"),
    (lambda m: m.state_objects.extend([pb.StateObjectInfo()] * MAX_OBJECTS), "state_objects"),
]


@pytest.mark.parametrize(("change", "field"), REFUSED, ids=[case[1] + str(i) for i, case in enumerate(REFUSED)])
def test_records_that_cannot_be_right_are_refused_and_cost_nothing(
    change: Callable[[Message], None], field: str
) -> None:
    rig = rig_with(rules())
    rig.begin()
    rig.send(rig.train())
    good = rig.twin.records(1)
    wrong = pb.StepRecord()
    wrong.CopyFrom(good[1])
    change(wrong)
    with pytest.raises(ShadowError) as caught:
        rig.send_record(wrong, 0.0)
    assert field in str(caught.value)
    assert caught.value.code is Refusal.INVALID_ARGUMENT
    rig.record()
    assert rig.replicated() == [(1, 1)]


class ConstantRig(Rig):
    """A trainer with a frozen parameter that the job declares constant."""

    frozen = torch.arange(6, dtype=torch.float64).reshape(2, 3)

    def __init__(self) -> None:
        job = make_job(2).model_copy(update={"state": rules(**{"model.frozen": "constant"})})
        super().__init__(job, Twin(job, make_layout()))
        inventory = self.twin.inventory
        data = self.frozen.numpy().tobytes()
        info = pb.StateObjectInfo(name="model.frozen", kind="tensor", shape=(2, 3), dtype="float64")
        self.digest = value_digest("float64", (2, 3), data)
        self.twin.inventory = lambda: sorted([*inventory(), info], key=lambda item: item.name)  # type: ignore[method-assign]

    def attached(self, epoch: int, digest: bytes | None = None) -> bool:
        message = self.twin.attach(epoch)
        for item in message.state_objects:
            if item.name == "model.frozen":
                item.digest = self.digest if digest is None else digest
        self.epoch, self.first_step, self.port = epoch, self.twin.step + 1, 40000 + 1000 * epoch
        need = self.group.attach(message)
        for flow in self.twin.open_flows(epoch, self.port):
            self.group.open_flow(flow)
        return need

    def uploaded(self, **changes: torch.Tensor | None) -> None:
        state = {**self.twin.state(), "state/model.frozen": self.frozen, **changes}
        data = pack_tensors({name: tensor for name, tensor in state.items() if tensor is not None})
        self.upload(self.epoch, data)


def test_constants_are_captured_once_and_published_with_every_step() -> None:
    rig = ConstantRig()
    assert rig.attached(1)
    rig.uploaded()
    rig.step()
    rig.step()
    for snapshot in rig.snapshots():
        encoded = encode(snapshot)
        point = decode_recovery_point(encoded.manifest_json, encoded.state)
        assert torch.equal(point.tensors["state/model.frozen"], rig.frozen)
        (entry,) = [entry for entry in point.manifest.objects if entry.name == "state/model.frozen"]
        assert (entry.origin, entry.step) == (Origin.CONSTANT, snapshot.step)
    assert not rig.attached(2), "the same constants: nothing has to be uploaded"
    rig.step()
    assert rig.replicated() == [(1, 1), (1, 2), (2, 3)]
    assert rig.attached(3, b"\7" * 32), "others have to be"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"state/model.frozen": None}, "'state/model.frozen' is missing"),
        ({"state/model.frozen": torch.zeros(2, 3, dtype=torch.float64)}, "another value than the trainer announced"),
        ({"state/model.frozen": torch.zeros(2, 3)}, "announced as float64 (2, 3)"),
        ({"state/other": torch.zeros(2)}, "'state/other' is not an object that the job declares constant"),
    ],
)
def test_wrong_constants_are_refused(changes: dict[str, Any], text: str) -> None:
    rig = ConstantRig()
    rig.attached(1)
    with pytest.raises(ShadowError) as caught:
        rig.uploaded(**changes)
    assert text in str(caught.value)
    rig.uploaded()
    rig.step()
    assert rig.replicated() == [(1, 1)]


def test_what_nobody_declared_is_told_when_the_trainer_attaches() -> None:
    state = {name: rule for name, rule in rules().items() if not name.startswith("rng")}
    rig = rig_with(state)
    rig.begin()
    (attached,) = [
        event for event in [*rig.events, *rig.core.group("dp0").ledger.take_events()] if isinstance(event, Attached)
    ]
    assert attached.undeclared is not None
    assert attached.undeclared.startswith("rng.torch not declared: add a line to the job's section state")
