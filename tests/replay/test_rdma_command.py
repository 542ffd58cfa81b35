"""`checkmate replay` of RoCEv2 captures of our own making, as they are and through the switch program."""

from __future__ import annotations

import json
from ipaddress import IPv6Address
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from capture.reader import open_capture
from capture.writer import PcapWriter
from checkmate.cli import app
from rocev2.encode import Capture, Traffic, encode, to_packets
from rocev2.faults import lose
from rocev2.report import decode


@pytest.fixture(scope="module")
def made() -> Capture:
    return encode(Traffic(channels=2, buckets=(5000, 34)))


def write(path: Path, frames) -> Path:
    with PcapWriter(path) as writer:
        for packet in to_packets(frames):
            writer.write(packet.time_ns, packet.data)
    return path


def checkmate(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["replay", *map(str, words)], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, done.stderr


def job_of(path: Path, tmp_path: Path) -> Path:
    """Write a job that replicates every queue pair of a capture."""
    with open_capture(path) as reader:
        pairs = decode(reader, use_p2p=False, dtype=None, file="").queue_pairs
    with open_capture(path) as reader:
        macs = {str(IPv6Address(packet.data[22:38])): packet.data[6:12].hex(":") for packet in reader}
    hosts = [
        {"name": f"h{i}", "port": i + 1, "mac": mac, "ipv6": address} for i, (address, mac) in enumerate(macs.items())
    ]
    job = {
        "version": 1,
        "name": "rdma",
        "switch": {"name": "s1", "ports": 9},
        "network": {"mtu": 4200},
        "hosts": hosts,
        "shadows": [{"name": "sh0", "port": 9, "mac": "02:00:00:00:0f:00", "ip": "10.0.1.100"}],
        "rdma": [
            {"source": pair.source, "target": pair.destination, "queue_pair": pair.dest_qp, "shadows": ["sh0"]}
            for pair in pairs
        ],
    }
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


def test_all_reduces_as_json_and_files(made: Capture, tmp_path: Path) -> None:
    path = write(tmp_path / "nccl.pcap", made.packets)
    code, text, errors = checkmate(path, "--dtype", "float32", "--out", tmp_path / "out", "--json")
    assert (code, errors) == (0, "")
    found = json.loads(text)
    assert set(found) == {"file", "packets", "rocev2_packets", "other", "all_reduces", "open", "notes"}
    assert [item["elements"] for item in found["all_reduces"]] == [5000, 34]
    for item, tensor in zip(found["all_reduces"], made.tensors, strict=True):
        assert item["complete"]
        found_tensor = np.load(tmp_path / f"out/all-reduce-{item['index']:04d}.npy")
        assert (found_tensor.dtype, found_tensor.tobytes()) == (np.float32, tensor)
    code, text, _ = checkmate(path)
    assert code == 0
    assert "All-reduces in" in text


def test_a_lost_packet_is_incomplete(made: Capture, tmp_path: Path) -> None:
    places = [i for i, frame in enumerate(made.packets) if frame.shown is not None]
    path = write(tmp_path / "lost.pcap", lose(made.packets, places[:1]))
    code, text, _ = checkmate(path, "--json", "--out", tmp_path / "out")
    found = json.loads(text)["all_reduces"]
    assert code == 1
    assert [item["complete"] for item in found] == [False, True]
    assert found[0]["missing_elements"]
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {f"all-reduce-{item['index']:04d}.npy" for item in found if item["complete"]}


def test_through_the_switch_program_the_tensors_are_the_same(made: Capture, tmp_path: Path) -> None:
    path = write(tmp_path / "nccl.pcap", made.packets)
    _, plain, _ = checkmate(path, "--json")
    code, switched, errors = checkmate(path, "--json", "--through-switch", "--job", job_of(path, tmp_path))
    assert (code, errors) == (0, "")
    hashes = [[item["sha256"] for item in json.loads(text)["all_reduces"]] for text in (plain, switched)]
    assert hashes[0] == hashes[1]
    assert all(hashes[0])
    code, _, errors = checkmate(path, "--json", "--through-switch", "--job", "examples/rdma.yaml")
    assert code == 1
    assert "no frame came out of the switch program" in errors
