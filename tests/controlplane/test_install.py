"""Installing over gRPC, compared as a whole state. Every kind of switch passes the same tests."""

from __future__ import annotations

import pytest
from finsy.proto import p4r

from controlplane.describe import Names
from controlplane.desired import FLOW_START_DIGEST, desired_state
from controlplane.entities import DigestConfig, MulticastGroup, Replica, SwitchState, TableEntry
from controlplane.errors import ControlPlaneError, ErrorKind
from controlplane.pipeline import Pipeline, PipelineStatus
from controlplane.plan import Change
from controlplane.snapshot import Count
from controlplane.target import Target
from p4src.constants import FLOOD_GROUP, MAX_FLOWS, MAX_HOSTS, NotReplicated
from p4src.names import Action, MatchField, Param, Table
from tests.controlplane.jobs import JobText, other_job
from tests.controlplane.rig import eventually
from tests.controlplane.test_plan import flow_base

ONE = desired_state([JobText().job()])
BOTH = desired_state([JobText().job(), other_job(shadows=2).job()])


def controller(address: str, election_id: int = 1, pipeline: Pipeline | None = None) -> Target:
    return Target.connect(address, 1, election_id=election_id, pipeline=pipeline)


def hosts(first: int, count: int) -> list[TableEntry]:
    return [
        TableEntry.make(Table.L2_FORWARD, {MatchField.DST_ADDR: mac}, Action.SET_PORT, {Param.PORT: 1})
        for mac in range(first, first + count)
    ]


def other_version() -> Pipeline:
    """Return the same program under another cookie, as another version of it would have."""
    ours = Pipeline.committed()
    return Pipeline(ours.p4info, ours.device_config + b"\n")


def test_a_new_switch_holds_exactly_what_is_asked_for(address: str) -> None:
    with controller(address) as switch:
        assert switch.pipeline_status() is PipelineStatus.MISSING
        done = switch.install(BOTH)
        assert done.pipeline is PipelineStatus.MISSING
        assert done.plan.count(Change.INSERT) == len(BOTH.entities) == len(done.plan.updates)
        assert switch.pipeline_status() is PipelineStatus.CURRENT
        assert switch.read_state() == BOTH


def test_the_second_installation_writes_nothing(address: str, written: list[list[p4r.Update]]) -> None:
    with controller(address) as switch:
        switch.install(BOTH)
    first = len(written)
    assert first > 0
    with controller(address) as switch:
        done = switch.install(BOTH)
        assert done.changes_nothing
        assert done.plan.unchanged == len(BOTH.entities)
        assert switch.read_state() == BOTH
    assert len(written) == first


def test_a_changed_file_changes_only_what_differs(address: str, written: list[list[p4r.Update]]) -> None:
    moved = JobText(hosts=5, ring=(0, 1, 2), shadows=1).job()  # two hosts more, so the shadow has another port
    with controller(address) as switch:
        switch.install(ONE)
        written.clear()
        done = switch.install(desired_state([moved]))
        assert switch.read_state() == desired_state([moved])
    assert done.plan.unchanged == 3 + 1 + 3 + 1  # hosts, shadow (same address), replicate, digest
    changes = {(u.change, u.entity.key[0], u.entity.key[1]) for u in done.plan.updates}
    assert changes == {
        (Change.INSERT, "entry", "l2_forward"),
        (Change.MODIFY, "entry", "l2_forward"),
        (Change.INSERT, "entry", "shadow_ports"),
        (Change.DELETE, "entry", "shadow_ports"),
        *((Change.MODIFY, "group", group) for group in (1, 2, 3, FLOOD_GROUP)),
    }
    assert sum(map(len, written)) == len(done.plan.updates) == 9


def test_what_the_files_no_longer_have_is_removed(address: str) -> None:
    with controller(address) as switch:
        switch.install(BOTH)
        done = switch.install(ONE)
        assert done.plan.count(Change.INSERT) == 0
        assert switch.read_state() == ONE
        switch.install(SwitchState())
        assert switch.read_state() == SwitchState()


def test_strange_entries_are_removed_and_changed_ones_mended(address: str) -> None:
    strange = [
        *hosts(0xAA, 2),
        MulticastGroup(77, frozenset({Replica(4, 9)})),
        TableEntry.make(
            Table.REPLICATE_RDMA_IPV4,
            {MatchField.SRC_ADDR: 1, MatchField.DST_ADDR: 2, MatchField.DESTINATION_QP: 3},
            Action.REPLICATE_QP_IPV4,
            {Param.GROUP: 77},
        ),
        DigestConfig(FLOW_START_DIGEST.digest, 7, 50_000_000, 0),
        MulticastGroup(1, frozenset({Replica(6, 0)})),
    ]
    replaced = {entity.key for entity in strange}
    spoilt = SwitchState.of([*strange, *(e for e in ONE.entities if e.key not in replaced)])
    with controller(address) as switch:
        switch.install(spoilt)
        assert switch.read_state() == spoilt
        done = switch.install(ONE)
        assert switch.read_state() == ONE
    assert done.plan.count(Change.DELETE) == 4
    assert done.plan.count(Change.MODIFY) == 2


