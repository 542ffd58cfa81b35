"""The event log: a line for everything that happens to a step, in a stable form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from shadow_rx import event_log
from shadow_rx.description import OptimizerPlan
from shadow_rx.estimate import Load
from shadow_rx.event_log import SCHEMA, EventLog, event_lines, read_losses
from shadow_rx.files import FileOperations
from shadow_rx.publisher import DirectPublisher
from shadow_rx.snapshot import Snapshot
from shadow_rx.status import Attached, OverloadChanged, StepReplicated, StepReport
from shadow_rx.store import RecoveryStore
from tests.shadow_rx.test_status import StatusRig
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

    def write(self, path: Path, data: bytes) -> None:
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


def test_a_log_that_cannot_be_written_stops_by_itself(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    rig = StatusRig()
    log = EventLog(Path("/dev/full"))
    rig.node._observe = log
    rig.begin()
    rig.step()
    assert rig.node.status("dp0").replica_step == 1, "replication goes on"
    assert log.error is not None
    assert "No space left" in log.error
    log.close()


def test_the_documents_have_the_schema() -> None:
    operations = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    section = operations[operations.index("## Event log") : operations.index("## What to alert on")]
    for event, fields in FIELDS.items():
        assert f"`{event}`" in section, event
        assert re.search(rf"^{event} ", event_log.__doc__ or "", flags=re.M), event
        for name in fields - {"repaired_bytes"}:
            assert f"`{name}`" in section, (event, name)
    assert f"`v` (schema, {SCHEMA})" in section
