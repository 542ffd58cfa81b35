"""What `docs/bmv2-quirks.md` says of BMv2 is still so; the embedded switch does what the specification says."""

from __future__ import annotations

from controlplane.entities import SwitchState
from controlplane.pipeline import Pipeline
from tests.switch_contract.checks import assert_replicated
from tests.switch_contract.frames import STATE, A, B, syn
from tests.switch_contract.rig import Rig
from tests.switch_contract.targets import BMV2


def test_groups_survive_a_push(switch: Rig) -> None:
    """P4Runtime, SetForwardingPipelineConfig with VERIFY_AND_COMMIT: all forwarding state is cleared."""
    for pushes in (1, 2):
        switch.session.set_config(Pipeline.committed().config())
        assert switch.target.read_state() == SwitchState()
        switch.change(STATE)
        # The mark comes more than once as well: what comes after the first one shows with the next frame.
        outcome = switch.send(A.port, syn(1))
        copies = outcome.packets[B.port].count(syn(1))
        if switch.name == BMV2:
            assert copies == 1 + pushes
        else:
            assert_replicated(outcome, syn(1), 0)
        switch.sent = switch.sent_bytes = 0
