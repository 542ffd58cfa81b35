"""Who may ask a shadow node for what."""

from __future__ import annotations

from typing import Any

import pytest

from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.tls import Identity, Role
from shadow_rx.serve.permissions import KNOWN_CALLS, why_not
from tests.shadow_rx.wire import make_job
from tests.tls_tools import rank, shadow

JOB = make_job(shadows=2)
SERVICE = pb.DESCRIPTOR.services_by_name["Shadow"]
FLOW_OF_R1 = JOB.flows[1].id
MESSAGES: dict[str, Any] = {
    "Attach": pb.AttachRequest(group="dp0"),
    "UploadState": pb.StateChunk(header=pb.StateHeader(group="dp0")),
    "Change": pb.ChangeRequest(group="dp0"),
    "OpenFlow": pb.OpenFlowRequest(group="dp0", flow_id=FLOW_OF_R1),
    "RecordStep": pb.StepRecord(group="dp0", rank=1),
    "GetStatus": pb.StatusRequest(group="dp0"),
    "GetNodeStatus": pb.NodeStatusRequest(group="dp0"),
    "WaitForStep": pb.WaitRequest(group="dp0"),
    "GetRecoveryPoint": pb.RecoveryPointRequest(group="dp0"),
    "GetFrames": pb.FramesRequest(group="dp0"),
}
READ = {"GetStatus", "WaitForStep", "GetRecoveryPoint"}
ALLOWED: dict[Identity, set[str]] = {
    rank("test", "r0"): READ | {"Attach", "UploadState", "Change"},
    rank("test", "r1"): READ | {"OpenFlow", "RecordStep"},
    rank("test", "r2"): READ,
    rank("test", "r9"): set(),
    rank("other", "r0"): set(),
    shadow("test", "sh0"): READ | {"GetFrames"},
    shadow("test", "sh1"): set(),  # of the job, but not of the group
    shadow("other", "sh0"): set(),
    Identity(Role.OPERATOR): READ | {"GetNodeStatus"},
    Identity(Role.OPERATOR, "test"): READ | {"GetNodeStatus"},
    Identity(Role.OPERATOR, "other"): set(),
    Identity(Role.CONTROLLER): set(),
    Identity(Role.SWITCH, name="s1"): set(),
}


def test_every_call_of_the_service_has_a_rule() -> None:
    """A new RPC is refused to everybody until somebody says who may call it."""
    assert KNOWN_CALLS == {method.name for method in SERVICE.methods} == MESSAGES.keys()


@pytest.mark.parametrize("identity", ALLOWED, ids=str)
def test_who_may_what(identity: Identity) -> None:
    found = {call for call, message in MESSAGES.items() if why_not(JOB, identity, call, message) is None}
    assert found == ALLOWED[identity]


def test_reasons_name_who_and_what() -> None:
    def reason(identity: Identity | None, call: str, message: Any = None) -> str | None:
        return why_not(JOB, identity, call, message or MESSAGES[call])

    assert reason(None, "GetStatus") is not None
    assert reason(rank("test", "r0"), "RecordStep") == "rank r0 of job test does not run rank 1 of group dp0"
    assert reason(rank("test", "r0"), "RecordStep", pb.StepRecord(group="dp0", rank=7)) is not None
    assert reason(rank("test", "r1"), "Attach") == "rank r1 of job test is not the host of rank 0 of group dp0, r0"
    flow = f"rank r0 of job test does not send flow {FLOW_OF_R1} of group dp0"
    assert reason(rank("test", "r0"), "OpenFlow") == flow
    assert reason(Identity(Role.CONTROLLER), "GetStatus") == "controller may not call GetStatus"
    assert reason(shadow("test", "sh1"), "GetFrames") == "shadow sh1 of job test has no part in group dp0"
    assert reason(rank("test", "r0"), "NewCall", pb.StatusRequest()) == "rank r0 of job test may not call NewCall"
