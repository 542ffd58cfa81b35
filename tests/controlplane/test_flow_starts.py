"""Connections that begin: from a tagged SYN on the wire to the journal, and back into another switch."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from controlplane.desired import desired_state
from controlplane.digests import ConnectionJournal, FlowStart
from controlplane.errors import ControlPlaneError, ErrorKind
from controlplane.target import Target
from jobspec.model import Flow, Job
from p4src.constants import NotReplicated
from p4src.names import Table
from softswitch.p4rt import Device, serve
from tests.controlplane.jobs import JobText

JOB = JobText().job()
FLOW = JOB.flows[1]
ISN = 0xFFFFFFF0


def segment(job: Job, flow: Flow, *, port: int, seq: int, flags: str = "A", payload: bytes = b"") -> bytes:
    """Return a tagged frame from the flow's sender."""
    return bytes(
        Ether(src=flow.source.mac, dst=flow.target.mac)
        / IP(src=str(flow.source.ip), dst=str(flow.target.ip), tos=job.dscp.primary << 2)
        / TCP(sport=port, dport=flow.tcp_port, seq=seq, flags=flags)
        / Raw(payload)
    )


def syn(device: Device, flow: Flow, port: int, isn: int, now_us: int = 0) -> None:
    device.inject(flow.source.port, segment(JOB, flow, port=port, seq=isn, flags="S"), now_us)


def expected(flow: Flow, port: int, isn: int) -> FlowStart:
    return FlowStart(flow.id, isn, flow.source.ip, flow.target.ip, port, flow.tcp_port)


def test_a_tagged_syn_is_reported_once_and_acknowledged() -> None:
    device = Device(1)
    with serve(device) as server, Target.connect(server.address, 1, election_id=1) as switch:
        switch.install(desired_state([JOB]))
        starts = switch.flow_starts()
        assert starts.wait(0) == ()
        syn(device, FLOW, 40000, ISN)
        assert starts.wait(10) == (expected(FLOW, 40000, ISN),)
        syn(device, FLOW, 40001, 7, now_us=10)
        syn(device, JOB.flows[0], 40000, 8, now_us=20)
        seen = list(starts.wait(10))
        while len(seen) < 2:
            seen += starts.wait(10)
        assert seen == [expected(FLOW, 40001, 7), expected(JOB.flows[0], 40000, 8)]
        assert seen[0].src_addr == IPv4Address("10.1.0.11")


def test_an_untagged_syn_is_not_reported() -> None:
    device = Device(1)
    with serve(device) as server, Target.connect(server.address, 1, election_id=1) as switch:
        switch.install(desired_state([JOB]))
        plain = Ether(segment(JOB, FLOW, port=40000, seq=1, flags="S"))
        plain[IP].tos = 0
        device.inject(FLOW.source.port, bytes(plain), 0)
        syn(device, FLOW, 40000, ISN, 1)
        assert switch.flow_starts().wait(10) == (expected(FLOW, 40000, ISN),)
        _, counters = switch.read_counters()
        assert counters.not_replicated[NotReplicated.UNTAGGED].packets == 1


def test_the_end_of_the_stream_is_told() -> None:
    with serve(Device(1)) as server, Target.connect(server.address, 1, election_id=1) as switch:
        switch.install(desired_state([JOB]))
        starts = switch.flow_starts()
        server.close(0)
        with pytest.raises(ControlPlaneError) as caught:
            starts.wait(10)
    assert caught.value.kind is ErrorKind.STREAM_ENDED


def test_who_only_reads_hears_nothing() -> None:
    with (
        serve(Device(1)) as server,
        Target.connect(server.address, 1) as reader,
        pytest.raises(RuntimeError, match="read-only"),
    ):
        reader.flow_starts()


def test_a_standby_switch_goes_on_with_the_journal() -> None:
    """The new switch never saw the SYN: it must not replicate without the journal, and rightly with it."""
    journal = ConnectionJournal()
    first, second = Device(1), Device(1)
    with serve(first) as server, Target.connect(server.address, 1, election_id=1) as switch:
        switch.install(desired_state([JOB]))
        syn(first, FLOW, 40000, ISN)
        for start in switch.flow_starts().wait(10):
            journal.record(start)
    data = segment(JOB, FLOW, port=40000, seq=(ISN + 1 + 1000) % 2**32, payload=b"x" * 100)
    with serve(second) as server, Target.connect(server.address, 1, election_id=1) as switch:
        switch.install(desired_state([JOB]))
        assert second.inject(FLOW.source.port, data, 0) == [(FLOW.target.port, data)]
        assert switch.read_counters()[1].not_replicated[NotReplicated.UNKNOWN_ISN].packets == 1
        plan = switch.restore_flow_base(journal.flow_base_entries())
        assert len(plan.updates) == 1
        assert switch.install(desired_state([JOB])).changes_nothing
        assert len(switch.read_state().table(Table.FLOW_BASE)) == 1
        copies = dict(second.inject(FLOW.source.port, data, 0))
        other = segment(JOB, FLOW, port=40001, seq=5000, payload=b"x")
        assert [port for port, _ in second.inject(FLOW.source.port, other, 0)] == [FLOW.target.port]
    shadow = JOB.shadows[0]
    assert copies[FLOW.target.port] == data
    replica = Ether(copies[shadow.port])
    assert replica[TCP].seq == 1001
    assert replica[TCP].dport == shadow.base_port + FLOW.id
    assert replica[IP].dst == str(shadow.ip)
