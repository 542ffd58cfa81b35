"""Events that a run is asked for: what is read, what is refused, what is due."""

from __future__ import annotations

import pytest

from tests.topology.simulation.simulated_job import small_job
from topology.errors import TestbedError
from topology.processes.switch_events import EventKind, EventPlan, SwitchEvent, check_events

RESTART, FAILOVER = EventKind.RESTART, EventKind.FAILOVER


@pytest.mark.parametrize("text", ["restart-switch:3", "failover-switch:12"])
def test_what_is_read_is_written(text: str) -> None:
    assert str(SwitchEvent.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "restart-switch", "restart-switch:", "restart-switch:0", "stop:3", "failover-switch:²"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="restart-switch:STEP, failover-switch:STEP"):
        SwitchEvent.parse(text)


def test_each_event_is_due_once() -> None:
    plan = EventPlan([SwitchEvent(FAILOVER, 5), SwitchEvent(RESTART, 2)])
    assert plan.needs_standby
    assert plan.due(1) == []
    assert plan.due(2) == [SwitchEvent(RESTART, 2)]
    assert plan
    assert plan.due(7) == [SwitchEvent(FAILOVER, 5)]
    assert not plan
    assert plan.due(9) == []
    assert not EventPlan([SwitchEvent(RESTART, 1)]).needs_standby


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["restart-switch:4"], "restart-switch:4 is not before the last step 4"),
        (["restart-switch:2", "failover-switch:2"], "are at the same step"),
        (["restart-switch:3", "failover-switch:2"], "one standby only"),
    ],
)
def test_what_cannot_happen_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(TestbedError, match=message):
        check_events([SwitchEvent.parse(text) for text in texts], small_job(2), 4)


def test_restarts_and_then_a_failover_can_happen() -> None:
    check_events([SwitchEvent(RESTART, 1), SwitchEvent(RESTART, 2), SwitchEvent(FAILOVER, 3)], small_job(2), 4)
