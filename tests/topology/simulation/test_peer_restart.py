"""A shadow node is killed and loses its storage, too: the new one goes on from the other node's newest point."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from checkmate_common.recovery.reasons import GapReason
from jobspec.loader import load_job
from shadow_rx.store.api import open_store
from topology.fabric.inproc import InprocFabric
from topology.processes.switch_events import SwitchEvent
from topology.progress import RunProgress
from topology.testbed import TestbedOptions, run_testbed

EXAMPLE = Path(__file__).parents[3] / "examples/two-shadows.yaml"
STEPS, RESUMED_AT, KILLED_AT = 7, 6, 4


def test_an_empty_node_goes_on_from_the_other_ones_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = InprocFabric._start_shadow

    def start(fabric: InprocFabric, spec: Any, address: str, after: int | None = None) -> str:
        if after is not None:
            shutil.rmtree(tmp_path / "checkpoints" / spec.name)
        return started(fabric, spec, address, after)

    monkeypatch.setattr(InprocFabric, "_start_shadow", start)
    options = TestbedOptions(
        fabric="inproc", iterations=STEPS, restart_at=RESUMED_AT, out=tmp_path,
        events=(SwitchEvent.parse(f"restart-shadow:{KILLED_AT}"),),
    )  # fmt: skip
    with RunProgress(Console(file=io.StringIO())) as progress:
        result = run_testbed(load_job(EXAMPLE), options, progress)
    summary = result.summary()
    assert summary["mismatched_iterations"] == 0
    assert summary["restart_identical"] is True
    events = [json.loads(line) for line in (tmp_path / "events-sh0.jsonl").read_text().splitlines()]
    [adopted] = [event for event in events if event["event"] == "adopted"]
    assert (adopted["peer"], adopted["step"], adopted["since"]) == ("sh1", KILLED_AT, 1)
    lost = {event["step"]: event["reason"] for event in events if event["event"] == "lost"}
    # The other node's point is the first one here; the step in progress went with the old node.
    assert lost == dict.fromkeys([*range(1, KILLED_AT), KILLED_AT + 1], GapReason.RESYNC_PENDING)
    durable = [event["step"] for event in events[events.index(adopted) :] if event["event"] == "stored"]
    assert durable[0] == KILLED_AT, "it was durable here before any rank came back"
    mine, others = open_store(tmp_path / "checkpoints/sh0"), open_store(tmp_path / "checkpoints/sh1")
    for step in (KILLED_AT, KILLED_AT + 2, STEPS):
        assert mine.point("dp0", step).manifest.state_sha256 == others.point("dp0", step).manifest.state_sha256
