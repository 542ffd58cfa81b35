"""Restored checkpoints go into real models and optimizers, which then continue bit for bit."""

from __future__ import annotations

import hashlib
import json
import pickle
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from checkmate_common.recovery.point import RecoveryPoint, decode_recovery_point, pack_tensors, read_recovery_point
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.layout import ParamSpec, build_layout
from shadow_rx.store import export
from shadow_rx.store.api import open_store, recoverable, restore
from shadow_rx.store.errors import StoreError
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.store.stores import assert_equal, policy, snapshots, write
from tests.shadow_rx.twin import Twin, as_bytes
from tests.shadow_rx.wire import make_job


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def optimizer_of(net: nn.Sequential) -> torch.optim.Optimizer:
    names = [[net[0].weight, net[2].weight], [net[0].bias, net[2].bias]]
    return torch.optim.AdamW([{"params": part} for part in names], lr=0.01, weight_decay=0.1)


class SmallTraining(Rig):
    """A trainer with two parameter groups and a schedule, whose parameters are those of `model`."""

    def __init__(self) -> None:
        job = make_job()
        specs = [ParamSpec(name, tuple(p.shape), DType.FLOAT32) for name, p in model().named_parameters()]
        twin = Twin(job, build_layout(specs, 150), options={"lr": 0.01, "weight_decay": 0.1}, groups=2)
        twin.scheduler = torch.optim.lr_scheduler.ExponentialLR(twin.optimizer, 0.9)  # type: ignore[attr-defined]
        super().__init__(job, twin)
        self.begin()
        self.gradients: list[list[bytes]] = []

    def step(self) -> None:
        self.send(self.train())
        self.gradients.append(self.last_gradient)
        self.twin.scheduler.step()  # type: ignore[attr-defined]
        state = self.twin.scheduler.state_dict()  # type: ignore[attr-defined]
        for message in self.twin.records(self.epoch):
            message.objects["scheduler"].CopyFrom(pb.StateObject(json=json.dumps(state)))
            self.send_record(message, self.now)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallTraining, Path]:
    rig = SmallTraining()
    for _ in range(8):
        rig.step()
    root = tmp_path_factory.mktemp("training")
    write(root / "store", rig.snapshots(), policy=policy(base_every=3))
    return rig, root


def apply(net: nn.Sequential, optimizer: torch.optim.Optimizer, rig: SmallTraining, step: int) -> None:
    """Make training step `step` with the gradient that the ranks had."""
    params = dict(net.named_parameters())
    for slot in rig.twin.layout.slots:
        raw = rig.gradients[step - 1][slot.bucket]
        start, count = slot.offset * 4, slot.param.elements
        values = torch.frombuffer(bytearray(raw[start : start + 4 * count]), dtype=torch.float32)
        params[slot.param.name].grad = values.reshape(slot.param.shape).clone()
    optimizer.step()


def test_a_plain_checkpoint_continues_bit_for_bit(training: tuple[SmallTraining, Path]) -> None:
    rig, root = training
    for step in (2, 5, 8):
        path = root / f"{step}.pt"
        export.write_torch(restore(root / "store", step), path, rank=1)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        found = torch.load(path, weights_only=True)
        net = model()
        optimizer = optimizer_of(net)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        net.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        schedule.load_state_dict(found["scheduler"])
        assert (found["step"], found["rank"], found["ranks"]) == (step, 1, len(rig.job.groups[0].ring))
        assert bytes(found["rng"]["torch"].numpy()) == bytes([1, step] * 4)
        assert found["objects"]["data"] == {"epoch": 0, "position": step * 10 + 1}
        assert found["others"][0]["objects"]["data"]["position"] == step * 10
        for following in range(step + 1, 9):
            apply(net, optimizer, rig, following)
            schedule.step()
            truth = rig.snapshots()[following - 1].tensors
            expected = {name: truth[f"param/{name}"] for name, _ in net.named_parameters()}
            assert as_bytes({n: p.detach() for n, p in net.named_parameters()}) == as_bytes(expected)
            for name, param in net.named_parameters():
                state = {f"optim/{name}/{key}": value for key, value in optimizer.state[param].items()}
                assert as_bytes(state) == as_bytes({key: truth[key] for key in state})
        assert schedule.state_dict() == rig.twin.scheduler.state_dict()  # type: ignore[attr-defined]


def test_safetensors(training: tuple[SmallTraining, Path]) -> None:
    _, root = training
    point = restore(root / "store", 5)
    export.write_safetensors(point, root / "model.safetensors", model_only=True)
    net = model()
    net.load_state_dict(safetensors.torch.load_file(root / "model.safetensors"))
    loaded = {f"param/{name}": param.detach() for name, param in net.named_parameters()}
    assert as_bytes(loaded).items() <= as_bytes(point.tensors).items()
    export.write_safetensors(point, root / "all.safetensors")
    assert as_bytes(safetensors.torch.load_file(root / "all.safetensors")) == as_bytes(point.tensors)
    with safetensors.safe_open(root / "all.safetensors", "pt") as file:
        manifest = file.metadata()["manifest"]
    assert decode_recovery_point(manifest, pack_tensors(point.tensors)).manifest == point.manifest


