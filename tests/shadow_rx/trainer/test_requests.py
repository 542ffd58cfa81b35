"""Requests that are wrong: refused with the field that is at fault, and nothing changes."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_common.recovery.point import pack_tensors
from checkmate_common.recovery.reasons import GapReason
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel.limits import MAX_STEP
from checkmate_common.sidechannel.upload import state_header
from shadow_rx.apply.upload import check_header
from shadow_rx.core import ShadowCore
from shadow_rx.errors import Refusal, ShadowError
from shadow_rx.options import ShadowOptions
from shadow_rx.serve.status_message import status_message
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.wire import make_job


def _layout(**changes: Any) -> str:
    param = {"name": "a", "shape": [2], "dtype": "float32", "bucket": 0, "offset": 0, **changes}
    return json.dumps({"version": 1, "params": [param]})


def _refused(rig: Rig, call: Any, field: str, code: Refusal = Refusal.INVALID_ARGUMENT) -> str:
    before = rig.core.status("dp0")
    with pytest.raises(ShadowError) as caught:
        call()
    assert caught.value.field == field
    assert caught.value.code is code
    assert rig.core.status("dp0") == before
    return caught.value.message


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"job": "other"}, "job"),
        ({"first_step": 0}, "first_step"),
        ({"layout_json": "{"}, "layout_json"),
        ({"layout_json": "null"}, "layout_json"),
        ({"layout_json": "[" * 100000}, "layout_json"),
        ({"layout_json": '{"version": 1, "params": []}'}, "layout_json"),
        ({"layout_json": _layout(shape=[-1, -2])}, "layout_json"),
        ({"layout_json": _layout(shape=[1e999])}, "layout_json"),
        ({"layout_json": _layout(dtype="int4")}, "layout_json"),
        ({"layout_json": _layout(offset=3)}, "layout_json"),
        ({"layout_json": _layout(bucket=1)}, "layout_json"),
    ],
)
def test_attach_requests(changes: dict[str, Any], field: str) -> None:
    rig = Rig()
    rig.begin()
    rig.step()
    _refused(rig, lambda: rig.group.attach(rig.twin.attach(9, **changes)), field)
    rig.step()
    assert rig.replicated() == [(1, 1), (1, 2)], "the refused request has cost nothing"


def test_attach_with_a_layout_beyond_the_memory_limit() -> None:
    rig = Rig(memory_limit=10_000)
    optimizer = pb.OptimizerDescription(
        name="SGD", groups=[pb.ParamGroup(params=["a"], options_json=json.dumps(_sgd()))]
    )
    request = rig.twin.attach(1, optimizer=optimizer)
    for size in (1 << 40, 100_000, 620):
        request.layout_json = _layout(shape=[size])
        message = _refused(rig, lambda: rig.group.attach(request), "layout_json", Refusal.RESOURCE_EXHAUSTED)
        assert "the limit is 10000" in message
    request.layout_json = _layout()
    rig.group.attach(request)
    big = pack_tensors({"param/a": torch.zeros(10_000)})
    _refused(rig, lambda: rig.upload(1, big), "data", Refusal.RESOURCE_EXHAUSTED)


def _sgd() -> dict[str, Any]:
    options = torch.optim.SGD([torch.zeros(1)]).param_groups[0]
    return {k: v for k, v in options.items() if k != "params"}


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"name": "LBFGS"}, "optimizer.name", "cannot be replayed"),
        ({"name": "os.system"}, "optimizer.name", "cannot be replayed"),
        ({"params": ["layer.0"]}, "optimizer.groups", "without a group"),
        ({"params": []}, "optimizer.groups[0].params", "is empty"),
        ({"params": ["layer.0", "layer.0"]}, "optimizer.groups[0].params", "in two groups"),
        ({"params": ["nobody"]}, "optimizer.groups[0].params", "not in the layout"),
        ({"options_json": "{"}, "optimizer.groups[0].options_json", "JSON"),
        ({"options_json": "[]"}, "optimizer.groups[0].options_json", "expected a JSON object"),
        ({"options_json": '{"lr": 0.1}'}, "optimizer.groups[0].options_json", "lacks"),
        ({"set": {"betas": [0.1]}}, "optimizer.groups[0].options_json", "cannot make a step"),
        ({"set": {"lr": "fast"}}, "optimizer.groups[0].options_json", "cannot make a step"),
        ({"set": {"capturable": True}}, "optimizer.groups[0].options_json", "capturable"),
        ({"set": {"differentiable": True}}, "optimizer.groups[0].options_json", "differentiable"),
        ({"set": {"params": []}}, "optimizer.groups[0].options_json", "not an option"),
    ],
)
def test_optimizer_descriptions(change: dict[str, Any], field: str, message: str) -> None:
    rig = Rig()
    request = rig.twin.attach(1)
    group = request.optimizer.groups[0]
    if "name" in change:
        request.optimizer.name = change["name"]
    if "params" in change:
        group.params[:] = change["params"]
    if "options_json" in change:
        group.options_json = change["options_json"]
    if "set" in change:
        group.options_json = json.dumps({**json.loads(group.options_json), **change["set"]})
    assert message in _refused(rig, lambda: rig.group.attach(request), field)


def _without(state: dict[str, torch.Tensor], *names: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in state.items() if key not in names}


def test_uploads() -> None:
    rig = Rig()
    rig.begin(upload=False)
    rig.step()
    state = rig.twin.state()
    wrong = [
        (_without(state, "param/layer.1"), "'param/layer.1' is missing"),
        ({**state, "param/layer.1": torch.zeros(12)}, "the layout says torch.float32 (11,)"),
        ({**state, "param/layer.1": torch.zeros(11, dtype=torch.float64)}, "the layout says"),
        ({**state, "buffer/mean": torch.zeros(2)}, "'buffer/mean' is neither"),
        ({**state, "param/layer.9": torch.zeros(2)}, "'param/layer.9' is neither"),
        ({**state, "optim/layer.9/step": torch.zeros(())}, "is neither"),
        (_without(state, "optim/layer.1/exp_avg"), "keeps ['exp_avg', 'exp_avg_sq', 'step']"),
        ({**state, "optim/layer.1/momentum_buffer": torch.zeros(11)}, "has ["),
        ({**state, "optim/layer.1/exp_avg": torch.zeros(3)}, "expected floating point (11,)"),
        ({**state, "optim/layer.1/step": torch.zeros((), dtype=torch.int64)}, "expected floating point ()"),
    ]
    for tensors, message in wrong:
        data = pack_tensors(tensors)
        assert message in _refused(rig, lambda data=data: rig.upload(1, data), "data")
    for data in (b"", b"garbage", pack_tensors(state)[:-1], b"\xff" * 100):
        assert "safetensors" in _refused(rig, lambda data=data: rig.upload(1, data), "data")
    _refused(rig, lambda: rig.upload(2, b""), "epoch", Refusal.FAILED_PRECONDITION)
    _refused(rig, lambda: rig.core.group("dp7"), "group", Refusal.NOT_FOUND)


def test_an_upload_after_the_first_applied_step_is_too_late() -> None:
    rig = Rig()
    rig.begin()
    rig.step()
    message = _refused(rig, lambda: rig.upload(1, rig.twin.state_bytes()), "epoch", Refusal.FAILED_PRECONDITION)
    assert "step 1 of epoch 1 is applied" in message


def test_flows() -> None:
    rig = Rig()
    early = pb.OpenFlowRequest(group="dp0", epoch=1, flow_id=3, source_port=5)
    _refused(rig, lambda: rig.group.open_flow(early), "epoch", Refusal.FAILED_PRECONDITION)
    rig.begin()
    for flow, port, field in ((2, 5, "flow_id"), (6, 5, "flow_id"), (3, 0, "source_port"), (3, 65536, "source_port")):
        request = pb.OpenFlowRequest(group="dp0", epoch=1, flow_id=flow, source_port=port)
        _refused(rig, lambda request=request: rig.group.open_flow(request), field)
    assert "it serves dp0" in _refused(rig, lambda: rig.core.group("nobody"), "group", Refusal.NOT_FOUND)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"step": 0}, "step"),
        ({"rank": 3}, "rank"),
        ({"group_options_json": []}, "group_options_json"),
        ({"group_options_json": ["{}"]}, "group_options_json[0]"),
        ({"group_options_json": ["nothing"]}, "group_options_json[0]"),
        ({"parameter_digest": b"short"}, "parameter_digest"),
        ({"objects": {"x": pb.StateObject()}}, "objects['x']"),
        ({"objects": {"x": pb.StateObject(json="{")}}, "objects['x']"),
        ({"objects": {"x": pb.StateObject(json='"\\ud800"')}}, "objects['x']"),
        ({"objects": {"x": pb.StateObject(json="[" * 195 + "]" * 195)}}, "objects['x']"),
        ({"objects": {"": pb.StateObject(json="1")}}, "objects"),
    ],
)
def test_records(change: dict[str, Any], field: str) -> None:
    rig = Rig()
    rig.begin()
    rig.send(rig.train())
    message = rig.twin.records(1)[0]
    fields = {f.name: getattr(message, f.name) for f in message.DESCRIPTOR.fields}
    _refused(rig, lambda: rig.send_record(pb.StepRecord(**{**fields, **change})), field)
    rig.record()
    assert rig.replicated() == [(1, 1)]


def test_a_missing_digest_is_refused_where_the_job_asks_for_digests() -> None:
    rig = Rig(make_job(digests=True))
    rig.begin()
    rig.train()
    _refused(rig, lambda: rig.send_record(rig.twin.records(1)[0]), "parameter_digest")


def test_repeated_records_are_fine_and_different_ones_are_named() -> None:
    rig = Rig()
    rig.begin()
    rig.send(rig.train())
    first = rig.twin.records(1)[1]
    assert rig.send_record(first) == []
    assert rig.send_record(first) == []
    other = pb.StepRecord()
    other.CopyFrom(first)
    other.loss += 1
    message = _refused(rig, lambda: rig.send_record(other), "step", Refusal.FAILED_PRECONDITION)
    assert message == "rank 1 told another record of step 1 before"
    rig.record()
    assert rig.replicated() == [(1, 1)]
    assert rig.send_record(first) == [], "an equal record of an applied step is fine too"
    _refused(rig, lambda: rig.send_record(other), "step", Refusal.FAILED_PRECONDITION)


def test_records_that_run_too_far_ahead_are_not_kept() -> None:
    rig = Rig(pending_records=2)
    rig.begin()
    withheld = []
    for step in (1, 2, 3):
        rig.send(rig.train())
        if step == 1:
            withheld = rig.twin.records(1)
        else:
            rig.record()
    assert rig.core.status("dp0").trained_step == 3
    for message in withheld:
        rig.send_record(message)
    assert rig.replicated() == [(1, 1), (1, 2)]
    (lost,) = rig.lost()
    assert (lost.gap.step, lost.gap.reason) == (3, GapReason.OVERLOAD)
    assert "came too far ahead" in lost.gap.detail


def test_a_shadow_that_the_job_does_not_have() -> None:
    with pytest.raises(ShadowError, match="no shadow 'sh7'; it has sh0"):
        ShadowCore(make_job(), "sh7")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"window": 1}, "window: 1"),
        ({"hold": 0}, "memory points: 0"),
        ({"pending_records": 0}, "pending records: 0"),
        ({"memory_limit": 0}, "memory limit: 0"),
    ],
)
def test_options(bad: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShadowOptions(**bad)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 1 << 30))
def test_damaged_requests_are_answered_or_refused_but_never_crash(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig()
    rig.begin()
    rig.train()
    messages = [rig.twin.attach(2), rig.twin.open_flows(1)[0], *rig.twin.records(1)]
    group = rig.group
    calls = {pb.AttachRequest: group.attach, pb.OpenFlowRequest: group.open_flow, pb.StepRecord: group.record}
    for message in messages:
        data = bytearray(message.SerializeToString())
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            damaged = type(message).FromString(bytes(data))
        except Exception:
            continue  # protobuf refuses it before it reaches the shadow
        with suppress(ShadowError):
            calls[type(message)](damaged)
        rig.core.status("dp0")
    state = bytearray(rig.twin.state_bytes())
    state[rng.randrange(600)] ^= 1 << rng.randrange(8)
    with suppress(ShadowError):
        rig.upload(1, bytes(state))


@settings(deadline=None, max_examples=60)
@given(frame=st.binary(max_size=200), seed=st.integers(0, 1 << 30))
def test_any_bytes_may_be_captured(frame: bytes, seed: int) -> None:
    rig = Rig()
    rig.begin()
    rng = random.Random(seed)
    good = rng.choice(rig.train())
    mixed = bytearray(good)
    at = rng.randrange(len(good))
    mixed[at : at + 8] = frame[:8]
    rig.send([frame, bytes(mixed), good[: rng.randrange(len(good))]])
    assert rig.snapshots() == []


def test_numbers_that_no_step_has_are_refused_and_the_largest_can_be_told() -> None:
    """What follows from a step (the next one, a lag in bytes) has to fit into a status, too."""
    rig = Rig()
    for field in ("first_step", "current_step"):
        changes = {field: MAX_STEP + 1, "rejoin": True}
        _refused(rig, lambda changes=changes: rig.group.attach(rig.twin.attach(1, **changes)), field)
    rig.begin()
    rig.step()
    record = rig.twin.records(1)[0]
    record.step = MAX_STEP + 1
    _refused(rig, lambda: rig.send_record(record), "step")
    change = pb.ChangeRequest(group="dp0", epoch=1, effective_step=MAX_STEP + 1)
    _refused(rig, lambda: rig.group.change(change), "effective_step")
    header = state_header("dp0", 1, b"x", MAX_STEP + 1)
    _refused(rig, lambda: check_header(header, 100), "header.step")
    record.step = MAX_STEP
    rig.send_record(record)
    told = status_message(rig.core.status("dp0"))
    assert (told.trained_step, told.replica_lag.bytes) == (MAX_STEP, (1 << 64) - 1)
    assert rig.group.needs(0).SerializeToString() is not None
