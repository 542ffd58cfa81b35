"""JSON documents that are checked before they are believed: a checksum over every byte, and a bound on what they hold.

The checksum is the document's last member, ``"sha256"``: that of all bytes before its comma.
"""

from __future__ import annotations

import hashlib
import re

MAX_BYTES = 64 << 20
"""Longest document that is parsed."""
MAX_VALUES = 2_000_000
"""Most values in one: Python's objects take a hundred times the bytes of the shortest."""
_END = re.compile(r',"sha256":"([0-9a-f]{64})"\}')
_END_LENGTH = len(',"sha256":""}') + 64


def with_checksum(text: str) -> str:
    """Return a JSON object, which is not empty, with its checksum.

    Raises:
        ValueError: it is larger than a reader takes.
    """
    body = text.removesuffix("}")
    sealed = f'{body},"sha256":"{hashlib.sha256(body.encode()).hexdigest()}"}}'
    check_bounds(sealed)
    return sealed


def without_checksum(text: str) -> tuple[str, bool]:
    """Return a JSON object without its checksum, and whether it had one: then all of it is as it was written.

    Raises:
        ValueError: the checksum is wrong, or the text is larger than any document that is written.
    """
    check_bounds(text)
    found = _END.fullmatch(text[-_END_LENGTH:])
    if found is None:
        return text, False
    body = text[:-_END_LENGTH]
    if hashlib.sha256(body.encode()).hexdigest() != found[1]:
        raise ValueError("is damaged: its checksum is wrong")
    return body + "}", True


def check_bounds(text: str) -> None:
    """Refuse a document that would take much memory, before it is parsed.

    Raises:
        ValueError: it is too long, or has too many values.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"has {len(text)} characters, expected at most {MAX_BYTES}")
    if (values := sum(map(text.count, ",[{"))) > MAX_VALUES:
        raise ValueError(f"has {values} values, expected at most {MAX_VALUES}")
