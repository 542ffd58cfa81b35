"""What the tests of the contract expect of a frame's outcome."""

from __future__ import annotations

from controlplane.digests import FlowStart
from tests.switch_contract.frames import DPORT, FLOW, FLOW_IDS, S1, S2, SPORT, A, B, syn
from tests.switch_contract.oracle import checksums_hold, replica
from tests.switch_contract.rig import Outcome, Rig


def start_of(isn: int, sport: int = SPORT, dport: int = DPORT) -> FlowStart:
    """Return the digest of a connection of A to B."""
    return FlowStart(FLOW_IDS[dport], isn, A.ip, B.ip, sport, dport)


def assert_replicated(outcome: Outcome, frame: bytes, position: int) -> None:
    """The original goes to B, bit for bit, and each shadow gets its replica."""
    replicas = {shadow.port: [replica(frame, shadow, FLOW.id, position)] for shadow in (S1, S2)}
    assert outcome.packets == {B.port: [frame], **replicas}
    for [made] in replicas.values():
        assert checksums_hold(made) == checksums_hold(frame)


def assert_forwarded(outcome: Outcome, frame: bytes) -> None:
    """The frame goes to B, bit for bit, and that is all."""
    assert outcome.packets == {B.port: [frame]}
    assert outcome.digests == []


def open_flow(switch: Rig, isn: int, sport: int = SPORT) -> None:
    """Begin a connection of the job's flow."""
    outcome = switch.send(A.port, syn(isn, sport))
    assert_replicated(outcome, syn(isn, sport), 0)
    assert outcome.digests == [start_of(isn, sport)]
