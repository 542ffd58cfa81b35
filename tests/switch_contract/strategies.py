"""Random states and frames for the differential fuzz: mostly what real traffic looks like, then damaged.

Values come from small pools, so that frames meet entries, entries share flows and groups, and connections follow each
other. What is left out because BMv2 differs there is in docs/bmv2-quirks.md under these names: flow ids from 1024 on
("register-bounds"; 1023 is the marks'), groups from 32768 on ("wide-groups"), copies to ports from 512 on
("wide-ports").
"""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from controlplane.entities import Entity, MulticastGroup, Replica, SwitchState, TableEntry
from p4src.constants import FLOOD_GROUP
from p4src.names import Action, MatchField, Param, Table
from tests.switch_contract.scenario import Phase, Probe, Scenario
from tests.switch_contract.wire import fits

PORTS = tuple(range(1, 7))
ODD_PORTS = (0, 7, 300, 510, 511)
"""No interface, and v1model's drop port."""
MACS = tuple(0x0200_0000_0100 + number for number in range(6))
IPS = (0x0A00000A, 0x0A00000B, 0x0A00000C)
IP6S = (0xFD00 << 112 | 0xA, 0xFD00 << 112 | 0xB)
DSTS = (4000, 4001)
SPORTS = (40000, 40000, 40000, 40001, 0)
DSCPS = (3, 7, 0)
FLOWS = (0, 5, 6, 1022)
GROUPS = (1, 2, 3, FLOOD_GROUP)
NO_GROUPS = (0, 4444, 0xFFFF)
RIDS = (0, 1, 2, 0xFFFF)
QPS = (17, 0xFFFFFF)
ISNS = (0, 1000, 0x7FFFFFFF, 0xFFFFFFFF)

KINDS = ("flow",) * 9 + ("tcp", "rdma", "rdma", "rdma6", "rdma6", "udp", "ip", "ip6", "other")
"""Of frames; "flow" is a segment of one of the state's flows."""
MAX_FRAMES = 40
MAX_BYTES = 9014


def mostly(common: tuple[int, ...], rare: tuple[int, ...]) -> st.SearchStrategy[int]:
    """Return a strategy that draws from `common` nine times out of ten."""
    return st.integers(0, 9).flatmap(lambda pick: st.sampled_from(rare if pick == 7 else common))


def most_of(values: tuple[int, ...]) -> st.SearchStrategy[list[int]]:
    """Return a strategy for `values` without up to two of them."""
    return st.sets(st.sampled_from(values), max_size=2).map(lambda out: [value for value in values if value not in out])


OUT_PORTS = mostly(PORTS, ODD_PORTS)
TO_GROUPS = mostly(GROUPS, NO_GROUPS)
COPIES = st.tuples(mostly(PORTS, (0, 7, 300, 510)), st.sampled_from(RIDS))


@st.composite
def states(draw: st.DrawFn) -> SwitchState:
    """Draw what a switch holds; no two entities have one key."""
    entities: list[Entity] = []
    for mac in draw(most_of(MACS)):
        where = {Param.PORT: draw(OUT_PORTS)}
        entities.append(TableEntry.make(Table.L2_FORWARD, {MatchField.DST_ADDR: mac}, Action.SET_PORT, where))
    for port in draw(st.sets(st.sampled_from((4, 5, 300)), max_size=2)):
        entities.append(TableEntry.make(Table.SHADOW_PORTS, {MatchField.INGRESS_PORT: port}, Action.DROP_FROM_SHADOW))
    for rid in draw(most_of(RIDS)):
        address = {
            Param.MAC: draw(st.sampled_from(MACS) | st.integers(0, 2**48 - 1)),
            Param.IP: draw(st.sampled_from(IPS) | st.integers(0, 2**32 - 1)),
            Param.BASE_PORT: draw(st.sampled_from((20000, 0, 0xFFFF))),
        }
        entities.append(TableEntry.make(Table.SHADOW, {MatchField.RID: rid}, Action.TO_SHADOW, address))
    for number in draw(most_of(GROUPS)):
        copies = draw(
            st.sets(st.tuples(mostly(PORTS, (0, 7, 300, 510)), st.sampled_from(RIDS)), min_size=1, max_size=5)
        )
        entities.append(MulticastGroup(number, frozenset(Replica(port, rid) for port, rid in copies)))
    entities += draw(_flows())
    entities += draw(_queue_pairs(Table.REPLICATE_RDMA_IPV4, Action.REPLICATE_QP_IPV4, IPS))
    entities += draw(_queue_pairs(Table.REPLICATE_RDMA_IPV6, Action.REPLICATE_QP_IPV6, IP6S))
    return SwitchState.of(entities)