def test_a_recovery_point_directory(training: tuple[SmallTraining, Path]) -> None:
    rig, root = training
    export.write_point(restore(root / "store", 6), root / "point")
    export.write_point(restore(root / "store", 5), root / "point")
    assert_equal(read_recovery_point(root / "point"), rig.snapshots()[4])


def test_a_rank_that_is_not_there_is_named(training: tuple[SmallTraining, Path]) -> None:
    _, root = training
    with pytest.raises(StoreError, match="of step 3 has no record of rank 99"):
        export.write_torch(restore(root / "store", 3), root / "x.pt", rank=99)
    assert not (root / "x.pt").exists()


LOADER = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rank, world, store, folder, out = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
torch.manual_seed(rank)
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
fully_shard(net, mesh=init_device_mesh("cpu", (world,)))
names = [[net[0].weight, net[2].weight], [net[0].bias, net[2].bias]]
optimizer = torch.optim.AdamW([{"params": part} for part in names], lr=0.5)
model_state, optimizer_state = get_state_dict(net, optimizer)
state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
dcp.load(state, checkpoint_id=folder)
set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
full = lambda t: t.full_tensor() if hasattr(t, "full_tensor") else t
found = {f"param/{n}": full(p.detach()) for n, p in net.named_parameters()}
for name, param in net.named_parameters():
    for key, value in optimizer.state[param].items():
        found[f"optim/{name}/{key}"] = full(value)
shard = net[0].weight.to_local().numel()
if rank == 0:
    rates = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    torch.save({"tensors": found, "step": state["step"], "shard": shard, "rates": rates}, out)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("world", [1, 2])
def test_a_job_of_another_size_loads_the_distributed_checkpoint(
    training: tuple[SmallTraining, Path], tmp_path: Path, world: int
) -> None:
    _, root = training
    point = restore(root / "store", 5)
    export.write_dcp(point, tmp_path / "dcp")
    (tmp_path / "load.py").write_text(LOADER)
    arguments = [str(world), str(tmp_path / "rendezvous"), str(tmp_path / "dcp"), str(tmp_path / "out.pt")]
    ranks = [
        subprocess.Popen([sys.executable, str(tmp_path / "load.py"), str(rank), *arguments], stderr=subprocess.PIPE)
        for rank in range(world)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    expected = {name: tensor for name, tensor in point.tensors.items() if not name.startswith("rank/")}
    assert as_bytes(found["tensors"]) == as_bytes(expected)
    assert found["step"] == 5
    assert found["shard"] == 6 * 8 // world
    rate = point.manifest.records[0].objects["scheduler"]["_last_lr"][0]
    assert found["rates"] == [(rate, 0.1)] * 2
    with pytest.raises(StoreError, match="exists already"):
        export.write_dcp(point, tmp_path / "dcp")


class Hostile:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    """Pickles and torch archives in place of each kind of object: refused by name, and never run."""
    mark = tmp_path / "mark"
    payload = pickle.dumps(Hostile(mark))
    pickle.loads(payload)
    assert mark.exists(), "the payload works"
    mark.unlink()
    torch.save(Hostile(mark), tmp_path / "archive.pt")
    for data in (payload, (tmp_path / "archive.pt").read_bytes()):
        for name in ("step-00000001/state.safetensors", "step-00000001/manifest.json", "log-00000003-00000003"):
            root = tmp_path / f"{len(data)}-{Path(name).name}"
            write(root, snapshots()[:4], policy=policy(base_every=100))
            (root / "dp0/epoch-0001" / name).write_bytes(data)
            with pytest.raises(StoreError):
                restore(root, 4)
            assert not recoverable(root).sound
        (root / "store.json").write_bytes(data)
        with pytest.raises(StoreError, match=r"store\.json"):
            restore(root)
    assert not mark.exists()


def test_a_changed_base_that_is_whole_is_found_by_verify(tmp_path: Path) -> None:
    """Someone who can write can make checksums fit; that the gradients lead to another state still shows."""
    told = snapshots()
    write(tmp_path, told, policy=policy(base_every=4))
    point = restore(tmp_path, 5)
    name = next(name for name in point.tensors if name.startswith("param/"))
    tensors = {**point.tensors, name: point.tensors[name] + 1}
    told_sum = {"state_sha256": hashlib.sha256(pack_tensors(tensors)).hexdigest()}
    export.write_point(
        RecoveryPoint(point.manifest.model_copy(update=told_sum), tensors), tmp_path / "dp0/epoch-0001/step-00000005"
    )
    report = recoverable(tmp_path)
    assert not report.sound
    assert {d.name for d in report.epochs[0].damage} >= {"dp0/epoch-0001/step-00000005"}
    assert report.epochs[0].recoverable[0][0] == 1


def test_which_group_is_meant(tmp_path: Path) -> None:
    told = snapshots()
    write(tmp_path, [told[0], replace(told[1], group="dp1")])
    assert open_store(tmp_path).groups() == ["dp0", "dp1"]
    with pytest.raises(StoreError, match=r"several groups and none was named \(--group\); there are dp0, dp1"):
        restore(tmp_path)
    with pytest.raises(StoreError, match="has no group 'dp7'"):
        restore(tmp_path, group="dp7")
    assert restore(tmp_path, group="dp1").manifest.step == 2
