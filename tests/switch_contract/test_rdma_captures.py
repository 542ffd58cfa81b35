"""RoCEv2 captures through every switch: the shadow gets what its queue pairs carry, and decodes the same tensors."""

from __future__ import annotations

from hashlib import sha256

import pytest

from capture.model import LINKTYPE_ETHERNET, Packet
from controlplane.desired import desired_state
from p4src.constants import NotReplicated
from p4src.names import Table
from rocev2.encode import Traffic, encode, to_packets
from rocev2.report import AllReduce, DecodedCapture, decode
from tests.switch_contract.rdma_captures import FOLDER, SHADOW_PORT, Wiring, names, packets_of, truth
from tests.switch_contract.rig import Rig

NAMES = names() or [pytest.param("", marks=pytest.mark.skip(reason="the captures of real NICs are not here"))]


def decoded(packets: list[Packet]) -> DecodedCapture:
    return decode(packets, use_p2p=True, dtype=None, file="x")


def told(item: AllReduce) -> tuple[object, ...]:
    """Return all that must not depend on where the packets were seen."""
    return (
        item.ranks, item.channels, item.protocol, item.elements, item.covered.tobytes(), item.data, item.missing_psn,
        item.conflicts, item.from_p2p, item.complete,
    )  # fmt: skip


def through(switch: Rig, packets: list[Packet]) -> tuple[Wiring, list[Packet]]:
    """Send a capture through the switch; check every frame that leaves it, and return what the shadow gets."""
    wiring = Wiring.of(packets)
    switch.install(desired_state([wiring.job]))
    live: list[Packet] = []
    for packet in packets:
        frame = packet.data
        port = wiring.ports.get(frame[6:12])
        if port is None or not switch.carries(frame):
            continue
        outcome = switch.send(port, frame)
        assert outcome.packets == wiring.expected(frame), f"packet {packet.number}"
        assert outcome.digests == []
        for replica in outcome.packets.get(SHADOW_PORT, []):
            number = len(live) + 1
            live.append(Packet(number, packet.time_ns, replica, len(replica), 0, LINKTYPE_ETHERNET, 0))
    return wiring, live


def check_counters(switch: Rig, wiring: Wiring, live: list[Packet]) -> None:
    """Each replica was counted at its queue pair's entry and at the shadow's."""
    counters = switch.counters().entries
    by_table = {
        table: sum(count.packets for key, count in counters.items() if table in key)
        for table in (Table.REPLICATE_RDMA_IPV4, Table.REPLICATE_RDMA_IPV6, Table.SHADOW)
    }
    assert by_table[Table.REPLICATE_RDMA_IPV4] + by_table[Table.REPLICATE_RDMA_IPV6] == len(live)
    assert by_table[Table.SHADOW] == len(live)
    assert set(switch.reasons()) <= {NotReplicated.NONE, NotReplicated.UNKNOWN_DESTINATION, NotReplicated.UNTAGGED}


@pytest.mark.parametrize("name", NAMES)
def test_captures_of_real_nics(running: Rig, name: str) -> None:
    packets = packets_of(FOLDER / name)
    wiring, live = through(running, packets)
    check_counters(running, wiring, live)
    direct, shadow = decoded(packets), decoded(live)
    assert [told(item) for item in shadow.all_reduces] == [told(item) for item in direct.all_reduces]
    found = [(item.elements, int(item.covered.sum()), digest(item)) for item in shadow.all_reduces]
    expected = [(t["elements"], t["covered"], t.get("sha256_le_bytes")) for t in truth(name)["reduced_tensors"]]
    whole = [(elements, covered, sha if covered == elements else None) for elements, covered, sha in expected]
    assert found == whole


ENCODED = {
    "three ranks over IPv4, two channels, PSNs wrap": Traffic(
        ranks=3, channels=2, ipv6=False, buckets=(3000, 700), first_psn=(1 << 24) - 7
    ),
    "five ranks over IPv6, fp16, tagged": Traffic(ranks=5, dtype="float16", buckets=(4000,), vlans=(42,)),
    "two ranks, p2p": Traffic(ranks=2, dtype="bfloat16", buckets=(5000,), p2p=True, mtu=4096),
}


@pytest.mark.parametrize("what", ENCODED)
def test_captures_of_our_own_making(running: Rig, what: str) -> None:
    made = encode(ENCODED[what])
    packets = to_packets(made.packets)
    wiring, live = through(running, packets)
    check_counters(running, wiring, live)
    assert len(live) == len(packets)
    assert [item.data for item in decoded(live).all_reduces if item.complete] == made.tensors


def test_what_is_lost_before_the_switch_is_missing_behind_it_too(running: Rig) -> None:
    packets = to_packets(encode(Traffic(ranks=2, buckets=(6000,))).packets)
    kept = [packet for packet in packets if packet.number % 17]
    _, live = through(running, kept)
    direct, shadow = decoded(kept).all_reduces, decoded(live).all_reduces
    assert [told(item) for item in shadow] == [told(item) for item in direct]
    assert [item.complete for item in shadow] == [False]
    assert shadow[0].missing_psn


def digest(item: AllReduce) -> str | None:
    return sha256(item.data).hexdigest() if item.complete else None
