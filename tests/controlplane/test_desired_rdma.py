"""What a job with RoCEv2 queue pairs asks of its switches."""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from checkmate.cli import app as checkmate
from controlplane.codec import decode, encode
from controlplane.describe import Names, describe
from controlplane.desired import FLOW_START_DIGEST, desired_state
from controlplane.entities import MulticastGroup, Replica
from controlplane.pipeline import Pipeline
from jobspec.errors import JobError
from jobspec.loader import load_job, parse_job
from jobspec.model import Job
from p4src.constants import FLOOD_GROUP, MAX_RDMA_FLOWS
from p4src.names import Table
from tests.controlplane.test_desired import entry

EXAMPLE = Path(__file__).parents[2] / "examples" / "rdma.yaml"
A6, B6 = (int(ip_address(text)) for text in ("fe80::ff:fe00:100", "fe80::ff:fe00:101"))


def test_the_whole_state_of_the_example() -> None:
    def copies(number: int, port: int) -> MulticastGroup:
        return MulticastGroup(number, frozenset({Replica(port, 0), Replica(3, 1)}))

    def over_ipv6(source: int, target: int, queue_pair: int, group: int) -> object:
        match = {"src_addr": source, "dst_addr": target, "destination_qp": queue_pair}
        return entry("replicate_rdma_ipv6", match, "replicate_qp_ipv6", group=group)

    over_ipv4 = {"src_addr": 0x0A00000A, "dst_addr": 0x0A00000B, "destination_qp": 1562}
    assert desired_state([load_job(EXAMPLE)]).entities == {
        FLOW_START_DIGEST,
        entry("l2_forward", {"dst_addr": 0x020000000100}, "set_port", port=1),
        entry("l2_forward", {"dst_addr": 0x020000000101}, "set_port", port=2),
        entry("l2_forward", {"dst_addr": 0x020000000200}, "set_port", port=3),
        entry("shadow_ports", {"ingress_port": 3}, "drop_from_shadow"),
        entry("shadow", {"rid": 1}, "to_shadow", mac=0x020000000200, ip=0x0A000164, base_port=20000),
        MulticastGroup(FLOOD_GROUP, frozenset({Replica(1, 0), Replica(2, 0)})),
        over_ipv6(A6, B6, 1561, 1025),
        copies(1025, 2),
        over_ipv6(B6, A6, 2204, 1026),
        copies(1026, 1),
        entry("replicate_rdma_ipv4", over_ipv4, "replicate_qp_ipv4", group=1027),
        copies(1027, 2),
    }


def test_every_entity_survives_the_wire_and_is_told_in_words() -> None:
    job = load_job(EXAMPLE)
    schema = Pipeline.committed().schema
    entities = desired_state([job]).entities
    assert {decode(encode(entity, schema), schema) for entity in entities} == entities
    words = {describe(entity, Names.of([job])) for entity in entities}
    assert {
        "replicate_rdma_ipv6 fe80::ff:fe00:101 (b) -> fe80::ff:fe00:100 (a) queue pair 2204: "
        "replicate_qp_ipv6 group 1026",
        "replicate_rdma_ipv4 10.0.0.10 (a) -> 10.0.0.11 (b) queue pair 1562: replicate_qp_ipv4 group 1027",
        "group 1025 (rdma a->b queue pair 1561): port 2 (b), port 3 (sh0) rid 1",
    } <= words


def two_switches() -> Job:
    document = yaml.safe_load(EXAMPLE.read_text())
    del document["switch"]
    document |= {
        "switches": [{"name": "near", "ports": 4, "device_id": 1}, {"name": "far", "ports": 4, "device_id": 2}],
        "trunks": [{"between": ["near", "far"], "ports": [4, 4]}],
    }
    for end, switch in zip([*document["hosts"], *document["shadows"]], ("near", "far", "far"), strict=True):
        end["switch"] = switch
    return parse_job(yaml.safe_dump(document)).job


def test_a_queue_pair_is_replicated_at_its_senders_switch_alone() -> None:
    job = two_switches()
    near, far = desired_state([job], "near"), desired_state([job], "far")
    numbers = [
        sorted(e.field("destination_qp") for table in RDMA_TABLES for e in state.table(table)) for state in (near, far)
    ]
    assert numbers == [[1561, 1562], [2204]]
    groups = [{group.id: group.replicas for group in state.groups()} for state in (near, far)]
    # Original and replica leave by the trunk alike, each with its own replica id.
    assert groups[0][1025] == {Replica(4, 0), Replica(4, 1)}
    assert groups[1][1026] == {Replica(4, 0), Replica(3, 1)}
    # Both switches make replicas for the shadow.
    assert all(len(state.table(Table.SHADOW)) == 1 for state in (near, far))


RDMA_TABLES = (Table.REPLICATE_RDMA_IPV4, Table.REPLICATE_RDMA_IPV6)


def crowded(number: int, count: int) -> Job:
    document = yaml.safe_load(EXAMPLE.read_text())
    document |= {"name": f"job{number}", "id": number, "switch": {"name": "s1", "ports": 9}}
    document["first_queue_pair_id"] = number * MAX_RDMA_FLOWS
    for i, end in enumerate([*document["hosts"], *document["shadows"]]):
        end |= {"port": 1 + 3 * number + i, "mac": f"02:00:00:00:{number:02}:0{i}", "ip": f"10.0.{number}.{1 + i}"}
        end.pop("ipv6", None)
    document["shadows"][0]["rid"] = 1 + number
    document["rdma"] = [
        {"source": f"10.0.{number}.1", "target": f"10.0.{number}.2", "queue_pair": 2 + i, "shadows": ["sh0"]}
        for i in range(count)
    ]
    return parse_job(yaml.safe_dump(document)).job


def test_jobs_that_are_too_many_together_are_refused() -> None:
    assert len(desired_state([crowded(0, 1000), crowded(1, 24)]).table(Table.REPLICATE_RDMA_IPV4)) == MAX_RDMA_FLOWS
    with pytest.raises(JobError, match="1025 queue pairs over IPv4 on one switch, which can replicate 1024"):
        desired_state([crowded(0, 1000), crowded(1, 25)])


def test_job_check_shows_queue_pairs() -> None:
    shown = CliRunner().invoke(checkmate, ["job", "check", str(EXAMPLE)], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "RoCEv2 queue pairs" in shown.stdout
    assert "Flows" not in shown.stdout
    document = json.loads(CliRunner().invoke(checkmate, ["job", "check", str(EXAMPLE), "--json"]).stdout)
    assert document["flows"] == []
    assert document["queue_pairs"][1] == {
        "job": "rdma",
        "from": "b",
        "to": "a",
        "source": "fe80::ff:fe00:101",
        "target": "fe80::ff:fe00:100",
        "queue_pair": 2204,
        "multicast_group": 1026,
        "shadows": ["sh0"],
        "replicated_by": "s1",
    }
