"""RoCEv2 jobs as a user runs them: the job installed, a capture sent through the switch, the shadow's copy decoded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from capture.writer import PcapWriter
from checkmate.cli import app
from jobspec.loader import load_job
from jobspec.model import Job
from rocev2.encode import Traffic, encode, to_packets
from tests.switch_contract.rdma_captures import SHADOW_PORT, Wiring
from tests.switch_contract.targets import IN_PROCESS, TARGETS, Running, missing, start
from tests.switch_contract.wire import Wire
from topology.errors import TestbedError
from topology.testbed import TestbedOptions, adapt_job

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "rdma.yaml"
MADE = encode(Traffic(ranks=3, channels=2, buckets=(3000, 500)))
T0 = 1_700_000_000_000_000_000


def test_the_testbed_says_that_it_trains_over_tcp() -> None:
    with pytest.raises(TestbedError, match="job 'rdma' has no groups, only RoCEv2 queue pairs"):
        adapt_job(load_job(EXAMPLE), TestbedOptions(out=Path("out")))


def test_queue_pairs_beside_groups_stay_in_the_testbeds_job() -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["groups"] = [{"name": "dp0", "ring": ["a", "b"], "shadows": ["sh0"]}]
    job = Job.model_validate(document)
    adapted = adapt_job(job, TestbedOptions(out=Path("out"), mtu=9000))
    assert adapted.queue_pairs == job.queue_pairs
    assert adapted.network.mtu == 9000


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.netns) for name in TARGETS if name != IN_PROCESS])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    reason = missing(request.param)
    if reason is not None:
        pytest.skip(f"{request.param}: {reason}")
    with start(request.param, range(1, SHADOW_PORT + 1), tmp_path) as switch:
        yield switch


def checkmate(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def checkmate_in(namespace: str, *arguments: str | Path) -> str:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "checkmate.cli", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_capture_is_sent_through_the_switch_and_decoded_behind_it(running: Running, tmp_path: Path) -> None:
    wire = running.cables
    assert isinstance(wire, Wire)
    packets = to_packets(MADE.packets, T0)
    wiring = Wiring.of(packets)
    job, sent, seen = tmp_path / "job.yaml", tmp_path / "sent.pcap", tmp_path / "seen.pcap"
    job.write_text(yaml.safe_dump(wiring.job.model_dump(mode="json"), sort_keys=False))
    with PcapWriter(sent) as writer:
        for packet in packets:
            writer.write(packet.time_ns, packet.data)
    checkmate("switch", "install", job, "--target", running.address)
    document: dict[str, Any] = json.loads(
        checkmate_in(wire.namespace, "replay", sent, "--send", "h1", "--rate", "500", "--json")
    )
    assert (document["packets"], document["not_sent"]) == (len(packets), {})
    with PcapWriter(seen) as writer:
        for packet in packets:
            copy = wire.receive(SHADOW_PORT)
            assert copy == bytes.fromhex(wiring.shadow.mac.replace(":", "")) + packet.data[6:]
            writer.write(packet.time_ns, copy)
    found = json.loads(checkmate("replay", seen, "--json"))
    assert [item["sha256"] for item in found["all_reduces"]] == [sha256(tensor).hexdigest() for tensor in MADE.tensors]
    inspected = json.loads(checkmate("inspect", seen, "--job", job, "--json"))
    assert {pair["job_role"] is not None for pair in inspected["queue_pairs"]} == {True}