@st.composite
def _flows(draw: st.DrawFn) -> list[Entity]:
    found: list[Entity] = []
    key = st.tuples(st.sampled_from(IPS), st.sampled_from(IPS), st.sampled_from(DSTS), st.sampled_from(DSCPS))
    for source, target, port, dscp in draw(st.sets(key, min_size=2, max_size=5)):
        match = {
            MatchField.SRC_ADDR: source,
            MatchField.DST_ADDR: target,
            MatchField.DST_PORT: port,
            MatchField.DSCP: dscp,
        }
        params = {Param.FLOW_ID: draw(st.sampled_from(FLOWS)), Param.GROUP: draw(TO_GROUPS)}
        found.append(TableEntry.make(Table.REPLICATE, match, Action.REPLICATE_FLOW, params))
    for flow, port in draw(st.sets(st.tuples(st.sampled_from(FLOWS), st.sampled_from(SPORTS)), max_size=3)):
        base = {MatchField.FLOW_ID: flow, MatchField.SRC_PORT: port}
        isn = {Param.ISN: draw(st.sampled_from(ISNS))}
        found.append(TableEntry.make(Table.FLOW_BASE, base, Action.SET_ISN, isn))
    return found


@st.composite
def _queue_pairs(draw: st.DrawFn, table: Table, action: Action, addresses: tuple[int, ...]) -> list[Entity]:
    key = st.tuples(st.sampled_from(addresses), st.sampled_from(addresses), st.sampled_from(QPS))
    return [
        TableEntry.make(
            table,
            {MatchField.SRC_ADDR: source, MatchField.DST_ADDR: target, MatchField.DESTINATION_QP: qp},
            action,
            {Param.GROUP: draw(TO_GROUPS)},
        )
        for source, target, qp in draw(st.sets(key, max_size=3))
    ]


