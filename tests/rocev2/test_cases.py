"""Captures of other NCCL versions, and of every opcode: control writes, names, PSNs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from capture.reader import open_capture
from rocev2.report import DecodedCapture, decode

LAYOUTS = "nccl-control-layouts"
BUCKETS = (20000, 7001)


def found_in(path: Path) -> DecodedCapture:
    with open_capture(path) as reader:
        return decode(reader, use_p2p=True, dtype="float32", file="x", bucket_elements=BUCKETS)


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("ring2-nccl-2.18.pcap", "ring2-truth.json"),
        ("ring2-nccl-2.24.pcap", "ring2-truth.json"),
        ("ring3-nccl-2.30.pcap", "ring3-nccl-2.30.pcap.truth.json"),
    ],
)
def test_both_directions_with_control_writes_of_any_version(
    shared: Callable[[str, str], Path], name: str, truth: str
) -> None:
    found = found_in(shared("cases", f"{LAYOUTS}/{name}"))
    assert [item.sha256 for item in found.all_reduces] == json.loads(shared("cases", f"{LAYOUTS}/{truth}").read_text())[
        "sha256"
    ]
    assert {message.kind for message in found.messages} <= {"LL", "control", "empty"}
    assert (found.p2p, found.open, found.unresolved, found.notes) == ((), 0, 0, ())
    assert {pair.role for pair in found.queue_pairs} == {"LL", "control"}


@pytest.mark.parametrize("version", ["2.18", "2.24"])
def test_one_direction_with_control_writes_of_any_version(shared: Callable[[str, str], Path], version: str) -> None:
    part = found_in(shared("cases", f"{LAYOUTS}/ring2-nccl-{version}-one-direction.pcap"))
    whole = found_in(shared("cases", f"{LAYOUTS}/ring2-nccl-{version}.pcap"))
    assert (part.p2p, part.open, part.unresolved, part.notes) == ((), 0, 0, ())
    assert [item.elements for item in part.all_reduces] == [20000, 7001] * 2
    for item, other in zip(part.all_reduces, whole.all_reduces, strict=True):
        assert 0.4 < item.covered.mean() < 0.7  # rank 0 sends chunk 0 of each loop in reduced form
        assert np.array_equal(item.to_numpy()[item.covered], other.to_numpy()[item.covered])
        assert item.missing_psn == ()


def test_every_opcode_has_its_name_and_takes_its_psns(shared: Callable[[str, str], Path]) -> None:
    found = found_in(shared("cases", "rocev2-opcodes/ops.pcap"))
    assert found.marks == {
        "nak": 1, "rnr_nak": 1, "ud_qp1": 2, "cnp": 1, "unknown opcode 0x1f": 1, "vendor opcode 0xc5": 1,
    }  # fmt: skip
    pairs = {pair.dest_qp: pair for pair in found.queue_pairs}
    assert pairs[17].opcodes == {
        "SEND_ONLY": 1, "SEND_ONLY_IMM": 1, "WRITE_FIRST": 2, "WRITE_MIDDLE": 2, "WRITE_LAST": 2, "WRITE_ONLY": 1,
        "WRITE_ONLY_IMM": 1, "READ_REQUEST": 1, "COMPARE_SWAP": 1, "FETCH_ADD": 1, "SEND_LAST_INV": 1,
        "SEND_ONLY_INV": 1,
    }  # fmt: skip
    assert pairs[17].lost == ((11, 19),)
    assert (pairs[17].duplicates, pairs[17].role) == (1, "plain")
    assert pairs[18].opcodes == {"ACK": 3, "READ_RESPONSE_FIRST": 1, "READ_RESPONSE_LAST": 1, "ATOMIC_ACK": 1}
    assert (pairs[18].lost, pairs[18].role) == ((), "acknowledgements")
    assert pairs[211].opcodes == {"UC_SEND_ONLY": 1}
    assert pairs[211].role == "requests"
