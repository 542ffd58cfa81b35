"""What the controller decides, without any switch: a model of switches that obey it."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controlplane.controller import Connect, ControllerCore, EventKind, Idle, Install, Mirror
from controlplane.desired import desired_state
from controlplane.digests import FlowStart, flow_base_entry
from controlplane.entities import SwitchState, TableEntry, is_flow_base
from controlplane.pipeline import PipelineStatus
from p4src.names import MatchField
from tests.controlplane.jobs import JobText

JOB = JobText().job()
DESIRED = desired_state([JOB])
ONE, TWO = "one:1", "two:1"


def start(flow: int = 0, port: int = 40000, isn: int = 7) -> FlowStart:
    found = JOB.flows[flow]
    return FlowStart(found.id, isn, found.source.ip, found.target.ip, port, found.tcp_port)


def install(core: ControllerCore, switch: str, before: PipelineStatus = PipelineStatus.MISSING) -> SwitchState:
    """Do what `next_task` asks of a switch that answers; return the state that it was given."""
    assert core.next_task(switch) == Connect()
    core.connected(switch, 0.0)
    task = core.next_task(switch)
    assert isinstance(task, Install)
    core.installed(switch, task.flow_base, before, len(task.state.entities), 0.0)
    return task.state


def kinds(core: ControllerCore) -> list[EventKind]:
    return [event.kind for event in core.take_events()]


def test_a_new_switch_is_connected_installed_and_then_left_alone() -> None:
    core = ControllerCore([ONE], DESIRED)
    assert not core.is_ready(ONE)
    assert install(core, ONE) == DESIRED
    assert core.next_task(ONE) == Idle()
    assert core.is_ready(ONE)
    assert kinds(core) == [EventKind.CONNECTED, EventKind.INSTALLED]


def test_a_connection_goes_to_the_standby_and_not_back_to_the_switch_that_saw_it() -> None:
    core = ControllerCore([ONE, TWO], DESIRED)
    install(core, ONE)
    install(core, TWO)
    assert core.flow_starts(ONE, [start()], 1.0)
    assert core.next_task(ONE) == Idle()
    assert not core.is_ready(TWO)
    assert core.next_task(TWO) == Mirror(frozenset({flow_base_entry(start())}))
    core.mirrored(TWO, frozenset({flow_base_entry(start())}), 1.0)
    assert core.is_ready(TWO)
    assert not core.flow_starts(ONE, [start()], 2.0), "a repeated SYN is no news"
    assert core.next_task(TWO) == Idle()


def test_a_newer_connection_takes_the_place_of_the_older() -> None:
    core = ControllerCore([ONE, TWO], DESIRED)
    install(core, ONE)
    install(core, TWO)
    core.flow_starts(ONE, [start(port=40000), start(port=40001, isn=8)], 1.0)
    assert core.next_task(TWO) == Mirror(frozenset({flow_base_entry(start(port=40001, isn=8))}))


def test_a_restarted_switch_gets_every_connection_with_its_program() -> None:
    core = ControllerCore([ONE], DESIRED)
    install(core, ONE)
    core.flow_starts(ONE, [start(0), start(1)], 1.0)
    core.lost(ONE, "gone", 2.0)
    core.lost(ONE, "nothing answers", 2.1)
    core.lost(ONE, "nothing answers", 2.2)
    assert install(core, ONE) == SwitchState(DESIRED.entities | {flow_base_entry(start(0)), flow_base_entry(start(1))})
    assert core.next_task(ONE) == Idle()
    events = core.take_events()
    assert [event.kind for event in events][-4:] == [
        EventKind.LOST, EventKind.TROUBLE, EventKind.CONNECTED, EventKind.INSTALLED
    ]  # fmt: skip
    assert events[-1].to_json()["connections"] == 2
    assert events[-1].to_json()["after_s"] == -2.0
    # What begins now is in its registers: the old entry is of no use any more.
    core.flow_starts(ONE, [start(0, port=40001)], 3.0)
    assert core.next_task(ONE) == Mirror(frozenset({flow_base_entry(start(1))}))


def test_a_connection_that_is_reported_when_its_switch_is_lost_is_kept() -> None:
    core = ControllerCore([ONE], DESIRED)
    install(core, ONE)
    core.lost(ONE, "gone", 1.0)
    assert core.flow_starts(ONE, [start()], 1.1)
    assert flow_base_entry(start()) in install(core, ONE).entities


def test_a_switch_that_ran_our_program_already_is_told_exactly() -> None:
    """It may hold entries of an earlier controller, which `install` lets live."""
    core = ControllerCore([ONE], DESIRED, [start()])
    install(core, ONE, PipelineStatus.CURRENT)
    assert core.next_task(ONE) == Mirror(frozenset({flow_base_entry(start())}))
    core.mirrored(ONE, frozenset({flow_base_entry(start())}), 0.0)
    assert core.next_task(ONE) == Idle()


def test_connections_of_other_flows_are_left_out_of_a_journal() -> None:
    other = desired_state([JobText(ring=(0, 2, 1)).job()])
    assert len(ControllerCore([ONE], DESIRED, [start(0), start(1)]).journal) == 2
    assert len(ControllerCore([ONE], other, [start(0), start(1)]).journal) == 0


class Switches(RuleBasedStateMachine):
    """Two switches that do what they are told, die, and carry connections; the controller's tasks are done at random.

    A model switch forgets everything when it dies. Its place for a tagged segment is what the data plane would find:
    its registers, and where they know nothing `flow_base`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.core = ControllerCore([ONE, TWO], DESIRED)
        self.alive = {ONE: True, TWO: True}
        self.state: dict[str, SwitchState] = {ONE: SwitchState(), TWO: SwitchState()}
        self.registers: dict[str, dict[int, FlowStart]] = {ONE: {}, TWO: {}}
        self.newest: dict[int, FlowStart] = {}
        self.isn = 0

    @rule(switch=st.sampled_from([ONE, TWO]))
    def work(self, switch: str) -> None:
        task = self.core.next_task(switch)
        if not self.alive[switch]:
            if not isinstance(task, Idle):
                self.core.lost(switch, "nothing answers", 0.0)
        elif isinstance(task, Connect):
            self.core.connected(switch, 0.0)
        elif isinstance(task, Install):
            before = PipelineStatus.CURRENT if self.state[switch].entities else PipelineStatus.MISSING
            self.state[switch] = SwitchState(task.state.entities | self.flow_base(switch))
            self.core.installed(switch, task.flow_base, before, 1, 0.0)
        elif isinstance(task, Mirror):
            rest = self.state[switch].entities - self.flow_base(switch)
            self.state[switch] = SwitchState(rest | task.flow_base)
            self.core.mirrored(switch, task.flow_base, 0.0)

    @rule(switch=st.sampled_from([ONE, TWO]))
    def die(self, switch: str) -> None:
        self.alive[switch] = False
        self.state[switch], self.registers[switch] = SwitchState(), {}
        self.core.lost(switch, "killed", 0.0)

    @rule(switch=st.sampled_from([ONE, TWO]))
    def start_again(self, switch: str) -> None:
        self.alive[switch] = True

    @rule(switch=st.sampled_from([ONE, TWO]), flow=st.integers(0, 2))
    def connect_ranks(self, switch: str, flow: int) -> None:
        if not self.core.is_ready(switch):
            return
        self.isn += 1
        begun = start(flow, 40000 + self.isn, self.isn)
        self.newest[flow] = self.registers[switch][flow] = begun
        self.core.flow_starts(switch, [begun], 0.0)

    @precondition(lambda self: any(self.alive.values()))
    @rule()
    def settle(self) -> None:
        for switch in (name for name, alive in self.alive.items() if alive):
            for _ in range(4):
                self.work(switch)
            assert self.core.is_ready(switch)
            for flow, begun in self.newest.items():
                if self.registers[switch].get(flow, begun) == begun:
                    assert self.place(switch, begun) == begun.isn

    @invariant()
    def no_place_is_ever_wrong(self) -> None:
        for switch in (ONE, TWO):
            for begun in self.newest.values():
                assert self.place(switch, begun) in (None, begun.isn)

    def place(self, switch: str, connection: FlowStart) -> int | None:
        known = self.registers[switch].get(connection.flow_id)
        if known is not None:
            return known.isn if known.src_port == connection.src_port else None
        entry = self.state[switch].by_key.get(flow_base_entry(connection).key)
        return entry.param("isn") if isinstance(entry, TableEntry) else None

    def flow_base(self, switch: str) -> frozenset[TableEntry]:
        entries = frozenset(e for e in self.state[switch].entities if isinstance(e, TableEntry) and is_flow_base(e))
        flows = [entry.field(MatchField.FLOW_ID) for entry in entries]
        assert len(flows) == len(set(flows)), "two connections of one flow"
        return entries


TestSwitches = Switches.TestCase
