"""Jobs, installed by the control plane as users do it."""

from __future__ import annotations

from controlplane.desired import desired_state
from controlplane.entities import SwitchState
from controlplane.pipeline import Pipeline, PipelineStatus
from controlplane.target import Target
from tests.controlplane.jobs import JobText
from tests.switch_contract.checks import open_flow
from tests.switch_contract.frames import FLOW, JOB, S1, S2, STATE, A, B, segment, syn
from tests.switch_contract.oracle import replica
from tests.switch_contract.rig import Rig


def test_a_job_is_installed_once(switch: Rig) -> None:
    wanted = desired_state([JOB])
    assert not switch.target.install(wanted).changes_nothing
    again = switch.target.install(wanted)
    assert again.changes_nothing
    assert again.plan.unchanged == len(wanted.entities)
    assert switch.target.read_state() == wanted


def test_a_new_version_of_the_program_takes_over_without_old_copies(running: Rig) -> None:
    ours = Pipeline.committed()
    earlier = Pipeline(ours.p4info, ours.device_config + b"\n")
    assert earlier.cookie != ours.cookie
    running.install(SwitchState())
    try:
        running.target.install(SwitchState())
        running.session.set_config(earlier.config())
        Target(running.session, earlier).install(STATE)
        assert running.change(STATE).pipeline is PipelineStatus.OTHER
        outcome = running.send(A.port, syn(1))
        assert {port: len(frames) for port, frames in outcome.packets.items()} == {B.port: 1, S1.port: 1, S2.port: 1}
    finally:
        running.install(STATE)


def test_two_jobs_share_a_switch_and_leave_one_by_one(switch: Rig) -> None:
    other = JobText(name="two", id=2, first_port=6, hosts=2, ring=(0, 1), first_flow_id=64, first_rid=9)
    jobs = [JOB, other.job()]
    switch.change(desired_state(jobs))
    open_flow(switch, 10)
    switch.change(desired_state([other.job()]))
    gone = segment(11, b"data")
    assert switch.send(6, gone).packets == {}, "the other job's hosts are unknown now"
    switch.target.install(SwitchState())
    assert switch.target.read_state() == SwitchState()
    switch.change(desired_state(jobs))
    frame = segment(11, b"data")
    replicas = {shadow.port: [replica(frame, shadow, FLOW.id, 1)] for shadow in (S1, S2)}
    assert switch.send(A.port, frame).packets == {B.port: [frame], **replicas}
