"""The event log: a line for everything that happens to a step, in a stable form."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from checkmate_common.files.rotating_file import LogLimits, older_files
from checkmate_common.recovery.reasons import GapReason
from shadow_rx.logs import event_log
from shadow_rx.logs.access_log import Access, AccessLog
from shadow_rx.logs.event_log import SCHEMA, EventLog, event_lines, read_losses
from shadow_rx.logs.log_queue import LogQueue
from shadow_rx.publish.publisher import DirectPublisher
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.events import Attached, OverloadChanged, StepLost, StepReplicated
from shadow_rx.status.group_status import Gap, StepReport
from shadow_rx.status.health import Part
from shadow_rx.status.load import Load
from shadow_rx.store.storage.files import FileOperations, Parts
from shadow_rx.store.writer import RecoveryStore
from shadow_rx.trainer.description import OptimizerPlan
from tests.shadow_rx.status.test_status import StatusRig
from tests.shadow_rx.twin import make_layout, upload

FIELDS = {
    "attached": {"need_state"},
    "rejoined": {"need_state"},
    "replicated": {"replica_bytes", "first_byte_at", "complete_at", "applied_at", "repaired_bytes", "peer_bytes"},
    "repaired": {"repaired_bytes", "peer_bytes"},
    "lost": {"reason", "detail"},
    "uploaded": set(),
    "resynced": {"since"},
    "stored": set(),
    "not_stored": {"reason", "detail"},
    "overload": {"step_seconds", "apply_seconds", "store_seconds", "nodes_needed"},
    "overload_ended": {"step_seconds", "apply_seconds", "store_seconds", "nodes_needed"},
}


def read(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        common = {"v", "event", "group", "epoch", "step", "at", "time"}
        assert set(line) == common | FIELDS[line["event"]], line
        assert line["v"] == SCHEMA
    return lines


class SometimesFull(FileOperations):
    full = False

    def write(self, path: Path, data: Parts) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().write(path, data)


def test_a_run_with_a_loss_a_resync_and_a_full_disk(tmp_path: Path) -> None:
    files = SometimesFull()
    rig = StatusRig(DirectPublisher(RecoveryStore(tmp_path / "store", None, files)))
    log = EventLog(tmp_path / "events.jsonl", lambda: rig.now, lambda: 1e9 + rig.now)
    rig.node._observe = log
    rig.begin()
    rig.step()
    rig.now = 2.0
    rig.send(rig.train()[1:])
    rig.record()
    rig.step()
    upload(rig.node, 1, rig.twin.state_bytes(), 3)
    files.full = True
    rig.step()
    files.full = False
    rig.step()
    rig.begin()
    log.close()
    lines = read(tmp_path / "events.jsonl")
    assert [(line["event"], line["step"]) for line in lines] == [
        ("attached", 0), ("uploaded", 0),
        ("replicated", 1), ("stored", 1),
        ("lost", 2), ("uploaded", 3), ("resynced", 3), ("replicated", 3), ("stored", 3),
        ("replicated", 4), ("not_stored", 4),
        ("replicated", 5), ("stored", 5),
        ("attached", 5),
    ]  # fmt: skip
    by_event = {line["event"]: line for line in lines}
    assert by_event["resynced"]["since"] == 2
    assert by_event["not_stored"]["reason"] == "storage_error"
    assert (by_event["lost"]["at"], by_event["lost"]["time"]) == (2.0, 1e9 + 2.0)
    assert [line["need_state"] for line in lines if line["event"] == "attached"] == [True, False]
    assert [(epoch, gap.step) for epoch, gap in read_losses(tmp_path / "events.jsonl", "dp0")] == [(1, 2)]


def test_a_repair_has_a_line_of_its_own(tmp_path: Path) -> None:
    snapshot = Snapshot("job", "dp0", 1, 7, make_layout(), OptimizerPlan("SGD", ()), (), {})
    lines = list(event_lines(StepReplicated(snapshot, StepReport(1, 7, 500, 1.0, 2.0, 3.0, 40, 8))))
    assert [line["event"] for line in lines] == ["replicated", "repaired"]
    assert (lines[1]["step"], lines[1]["repaired_bytes"], lines[1]["peer_bytes"]) == (7, 40, 8)


def test_an_overload_begins_and_ends_and_says_how_many_nodes_would_do() -> None:
    (line,) = event_lines(OverloadChanged("dp0", 1, 9, True, Load(1.0, 2.0, 0.5)))
    assert (line["event"], line["nodes_needed"], line["apply_seconds"]) == ("overload", 3, 2.0)
    (line,) = event_lines(OverloadChanged("dp0", 1, 9, False, Load(1.0, 0.5, 0.5)))
    assert line["event"] == "overload_ended"
    (line,) = event_lines(Attached("dp0", 2, 9, False, True))
    assert line["event"] == "rejoined"


def test_a_full_disk_costs_lines_and_not_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = StatusRig()
    log = EventLog(tmp_path / "events.jsonl")
    rig.node._observe = log
    write, full = os.write, threading.Event()

    def sometimes(descriptor: int, data: bytes) -> int:
        if full.is_set():
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", sometimes)
    rig.begin()
    settle(log, 0)
    full.set()
    for _ in range(3):
        rig.step()
    settle(log, 3)
    assert "No space left" in (log.part().trouble or "")
    assert rig.node.status("dp0").replica_step == 3, "replication goes on"
    full.clear()
    rig.step()
    rig.step()
    log.close()
    assert log.part() == Part("events", None, 3)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(line["event"], line["step"], line.get("lost_before")) for line in lines] == [
        ("attached", 0, None), ("uploaded", 0, None), ("replicated", 4, 3), ("replicated", 5, None),
    ]  # fmt: skip


def settle(log: EventLog, lost: int) -> None:
    """Wait until nothing waits to be written, and so many lines were lost."""
    deadline = time.monotonic() + 20
    while log._queue._waiting or log.part().lost < lost:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_log_whose_thread_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path / "events.jsonl")

    def fails(fields: object) -> None:
        raise MemoryError("one bad moment")

    monkeypatch.setattr(log._lines, "append", fails)
    log(OverloadChanged("dp0", 1, 9, True, Load(1.0, 2.0, 0.5)))
    log.close()
    log(OverloadChanged("dp0", 1, 9, False, Load(1.0, 2.0, 0.5)))
    assert "MemoryError" in (log.part().trouble or "")
    assert log.part().lost == 1


def test_nothing_waits_for_a_slow_disk_and_what_waits_is_bounded() -> None:
    go_on, written = threading.Event(), list[tuple[int, int]]()

    def slow(item: int, lost: int) -> None:
        assert go_on.wait(20)
        written.append((item, lost))

    queue = LogQueue[int]("log", slow, most_waiting_bytes=100)
    for number in range(20):
        queue.put(number, 30)
    assert queue.part().lost == 16
    go_on.set()
    deadline = time.monotonic() + 20
    while len(written) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    while queue._waiting:
        time.sleep(0.002)
    queue.put(20, 30)
    queue.close()
    assert written == [(0, 0), (1, 0), (2, 0), (3, 0), (20, 16)]


def test_an_event_log_does_not_grow_without_end_and_its_losses_are_found(tmp_path: Path) -> None:
    path, limits = tmp_path / "events.jsonl", LogLimits(1 << 16, 3)
    log = EventLog(path, limits=limits)
    for step in range(1, 1001):
        log(StepLost("dp0", 1, Gap(step, GapReason.LOST_BYTES, "x" * 100)))
    log.close()
    files = older_files(path)
    assert [file.name for file in files] == ["events.jsonl.3", "events.jsonl.2", "events.jsonl.1", "events.jsonl"]
    assert all(file.stat().st_size <= limits.nbytes for file in files)
    assert [gap.step for _, gap in read_losses(path, "dp0")] == list(range(1, 1001))


def test_processes_share_an_access_log_that_is_renamed(tmp_path: Path) -> None:
    path, limits = tmp_path / "access.jsonl", LogLimits(1 << 16, 9)
    logs = [AccessLog(path, lambda: 0.0, limits) for _ in range(2)]
    for number in range(2000):
        logs[number % 2].write(Access("user", "restore", "store", step=number))
    for log in logs:
        log.close()
        assert log.part() == Part("access log")
    steps = [json.loads(line)["step"] for file in older_files(path) for line in file.read_text().splitlines()]
    assert sorted(steps) == list(range(2000))
    assert all(file.stat().st_size <= limits.nbytes for file in older_files(path))


def test_the_documents_have_the_schema() -> None:
    operations = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    section = operations[operations.index("## Event log") : operations.index("## What to alert on")]
    for event, fields in FIELDS.items():
        assert f"`{event}`" in section, event
        assert re.search(rf"^{event} ", event_log.__doc__ or "", flags=re.M), event
        for name in fields - {"repaired_bytes"}:
            assert f"`{name}`" in section, (event, name)
    assert f"`v` (schema, {SCHEMA})" in section
