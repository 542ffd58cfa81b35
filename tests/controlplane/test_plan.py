"""Plans between states: they arrive, they are minimal, and nothing dangles on the way."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.desired import FLOW_START_DIGEST, desired_state
from controlplane.digests import ConnectionJournal, FlowStart, flow_base_entry
from controlplane.entities import (
    DigestConfig,
    Entity,
    Key,
    MulticastGroup,
    Replica,
    SwitchState,
    TableEntry,
    is_flow_base,
)
from controlplane.plan import Change, Plan, Update, exact_plan, install_plan, table_plan
from jobspec.loader import parse_job
from p4src.names import Action, MatchField, Param, Table
from tests.controlplane.jobs import JobText, other_job


def replicate(source: int, target: int, flow: int, group: int) -> TableEntry:
    match = {
        MatchField.SRC_ADDR: source,
        MatchField.DST_ADDR: target,
        MatchField.DST_PORT: 4000,
        MatchField.DSCP: 3,
    }
    params = {Param.FLOW_ID: flow, Param.GROUP: group}
    return TableEntry.make(Table.REPLICATE, match, Action.REPLICATE_FLOW, params)


def shadow(rid: int, address: int) -> TableEntry:
    params = {Param.MAC: address, Param.IP: address, Param.BASE_PORT: 20000}
    return TableEntry.make(Table.SHADOW, {MatchField.RID: rid}, Action.TO_SHADOW, params)


def flow_base(flow: int, port: int, isn: int) -> TableEntry:
    match = {MatchField.FLOW_ID: flow, MatchField.SRC_PORT: port}
    return TableEntry.make(Table.FLOW_BASE, match, Action.SET_ISN, {Param.ISN: isn})


@st.composite
def states(draw: st.DrawFn) -> SwitchState:
    """Return sound states of a small universe, so that any two of them share, change and lack entities."""
    rids = draw(st.sets(st.integers(1, 3), max_size=3))
    entities: list[Entity] = [shadow(rid, draw(st.integers(0, 1))) for rid in rids]
    copies = st.builds(Replica, st.integers(1, 3), st.sampled_from([0, *sorted(rids)]))
    groups = draw(st.sets(st.integers(1, 4), max_size=4))
    entities += [MulticastGroup(group, frozenset(draw(st.sets(copies, max_size=3)))) for group in sorted(groups)]
    for source, target in draw(st.sets(st.tuples(st.integers(1, 2), st.integers(3, 4)), max_size=4)):
        group = draw(st.sampled_from([0, *sorted(groups)]))
        entities.append(replicate(source, target, draw(st.integers(0, 3)), group))
    for flow, port in draw(st.sets(st.tuples(st.integers(0, 3), st.integers(1, 2)), max_size=3)):
        entities.append(flow_base(flow, port, draw(st.integers(0, 1))))
    for mac in draw(st.sets(st.integers(1, 3), max_size=3)):
        port = {Param.PORT: draw(st.integers(1, 2))}
        entities.append(TableEntry.make(Table.L2_FORWARD, {MatchField.DST_ADDR: mac}, Action.SET_PORT, port))
    for port in draw(st.sets(st.integers(1, 3), max_size=3)):
        match = {MatchField.INGRESS_PORT: port}
        entities.append(TableEntry.make(Table.SHADOW_PORTS, match, Action.DROP_FROM_SHADOW))
    if draw(st.booleans()):
        entities.append(DigestConfig("flow_start_t", draw(st.integers(1, 2)), 0, 0))
    return SwitchState.of(entities)


def dangling(held: dict[Key, Entity]) -> list[str]:
    """Return what refers to something that does not exist."""
    found: list[str] = []
    for entity in held.values():
        if isinstance(entity, TableEntry) and entity.group and ("group", entity.group) not in held:
            found.append(f"{entity} names no group")
        if isinstance(entity, MulticastGroup):
            rids = {copy.rid for copy in entity.replicas if copy.rid}
            found += [f"{entity}: no shadow {rid}" for rid in rids if shadow(rid, 0).key not in held]
    return found


def run(plan: Plan, start: SwitchState, order: Random) -> SwitchState:
    """Make a plan as strictly as a switch does, each stage in any order, and check every state on the way."""
    held = dict(start.by_key)
    for stage in plan.stages():
        for update in order.sample(stage, len(stage)):
            make(update, held)
            assert dangling(held) == []
    return SwitchState.of(held.values())


def make(update: Update, held: dict[Key, Entity]) -> None:
    key = update.entity.key
    assert (key in held) == (update.change is not Change.INSERT)
    assert held.get(key) == update.before
    if update.change is Change.DELETE:
        del held[key]
    else:
        assert held.get(key) != update.entity
        held[key] = update.entity


@settings(max_examples=60)
@given(desired=states(), actual=states(), order=st.randoms(use_true_random=False))
def test_an_exact_plan_arrives_and_nothing_dangles(desired: SwitchState, actual: SwitchState, order: Random) -> None:
    assert run(exact_plan(desired, actual), actual, order) == desired


@settings(max_examples=60)
@given(desired=states(), actual=states())
def test_a_plan_touches_only_what_differs(desired: SwitchState, actual: SwitchState) -> None:
    plan = exact_plan(desired, actual)
    differing = {
        key for key in desired.by_key.keys() | actual.by_key.keys() if desired.by_key.get(key) != actual.by_key.get(key)
    }
    assert {update.entity.key for update in plan.updates} == differing
    rebound = [key for key in differing if key[1] == Table.REPLICATE and key in desired.by_key and key in actual.by_key]
    assert len(plan.updates) == len(differing) + len(rebound)
    assert plan.unchanged == len(desired.entities & actual.entities)


@settings(max_examples=60)
@given(desired=states(), actual=states(), order=st.randoms(use_true_random=False))
def test_reconciling_keeps_only_connections_of_flows_that_live_on(
    desired: SwitchState, actual: SwitchState, order: Random
) -> None:
    after = run(install_plan(desired, actual), actual, order)
    assert {e for e in after.entities if not is_flow_base(e)} == {e for e in desired.entities if not is_flow_base(e)}
    bound = {e.param(Param.FLOW_ID) for e in desired.table(Table.REPLICATE)}
    for entry in set(after.table(Table.FLOW_BASE)) - set(desired.table(Table.FLOW_BASE)):
        assert entry in actual.table(Table.FLOW_BASE)
        assert entry.field(MatchField.FLOW_ID) in bound
    assert install_plan(desired, after).updates == ()


@given(state=states())
def test_an_equal_state_needs_nothing(state: SwitchState) -> None:
    assert exact_plan(state, state) == Plan((), len(state.entities))


JOBS = st.builds(
    JobText,
    hosts=st.just(4),
    ring=st.permutations(range(4)).flatmap(lambda p: st.integers(2, 4).map(lambda n: tuple(p[:n]))),
    shadows=st.integers(1, 3),
    channels=st.integers(1, 2),
    first_flow_id=st.integers(0, 9),
    first_rid=st.integers(1, 3),
    first_port=st.integers(1, 2),
    dscp=st.sampled_from([3, 7]),
)


@settings(max_examples=40)
@given(before=JOBS, after=JOBS, order=st.randoms(use_true_random=False))
def test_any_job_can_become_any_other(before: JobText, after: JobText, order: Random) -> None:
    start, end = desired_state([before.job()]), desired_state([after.job()])
    assert run(install_plan(end, start), start, order) == end


def test_a_connection_survives_when_its_flow_does() -> None:
    journal = ConnectionJournal()
    one, two = JobText().job(), other_job().job()
    for job in (one, two):
        for flow in job.flows:
            journal.record(FlowStart(flow.id, 7, flow.source.ip, flow.target.ip, 40000, flow.tcp_port))
    both = SwitchState(desired_state([one, two]).entities | set(journal.flow_base_entries()))
    plan = install_plan(desired_state([one]), both)
    gone = {update.entity for update in plan.updates if is_flow_base(update.entity)}
    assert gone == {entry for entry in journal.flow_base_entries() if entry.field(MatchField.FLOW_ID) >= 16}
    assert all(update.change is Change.DELETE for update in plan.updates if is_flow_base(update.entity))


def test_a_flow_of_other_hosts_takes_no_connection_over() -> None:
    before = desired_state([JobText(ring=(0, 1, 2)).job()])
    after = desired_state([JobText(ring=(0, 2, 1)).job()])
    old = flow_base(0, 40000, 5)
    plan = install_plan(after, SwitchState(before.entities | {old}))
    assert plan.updates[0] != Update(Change.INSERT, old)
    assert Update(Change.DELETE, old, old) in plan.updates
    assert plan.rebound_flows == (0, 1, 2)


def test_a_connection_that_came_before_its_flow_stays() -> None:
    restored = flow_base(1, 40000, 5)
    plan = install_plan(desired_state([JobText().job()]), SwitchState.of([restored, FLOW_START_DIGEST]))
    assert restored not in {update.entity for update in plan.updates}
    assert plan.unchanged == 2


def test_a_replicate_entry_that_gets_another_flow_is_never_modified() -> None:
    before = desired_state([JobText(first_flow_id=0).job()])
    after = desired_state([JobText(first_flow_id=1).job()])
    changes = [u for u in install_plan(after, before).updates if isinstance(u.entity, TableEntry)]
    replicates = [u.change for u in changes if isinstance(u.entity, TableEntry) and u.entity.table == Table.REPLICATE]
    assert replicates == [Change.DELETE] * 3 + [Change.INSERT] * 3


def test_a_host_that_moves_is_two_modifications() -> None:
    before = JobText(ring=(1, 2))
    moved = before.text().replace("name: h0, port: 1,", "name: h0, port: 9,")
    plan = install_plan(desired_state([parse_job(moved).job]), desired_state([before.job()]))
    assert [(u.change, u.entity.key[0]) for u in plan.updates] == [
        (Change.MODIFY, "group"),
        (Change.MODIFY, "entry"),
    ]


def test_a_new_switch_forwards_nothing_before_it_can_replicate_it() -> None:
    connections = [flow_base(flow, 40000, 5) for flow in range(3)]
    plan = install_plan(SwitchState(desired_state([JobText().job()]).entities | set(connections)), SwitchState())
    tables = [update.entity.table for update in plan.updates if isinstance(update.entity, TableEntry)]
    forwarding = tables.index(Table.L2_FORWARD)
    assert set(tables[forwarding:]) == {Table.L2_FORWARD}
    assert tables.index(Table.FLOW_BASE) < tables.index(Table.REPLICATE) < forwarding


def test_a_table_plan_leaves_other_tables_alone() -> None:
    journal = ConnectionJournal()
    for flow in JobText().job().flows:
        journal.record(FlowStart(flow.id, 9, flow.source.ip, flow.target.ip, 41000, flow.tcp_port))
    start = SwitchState(desired_state([JobText().job()]).entities | {flow_base(0, 1, 1)})
    plan = table_plan(journal.flow_base_entries(), start, Table.FLOW_BASE)
    end = run(plan, start, Random(0))
    assert set(end.table(Table.FLOW_BASE)) == set(journal.flow_base_entries())
    assert {e for e in end.entities if not is_flow_base(e)} == desired_state([JobText().job()]).entities


def test_the_entry_of_a_connection() -> None:
    flow = JobText().job().flows[1]
    start = FlowStart(flow.id, 0xFFFFFFFE, flow.source.ip, flow.target.ip, 40001, flow.tcp_port)
    assert flow_base_entry(start) == flow_base(1, 40001, 0xFFFFFFFE)
