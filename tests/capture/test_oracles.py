"""The same files read by others: scapy's raw readers, and Wireshark's programs where they are installed."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from scapy.utils import RawPcapNgReader, RawPcapReader

from capture.errors import CaptureError
from capture.model import Packet
from capture.reader import open_capture
from capture.writer import PcapngWriter, PcapWriter
from tests.capture.builders import enhanced, interface, option, read, section
from tests.capture.strategies import Made, pcapngs, pcaps

RANDOM = random.Random(9)
START_NS = 1_700_000_000_123_456_789
NAMES = ["s1-eth1", "s1-eth2", "s1-eth9"]


def needs(program: str) -> pytest.MarkDecorator:
    """Skip where `program` is not installed."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} (of Wireshark) is not installed")


def run(*words: str | Path) -> str:
    """Run a program that must succeed, and return what it prints."""
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(params=["pcap", "pcapng"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[Packet]]:
    """A file of ours, and its packets."""
    path = tmp_path / f"ours.{request.param}"
    frames = [RANDOM.randbytes(RANDOM.choice([60, 61, 1514, 9014])) for _ in range(50)]
    if request.param == "pcap":
        with PcapWriter(path) as plain:
            for number, frame in enumerate(frames):
                plain.write(START_NS + number * 1001, frame)
    else:
        with PcapngWriter(path, NAMES) as blocks:
            for number, frame in enumerate(frames):
                blocks.write(START_NS + number * 1001, frame, number % 3)
    with open_capture(path) as reader:
        packets = list(reader)
    assert [packet.data for packet in packets] == frames
    return path, packets


@given(pcaps())
@settings(max_examples=50)
def test_scapy_reads_the_same_pcap(tmp_path_factory: pytest.TempPathFactory, made: Made) -> None:
    path = tmp_path_factory.getbasetemp() / "scapy.pcap"
    path.write_bytes(made.content)
    reader = RawPcapReader(str(path))
    unit_ns = 1 if reader.nano else 1000
    theirs = [(data, meta.sec * 10**9 + meta.usec * unit_ns, meta.wirelen) for data, meta in reader]
    assert [(p.data, p.time_ns, p.original_length) for p in read(made.content)] == theirs


# scapy carries interfaces over into the next section, and gives up at secrets that it cannot parse.
@given(pcapngs(max_sections=1, skipped=(4, 5, 0xBAD, 0x7FFFFFFF)))
@settings(max_examples=50)
def test_scapy_reads_the_same_pcapng(tmp_path_factory: pytest.TempPathFactory, made: Made) -> None:
    path = tmp_path_factory.getbasetemp() / "scapy.pcapng"
    path.write_bytes(made.content)
    ours = read(made.content)
    theirs = list(RawPcapNgReader(str(path)))
    # scapy takes the snaplen 0 ("all") of a Simple Packet Block's interface for none.
    assert [(p.data, p.original_length, p.link_type) for p in ours] == [
        (data or p.data, meta.wirelen, meta.linktype) for p, (data, meta) in zip(ours, theirs, strict=True)
    ]


@needs("tshark")
def test_tshark_sees_the_same(written: tuple[Path, list[Packet]]) -> None:
    path, packets = written
    columns = ["frame.number", "frame.time_epoch", "frame.cap_len", "frame.len"]
    ours = [[p.number, p.time_ns, len(p.data), p.original_length] for p in packets]
    if path.suffix == ".pcapng":
        columns += ["frame.interface_id", "frame.interface_name"]
        ours = [[*row, p.interface, NAMES[p.interface]] for row, p in zip(ours, packets, strict=True)]
    words = [word for column in columns for word in ("-e", column)]
    theirs = []
    for line in run("tshark", "-n", "-r", path, "-T", "fields", *words).splitlines():
        number, seconds, *others = line.split("\t")
        whole, _, part = seconds.partition(".")
        theirs.append([number, str(int(whole) * 10**9 + int(part.ljust(9, "0"))), *others])
    assert theirs == [[str(value) for value in row] for row in ours]


@needs("tshark")
def test_tshark_agrees_on_interfaces_of_sections(tmp_path: Path) -> None:
    path = tmp_path / "sections.pcapng"
    content = b""
    # (tshark 4.0 prints the name of an interface of the first section; what it reads the packet by is right.)
    for order, interfaces in (("<", ((1, 6), (113, 9))), (">", ((113, 3),)), ("<", ((113, 0), (1, 9)))):
        content += section(order)
        content += b"".join(interface(order, link, 0, option(9, bytes([power]), order)) for link, power in interfaces)
        content += b"".join(enhanced(bytes(60), 1500, index, order) for index in range(len(interfaces)))
    path.write_bytes(content)
    encapsulation = {1: "1", 113: "25"}  # Wireshark's own numbers
    with open_capture(path) as reader:
        ours = [f"{encapsulation[p.link_type]}\t{p.time_ns // 10**9}.{p.time_ns % 10**9:09}" for p in reader]
    theirs = run("tshark", "-n", "-r", path, "-T", "fields", "-e", "frame.encap_type", "-e", "frame.time_epoch")
    assert theirs.splitlines() == ours


@needs("capinfos")
def test_capinfos_sees_nothing_wrong(written: tuple[Path, list[Packet]]) -> None:
    path, packets = written
    text = run("capinfos", "-M", "-c", "-d", path)
    assert f"Number of packets:   {len(packets)}\n" in text
    assert f"Data size:           {sum(len(packet.data) for packet in packets)} bytes" in text


@needs("editcap")
@pytest.mark.parametrize(("kind", "unit_ns"), [("pcap", 1000), ("nsecpcap", 1), ("pcapng", 1)])
def test_what_editcap_writes_is_read(written: tuple[Path, list[Packet]], kind: str, unit_ns: int) -> None:
    path, packets = written
    other = path.with_name("theirs")
    run("editcap", "-F", kind, path, other)
    with open_capture(other) as reader:
        found = [(p.number, p.time_ns, p.data, p.original_length) for p in reader]
    assert found == [(p.number, p.time_ns // unit_ns * unit_ns, p.data, p.original_length) for p in packets]


@needs("editcap")
def test_snaplen_and_comments_of_editcap(written: tuple[Path, list[Packet]]) -> None:
    path, packets = written
    other = path.with_name("theirs")
    run("editcap", "-F", "pcapng", "-s", "100", "-a", "1:a comment", path, other)
    with open_capture(other) as reader:
        found = [(p.data, p.original_length) for p in reader]
    assert found == [(p.data[:100], p.original_length) for p in packets]


@needs("editcap")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("modpcap", "a 'modified' pcap file"),
        ("suse6_3pcap", "a 'modified' pcap file"),
        ("snoop", "a snoop file"),
        ("netmon1", "Network Monitor"),
        ("netmon2", "Network Monitor"),
    ],
)
def test_other_formats_are_refused_by_name(written: tuple[Path, list[Packet]], kind: str, name: str) -> None:
    path, _ = written
    other = path.with_name("theirs")
    plain = path.with_name("plain")
    run("editcap", "-F", "pcap", path, plain)  # these formats know only one interface
    run("editcap", "-F", kind, plain, other)
    with pytest.raises(CaptureError, match=name):
        open_capture(other)
