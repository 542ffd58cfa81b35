"""Other addresses in captured frames, with checksums that stay as right or as wrong as they were.

Checksums are brought up to date from the changed addresses alone (RFC 1624, equation 3), never computed over a payload:
a frame that was damaged when it was captured must not arrive as a sound one.

Rewritten are the Ethernet addresses, the addresses of IPv4 and IPv6 headers and those of ARP. Addresses within other
payloads (neighbour discovery, ICMP errors, tunnels) stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from replay.errors import ReplayError

_VLAN = (0x8100, 0x88A8)
_IPV4, _IPV6, _ARP = 0x0800, 0x86DD, 0x0806
_TCP, _UDP, _ICMPV6 = 6, 17, 58
_FRAGMENT = 44
_EXTENSIONS = (0, 43, _FRAGMENT, 60)
"""Hop-by-hop options, routing, fragment, destination options (RFC 8200, section 4)."""
_CHECKSUM_AT = {_TCP: 16, _UDP: 6, _ICMPV6: 2}
"""Where the checksum that covers the pseudo-header stands; ICMPv6 has it over IPv6 only."""
_ROCEV2_PORT = 4791
_MAC = re.compile(r"[0-9a-f]{2}([:-][0-9a-f]{2}){5}")

ROCE_REASON = "it is RoCEv2, whose iCRC covers the IP addresses: with others every NIC would drop it"


class RoceAddressError(ValueError):
    """An IP address of a RoCEv2 packet would be rewritten."""


@dataclass(frozen=True)
class Rewrite:
    """Which addresses become which others."""

    macs: Mapping[bytes, bytes] = field(default_factory=dict)
    """6 bytes -> 6 bytes."""
    ips: Mapping[bytes, bytes] = field(default_factory=dict)
    """4 bytes -> 4 bytes, 16 bytes -> 16 bytes."""

    @classmethod
    def of(cls, macs: Sequence[str], ips: Sequence[str]) -> Rewrite:
        """Read ``OLD=NEW`` pairs as the command line has them.

        Raises:
            ReplayError: not a pair, no address, two families, or an old address that stands twice; names the option.
        """
        return cls(_pairs("--rewrite-mac", macs, _mac), _pairs("--rewrite-ip", ips, _ip))

    def apply(self, frame: bytes) -> bytes:
        """Return `frame` (Ethernet, from the destination address on) with the new addresses.

        Any bytes are acceptable; what is not there in full is left as it is.

        Raises:
            RoceAddressError: an IP address of a RoCEv2 packet would change.
        """
        if len(frame) < 14:
            return frame
        made = bytearray(frame)
        for at in (0, 6):
            made[at : at + 6] = self.macs.get(frame[at : at + 6], frame[at : at + 6])
        at, kind = 14, int.from_bytes(frame[12:14], "big")
        while kind in _VLAN and len(frame) >= at + 4:
            kind = int.from_bytes(frame[at + 2 : at + 4], "big")
            at += 4
        if kind == _IPV4 and len(frame) >= at + 20:
            self._ipv4(made, at)
        elif kind == _IPV6 and len(frame) >= at + 40:
            self._ipv6(made, at)
        elif kind == _ARP and frame[at : at + 6] == b"\0\x01\x08\0\x06\x04" and len(frame) >= at + 28:
            for mac in (at + 8, at + 18):
                made[mac : mac + 6] = self.macs.get(bytes(made[mac : mac + 6]), made[mac : mac + 6])
            for ip in (at + 14, at + 24):
                made[ip : ip + 4] = self.ips.get(bytes(made[ip : ip + 4]), made[ip : ip + 4])
        return bytes(made)

    def _ipv4(self, made: bytearray, at: int) -> None:
        change = self._addresses(made, at + 12, 4)
        if change is None:
            return
        _update(made, at + 10, change)
        first = int.from_bytes(made[at + 6 : at + 8], "big") & 0x1FFF == 0
        if first and made[at + 9] != _ICMPV6:
            _transport(made, at + 4 * (made[at] & 0xF), made[at + 9], change)

    def _ipv6(self, made: bytearray, at: int) -> None:
        change = self._addresses(made, at + 8, 16)
        if change is None:
            return
        protocol, at = made[at + 6], at + 40
        while protocol in _EXTENSIONS and len(made) >= at + 8:
            if protocol == _FRAGMENT and int.from_bytes(made[at + 2 : at + 4], "big") >> 3:
                return
            length = 8 if protocol == _FRAGMENT else 8 * (made[at + 1] + 1)
            protocol, at = made[at], at + length
        _transport(made, at, protocol, change)

    def _addresses(self, made: bytearray, at: int, size: int) -> int | None:
        """Rewrite source and destination; return the sum of ~old + new as 16-bit words, None where nothing changes."""
        old = bytes(made[at : at + 2 * size])
        new = self.ips.get(old[:size], old[:size]) + self.ips.get(old[size:], old[size:])
        if old == new:
            return None
        made[at : at + 2 * size] = new
        return _words(new) + _words(bytes(byte ^ 0xFF for byte in old))


def _transport(made: bytearray, at: int, protocol: int, change: int) -> None:
    if protocol not in _CHECKSUM_AT:
        return
    if protocol == _UDP and int.from_bytes(made[at + 2 : at + 4], "big") == _ROCEV2_PORT and len(made) >= at + 4:
        raise RoceAddressError(ROCE_REASON)
    place = at + _CHECKSUM_AT[protocol]
    if len(made) < place + 2:
        return
    if protocol == _UDP:
        # No checksum stays none (RFC 768), and one that becomes 0 is written as its other form.
        if made[place : place + 2] == b"\0\0":
            return
        _update(made, place, change)
        if made[place : place + 2] == b"\0\0":
            made[place : place + 2] = b"\xff\xff"
        return
    _update(made, place, change)


def _update(made: bytearray, place: int, change: int) -> None:
    total = (int.from_bytes(made[place : place + 2], "big") ^ 0xFFFF) + change
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    made[place : place + 2] = (total ^ 0xFFFF).to_bytes(2, "big")


def _words(data: bytes) -> int:
    return sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))


def _pairs(option: str, texts: Sequence[str], read: Callable[[str, str], bytes]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for text in texts:
        old, separator, new = (part.strip() for part in text.partition("="))
        example = "02:00:00:00:00:01=02:00:00:00:00:02" if option == "--rewrite-mac" else "10.0.0.1=10.0.0.2"
        if not separator:
            raise ReplayError(f"{option} {text}", "is no pair of addresses", f"write OLD=NEW, e.g. {example}")
        before, after = read(option, old), read(option, new)
        if len(before) != len(after):
            raise ReplayError(f"{option} {text}", "the addresses are of different families", "give two of the same")
        if before in found:
            raise ReplayError(f"{option} {text}", f"{old} is rewritten already", "give each old address once")
        found[before] = after
    return found


def _mac(option: str, text: str) -> bytes:
    if not _MAC.fullmatch(text.lower()):
        raise ReplayError(f"{option} {text}", "is no MAC address", "write it like 02:00:00:00:00:01")
    return bytes.fromhex(re.sub("[:-]", "", text))


def _ip(option: str, text: str) -> bytes:
    try:
        return ip_address(text).packed
    except ValueError:
        raise ReplayError(f"{option} {text}", "is no IP address", "write it like 10.0.0.1 or fd00::1") from None
