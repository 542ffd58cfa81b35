"""The commands that read and care for stores: what they print, and their exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import shadow_rx
from checkmate.cli import app
from checkmate_common.recovery.point import Confirmed
from tests.shadow_rx.store.stores import assert_equal, policy, snapshots, write


def run(*words: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], input=answer)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write(tmp_path / "store", snapshots(), policy=policy(base_every=5))
    return tmp_path / "store"


def test_restore_by_step_and_latest(store: Path, tmp_path: Path) -> None:
    assert run("restore", store, "--to", tmp_path / "a.pt").exit_code == 0
    assert torch.load(tmp_path / "a.pt", weights_only=True)["step"] == 14
    done = run("restore", store, "--step", 7, "--to", tmp_path / "b.safetensors", "--json")
    assert json.loads(done.stdout)["step"] == 7
    assert run("restore", store, "--step", "7", "--format", "point", "--to", tmp_path / "p").exit_code == 0
    missing = run("restore", store, "--step", 99, "--to", tmp_path / "c.pt")
    assert (missing.exit_code, "has no step 99; it has steps 1 to 14 of epoch 1" in missing.stderr) == (2, True)
    assert not (tmp_path / "c.pt").exists()
    for words in (["--to", "x.bin"], ["--to", "x.pt", "--step", "-1"], ["--to", "x.pt", "--model-only"]):
        assert run("restore", store, *words).exit_code == 2
    assert_equal(shadow_rx.restore(store, 7), snapshots()[6])


def test_verify_names_what_is_damaged(store: Path) -> None:
    done = run("verify", store)
    assert (done.exit_code, "1 to 14" in done.stdout, "everything is sound" in done.stdout) == (0, True, True)
    path = store / "dp0/epoch-0001/log-00000004-00000004"
    path.write_bytes(path.read_bytes()[:-1])
    done = run("verify", store, "--json")
    report = json.loads(done.stdout)
    assert (done.exit_code, report["sound"], report["latest"]) == (1, False, {"dp0": 14})
    assert report["epochs"][0]["damage"][0]["name"] == "dp0/epoch-0001/log-00000004-00000004"
    # The record itself is whole, only the trailer is not: the step before the tear can be recovered.
    assert report["epochs"][0]["recoverable"] == [[1, 14]]
    path.write_bytes(path.read_bytes()[:200])
    done = run("verify", store)
    assert (done.exit_code, "1 to 3, 6 to 14" in done.stdout) == (1, True)
    assert "step 4 is missing before it" in done.stdout


def test_keys(store: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    assert run("store", "create-key", key).exit_code == 0
    again = run("store", "create-key", key)
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    assert run("store", "rotate-key", store, "--key-file", key).exit_code == 0
    refused = run("verify", store)
    assert (refused.exit_code, "name the key file (--key-file)" in refused.stderr) == (2, True)
    assert run("verify", store, "--key-file", key).exit_code == 0
    wrong = tmp_path / "wrong"
    run("store", "create-key", wrong)
    refused = run("restore", store, "--key-file", wrong, "--to", tmp_path / "x.pt")
    assert (refused.exit_code, "is encrypted with key" in refused.stderr) == (2, True)


def test_purge_asks_and_removes(store: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    run("store", "rotate-key", store, "--key-file", key)
    assert run("store", "purge", store, answer="n\n").exit_code == 2
    assert store.exists()
    assert run("store", "purge", store, "--keys", "--yes").exit_code == 2
    done = run("store", "purge", store, "--keys", "--key-file", key, answer="y\n")
    assert (done.exit_code, store.exists(), key.exists()) == (0, False, False)
    nothing = run("store", "purge", tmp_path / "nothing", "--yes")
    assert (nothing.exit_code, "is not a store" in nothing.stderr) == (2, True)
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "mine/file").write_text("precious")
    assert run("store", "purge", tmp_path / "mine", "--yes").exit_code == 2
    assert (tmp_path / "mine/file").exists()


@pytest.mark.parametrize(
    "words", [["restore", "STORE", "--to", "x.pt"], ["verify", "STORE"], ["store", "purge", "STORE", "--yes"],
              ["store", "rotate-key", "STORE", "--key-file", "KEY"], ["verify", "STORE", "--allow-open-permissions"]],
)  # fmt: skip
def test_a_file_is_no_store(store: Path, tmp_path: Path, words: list[str]) -> None:
    assert run("restore", store, "--to", tmp_path / "a.pt").exit_code == 0
    (tmp_path / "a.pt").chmod(0o644)
    done = run(*({"STORE": tmp_path / "a.pt", "KEY": tmp_path / "key"}.get(word, word) for word in words))
    assert done.exit_code == 2
    assert f"{tmp_path}/a.pt: is a file; a store is a directory" in done.stderr
    assert torch.load(tmp_path / "a.pt", weights_only=True)["step"] == 14


def test_what_the_digests_agreed_with_is_said(tmp_path: Path) -> None:
    agreed: list[tuple[Confirmed, ...]] = [(), ("parameters",), ("parameters", "optimizer"), ("parameters",)]
    told = [replace(point, confirmed=parts) for point, parts in zip(snapshots(), agreed, strict=False)]
    write(tmp_path / "store", told, policy=policy(base_every=3))
    for step, parts in enumerate(agreed, 1):
        done = run("restore", tmp_path / "store", "--step", step, "--to", tmp_path / f"{step}.pt", "--json")
        assert json.loads(done.stdout)["confirmed"] == list(parts)
    done = run("restore", tmp_path / "store", "--step", 3, "--to", tmp_path / "x.pt")
    assert "digests agreed with: parameters and optimizer" in done.stdout
    done = run("restore", tmp_path / "store", "--step", 1, "--to", tmp_path / "y.pt")
    assert "no digests of this step" in done.stdout
    [epoch] = json.loads(run("verify", tmp_path / "store", "--json").stdout)["epochs"]
    assert epoch["confirmed"] == {"parameters": [[2, 4]], "optimizer": [[3, 3]]}
    assert "agreed with: parameters of 2 to 4; optimizer of 3\n" in run("verify", tmp_path / "store").stdout
