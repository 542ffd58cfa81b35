"""One run as other tools and network cards write it: the same steps, the same gradients, in replay and in inspect."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from capture.model import Packet
from packets.checksum import internet_checksum, sum_be
from replay.errors import ReplayError
from replay.inspect import inspect_capture
from replay.run import ReplayOptions, replay
from tests.replay.conftest import SHADOW, Run, packets_of

Change = Callable[[Packet], tuple[bytes, int]]
"""From a packet to its bytes and its length on the wire."""


def as_is(packet: Packet) -> tuple[bytes, int]:
    return packet.data, len(packet.data)


def relinked(head: bytes, drop: int) -> Change:
    return lambda packet: (head + packet.data[drop:], len(head) + len(packet.data) - drop)


def trailer(packet: Packet) -> tuple[bytes, int]:
    return packet.data + b"\xde\xad\xbe\xef", len(packet.data)


def tagged(packet: Packet) -> tuple[bytes, int]:
    tags = b"\x88\xa8\x00\x64\x91\x00\x00\x65\x81\x00\x00\xc8"
    return packet.data[:12] + tags + packet.data[12:], len(packet.data) + len(tags)


def partial(packet: Packet) -> tuple[bytes, int]:
    """The checksum field as a host leaves it to the card: the pseudo-header's sum."""
    data = bytearray(packet.data)
    length = struct.unpack_from("!H", data, 16)[0] - 20
    data[50:52] = struct.pack("!H", sum_be(bytes(data[26:34]) + struct.pack("!HH", 6, length)) or 0xFFFF)
    return bytes(data), len(data)


def without_length(packet: Packet) -> tuple[bytes, int]:
    """Total length 0; the header's checksum is of that."""
    data = bytearray(packet.data)
    data[16:18] = data[24:26] = b"\0\0"
    data[24:26] = struct.pack("!H", internet_checksum(bytes(data[14:34])))
    return bytes(data), len(data)


def written(path: Path, packets: list[Packet], change: Change, link_type: int = 1, shift: int = 1) -> Path:
    """A pcap of microseconds whose fractions are `shift` times too large."""
    out = [struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, link_type)]
    for packet in packets:
        data, wire = change(packet)
        seconds, fraction = divmod(packet.time_ns // 1000, 1_000_000)
        out += [struct.pack("<IIII", seconds, fraction * shift, len(data), wire), data]
    path.write_bytes(b"".join(out))
    return path


SLL = b"\0\0\0\1\0\6" + bytes(8) + b"\x08\0"
SLL2 = b"\x08\0" + bytes(18)


@pytest.mark.parametrize(
    ("change", "link_type", "shift", "oddity"),
    [
        (relinked(SLL, 14), 113, 1, None),
        (relinked(SLL2, 14), 276, 1, None),
        (relinked(b"", 14), 101, 1, None),
        (relinked(b"", 14), 12, 1, None),
        (relinked(b"", 14), 228, 1, None),
        (relinked(b"\2\0\0\0", 14), 0, 1, None),
        (tagged, 1, 1, None),
        (trailer, 1, 1, "more bytes captured"),
        (as_is, 1, 1000, "fraction of a second"),
        (partial, 1, 1, "unfinished checksums"),
        (without_length, 1, 1, None),
    ],
    ids=["sll", "sll2", "raw", "raw-12", "ipv4", "null", "tags", "trailer", "fractions", "partial", "no-length"],
)
def test_the_same_run(run: Run, tmp_path: Path, change: Change, link_type: int, shift: int, oddity: str | None) -> None:
    plain = run.replay(SHADOW)
    packets = packets_of(run.capture(SHADOW))
    path = written(tmp_path / "odd.pcap", packets, change, link_type, shift)
    report = replay([path], ReplayOptions(run.job, (run.log,)), lambda *_: None)
    assert report.complete
    assert [(step.epoch, step.step, step.sha256) for step in report.steps] == [
        (step.epoch, step.step, step.sha256) for step in plain.steps
    ]
    assert [oddity in name for name in report.oddities] == ([] if oddity is None else [True])
    ours, theirs = inspect_capture(path), inspect_capture(run.capture(SHADOW))
    assert [each.frames.count for each in ours.tcp] == [each.frames.count for each in theirs.tcp]
    assert [each.missing_bytes for each in ours.tcp] == [each.missing_bytes for each in theirs.tcp]


def test_a_damaged_payload_is_found_though_checksums_are_not_finished(run: Run, tmp_path: Path) -> None:
    packets = packets_of(run.capture(SHADOW))
    victim = max(packets, key=lambda packet: len(packet.data))

    def damaged(packet: Packet) -> tuple[bytes, int]:
        data, wire = partial(packet)
        return (data[:-1] + bytes([data[-1] ^ 1]), wire) if packet is victim else (data, wire)

    path = written(tmp_path / "damaged.pcap", packets, damaged)
    report = replay([path], ReplayOptions(run.job, (run.log,)), lambda *_: None)
    assert not report.complete
    assert sum(not step.complete for step in report.steps) == 1


def test_a_link_type_that_is_not_decoded_is_named_with_what_to_do(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path / "radio.pcap", packets_of(run.capture(SHADOW)), as_is, 127)
    with pytest.raises(ReplayError, match=r"127 .radiotap.*Ethernet interface"):
        replay([path], ReplayOptions(run.job), lambda *_: None)
