"""What `docs/bmv2-quirks.md` says of BMv2 is still so; the embedded switch does what the specification says."""

from __future__ import annotations

from controlplane.entities import SwitchState
from controlplane.pipeline import Pipeline
from tests.switch_contract.frames import STATE, A, B, syn
from tests.switch_contract.rig import Rig
from tests.switch_contract.targets import BMV2


def test_groups_survive_a_push(running: Rig) -> None:
    """P4Runtime specification, SetForwardingPipelineConfig: VERIFY_AND_COMMIT clears all forwarding state."""
    running.install(STATE)
    try:
        for pushes in (1, 2):
            running.session.set_config(Pipeline.committed().config())
            assert running.target.read_state() == SwitchState()
            running.change(STATE)
            copies = running.send(A.port, syn(1)).packets[B.port].count(syn(1))
            assert copies == (1 + pushes if running.name == BMV2 else 1)
    finally:
        running.install(STATE)


def test_frames_wait_for_the_first_program(fresh: Rig) -> None:
    """A switch without a program cannot forward: what came before has no business afterwards."""
    early = syn(1)
    fresh.cables.send(A.port, early)
    fresh.install(STATE)
    fresh.send(A.port, syn(2))
    packets = sum(count.packets for count in fresh.counters().not_replicated.values())
    assert packets == fresh.sent + (fresh.name == BMV2)