@st.composite
def probes(draw: st.DrawFn, state: SwitchState) -> Probe:
    """Draw a port and a frame."""
    kind = draw(st.sampled_from(KINDS))
    port = draw(st.sampled_from((*PORTS, 1, 2, 3)))
    frame = _ethernet(draw, kind, state)
    size = len(frame)
    damage = draw(st.sampled_from(("none",) * 24 + ("flip", "cut", "cut", "longer", "random")))
    if damage == "flip":
        changed = bytearray(frame)
        for bit in draw(st.sets(st.integers(0, 8 * min(size, 90) - 1), min_size=1, max_size=4)):
            changed[bit // 8] ^= 1 << bit % 8
        frame = bytes(changed)
    elif damage == "cut":
        frame = frame[: draw(st.integers(14, size))]
    elif damage == "longer":
        frame = frame[: MAX_BYTES - 64] + bytes(draw(st.integers(1, 64)))
    elif damage == "random":
        place = draw(st.integers(0, size - 1))
        frame = frame[:place] + draw(st.binary(min_size=1, max_size=40)) + frame[place + 8 :]
        frame = frame[:MAX_BYTES]
    # What a kernel would not bring to the switch has no outcome to compare.
    return port, frame if fits(frame) else frame.ljust(20, b"\0")


def _ethernet(draw: st.DrawFn, kind: str, state: SwitchState) -> bytes:
    target = draw(mostly(MACS, (0xFFFFFFFFFFFF, 0x01005E000001, 0x020000000999)))
    tag: bytes = draw(st.sampled_from((b"",) * 6 + (b"\x81\x00\x60\x05", b"\x88\xa8\x00\x05\x81\x00\x00\x06")))
    addresses = target.to_bytes(6, "big") + draw(st.sampled_from(MACS)).to_bytes(6, "big")
    if kind == "other":
        ether_type = draw(st.sampled_from((0x0806, 0x88F7, 0x0040, 0x0800, 0x86DD, 0x8100)))
        return addresses + tag + struct.pack("!H", ether_type) + draw(st.binary(max_size=80))
    if kind in ("rdma6", "ip6"):
        return addresses + tag + b"\x86\xdd" + _ipv6(draw, kind)
    return addresses + tag + b"\x08\x00" + _ipv4(draw, kind, state)


def _ipv4(draw: st.DrawFn, kind: str, state: SwitchState) -> bytes:
    source, target = draw(st.sampled_from(IPS)), draw(st.sampled_from(IPS))
    port, dscp = draw(st.sampled_from((*DSTS, 4791, 80))), draw(st.sampled_from((*DSCPS, 63)))
    if kind == "flow":
        entry = draw(st.sampled_from(state.table(Table.REPLICATE)))
        source, target = entry.field(MatchField.SRC_ADDR), entry.field(MatchField.DST_ADDR)
        port, dscp = entry.field(MatchField.DST_PORT), entry.field(MatchField.DSCP)
    protocol = {"flow": 6, "tcp": 6, "rdma": 17, "udp": 17}.get(kind)
    if protocol is None:
        protocol = draw(st.sampled_from((1, 6, 17, 47)))
    data = _tcp(draw, port) if protocol == 6 else _udp(draw, 4791 if kind == "rdma" else port)
    options: bytes = b"\x01" * draw(st.sampled_from((0,) * 38 + (4, 40)))
    fragment = draw(st.sampled_from((0x4000,) * 35 + (0, 0x8000, 0x2000, 0x0001, 0x3FFF)))
    head = struct.pack(
        "!BBHHHBBHII",
        0x45 + len(options) // 4,
        dscp << 2 | draw(st.integers(0, 3)),
        20 + len(options) + len(data),
        draw(st.sampled_from((0, 7, 0xFFFF))),
        fragment,
        draw(st.sampled_from((64, 1, 0))),
        protocol,
        draw(st.sampled_from((0, 0xFFFF, 0x1234, 0xBEEF))),
        source,
        target,
    )
    return head + options + data


def _ipv6(draw: st.DrawFn, kind: str) -> bytes:
    protocol = 17 if kind == "rdma6" else draw(st.sampled_from((6, 17, 0, 44)))
    data = _tcp(draw, 4000) if protocol == 6 else _udp(draw, 4791 if kind == "rdma6" else 4000)
    addresses = draw(st.sampled_from(IP6S)).to_bytes(16, "big") + draw(st.sampled_from(IP6S)).to_bytes(16, "big")
    return struct.pack("!IHBB", 0x6 << 28, len(data), protocol, 64) + addresses + data


def _tcp(draw: st.DrawFn, port: int) -> bytes:
    seq = (draw(st.sampled_from(ISNS)) + draw(st.sampled_from((0, 0, 1, 2, 1449, 0x80000000)))) % 2**32
    options = bytes(range(1, 4 * draw(st.sampled_from((0, 0, 0, 3, 10))) + 1))
    flags = draw(st.sampled_from((0x02, 0x02, 0x02, 0xC2, 0x12, 0x10, 0x10, 0x10, 0x18, 0x11, 0x04, 0x3D, 0x00)))
    return (
        struct.pack(
            "!HHIIBBHHH",
            draw(st.sampled_from(SPORTS)),
            port,
            seq,
            draw(st.sampled_from((0, 99, 0xFFFFFFFF))),
            (5 + len(options) // 4) << 4,
            flags,
            0xFFFF,
            draw(st.sampled_from((0, 0xFFFF, 0x1234)) | st.integers(0, 0xFFFF)),
            0,
        )
        + options
        + _payload(draw)
    )


def _udp(draw: st.DrawFn, port: int) -> bytes:
    transport = struct.pack("!BBHIII", 10, 0, 0xFFFF, draw(st.sampled_from((*QPS, 18))), 5, 0)[:12]
    data = transport + _payload(draw)
    return struct.pack("!HHHH", 1234, port, 8 + len(data), draw(st.sampled_from((0, 0xBEEF)))) + data


def _payload(draw: st.DrawFn) -> bytes:
    size = draw(st.sampled_from((0, 0, 0, 1, 6, 7, 46, 100)) | st.integers(0, 8800))
    first = draw(st.integers(0, 255))
    block = bytes((first + step) & 0xFF for step in range(251))
    return (block * (size // 251 + 1))[:size]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Draw one or two phases of up to `MAX_FRAMES` frames."""
    phases: list[Phase] = []
    for _ in range(draw(st.sampled_from((1, 2)))):
        state = draw(states())
        count = draw(st.integers(1, MAX_FRAMES))
        phases.append(Phase(state, tuple(draw(probes(state)) for _ in range(count))))
    return Scenario(tuple(phases))
