"""`checkmate inspect`: what it finds, in sound files, damaged ones and hostile ones."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw
from typer.testing import CliRunner, Result

from capture.model import LINKTYPE_ETHERNET, Packet
from capture.reader import CaptureReader, open_capture
from capture.writer import PcapngWriter, PcapWriter
from checkmate.cli import app
from checkmate.inspect_tables import tables
from packets.batch import PacketBatch
from replay.inspect import Inspector, inspect_capture, written
from replay.segments import look
from tests.replay.test_inspect_tcp import ISN, carried, packet
from tests.switch_contract.rdma_captures import FOLDER, names, truth
from tests.tools.test_dissector import FRAMES, STREAM, cut

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "two-shadows.yaml"
EMPTY = bytes.fromhex("4d3cb2a1 0200 0400 00000000 00000000 00000400 01000000")
"""A pcap file without packets."""
T0 = 1_700_000_000_000_000_000
NAMES = names() or [pytest.param("", marks=pytest.mark.skip(reason="the captures of real NICs are not here"))]


def run(*arguments: str | Path) -> Result:
    # Wide enough for tables whose cells are not broken.
    wide = CliRunner(env={"COLUMNS": "250"})
    return wide.invoke(app, ["inspect", *map(str, arguments)], catch_exceptions=False)


def document(code: int, *arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def saved(path: Path, packets: list[Packet]) -> Path:
    with PcapWriter(path) as writer:
        for number, each in enumerate(packets):
            writer.write(T0 + 1000 * number, each.data, each.original_length)
    return path


def ours() -> list[Packet]:
    return carried(cut(STREAM, [1460]))


def test_our_own_traffic(tmp_path: Path) -> None:
    arp = bytes(Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff") / ARP())
    lost = ours()
    del lost[5]
    packets = [*lost, Packet(1, 0, arp, len(arp), 0, LINKTYPE_ETHERNET, 0), packet(len(STREAM), flags="FA")]
    path = saved(tmp_path / "x.pcap", packets)
    found = document(0, path)
    assert (found["format"], found["size"], found["packets"]) == ("pcap", path.stat().st_size, len(packets))
    assert found["wire_bytes"] == found["captured_bytes"] == sum(len(each.data) for each in packets)
    assert (found["smallest"], found["largest"]) == (42, 1514)
    assert found["first_time"] == "2023-11-14T22:13:20.000000000Z"
    assert found["seconds"] == pytest.approx(1e-6 * (len(packets) - 1))
    assert (found["link_types"], found["cut_packets"], found["backward_times"]) == ({"1": len(packets)}, 0, 0)
    assert found["other"] == {"arp": 1}
    assert found["error"] is None
    [flow] = found["tcp"]
    assert (flow["isn"], flow["syn"], flow["fin"], flow["missing_bytes"], flow["gaps"]) == (
        ISN, 1, 1, 1460, [[4 * 1460, 5 * 1460]],
    )  # fmt: skip
    assert flow["frames"] >= len(FRAMES) - 2
    shown = run(path)
    assert shown.exit_code == 0
    for words in ("10.0.0.1:50000", "SYN FIN", "1460", "arp", "job 7 group 3 channel 2 rank 1"):
        assert words in shown.stdout, words


def test_a_job_gives_names(tmp_path: Path) -> None:
    packets = [packet(0, b"x", source="10.0.0.10", destination="10.0.0.11", port=4000)]
    found = document(0, saved(tmp_path / "x.pcap", packets), "--job", EXAMPLE)
    assert found["tcp"][0]["role"] == "flow 0: dp0 r0->r1 channel 0"


def test_pcapng_gzip_and_other_link_types(tmp_path: Path) -> None:
    with PcapngWriter(tmp_path / "x.pcapng", ["eth0", "eth1"]) as writer:
        for number, each in enumerate(ours()):
            writer.write(T0 - number, each.data, number % 2)
    found = document(0, tmp_path / "x.pcapng")
    assert (found["format"], found["backward_times"]) == ("pcapng", len(ours()) - 1)
    assert found["tcp"][0]["frames"] == len(FRAMES)
    plain = saved(tmp_path / "x.pcap", ours()).read_bytes()
    (tmp_path / "x.pcap.gz").write_bytes(gzip.compress(plain))
    assert document(0, tmp_path / "x.pcap.gz")["tcp"] == found["tcp"]
    # The link type stands at the end of the file header: 127 is radiotap.
    (tmp_path / "cooked.pcap").write_bytes(plain[:20] + (127).to_bytes(4, "little") + plain[24:])
    cooked = document(0, tmp_path / "cooked.pcap")
    assert (cooked["other"], cooked["tcp"]) == ({"link type 127": len(ours())}, [])


def test_a_file_that_ends_anywhere(tmp_path: Path) -> None:
    """What is whole is shown; then the error, with the offset of what is not."""
    whole = saved(tmp_path / "x.pcap", ours()[:3]).read_bytes()
    with open_capture(tmp_path / "x.pcap") as capture:
        starts = [each.offset for each in capture] + [len(whole)]
    path = tmp_path / "cut.pcap"
    for length in [*range(0, 120, 3), *range(1560, 1660, 3), *range(len(whole) - 9, len(whole) + 1)]:
        path.write_bytes(whole[:length])
        if length < 24:
            result = run(path, "--json")
            assert (result.exit_code, result.stdout) == (1, "")
            assert f"{path}: at byte 0:" in result.stderr
            continue
        there = sum(start <= length for start in starts) - 1
        at_an_end = length in starts
        found = document(0 if at_an_end else 1, path)
        assert found["packets"] == there, length
        assert (found["error"] is None) is at_an_end
        if not at_an_end:
            assert found["error"]["offset"] == starts[there]
    path.write_bytes(whole[:-1])
    shown = run(path)
    assert shown.exit_code == 1
    assert "10.0.0.1:50000" in shown.stdout
    assert f"error: {path}: at byte {starts[-2]}:" in shown.stderr


@given(st.lists(st.tuples(st.binary(max_size=200), st.integers(0, 70_000), st.integers(-(2**63), 2**63)), max_size=8))
def test_no_packet_is_too_strange(packets: list[tuple[bytes, int, int]]) -> None:
    inspector = Inspector()
    for number, (data, more, time_ns) in enumerate(packets, 1):
        [seen] = look([PacketBatch.of([data], wire_lengths=[len(data) + more])])
        inspector.add(seen._replace(number=number, time_ns=time_ns))
    capture = CaptureReader(BytesIO(EMPTY))
    found = inspector.finish("x", capture)
    assert json.loads(json.dumps(found.as_dict()))["packets"] == len(packets)
    assert list(tables(found))


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    missing = run(tmp_path / "nowhere.pcap")
    assert missing.exit_code == 2
    assert "nowhere.pcap" in missing.stderr
    text = tmp_path / "x.pcap"
    text.write_text("not a capture")
    refused = run(text)
    assert refused.exit_code == 1
    assert "at byte 0" in refused.stderr
    job = tmp_path / "job.yaml"
    job.write_text("version: 1\n")
    wrong = run(saved(text, ours()), "--job", job)
    assert wrong.exit_code == 2
    assert "job.yaml" in wrong.stderr
    empty = document(0, saved(text, []))
    assert (empty["packets"], empty["first_time"], empty["seconds"], empty["smallest"]) == (0, None, 0, None)
    assert run(text).exit_code == 0


def test_standard_input(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pcap", ours())
    with path.open("rb") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "checkmate.cli", "inspect", "-", "--json"],
            cwd=ROOT, stdin=stream, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["tcp"] == document(0, path)["tcp"]


def test_rocev2_with_a_wrong_icrc_is_told(tmp_path: Path) -> None:
    frame = bytearray(
        bytes(
            Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
            / IP(src="10.0.0.1", dst="10.0.0.2")
            / UDP(sport=9, dport=4791)
            / BTH(opcode="RC_SEND_ONLY", dqpn=77, psn=5)
            / Raw(b"sixteen bytes...")
        )
    )
    sound = Packet(1, 0, bytes(frame), len(frame), 0, LINKTYPE_ETHERNET, 0)
    frame[-6] ^= 1
    damaged = Packet(2, 0, bytes(frame), len(frame), 0, LINKTYPE_ETHERNET, 0)
    found = document(0, saved(tmp_path / "x.pcap", [sound, damaged]))
    assert found["rocev2_packets"] == 2
    [pair] = found["queue_pairs"]
    assert (pair["source"], pair["destination"], pair["dest_qp"], pair["packets"]) == ("10.0.0.1", "10.0.0.2", 77, 1)
    assert any("iCRC" in mark for mark in found["marks"])


@pytest.mark.parametrize("name", NAMES)
def test_captures_of_real_nics(name: str) -> None:
    known, found = truth(name), document(0, FOLDER / name)
    assert (found["packets"], found["rocev2_packets"]) == (known["packets"], known["rocev2_packets"])
    others = dict(known["other_frames"])
    assert sum(flow["packets"] for flow in found["tcp"]) == others.pop("ipv4/tcp", 0)
    assert found["other"] == others
    tensors = known["reduced_tensors"]
    assert [item["elements"] for item in found["all_reduces"]] == [tensor["elements"] for tensor in tensors]
    for item, tensor in zip(found["all_reduces"], tensors, strict=True):
        assert item["covered"] == tensor["covered"]
        assert item["sha256"] == (tensor["sha256_le_bytes"] if item["complete"] else None)
    flows = {flow["dest_qp"]: flow["packets"] for flow in known["flows"]}
    pairs = {pair["dest_qp"]: pair["packets"] for pair in found["queue_pairs"]}
    assert {number: flows[number] for number in pairs} == pairs
    # The others are the NICs' probes, which are no connections.
    assert sum(pairs.values()) == known["rocev2_breakdown"]["rc"]
    shown = run(FOLDER / name)
    assert shown.exit_code == 0
    assert "All-reduces" in shown.stdout


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.inspect._TELL_EVERY", 5)
    path = saved(tmp_path / "x.pcap", ours())
    told: list[tuple[int, int | None]] = []
    inspect_capture(path, progress=lambda done, size: told.append((done, size)))
    assert len(told) == len(ours()) // 5
    assert all(size == path.stat().st_size and 0 < done <= size for done, size in told)


def test_times() -> None:
    assert written(None) is None
    assert written(0) == "1970-01-01T00:00:00.000000000Z"
    assert written(10**30) == f"{10**21}.000000000 s"