def test_a_dry_run_needs_no_right_to_write_and_writes_nothing(address: str, written: list[list[p4r.Update]]) -> None:
    with Target.connect(address, 1) as reader:
        planned = reader.plan(ONE)
        assert planned.pipeline is PipelineStatus.MISSING
        assert reader.pipeline_status() is PipelineStatus.MISSING
        with pytest.raises(RuntimeError, match="read-only"):
            reader.install(ONE)
    assert written == []
    with controller(address) as switch, Target.connect(address, 1) as reader:
        assert switch.install(ONE).plan == planned.plan
        assert reader.plan(ONE).changes_nothing
        assert not reader.is_primary


def test_connections_of_flows_that_live_on_are_kept(address: str) -> None:
    kept, gone = flow_base(1, 40000, 5), flow_base(17, 40000, 6)
    with controller(address) as switch:
        switch.install(BOTH)
        switch.restore_flow_base([kept, gone, flow_base(2, 1, 1)])
        switch.restore_flow_base([kept, gone])
        assert set(switch.read_state().table(Table.FLOW_BASE)) == {kept, gone}
        switch.install(ONE)
        assert switch.read_state() == SwitchState(ONE.entities | {kept})


def test_only_flow_base_entries_can_be_restored(address: str) -> None:
    with controller(address) as switch:
        switch.install(ONE)
        with pytest.raises(ValueError, match=r"l2_forward .* flow_base"):
            switch.restore_flow_base(hosts(1, 1))
        assert switch.read_state() == ONE


def test_a_refused_update_leaves_the_old_state(address: str) -> None:
    """The table has room for 1024 hosts; the first batches of 1100 are accepted before one is refused."""
    names = Names.of([JobText().job()])
    wanted = SwitchState.of([FLOW_START_DIGEST, *hosts(1 << 41, MAX_HOSTS + 76)])
    with controller(address) as switch:
        switch.install(ONE)
        switch.restore_flow_base([flow_base(1, 40000, 5)])
        before = switch.read_state()
        with pytest.raises(ControlPlaneError) as caught:
            switch.install(wanted, names)
        assert switch.read_state() == before
    error = caught.value
    assert error.kind is ErrorKind.UPDATE_REFUSED
    assert error.restored is True
    assert error.restore_note
    assert all(refusal.update.startswith("insert l2_forward dst_addr") for refusal in error.refusals)
    assert {refusal.code for refusal in error.refusals} <= {"RESOURCE_EXHAUSTED", "UNKNOWN"}
    assert error.hint is not None
    assert "full" in error.hint


def test_a_value_that_cannot_be_said_changes_nothing(address: str, written: list[list[p4r.Update]]) -> None:
    wide = TableEntry.make(Table.SHADOW_PORTS, {MatchField.INGRESS_PORT: 1 << 16}, Action.DROP_FROM_SHADOW)
    with controller(address) as switch:
        switch.install(ONE)
        written.clear()
        with pytest.raises(ValueError, match="ingress_port"):
            switch.install(SwitchState.of([*hosts(1, 2), wide]))
        assert written == []
        assert switch.read_state() == ONE


def no_good(config: bytes) -> Pipeline:
    return Pipeline(Pipeline.committed().p4info, config)


def test_a_program_that_is_no_good_leaves_the_old_one(address: str) -> None:
    """The embedded switch refuses it and goes on; BMv2 takes it and has no tables to read."""
    with controller(address) as switch:
        switch.install(ONE)
    with controller(address, pipeline=no_good(b'{"no": "program"}')) as switch:
        with pytest.raises(ControlPlaneError) as caught:
            switch.install(BOTH)
        assert caught.value.kind in (ErrorKind.PIPELINE_REFUSED, ErrorKind.READ_REFUSED)
        assert caught.value.restored is True
    with controller(address) as switch:
        assert switch.read_state() == ONE


def test_what_is_said_after_no_program_at_all_is_true(address: str) -> None:
    """BMv2 does not survive it: only a restart helps. Then nothing else must be claimed."""
    with controller(address) as switch:
        switch.install(ONE)
    with controller(address, pipeline=no_good(b"no program")) as switch:
        with pytest.raises(ControlPlaneError) as caught:
            switch.install(BOTH)
        assert caught.value.kind is ErrorKind.PIPELINE_REFUSED
    with controller(address) as switch:
        if caught.value.restored:
            assert switch.read_state() == ONE
        else:
            assert caught.value.restored is False
            with pytest.raises(ControlPlaneError):
                switch.read_state()


