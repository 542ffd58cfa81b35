"""Replicas, byte for byte: any segment, any size, damaged ones too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4src.constants import NotReplicated
from tests.switch_contract.checks import assert_replicated, open_flow
from tests.switch_contract.frames import VLAN_TAG, A, B, padded_to, segment, syn, tagged
from tests.switch_contract.oracle import checksums_hold
from tests.switch_contract.rig import Rig

SIZES = [
    *(60, 61, 62, 63, 64, 65, 66, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 1279),
    *(1499, 1500, 1501, 1513, 1514, 1515, 1516, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193),
    *(8999, 9000, 9001, 9013, 9014),
]
"""Lengths of frames in bytes; the last one fills the MTU of 9000."""


def examples(number: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """One switch for all examples; its state does not depend on those before."""
    return settings(max_examples=number, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@examples(25)
@given(
    isn=st.integers(0, 2**32 - 1),
    offset=st.integers(1, 2**32 - 1),
    payload=st.binary(max_size=200),
    ecn=st.integers(0, 3),
    flags=st.sampled_from(["A", "PA", "PAU", "FA", "RA", "SA", "AEC"]),
    timestamps=st.booleans(),
)
def test_a_tagged_segment_is_replicated_at_its_position(
    switch: Rig, isn: int, offset: int, payload: bytes, ecn: int, flags: str, timestamps: bool
) -> None:
    open_flow(switch, isn)
    options: list[tuple[str, Any]] = [("NOP", None), ("NOP", None), ("Timestamp", (1, 2))] if timestamps else []
    frame = segment(isn + offset, payload, flags=flags, ecn=ecn, options=options)
    assert checksums_hold(frame) == (True, True)
    assert_replicated(switch.send(A.port, frame), frame, offset)


@examples(25)
@given(payload=st.binary(min_size=1, max_size=60), data=st.data())
def test_corruption_before_the_switch_stays_visible(switch: Rig, payload: bytes, data: st.DataObject) -> None:
    open_flow(switch, 5)
    frame = bytearray(segment(6, payload))
    # Anywhere behind the sequence number, which is replaced: flags, window, checksum, payload.
    bit = data.draw(st.integers((14 + 20 + 8) * 8, len(frame) * 8 - 1).filter(lambda bit: bit not in _SYN_BITS))
    frame[bit // 8] ^= 1 << bit % 8
    outcome = switch.send(A.port, bytes(frame))
    assert checksums_hold(bytes(frame)) == (True, False)
    assert_replicated(outcome, bytes(frame), 1)


_SYN_BITS = range((14 + 20 + 13) * 8 + 1, (14 + 20 + 13) * 8 + 2)
"""The SYN flag would begin a connection."""


@examples(25)
@given(checksum=st.integers(0, 2**16 - 1), isn=st.integers(0, 2**32 - 1))
def test_any_tcp_checksum_is_updated_and_not_computed(switch: Rig, checksum: int, isn: int) -> None:
    open_flow(switch, isn)
    frame = bytearray(segment(isn + 1, b"payload"))
    frame[14 + 20 + 16 : 14 + 20 + 18] = checksum.to_bytes(2, "big")
    assert_replicated(switch.send(A.port, bytes(frame)), bytes(frame), 1)


@examples(15)
@given(checksum=st.integers(0, 2**16 - 1))
def test_any_ip_checksum_is_updated_and_not_computed(switch: Rig, checksum: int) -> None:
    open_flow(switch, 5)
    frame = bytearray(segment(6, b"payload"))
    frame[14 + 10 : 14 + 12] = checksum.to_bytes(2, "big")
    assert_replicated(switch.send(A.port, bytes(frame)), bytes(frame), 1)


def test_a_damaged_ip_header_stays_damaged(switch: Rig) -> None:
    open_flow(switch, 5)
    for place in (1, 2, 4, 8, 10, 11):  # ECN, length, identification, TTL, checksum
        frame = bytearray(segment(6, b"payload"))
        frame[14 + place] ^= 1
        assert_replicated(switch.send(A.port, bytes(frame)), bytes(frame), 1)
        assert checksums_hold(bytes(frame))[0] is False


def test_every_size(switch: Rig) -> None:
    open_flow(switch, 0xFFFFFFFF)
    for size in SIZES:
        frame = segment(0, bytes((size + i) % 256 for i in range(size - 54)))
        assert len(frame) == size
        assert_replicated(switch.send(A.port, frame), frame, 1)


def test_padding_behind_a_short_segment_is_kept(switch: Rig) -> None:
    for frame, position in ((padded_to(60, syn(8)), 0), (padded_to(64, segment(9)), 1)):
        assert_replicated(switch.send(A.port, frame), frame, position)


def test_tcp_options_of_any_length_are_kept(switch: Rig) -> None:
    for words in range(11):
        options: list[tuple[str, Any]] = [("SAckOK", b""), ("NOP", None), ("NOP", None)] * words
        for position, flags in ((0, "S"), (1, "A")):
            frame = segment(100 + position, b"payload", flags=flags, options=options)
            assert frame[14 + 20 + 12] >> 4 == 5 + words
            assert_replicated(switch.send(A.port, frame), frame, position)


def test_a_tcp_header_length_that_lies_is_the_receivers_to_judge(switch: Rig) -> None:
    open_flow(switch, 3)
    for words in (0, 4, 15):
        frame = bytearray(segment(4, b"payload"))
        frame[14 + 20 + 12] = words << 4
        assert_replicated(switch.send(A.port, bytes(frame)), bytes(frame), 1)


def test_vlan_tagged_segments_keep_their_tag(switch: Rig) -> None:
    for seq, flags, tag in (
        (1, "S", VLAN_TAG),
        (2, "A", VLAN_TAG),
        (3, "A", b"\x81\0\0\0"),
        (4, "A", b"\x81\0\xff\xff"),
    ):
        frame = tagged(segment(seq, b"data", flags=flags), tag)
        assert_replicated(switch.send(A.port, frame), frame, seq - 1)
    untagged = segment(5, b"data")
    assert_replicated(switch.send(A.port, untagged), untagged, 4)


def test_segments_that_are_cut_short_behind_the_header_are_replicated(switch: Rig) -> None:
    open_flow(switch, 1)
    frame = segment(2, b"payload", options=[("Timestamp", (1, 2)), ("NOP", None), ("NOP", None)])
    for length in range(14 + 20 + 20, len(frame)):
        assert_replicated(switch.send(A.port, frame[:length]), frame[:length], 1)
    assert switch.reasons() == {NotReplicated.NONE: 1 + len(frame) - 54}
    assert switch.send(A.port, frame[:53]).packets == {B.port: [frame[:53]]}
