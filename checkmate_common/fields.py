"""Types of single fields of a job file, each with the error message for an invalid value."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

_MAC = re.compile(r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")


def _check_mac(value: str) -> str:
    mac = value.strip().lower().replace("-", ":")
    if not _MAC.match(mac):
        raise ValueError("expected a MAC address such as 02:00:00:00:00:01")
    if int(mac[:2], 16) & 1:
        raise ValueError("expected a unicast MAC address (the first byte is even)")
    return mac


def _check_dscp(value: int) -> int:
    if value & 0b11 != 0b11:
        raise ValueError(
            "expected a codepoint of pool 2 (xxxx11: 3, 7, 11, ... 63), which RFC 2474 reserves for local use"
        )
    return value


def listed_ports(value: Any) -> Any:
    """Return a list of ports unchanged, and a number n as 1..n."""
    # `ports: 10` is short for ports 1..10. A number that is too large is refused as a port, not expanded.
    if isinstance(value, int) and not isinstance(value, bool):
        return list(range(1, value + 1)) if value <= MAX_PORT else [value]
    return value


def check_address(value: Any) -> Any:
    """Return `value` as an IP address; ValueError if it is not the address of one host."""
    # Not from a number, which pydantic would accept: YAML reads an address such as 1:2:3:4:5:6:7:8 as a number.
    if isinstance(value, IPv4Address | IPv6Address):
        return value
    try:
        if not isinstance(value, str):
            raise ValueError
        address = ip_address(value.strip())
    except ValueError:
        raise ValueError(
            "expected an IPv4 or IPv6 address such as 10.0.0.1 or fe80::1, in quotes if necessary"
        ) from None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise ValueError(
            "expected an address without a zone, which is not on the wire; remove % and everything after it"
        )
    if address.is_multicast or address.is_unspecified:
        raise ValueError("expected the address of one host")
    return address


Mac = Annotated[str, AfterValidator(_check_mac)]
"""Unicast MAC address, lower case with colons."""
Dscp = Annotated[int, Field(ge=0, le=63), AfterValidator(_check_dscp)]
"""Differentiated-services codepoint of pool 2."""
NAME_PATTERN = "[A-Za-z][A-Za-z0-9_-]{0,31}"
"""Regular expression of a `Name`."""
Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
"""Letters, digits, ``-`` and ``_``, beginning with a letter, at most 32."""
MAX_PORT = 510
"""Largest port number of a switch; 511 is BMv2's drop port."""
SwitchPort = Annotated[int, Field(ge=1, le=MAX_PORT)]
"""Port number of a switch."""


Address = Annotated[IPv4Address | IPv6Address, BeforeValidator(check_address)]
"""Unicast IPv4 or IPv6 address."""


class Strict(BaseModel):
    """Base of every part of a job: frozen, and a misspelled key is refused."""

    # extra="forbid": a misspelled key is an error with its line, not silently ignored.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
