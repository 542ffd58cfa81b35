"""What jobs ask of a switch: the exact set of entities."""

from __future__ import annotations

import pytest

from controlplane.codec import decode, encode
from controlplane.desired import FLOW_START_DIGEST, desired_state
from controlplane.entities import MulticastGroup, Replica, SwitchState, TableEntry
from controlplane.pipeline import Pipeline
from jobspec.errors import JobError
from jobspec.model import Job
from p4src.constants import FLOOD_GROUP
from p4src.names import Table
from tests.controlplane.jobs import JobText, other_job


def entry(table: str, match: dict[str, int], action: str, **params: int) -> TableEntry:
    return TableEntry(table, tuple(sorted(match.items())), action, tuple(sorted(params.items())))


def test_the_whole_state_of_a_small_job() -> None:
    job = JobText(hosts=3, ring=(0, 2), shadows=2, channels=2, first_flow_id=7, first_rid=4).job()

    def replicate(source: int, target: int, port: int, flow: int) -> TableEntry:
        match = {
            "src_addr": 0x0A01000A + source,
            "dst_addr": 0x0A01000A + target,
            "dst_port": port,
            "dscp": 3,
        }
        return entry("replicate", match, "replicate_flow", flow_id=flow, group=flow + 1)

    def group(number: int, port: int) -> MulticastGroup:
        return MulticastGroup(number, frozenset({Replica(port, 0), Replica(4, 4), Replica(5, 5)}))

    assert desired_state([job]).entities == {
        FLOW_START_DIGEST,
        entry("l2_forward", {"dst_addr": 0x020000010100}, "set_port", port=1),
        entry("l2_forward", {"dst_addr": 0x020000010101}, "set_port", port=2),
        entry("l2_forward", {"dst_addr": 0x020000010102}, "set_port", port=3),
        entry("l2_forward", {"dst_addr": 0x020000010200}, "set_port", port=4),
        entry("l2_forward", {"dst_addr": 0x020000010201}, "set_port", port=5),
        entry("shadow_ports", {"ingress_port": 4}, "drop_from_shadow"),
        entry("shadow_ports", {"ingress_port": 5}, "drop_from_shadow"),
        entry("shadow", {"rid": 4}, "to_shadow", mac=0x020000010200, ip=0x0A01010A, base_port=20000),
        entry("shadow", {"rid": 5}, "to_shadow", mac=0x020000010201, ip=0x0A01010B, base_port=20000),
        MulticastGroup(FLOOD_GROUP, frozenset({Replica(1, 0), Replica(2, 0), Replica(3, 0)})),
        replicate(0, 2, 4000, 7),
        group(8, 3),
        replicate(2, 0, 4000, 8),
        group(9, 1),
        replicate(0, 2, 4001, 9),
        group(10, 3),
        replicate(2, 0, 4001, 10),
        group(11, 1),
    }


def test_a_redundant_hop_is_a_second_entry_of_the_same_flow() -> None:
    plain = JobText().job()
    job = Job.model_validate({**plain.model_dump(mode="json"), "redundancy": {"hops": [0, 1]}})
    added = desired_state([job]).entities - desired_state([plain]).entities
    assert desired_state([plain]).entities <= desired_state([job]).entities
    replicate = [e for e in desired_state([plain]).entities if isinstance(e, TableEntry) and e.table == "replicate"]
    twins = {
        entry(
            "replicate",
            {**dict(e.match), "dscp": job.dscp.redundant},
            "replicate_flow",
            **{str(k): v for k, v in e.params},
        )
        for e in replicate
    }
    assert len(twins) == 3
    assert added == twins


def test_jobs_that_need_more_entries_than_the_table_has_are_refused() -> None:
    big = {"hosts": 8, "ring": tuple(range(8)), "channels": 16}
    jobs = [
        Job.model_validate({**text.job().model_dump(mode="json"), "redundancy": {"hops": [0, 1]}})
        for text in (
            JobText(name=f"j{i}", id=i, first_port=1 + 10 * i, first_flow_id=128 * i, first_rid=1 + i, ports=60, **big)
            for i in range(5)
        )
    ]
    assert len(list(desired_state(jobs[:4]).entities)) > 1024
    with pytest.raises(JobError, match=r"1280 entries.* 1024"):
        desired_state(jobs)


def test_jobs_on_one_switch_are_united() -> None:
    one, two = JobText().job(), other_job().job()
    both = desired_state([one, two])
    flood = next(group for group in both.groups() if group.id == FLOOD_GROUP)
    assert {copy.port for copy in flood.replicas} == {1, 2, 3, 11, 12, 13}
    rest = {entity for entity in both.entities if entity != flood}
    alone = [{entity for entity in desired_state([job]).entities if entity.key != flood.key} for job in (one, two)]
    assert rest == alone[0] | alone[1]
    assert alone[0] & alone[1] == {FLOW_START_DIGEST}


def test_a_replica_reaches_only_shadows_of_its_own_job() -> None:
    state = desired_state([JobText(shadows=2).job(), other_job(shadows=3).job()])
    for group in state.groups():
        if group.id == FLOOD_GROUP:
            assert all(copy.rid == 0 for copy in group.replicas)
        else:
            mine = range(1, 6) if group.id <= 16 else range(11, 17)
            assert all(copy.port in mine for copy in group.replicas)


def test_no_jobs_want_an_empty_switch() -> None:
    assert desired_state([]) == SwitchState()


def test_jobs_that_collide_are_refused() -> None:
    with pytest.raises(JobError, match=r"flows 2\.\.4 overlap flows 0\.\.2 of job 'one'"):
        desired_state([JobText().job(), other_job(first_flow_id=2).job()])


def test_more_shadows_than_a_switch_serves_are_refused() -> None:
    one = JobText(hosts=2, ring=(0, 1), shadows=129, ports=300).job()
    two = other_job(hosts=2, ring=(0, 1), shadows=128, ports=300, first_port=140, first_rid=200).job()
    with pytest.raises(JobError, match="257 on one switch, which can serve 256"):
        desired_state([one, two])


def test_two_entities_with_one_key_are_not_a_state() -> None:
    with pytest.raises(ValueError, match="two entities have the key"):
        SwitchState.of([MulticastGroup(1, frozenset()), MulticastGroup(1, frozenset({Replica(1, 0)}))])


def test_every_entity_survives_the_wire() -> None:
    schema = Pipeline.committed().schema
    state = desired_state([JobText(shadows=2, channels=3).job(), other_job().job()])
    extra = {
        entry("flow_base", {"flow_id": 3, "src_port": 65535}, "set_isn", isn=0xFFFFFFFF),
        entry(
            "replicate_rdma_ipv4",
            {"src_addr": 1, "dst_addr": 2, "destination_qp": 3},
            "replicate_qp_ipv4",
            group=9,
        ),
        entry(
            "replicate_rdma_ipv6",
            {"src_addr": 1 << 127, "dst_addr": 2, "destination_qp": 3},
            "replicate_qp_ipv6",
            group=9,
        ),
    }
    entities = state.entities | extra
    assert {decode(encode(entity, schema), schema) for entity in entities} == entities
    assert {e.table for e in entities if isinstance(e, TableEntry)} == set(map(str, Table))


def test_a_value_that_does_not_fit_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="rid"):
        encode(
            entry("shadow", {"rid": 1 << 16}, "to_shadow", mac=1, ip=1, base_port=1),
            Pipeline.committed().schema,
        )