def test_another_version_of_the_program_is_replaced(address: str) -> None:
    with controller(address, pipeline=other_version()) as switch:
        switch.install(BOTH)
    with controller(address) as switch:
        assert switch.pipeline_status() is PipelineStatus.OTHER
        with pytest.raises(ControlPlaneError) as caught:
            switch.read_state()
        assert caught.value.kind is ErrorKind.OTHER_PIPELINE
        planned = switch.plan(ONE)
        done = switch.install(ONE)
        assert done == planned
        assert done.pipeline is PipelineStatus.OTHER
        assert switch.read_state() == ONE


def test_groups_of_the_program_before_are_deleted_before_the_push(
    address: str, written: list[list[p4r.Update]]
) -> None:
    # BMv2 goes on copying for groups that it forgot when a program was pushed, and adds to those made again.
    with controller(address, pipeline=other_version()) as switch:
        switch.install(BOTH)
    written.clear()
    with controller(address) as switch:
        switch.install(BOTH)
    groups = {entity.id for entity in BOTH.entities if isinstance(entity, MulticastGroup)}
    assert groups
    deleted = {
        update.entity.packet_replication_engine_entry.multicast_group_entry.multicast_group_id
        for update in written[0]
        if update.type == p4r.Update.DELETE
    }
    assert deleted == groups


def test_a_refused_update_brings_the_other_program_back(address: str) -> None:
    old = other_version()
    with controller(address, pipeline=old) as switch:
        switch.install(BOTH)
        switch.restore_flow_base([flow_base(1, 40000, 5)])
        before = switch.read_state()
    with controller(address) as switch, pytest.raises(ControlPlaneError) as caught:
        switch.install(SwitchState.of(hosts(1, MAX_HOSTS + 1)))
    assert caught.value.kind is ErrorKind.UPDATE_REFUSED
    assert caught.value.restored is True
    assert "registers" in str(caught.value.restore_note)
    with controller(address, pipeline=old) as switch:
        assert switch.pipeline_status() is PipelineStatus.CURRENT
        assert switch.read_state() == before


def test_a_refused_update_empties_a_switch_that_had_no_program(address: str) -> None:
    with controller(address) as switch:
        with pytest.raises(ControlPlaneError) as caught:
            switch.install(SwitchState.of(hosts(1, MAX_HOSTS + 1)))
        assert caught.value.restored is True
        assert switch.read_state() == SwitchState()


def test_a_full_set_of_flows_installs(address: str) -> None:
    """As many flows as a switch can replicate, each with its own group."""
    text = JobText(hosts=64, ring=tuple(range(64)), channels=16, shadows=1, ports=100)
    job = text.job()
    assert len(job.flows) == MAX_FLOWS
    wanted = desired_state([job])
    with controller(address) as switch:
        switch.install(wanted)
        assert switch.read_state() == wanted
        assert switch.install(wanted).changes_nothing


def test_a_switch_without_program_has_no_state(address: str) -> None:
    with Target.connect(address, 1) as reader, pytest.raises(ControlPlaneError) as caught:
        reader.read_counters()
    assert caught.value.kind is ErrorKind.NO_PIPELINE


def test_counters_are_read_by_entry_and_reason(address: str) -> None:
    with controller(address) as switch:
        switch.install(BOTH)
        state, counters = switch.read_counters()
    assert state == BOTH
    counting = {e.key for e in (*BOTH.table(Table.REPLICATE), *BOTH.table(Table.SHADOW))}
    assert counters.entries == dict.fromkeys(counting, Count(0, 0))
    assert counters.not_replicated == dict.fromkeys(NotReplicated, Count(0, 0))


def test_the_wrong_device_is_named(address: str) -> None:
    with pytest.raises(ControlPlaneError) as caught, Target.connect(address, 5, election_id=1) as switch:
        switch.install(ONE)
    assert caught.value.kind is ErrorKind.WRONG_DEVICE
    assert "5" in str(caught.value)
    assert "--device-id" in str(caught.value)


def test_another_controller_keeps_its_switch(address: str) -> None:
    with controller(address, 10) as holder:
        holder.install(ONE)
        for bid in (9, 10):
            with pytest.raises(ControlPlaneError, match="--election-id 11") as caught:
                controller(address, bid)
            assert caught.value.kind is ErrorKind.NOT_PRIMARY
        assert holder.is_primary
        assert holder.install(BOTH).plan.updates
    with controller(address, 1) as next_one:  # nobody holds it any more
        assert next_one.install(BOTH).changes_nothing
        assert next_one.is_primary


def test_a_controller_that_was_overtaken_comes_back(address: str) -> None:
    with controller(address, 10) as running:
        running.install(ONE)
        with controller(address, 11) as other:
            eventually(lambda: not running.is_primary, "the running controller is told")
            with pytest.raises(ControlPlaneError) as caught:
                running.install(BOTH)
            assert caught.value.kind is ErrorKind.NOT_PRIMARY
            assert other.read_state() == ONE
        eventually(lambda: running.is_primary, "the running controller holds the switch again")
        running.install(BOTH)
        assert running.read_state() == BOTH
