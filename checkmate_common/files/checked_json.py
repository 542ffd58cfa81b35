"""JSON documents with a checksum over every byte and limits on their size, both checked before parsing.

The checksum is the document's last member, ``"sha256"``: that of all bytes before its comma.
"""

from __future__ import annotations

import hashlib
import re

MAX_BYTES = 64 << 20
"""Longest document that is parsed."""
MAX_VALUES = 2_000_000
"""Most values in a document: as Python objects the shortest ones take a hundred times their bytes."""
_END = re.compile(r',"sha256":"([0-9a-f]{64})"\}')
_END_LENGTH = len(',"sha256":""}') + 64


def with_checksum(text: str) -> str:
    """Return a non-empty JSON object with its checksum.

    Raises:
        ValueError: it is larger than readers accept.
    """
    body = text.removesuffix("}")
    sealed = f'{body},"sha256":"{hashlib.sha256(body.encode()).hexdigest()}"}}'
    check_bounds(sealed)
    return sealed


def without_checksum(text: str) -> tuple[str, bool]:
    """Return a JSON object without its checksum, and whether it had one, so that every byte is known to be intact.

    Raises:
        ValueError: the checksum is wrong, or the text is too large.
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
    """Refuse a document that would take too much memory, before it is parsed.

    Raises:
        ValueError: it is too long, or has too many values.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"has {len(text)} characters, expected at most {MAX_BYTES}")
    if (values := sum(map(text.count, ",[{"))) > MAX_VALUES:
        raise ValueError(f"has {values} values, expected at most {MAX_VALUES}")
