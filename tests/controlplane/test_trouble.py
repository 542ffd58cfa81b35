"""Switches that are not there, break, or lie: what the error says, and what it never claims."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from finsy.proto import p4r

from controlplane.desired import desired_state
from controlplane.errors import ControlPlaneError, ErrorKind
from controlplane.pipeline import Pipeline
from controlplane.session import Session
from controlplane.target import Target
from p4src.names import Table
from softswitch.p4rt import Code, Device, P4RuntimeError, serve
from tests.controlplane.jobs import JobText, other_job
from tests.controlplane.rig import embedded_process

ONE = desired_state([JobText().job()])
BOTH = desired_state([JobText().job(), other_job().job()])


@pytest.mark.parametrize(
    "address",
    ["", "switch", "127.0.0.1", "127.0.0.1:", ":9559", "127.0.0.1:0", "127.0.0.1:65536", "a b:1", "x:1:2"],
)
def test_what_is_no_address_is_told_at_once(address: str) -> None:
    with pytest.raises(ControlPlaneError, match="HOST:PORT") as caught:
        Target.connect(address, 1)
    assert caught.value.kind is ErrorKind.BAD_ADDRESS


def test_nothing_at_the_address_is_told_fast() -> None:
    with socket.socket() as taken:  # bound, but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        start = time.monotonic()
        with pytest.raises(ControlPlaneError) as caught:
            Target.connect(f"127.0.0.1:{taken.getsockname()[1]}", 1, election_id=1)
    assert caught.value.kind is ErrorKind.UNREACHABLE
    assert caught.value.hint
    assert time.monotonic() - start < 2


def test_a_listener_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(ControlPlaneError) as caught:
        Target.connect(f"127.0.0.1:{mute.getsockname()[1]}", 1, timeout_s=0.3)
    assert caught.value.kind is ErrorKind.UNREACHABLE


def test_a_grpc_server_of_another_kind_is_told() -> None:
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with pytest.raises(ControlPlaneError) as caught:
                Target.connect(f"127.0.0.1:{port}", 1)
        finally:
            server.stop(None).wait()
    assert caught.value.kind is ErrorKind.NOT_P4RUNTIME


class Troubled(Device):
    """A switch that does something else from its `after`-th write on."""

    def __init__(self, trouble: Callable[[Troubled, p4r.WriteRequest], None], after: int) -> None:
        super().__init__(1)
        self.writes = 0
        self._trouble = trouble
        self._after = after

    def write(self, request: p4r.WriteRequest) -> None:
        self.writes += 1
        if self.writes > self._after:
            self._trouble(self, request)
        else:
            self.obey(request)

    def obey(self, request: p4r.WriteRequest) -> None:
        super().write(request)


def installed(trouble: Callable[[Troubled, p4r.WriteRequest], None], after: int) -> Troubled:
    """Return a switch that holds `ONE` and gets into trouble `after` further writes."""
    device = Troubled(lambda switch, request: switch.obey(request), 0)
    with serve(device) as server, Target.connect(server.address, 1, election_id=1) as switch:
        switch.install(ONE)
    device.writes, device._trouble, device._after = 0, trouble, after
    return device


def test_a_switch_that_breaks_for_good_is_not_said_to_be_restored() -> None:
    def refuse(switch: Troubled, request: p4r.WriteRequest) -> None:
        raise P4RuntimeError(Code.INTERNAL, "the table memory is on fire")

    device = installed(refuse, after=2)
    with serve(device) as server, Target.connect(server.address, 1, election_id=1) as switch:
        with pytest.raises(ControlPlaneError) as caught:
            switch.install(BOTH)
        held = switch.read_state()
    assert held not in (ONE, BOTH)
    assert caught.value.restored is False
    assert str(caught.value).count("the table memory is on fire") == 2
    assert caught.value.to_json()["restored"] is False


def test_a_switch_that_breaks_once_is_restored() -> None:
    def refuse_once(switch: Troubled, request: p4r.WriteRequest) -> None:
        if switch.writes == 3:
            raise P4RuntimeError(Code.INTERNAL, "hiccup")
        switch.obey(request)

    device = installed(refuse_once, after=2)
    with serve(device) as server, Target.connect(server.address, 1, election_id=1) as switch:
        with pytest.raises(ControlPlaneError, match="hiccup") as caught:
            switch.install(BOTH)
        assert caught.value.restored is True
        assert switch.read_state() == ONE
        assert switch.install(BOTH).plan.updates
        assert switch.read_state() == BOTH


def test_a_switch_that_says_yes_and_does_nothing_is_found_out() -> None:
    def forget_groups(switch: Troubled, request: p4r.WriteRequest) -> None:
        kept = [u for u in request.updates if not u.entity.HasField("packet_replication_engine_entry")]
        honest = p4r.WriteRequest()
        honest.CopyFrom(request)
        del honest.updates[:]
        honest.updates.extend(kept)
        switch.obey(honest)

    device = installed(forget_groups, after=0)
    with serve(device) as server, Target.connect(server.address, 1, election_id=1) as switch:
        with pytest.raises(ControlPlaneError, match="group") as caught:
            switch.install(BOTH)
        assert caught.value.kind is ErrorKind.STATE_DIFFERS
        assert caught.value.restored is True
        assert switch.read_state() == ONE


def test_a_switch_that_is_killed_is_not_said_to_be_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Session.write
    with embedded_process() as (process, address), Target.connect(address, 1, election_id=1) as switch:
        switch.install(ONE)
        left = iter([False, True])

        def write(self: Session, updates: Sequence[p4r.Update]) -> dict[int, tuple[str, str]]:
            if next(left, False):
                process.kill()
                process.wait(10)
            return send(self, updates)

        monkeypatch.setattr(Session, "write", write)
        with pytest.raises(ControlPlaneError) as caught:
            switch.install(BOTH)
    assert caught.value.kind is ErrorKind.UNREACHABLE
    assert caught.value.restored is False


def test_a_refused_program_changes_nothing() -> None:
    nonsense = Pipeline(Pipeline.committed().p4info, b"no program")
    with serve(Device(1)) as server:
        with Target.connect(server.address, 1, election_id=1, pipeline=nonsense) as switch:
            with pytest.raises(ControlPlaneError) as caught:
                switch.install(ONE)
            assert (caught.value.kind, caught.value.restored) == (ErrorKind.PIPELINE_REFUSED, True)
        with Target.connect(server.address, 1, election_id=1) as switch:
            switch.install(ONE)
        with Target.connect(server.address, 1, election_id=1, pipeline=nonsense) as switch:
            with pytest.raises(ControlPlaneError) as caught:
                switch.install(BOTH)
            assert (caught.value.kind, caught.value.restored) == (ErrorKind.PIPELINE_REFUSED, True)
        with Target.connect(server.address, 1) as switch:
            assert switch.read_state() == ONE


def test_nothing_changes_when_the_first_update_is_refused() -> None:
    def refuse(switch: Troubled, request: p4r.WriteRequest) -> None:
        raise P4RuntimeError(Code.RESOURCE_EXHAUSTED, "no")

    device = installed(refuse, after=0)
    with serve(device) as server, Target.connect(server.address, 1, election_id=1) as switch:
        with pytest.raises(ControlPlaneError) as caught:
            switch.install(BOTH)
        assert caught.value.restored is True
        assert switch.read_state() == ONE


def test_a_partly_refused_batch_is_undone_whole() -> None:
    """A batch goes on after an error: what it did in spite of it must go too."""

    def refuse_one(switch: Troubled, request: p4r.WriteRequest) -> None:
        if any(u.entity.HasField("table_entry") for u in request.updates) and len(request.updates) > 2 and not spoilt:
            spoilt.append(request.updates[1].entity.table_entry.table_id)
            request.updates[1].entity.table_entry.action.action.action_id = 1
        switch.obey(request)

    spoilt: list[int] = []
    device = installed(refuse_one, after=0)
    with serve(device) as server, Target.connect(server.address, 1, election_id=1) as switch:
        with pytest.raises(ControlPlaneError) as caught:
            switch.install(BOTH)
        assert [refusal.update.split()[:2] for refusal in caught.value.refusals] == [["insert", Table.REPLICATE]]
        assert caught.value.refusals[0].code == "INVALID_ARGUMENT"
        assert caught.value.restored is True
        assert switch.read_state() == ONE
