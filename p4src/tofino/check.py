"""Check that the emitted parsers find the same headers as the source's parsers, by executing them on packets."""

from __future__ import annotations

from p4src.tofino.emitted_parser import EmittedParserError, read_parsers
from p4src.tofino.expected import cases

_REPLICA_TCP = 0x40
"""Bit of the bridge header's fifth byte (`tna/checkmate.p4`: flooded, replica_tcp, padding, ingress port)."""


def parser_problems(assembly: str) -> list[str]:
    """Return the differences between the parsers in the text of a ``.bfa`` file and the source's, one sentence each.

    Every path through the parsers is tried, and other values of each field that a `select` reads: a lost `select`, or a
    lost case of one, changes which headers are found.
    """
    try:
        parsers = read_parsers(assembly)
        ingress, egress = parsers["ingress"], parsers["egress"]
        front = bytes(ingress.offset_of("hdr.packet.ethernet.dst_addr"))
        behind = egress.offset_of("hdr.packet.ethernet.dst_addr")
        bridge = egress.offset_of("hdr.bridge.replica_tcp")
        problems: list[str] = []
        for case in cases():
            found = _packet_headers(ingress.walk(front + case.packet()).headers)
            if found != case.ingress_headers():
                problems.append(_difference("ingress", case.name, found, case.ingress_headers()))
            for replica in (False, True):
                metadata = bytearray(behind)
                metadata[bridge] |= _REPLICA_TCP if replica else 0
                found = _packet_headers(egress.walk(bytes(metadata) + case.packet()).headers)
                wanted = case.egress_headers(replica_tcp=replica)
                if found != wanted:
                    what = f"{'replica' if replica else 'original'} of {case.name}"
                    problems.append(_difference("egress", what, found, wanted))
    except EmittedParserError as error:
        return [str(error)]
    return problems


def _packet_headers(headers: frozenset[str]) -> frozenset[str]:
    return frozenset(name.rsplit(".", 1)[1] for name in headers if name.startswith("hdr.packet."))


def _difference(direction: str, what: str, found: frozenset[str], wanted: frozenset[str]) -> str:
    return f"{direction} parser, {what}: finds {', '.join(sorted(found))}; expected {', '.join(sorted(wanted))}"
