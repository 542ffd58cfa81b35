"""The acceptance test: its short form passes, its judge can fail, and a seed gives one history."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from checkmate.cli import app
from nccl_emu.shadow_client.shadow_session import ShadowSession
from nccl_emu.training.trainer import DataParallelTrainer
from shadow_rx.group.ledger import Ledger
from shadow_rx.node import ShadowNode
from shadow_rx.publish.core import Done, PublisherCore
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.publish.store_queue import StoreQueue
from shadow_rx.status.group_status import StepReport
from shadow_rx.store.names import Point
from shadow_rx.store.writer import RecoveryStore
from tests.program import run_program
from topology.acceptance import campaign, soak
from topology.acceptance.excuses import Excuse, ExcuseTracker, excused
from topology.acceptance.mininet import injectable_plan
from topology.acceptance.plan import RunLength, draw_plan
from topology.acceptance.record import ReportedGap, Row, RunRecord, StepNumbers, failures, rows_of
from topology.acceptance.scenarios import MIXED_ANY, SCENARIOS, SINGLE_FAULTS, Injection, Scenario
from topology.acceptance.simulated_run.fault_simulation import FaultSimulation
from topology.acceptance.simulated_run.run import run_simulated
from topology.acceptance.step_state import reference_states
from topology.acceptance.table import passed, render, reproduce, verdict

SHORT = RunLength(steps=6, steps_after_restart=2)
CALM = Scenario("calm", ())


def run(scenario: Scenario = CALM, seed: int = 0) -> RunRecord:
    return run_simulated(scenario, seed, SHORT)


def named(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


@pytest.mark.parametrize("name", ["loss-after-switch", "rank-restart", "torn-write", "full-disk", "slow-storage"])
def test_a_row_holds(name: str) -> None:
    records = [run(named(name), seed) for seed in range(2)]
    assert [failures(record) for record in records] == [[], []]
    assert any(record.injected for record in records)
    assert all(len(record.numbers) >= SHORT.steps - 1 for record in records), "the numbers are there step by step"


def test_a_seed_gives_one_history() -> None:
    first, second = (run(MIXED_ANY, 7) for _ in range(2))
    assert replace(first, seconds=0) == replace(second, seconds=0)
    assert draw_plan(MIXED_ANY, 7, SHORT) == draw_plan(MIXED_ANY, 7, SHORT) != draw_plan(MIXED_ANY, 8, SHORT)


def test_a_shadow_that_is_away_when_training_ends_is_waited_for(tmp_path: Path) -> None:
    plan = draw_plan(CALM, 0, SHORT)
    record = RunRecord(CALM.name, "simulation", 0, SHORT.steps)
    world = FaultSimulation(plan, reference_states(plan.job, 0, SHORT.total), tmp_path / "store", record)
    try:
        world.begin()
        world.train(SHORT.steps - 1)
        world.ring.compute(SHORT.steps)
        world.shadow.kill(3.0)
        world.ring.finish(SHORT.steps)
        # The next write is that of the last state, which rank 0 uploads because the shadow node could not follow.
        world.shadow.files.tear = 0, 0.5
        world.shadow.torn_downtime = 3.0
        world.end()
    finally:
        world.close()
    assert (world.shadow.files.torn, world.shadow.kills) == (1, 2)
    # The ranks' records of the last step died with the shadow node, so they told them again.
    assert record.numbers[-1] == (SHORT.steps, SHORT.steps, SHORT.steps, SHORT.steps)
    assert record.wrong == []


# ---- the judge can fail


def flip_parameter(snapshot: Snapshot) -> Snapshot:
    tensors = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
    tensors["param/0.weight"].view(torch.int32)[0, 0] ^= 1
    # As a base: with its gradient the log would find out by itself.
    return replace(snapshot, tensors=tensors, gradient=None)


def flip_moment(snapshot: Snapshot) -> Snapshot:
    tensors = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
    tensors["optim/8.bias/exp_avg"].view(torch.int32)[0] ^= 1
    return replace(snapshot, tensors=tensors, gradient=None)


def another_place_in_the_data(snapshot: Snapshot) -> Snapshot:
    record = snapshot.records[1]
    objects = {**record.objects, "data": {**record.objects["data"], "position": 0}}
    return replace(snapshot, records=(snapshot.records[0], replace(record, objects=objects), snapshot.records[2]))


def random_numbers_of_another_rank(snapshot: Snapshot) -> Snapshot:
    one, two, three = snapshot.records
    return replace(snapshot, records=(one, replace(two, raw=one.raw), three))


def another_rate(snapshot: Snapshot) -> Snapshot:
    records = [replace(r, options=({**r.options[0], "weight_decay": 0.5},)) for r in snapshot.records]
    return replace(snapshot, records=tuple(records), gradient=None)


def of_the_step_before(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, step=snapshot.step - 1)


@pytest.mark.parametrize(
    "spoil",
    [
        flip_parameter, flip_moment, another_place_in_the_data, random_numbers_of_another_rank, another_rate,
        of_the_step_before,
    ],
)  # fmt: skip
def test_a_wrong_checkpoint_on_storage_fails_the_row(
    spoil: Callable[[Snapshot], Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PublisherCore.offer

    def spoiled(self: PublisherCore, snapshot: Snapshot, room: int | None = None) -> list[Point]:
        return real(self, spoil(snapshot) if snapshot.step == 4 else snapshot, room)

    monkeypatch.setattr(PublisherCore, "offer", spoiled)
    record = run()
    assert record.wrong
    row = Row(CALM, "simulation", (record,))
    assert not row.passed
    console = Console(record=True, width=120)
    render([row], console, "out")
    shown = console.export_text()
    assert "wrong checkpoints" in shown
    assert reproduce(record) in shown
    assert shown.splitlines()[-1].startswith("acceptance: FAILED in 1 of 1 rows")


def test_a_wrong_checkpoint_in_memory_fails_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Ledger.published

    def spoiled(self: Ledger, snapshot: Snapshot, report: StepReport) -> None:
        if report.step == 3:
            tensors = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
            tensors["optim/0.weight/exp_avg"].view(torch.int32)[0, 0] ^= 1
            snapshot = replace(snapshot, tensors=tensors)
        real(self, snapshot, report)

    monkeypatch.setattr(Ledger, "published", spoiled)
    record = run()
    assert any("step 3, in memory" in wrong for wrong in record.wrong), record.wrong


def test_what_is_called_durable_and_is_not_there_fails_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecoveryStore, "_commit", lambda self, chain: (chain.waiting.clear(), chain.points.clear()))
    assert any("called durable and is not in the store" in wrong for wrong in run().wrong)


def test_changed_training_fails_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    real, changed = DataParallelTrainer.compute, []

    def spoiled(self: DataParallelTrainer, step: int) -> float:
        loss = real(self, step)
        # The reference comes first.
        if step == 3 and len(changed) > SHORT.total:
            self.buckets[0][0] += 1e-6
        changed.append(step)
        return loss

    monkeypatch.setattr(DataParallelTrainer, "compute", spoiled)
    record = run(replace(CALM, name="changed"), seed=991)
    assert record.training is not None
    assert "step 3" in record.training
    assert failures(record)[0].startswith(f"{len(record.wrong)} wrong") or "training was changed" in failures(record)[0]


def test_a_restart_that_goes_on_differently_fails_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from topology.acceptance.simulated_run import fault_simulation

    real = fault_simulation.restore_trainer

    def spoiled(*arguments: Any) -> DataParallelTrainer:
        trainer = real(*arguments)
        trainer.generator.manual_seed(1)
        return trainer

    monkeypatch.setattr(fault_simulation, "restore_trainer", spoiled)
    record = run()
    assert record.training is None
    assert record.restart is not None
    assert failures(record) != []


def test_a_step_without_a_reason_fails_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShadowNode, "explain", lambda self, group, step: None)
    monkeypatch.setattr("topology.acceptance.simulated_run.observer.RunObserver.on_event", lambda self, event: None)
    record = run(named("full-disk"))
    assert record.unexplained, record
    assert "neither on storage nor explained" in failures(record)[-1]


def silent(real: Any) -> Any:
    return lambda self, snapshot, room=None: real(self, snapshot, room)[:0]


def skipping(real: Any) -> Any:
    """Takes point 3, and forgets it."""

    def take(self: StoreQueue) -> Any:
        taken = real(self)
        return real(self) if taken is not None and taken.snapshot.step == 3 else taken

    return take


def newest_first(real: Any) -> Any:
    def take(self: StoreQueue) -> Any:
        for lane in self._lanes.values():
            lane.waiting.rotate(1)
        return real(self)

    return take


def as_dropped(real: Any) -> Any:
    def finish(self: PublisherCore, done: Done, seconds: float) -> list[Any]:
        return [each.result.point if each.result.error else each for each in real(self, done, seconds)]

    return finish


@pytest.mark.parametrize(
    ("owner", "name", "spoil", "row", "said"),
    [
        (StoreQueue, "offer", silent, "slow-storage", "neither on storage nor explained"),
        (StoreQueue, "take", skipping, "duplication", "neither on storage nor explained"),
        (StoreQueue, "take", newest_first, "slow-storage", "was stored after step"),
        (PublisherCore, "finish", as_dropped, "storage-errors", "no fault of this run excuses overload"),
        (ShadowSession, "send_next", lambda _: lambda self: bool(self._waiting.popleft()) or True, "reordering",
         "no fault of this run excuses side_channel_missing"),
    ],
    ids=["drops silently", "forgets a point", "newest first", "wrong reason", "sends nothing"],
)  # fmt: skip
def test_a_broken_queue_fails_the_row(
    owner: type, name: str, spoil: Any, row: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, spoil(getattr(owner, name)))
    records = (run(named(row), seed) for seed in range(12))  # not in each seed do points wait
    assert any(said in each for record in records for each in [*failures(record), *record.wrong])


def test_only_what_a_fault_excuses_may_be_missing() -> None:
    tracker = ExcuseTracker([Injection.LOSS_AFTER, Injection.FULL_DISK])
    for step in (3, 3, 6):
        tracker.replicas_lost(step)
    tracker.begin(Injection.FULL_DISK, 2)
    tracker.end(Injection.FULL_DISK, 4)
    record = RunRecord("x", "simulation", 0, 8, verified=1, excuses=tracker.all(8))
    assert excused(record.excuses) == {2, 3, 4, 6, 7}
    for step, reason, fine in (
        (3, "lost_bytes", True), (4, "resync_pending", True), (7, "resync_pending", True), (2, "storage_error", True),
        (5, "lost_bytes", False), (5, "storage_error", False), (2, "lost_bytes", False), (3, "overload", False),
    ):  # fmt: skip
        record.reported = [ReportedGap(step, reason, "said")]
        assert (failures(record) == []) is fine, (step, reason)
    assert RunRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_hole_lasts_while_the_calls_that_end_it_are_lost() -> None:
    tracker = ExcuseTracker([Injection.LOSS_AFTER, Injection.SIDE_CHANNEL])
    tracker.replicas_lost(3)
    tracker.begin(Injection.SIDE_CHANNEL, 4)
    tracker.end(Injection.SIDE_CHANNEL, 6)
    assert [(e.fault, e.first, e.last) for e in tracker.all(8)] == [
        ("loss-after-switch", 3, 6), ("side-channel-loss", 4, 6),
    ]  # fmt: skip
    tracker.begin(Injection.SIDE_CHANNEL, 8)
    assert excused(tracker.all(8)) == {3, 4, 5, 6, 8}, "a hole that is over does not begin again"


def test_excuses_come_in_one_order() -> None:
    injections = {Injection.LOSS_AFTER, Injection.CONGESTION, Injection.CORRUPT, Injection.SWITCH_RESTART}
    tracker = ExcuseTracker(injections)
    tracker.replicas_lost(3)
    assert [excuse.fault for excuse in tracker.all(8)] == sorted(injection.value for injection in injections)


def test_rows_that_show_nothing_do_not_pass() -> None:
    sound = RunRecord("x", "simulation", 0, 8, verified=1)
    lost = Scenario("x", (Injection.LOSS_AFTER,), complete=True)
    assert Row(lost, "simulation", (sound,)).shortcomings() == ["never happened: loss-after-switch"]
    sound.left_out = {"loss-after-switch": "there is no switch"}
    assert Row(lost, "simulation", (sound,)).shortcomings() == []
    console = Console(record=True, width=80)
    render([Row(lost, "simulation", (sound,))], console, "out")
    assert "x in simulation is without loss-after-switch: there is no switch" in console.export_text()
    sound.left_out, sound.injected = {}, {"loss-after-switch": 3}
    assert Row(lost, "simulation", (sound,)).passed
    sound.reported = [ReportedGap(3, "lost_bytes", "flow 1")]
    assert "no fault of this run excuses lost_bytes" in failures(sound)[0]
    sound.excuses = [Excuse("loss-after-switch", 1, 8, ("lost_bytes",))]
    assert failures(sound) == []
    assert not Row(lost, "simulation", (sound,)).passed
    assert not passed([])
    sound.numbers = [StepNumbers(3, 3, 2, 3)]
    assert "contradict each other" in failures(sound)[0]
    assert failures(RunRecord("x", "simulation", 0, 8)) == ["nothing was compared: no recovery point was published"]


# ---- the program


def test_every_fault_of_the_contract_has_a_row_of_its_own() -> None:
    assert {s.injections for s in SINGLE_FAULTS} == {(i,) for i in Injection if i is not Injection.SIDE_CHANNEL}
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


def test_command(tmp_path: Path) -> None:
    arguments = ["acceptance", "--fabric", "simulation", "--only", "duplication", "--seeds", "1", "--jobs", "1"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "acceptance: the contract holds in 1 rows, 1 runs" in done.stdout
    document = json.loads((tmp_path / "acceptance.json").read_text())
    [row] = document["rows"]
    assert (document["passed"], row["fault"], row["wrong_checkpoints"]) == (True, "duplication", 0)
    # Records are sent in the background: the shadow node may not have been told of the step that was just trained.
    assert all(numbers["trained"] - numbers["step"] in (-1, 0) for numbers in row["runs"][0]["numbers"])
    again = CliRunner().invoke(app, [*arguments[:-3], "2", "--jobs", "1", "--resume", "--out", str(tmp_path), "--json"])
    assert again.exit_code == 0, again.output
    assert [run["seed"] for run in json.loads(again.stdout)["rows"][0]["runs"]] == [0, 1]
    unknown = CliRunner().invoke(app, ["acceptance", "--only", "earthquake", "--out", str(tmp_path)])
    assert unknown.exit_code == 2


def test_a_campaign_in_processes_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    tasks = [campaign.Task(MIXED_ANY, seed, SHORT) for seed in range(3)]
    log = campaign.RunLog(tmp_path, resume=True)
    for record in campaign.run_tasks(tasks[:1], 1):
        log.add(record)
    with log.path.open("a") as file:
        file.write('{"scenario": "mixed-any')  # killed in the middle of a line
    log = campaign.RunLog(tmp_path, resume=True)
    left = log.missing(tasks, "simulation")
    assert [task.seed for task in left] == [1, 2]
    for record in campaign.run_tasks(left, 2):
        log.add(record)
    assert sorted(record.seed for record in campaign.read_runs(log.path)) == [0, 1, 2]
    assert rows_of([MIXED_ANY], log.known)[0].passed, verdict(rows_of([MIXED_ANY], log.known), "")
    found = soak.soak_of(log.known, 2)
    assert (found.seeds, found.clean, found.failed_seeds) == (3, 3, [])
    document = tmp_path / "doc.md"
    document.write_text(f"a\n{soak.BEGIN}\nold\n{soak.END}\nb\n")
    soak.update_document(document, found)
    assert document.read_text() == f"a\n{soak.BEGIN}\n{found.text()}{soak.END}\nb\n"


def test_the_document_says_what_the_soak_has_shown() -> None:
    docs = Path(__file__).parents[3] / "docs"
    found = soak.Soak.read(docs / "reliability.json")
    assert found.text() in (docs / "reliability.md").read_text()
    assert found.clean == found.seeds


def test_ranks_in_mininet_are_not_killed_at_the_end_where_that_would_excuse_what_is_missing() -> None:
    killed = set[str]()
    for scenario in SCENARIOS:
        for seed in range(40):
            plan = injectable_plan(draw_plan(scenario, seed, SHORT), scenario)
            if not plan.orderly:
                killed.add(scenario.name)
                assert not scenario.complete
                assert not plan.injections & {Injection.SHADOW_RESTART, Injection.TORN_WRITE}
    assert {"loss-after-switch", "corruption", "mixed-anything"} < killed


@pytest.mark.mininet
@pytest.mark.parametrize("name", ["loss-after-switch", "torn-write"])
def test_in_mininet(tmp_path: Path, name: str) -> None:
    words = ("--fabric", "mininet", "--only", name, "--out", tmp_path, "--json")
    done = run_program("acceptance", *words, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = json.loads(done.stdout)["rows"]
    assert row["injected"][name] > 0
    assert row["runs"][0]["restarted_from"] > 0
