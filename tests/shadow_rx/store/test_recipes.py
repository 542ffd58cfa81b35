"""The recipes of docs/recovery.md are run as they stand, and element types stay what they are."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from checkmate_common.recovery.point import read_recovery_point
from checkmate_common.stream.dtypes import DType
from shadow_rx.store import export
from shadow_rx.store.api import restore
from tests.shadow_rx.rig import Rig
from tests.shadow_rx.store.stores import policy, write
from tests.shadow_rx.store.test_export import SmallTraining, apply, model, optimizer_of
from tests.shadow_rx.twin import Twin, as_bytes, make_layout
from tests.shadow_rx.wire import make_job

DOCS = Path(__file__).parents[3] / "docs/recovery.md"


def recipe(word: str) -> str:
    """Return the only Python example of the page that has `word` in it."""
    (found,) = [code for code in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if word in code]
    return found


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallTraining, Path]:
    rig = SmallTraining()
    for _ in range(6):
        rig.step()
    root = tmp_path_factory.mktemp("training")
    write(root / "store", rig.snapshots(), policy=policy(base_every=3))
    return rig, root


def test_the_dcp_recipe_goes_on_bit_for_bit(
    training: tuple[SmallTraining, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, root = training
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    try:
        export.write_dcp(restore(root / "store", 4), Path("resume-dcp"))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in Path("resume-dcp").iterdir()} == {0o600}
    assert stat.S_IMODE(Path("resume-dcp").stat().st_mode) == 0o700
    net = model()
    scope: dict[str, Any] = {
        "torch": torch, "model": net, "optimizer": optimizer_of(net), "get_state_dict": get_state_dict,
        "set_state_dict": set_state_dict,
    }  # fmt: skip
    exec(recipe("checkpoint.load("), scope)
    optimizer, schedule = scope["optimizer"], scope["scheduler"]
    assert scope["state"]["step"] == 4
    for step in (5, 6):
        apply(net, optimizer, rig, step)
        schedule.step()
        truth = rig.snapshots()[step - 1].tensors
        found = {f"param/{name}": param.detach() for name, param in net.named_parameters()}
        assert as_bytes(found) == as_bytes({name: truth[name] for name in found})
    assert schedule.state_dict() == rig.twin.scheduler.state_dict()  # type: ignore[attr-defined]
    again = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9, last_epoch=6)
    assert again.base_lrs == schedule.base_lrs


def test_an_optimizer_in_another_order_shows(training: tuple[SmallTraining, Path]) -> None:
    _, root = training
    checkpoint = export.torch_checkpoint(restore(root / "store", 4))
    net = model()
    assert list(checkpoint["model"]) == [name for name, _ in net.named_parameters()]
    right = optimizer_of(net)
    scope: dict[str, Any] = {"model": net, "checkpoint": checkpoint, "optimizer": right}
    exec(recipe("param_names"), scope)
    wrong = torch.optim.AdamW([{"params": list(reversed(group["params"]))} for group in right.param_groups])
    with pytest.raises(ValueError, match="another order"):
        exec(recipe("param_names"), {**scope, "optimizer": wrong})
    right.load_state_dict(checkpoint["optimizer"])
    assert torch.optim.lr_scheduler.ExponentialLR(right, 0.9, last_epoch=4).base_lrs == [0.01, 0.01]


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.label)
def test_element_types_stay_in_every_form(tmp_path: Path, dtype: DType) -> None:
    """Parameters and moments, from a base and from the log."""
    job = make_job()
    rig = Rig(job, Twin(job, make_layout(((7, 5), (11,), (3,)), dtype=dtype)))
    rig.begin()
    for _ in range(3):
        rig.step()
    told = rig.snapshots()
    write(tmp_path / "store", told, policy=policy(base_every=100))
    wanted = getattr(torch, dtype.label)
    for step in (1, 3):
        point = restore(tmp_path / "store", step)
        moments = {name: t for name, t in point.tensors.items() if name.endswith(("exp_avg", "exp_avg_sq"))}
        assert moments
        assert {tensor.dtype for tensor in moments.values()} == {wanted}
        assert as_bytes(moments) == as_bytes({name: told[step - 1].tensors[name] for name in moments})
        folder = tmp_path / str(step)
        export.write_torch(point, folder / "x.pt")
        export.write_safetensors(point, folder / "x.safetensors")
        export.write_point(point, folder / "point")
        export.write_dcp(point, folder / "dcp")
        loaded = torch.load(folder / "x.pt", weights_only=True)["optimizer"]
        names = [name for group in loaded["param_groups"] for name in group["param_names"]]
        by_name = {
            f"optim/{name}/{key}": value
            for index, name in enumerate(names)
            for key, value in loaded["state"][index].items()
        }
        blank = {name: torch.zeros_like(tensor) for name, tensor in moments.items()}
        flat = {f"optimizer.state.{'.'.join(name.split('/')[1:])}": tensor for name, tensor in blank.items()}
        torch.distributed.checkpoint.load(flat, checkpoint_id=str(folder / "dcp"), no_dist=True)
        with safetensors.safe_open(folder / "x.safetensors", "pt") as file:
            assert file.metadata()["param_names"] == '["layer.0", "layer.1", "layer.2"]'
        for found in (
            by_name, safetensors.torch.load_file(folder / "x.safetensors"),
            read_recovery_point(folder / "point").tensors, blank,
        ):  # fmt: skip
            assert as_bytes({name: found[name] for name in moments}) == as_bytes(moments)
            assert {found[name].dtype for name in moments} == {wanted}
