"""A trainer as a shadow knows it: side-channel messages, and the true state after each step to compare with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from checkmate_common.recovery.point import pack_tensors
from checkmate_common.recovery.state import inventory_digest, members_text
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel.digest import optimizer_digest, parameter_digest
from checkmate_common.sidechannel.upload import state_header
from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.layout import Layout, ParamSpec, build_layout
from jobspec.model import Flow, Job
from shadow_rx.node import ShadowNode
from tests.shadow_rx.wire import Stretch, cut, primary_stretches, replica, segment

TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
SHAPES = ((7, 5), (11,), (), (3, 4, 2), (1,))


def make_layout(
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    bucket_bytes: int = 150,
    dtype: DType = DType.FLOAT32,
    version: int = 1,
) -> Layout:
    """Return a layout of several buckets, whose sizes do not divide by the usual ring sizes."""
    params = [ParamSpec(f"layer.{i}", shape, dtype) for i, shape in enumerate(shapes)]
    return build_layout(params, bucket_bytes, version)


@dataclass
class Twin:
    """The model that the ranks hold: each step's reduced gradient is drawn from a seeded generator."""

    job: Job
    layout: Layout
    optimizer_name: str = "AdamW"
    options: Mapping[str, Any] = field(default_factory=lambda: {"lr": 0.01, "weight_decay": 0.1})
    seed: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.params: dict[str, torch.nn.Parameter] = {}
        for slot in self.layout.slots:
            value = torch.from_numpy(np.asarray(self.rng.standard_normal(slot.param.shape)))
            self.params[slot.param.name] = torch.nn.Parameter(value.to(TORCH[slot.param.dtype.label]))
        names = list(self.params)
        self.group_names = [names[i :: self.groups] for i in range(self.groups)]
        options = {key: tuple(v) if isinstance(v, list) else v for key, v in self.options.items()}
        self.optimizer = getattr(torch.optim, self.optimizer_name)(
            [{"params": [self.params[n] for n in part]} for part in self.group_names], **options
        )
        self.step = 0

    # ---- what the side channel carries ----

    def options_json(self) -> list[str]:
        groups = self.optimizer.param_groups
        return [json.dumps({k: v for k, v in group.items() if k != "params"}) for group in groups]

    def attach(self, epoch: int = 1, **changes: Any) -> pb.AttachRequest:
        groups = [
            pb.ParamGroup(params=part, options_json=text)
            for part, text in zip(self.group_names, self.options_json(), strict=True)
        ]
        fields = {
            "job": self.job.name,
            "group": "dp0",
            "epoch": epoch,
            "first_step": self.step + 1,
            "layout_json": self.layout.to_json(),
            "optimizer": pb.OptimizerDescription(name=self.optimizer_name, groups=groups),
            "state_objects": self.inventory(),
        }
        return pb.AttachRequest(**{**fields, **changes})

    def inventory(self) -> list[pb.StateObjectInfo]:
        """Return everything that a checkpoint of a rank would hold, in the order of the names."""
        tensors = {f"model.{name}": param.detach() for name, param in self.params.items()}
        for name, param in self.params.items():
            for key, value in self.optimizer.state.get(param, {}).items():
                if torch.is_tensor(value):
                    tensors[f"optimizer.{name}.{key}"] = value
        found = [
            pb.StateObjectInfo(name=name, kind="tensor", shape=t.shape, dtype=str(t.dtype).removeprefix("torch."))
            for name, t in tensors.items()
        ]
        for index, (names, group) in enumerate(zip(self.group_names, self.optimizer.param_groups, strict=True)):
            members = members_text(self.optimizer_name, names)
            found.append(pb.StateObjectInfo(name=f"param_groups.{index}.params", kind="params", dtype=members))
            for key in group:
                if key != "params":
                    found.append(pb.StateObjectInfo(name=f"param_groups.{index}.{key}", kind="option"))
        found += [pb.StateObjectInfo(name=name, kind="json") for name in ("data.epoch", "data.position")]
        found.append(pb.StateObjectInfo(name="rng.torch", kind="raw"))
        return sorted(found, key=lambda item: item.name)

    def state(self) -> dict[str, torch.Tensor]:
        tensors = {f"param/{name}": param.detach().clone() for name, param in self.params.items()}
        for name, param in self.params.items():
            for key, value in self.optimizer.state.get(param, {}).items():
                if torch.is_tensor(value):
                    tensors[f"optim/{name}/{key}"] = value.clone()
        return tensors

    def state_bytes(self) -> bytes:
        return pack_tensors(self.state())

    def records(self, epoch: int = 1, digest: bool = False) -> list[pb.StepRecord]:
        """Return all ranks' records of the last step."""
        told, listed = self.used_options, self.inventory()
        return [
            pb.StepRecord(
                group="dp0",
                epoch=epoch,
                step=self.step,
                rank=rank,
                layout_version=self.layout.version,
                group_options_json=told,
                loss=1.5 / self.step + rank,
                objects={
                    "data": pb.StateObject(json=json.dumps({"epoch": 0, "position": self.step * 10 + rank})),
                    "rng.torch": pb.StateObject(raw=bytes([rank, self.step % 256] * 4)),
                },
                parameter_digest=self.digest() if digest else b"",
                optimizer_digest=self.optimizer_digest() if digest else b"",
                state_digest=inventory_digest(listed),
                state_objects=listed,
            )
            for rank in range(len(self.job.groups[0].ring))
        ]

    def digest(self) -> bytes:
        return parameter_digest((name, tensor_bytes(p.detach())) for name, p in self.params.items())

    def optimizer_digest(self) -> bytes:
        return optimizer_digest({n: tensor_bytes(t) for n, t in self.state().items() if n.startswith("optim/")})

    # ---- training ----

    def draw_gradient(self) -> list[bytes]:
        """Return a reduced gradient, one bytes object a bucket."""
        buckets: list[bytes] = []
        for bucket in self.layout.buckets:
            values = torch.from_numpy(self.rng.standard_normal(bucket.elements)) * 3
            buckets.append(tensor_bytes(values.to(TORCH[bucket.dtype.label])))
        return buckets

    def train(self, gradient: Sequence[bytes] | None = None, lr: float | None = None) -> list[bytes]:
        """Make one step, and return its gradient."""
        gradient = self.draw_gradient() if gradient is None else list(gradient)
        if lr is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
        for slot in self.layout.slots:
            start = slot.offset * slot.param.dtype.itemsize
            raw = gradient[slot.bucket][start : start + slot.param.elements * slot.param.dtype.itemsize]
            values = torch.from_numpy(np.frombuffer(raw, np.uint8).copy()).view(TORCH[slot.param.dtype.label])
            self.params[slot.param.name].grad = values.reshape(slot.param.shape).clone()
        self.used_options = self.options_json()
        self.optimizer.step()
        self.step += 1
        return gradient

    # ---- the wire ----

    def stretches(self, gradient: Sequence[bytes], epoch: int = 1, first_step: int = 1) -> list[Stretch]:
        """Return the primary bytes of the last step on all flows."""
        return [
            stretch
            for flow in self.job.flows
            for stretch in primary_stretches(self.job, flow, self.layout, epoch, first_step, self.step, gradient)
        ]

    def frames(
        self, gradient: Sequence[bytes], epoch: int = 1, first_step: int = 1, mss: int = 100, port: int = 40000
    ) -> list[bytes]:
        """Return the replicas of the last step, in order, flow f from source port `port` + f."""
        return [
            segment(self.job, piece, port + piece.flow.id)
            for stretch in self.stretches(gradient, epoch, first_step)
            for piece in cut(stretch, forever(mss))
        ]

    def frames_of(
        self, flow: Flow, gradient: Sequence[bytes], epoch: int, first_step: int, port: int, shift: int, mss: int = 100
    ) -> list[bytes]:
        """Return the replicas of the last step on one flow, `shift` bytes later in its stream."""
        stretches = primary_stretches(self.job, flow, self.layout, epoch, first_step, self.step, gradient)
        return [
            segment(self.job, replace(piece, position=piece.position + shift), port + flow.id)
            for stretch in stretches
            for piece in cut(stretch, forever(mss))
        ]

    def syns(self, port: int = 40000) -> list[bytes]:
        return [replica(self.job, flow, port + flow.id, 0, b"", 0x02) for flow in self.job.flows]

    def open_flows(self, epoch: int = 1, port: int = 40000) -> list[pb.OpenFlowRequest]:
        return [
            pb.OpenFlowRequest(group="dp0", epoch=epoch, flow_id=flow.id, source_port=port + flow.id)
            for flow in self.job.flows
        ]


def upload(node: ShadowNode, epoch: int, data: bytes, step: int = 0) -> bool:
    """Give a node the state of its group after `step`."""
    return node.upload(state_header("dp0", epoch, data, step), data)


def forever(value: int) -> Iterator[int]:
    while True:
        yield value


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def as_bytes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype, bytes]]:
    """Return a form in which equal means equal bit for bit (a NaN equals itself)."""
    return {name: (tuple(t.shape), t.dtype, tensor_bytes(t)) for name, t in tensors.items()}
