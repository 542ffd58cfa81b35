"""What a decoder may and must find, from the encoder's own record of where each packet's bytes belong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocev2.dtypes import canonical, itemsize
from rocev2.encode import Capture, Encoded, to_packets
from rocev2.report import AllReduce, DecodedCapture, decode


def run(capture: Capture, packets: Sequence[Encoded], use_p2p: bool = False) -> DecodedCapture:
    traffic = capture.traffic
    return decode(to_packets(packets), use_p2p=use_p2p, dtype=traffic.dtype, file="x", bucket_elements=traffic.buckets)


def shown(capture: Capture, packets: Sequence[Encoded], use_p2p: bool = False) -> list[NDArray[np.bool_]]:
    """Return which elements of each tensor the packets carry in reduced form."""
    size = itemsize(canonical(capture.traffic.dtype))
    masks = [np.zeros(len(tensor), np.bool_) for tensor in capture.tensors]
    for packet in packets:
        if packet.shown is not None and (use_p2p or not packet.p2p):
            masks[packet.shown.all_reduce][packet.shown.start : packet.shown.stop] = True
    return [mask.reshape(-1, size).all(axis=1) for mask in masks]


def rows(data: bytes, size: int) -> NDArray[Any]:
    return np.frombuffer(data, np.uint8).reshape(-1, size)


def assert_exact(capture: Capture, packets: Sequence[Encoded], use_p2p: bool = False) -> DecodedCapture:
    """Assert that exactly the elements that the packets carry are covered, and right."""
    found = run(capture, packets, use_p2p)
    size = itemsize(canonical(capture.traffic.dtype))
    assert [item.elements * size for item in found.all_reduces] == [len(tensor) for tensor in capture.tensors]
    for item, mask, tensor in zip(found.all_reduces, shown(capture, packets, use_p2p), capture.tensors, strict=True):
        assert np.array_equal(item.covered, mask), (item.index, item.missing_elements)
        assert np.array_equal(rows(item.data, size)[mask], rows(tensor, size)[mask])
        assert item.complete == bool(mask.all())
        assert item.tensor == (tensor if mask.all() else None)
    return found


def assert_no_wrong_element(capture: Capture, packets: Sequence[Encoded]) -> DecodedCapture:
    """Assert that whatever is covered is right, and was on the wire in the packets of that all-reduce."""
    found = run(capture, packets)
    masks = shown(capture, packets)
    for item in found.all_reduces:
        assert _which(capture, packets, item, masks) is not None, f"{item.index} holds elements that belong nowhere"
    return found


def _which(capture: Capture, packets: Sequence[Encoded], item: AllReduce, masks: list[NDArray[np.bool_]]) -> int | None:
    """Return the all-reduce that has all elements that `item` covers, looking first at those of its packets."""
    size = itemsize(canonical(capture.traffic.dtype))
    within = packets[item.first_packet - 1 : item.last_packet]
    votes = Counter(packet.shown.all_reduce for packet in within if packet.shown is not None)
    for index in (*[vote for vote, _ in votes.most_common()], *range(len(capture.tensors))):
        tensor = rows(capture.tensors[index], size)
        count = len(tensor)
        if item.elements not in (count, -(-count * size // 8) * 8 // size):  # LL sends whole lines of 8 bytes
            continue
        covered = item.covered[:count]
        if not (covered & ~masks[index]).any() and np.array_equal(
            rows(item.data, size)[:count][covered], tensor[covered]
        ):
            return index
    return None
