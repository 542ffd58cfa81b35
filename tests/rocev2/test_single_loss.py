"""Any one packet lost from traffic of our own making: exactly its elements are missing, and its PSN is named."""

from __future__ import annotations

from typing import Any

import pytest

from rocev2.encode import Traffic, encode
from rocev2.faults import lose
from rocev2.opcodes import ACKNOWLEDGE
from tests.rocev2.oracle import assert_exact, assert_no_wrong_element

CASES: dict[str, dict[str, Any]] = {
    "two ranks": {"buckets": (3000,)},
    "two channels": {"channels": 2, "buckets": (4100,)},
    "three ranks, two buckets": {"ranks": 3, "buckets": (3300, 700)},
    "four ranks, two channels": {"ranks": 4, "channels": 2, "buckets": (1300,)},
    "halves": {"dtype": "float16", "buckets": (5000, 332)},
    "bfloat16": {"dtype": "bfloat16", "buckets": (4400,)},
    "doubles": {"dtype": "float64", "buckets": (900,), "ranks": 3},
    "PSN wraps": {"first_psn": (1 << 24) - 20, "buckets": (1500,), "steps": 3, "dtype": "int32"},
    "sizes follow": {"late_sizes": True, "buckets": (2500,)},
    "NIC splits messages": {"late_sizes": True, "split": True, "buckets": (2500,)},
    "broadcasts before": {"prologue": (2, 8, 1500), "buckets": (1500,)},
    "large packets": {"mtu": 4096, "buckets": (5000,)},
    "equal chunks": {"ranks": 3, "buckets": (3072,), "steps": 2, "prologue": (1500,)},
    "two loops": {"buckets": (17000,), "mtu": 4096},
    "IPv4 in VLANs": {"ipv6": False, "vlans": (100, 7), "buckets": (1100,)},
    "p2p": {"p2p": True, "steps": 2, "buckets": (1500,)},
}


@pytest.mark.parametrize("case", CASES)
def test_exactly_its_elements_are_missing(case: str) -> None:
    capture = encode(Traffic(**CASES[case]))
    assert_exact(capture, capture.packets, capture.traffic.p2p)
    for place, packet in enumerate(capture.packets):
        found = assert_exact(capture, lose(capture.packets, [place]), capture.traffic.p2p)
        lost = packet.sent.packet
        named = [m for item in found.all_reduces for m in item.missing_psn]
        assert {(m.dest_qp, m.first, m.last) for m in named} <= {(lost.dest_qp, lost.psn, lost.psn)}
        if packet.shown is not None and not packet.p2p:
            assert len(named) == 1
        if lost.opcode == ACKNOWLEDGE:
            assert not named


def test_equal_chunks_whose_phase_cannot_be_told_are_refused() -> None:
    """The first step of a flow is lost whole, and all chunks are equal: raw and reduced data look the same."""
    capture = encode(Traffic(ranks=3, buckets=(3072,), steps=2, prologue=(5,)))
    broadcast = next(n for n, packet in enumerate(capture.packets) if packet.sent.packet.dest_qp == 0x1000)
    while not capture.packets[broadcast].sent.packet.payload:
        broadcast += 1
    found = assert_no_wrong_element(capture, lose(capture.packets, [broadcast]))
    assert found.unresolved
