"""Log segments: what is committed together, as the bytes of one object. Pure functions.

All numbers are little-endian. A segment is a header, records, and a trailer; each of these ends with the CRC32C
(RFC 3720, appendix B.4) of its own bytes:

* header: magic (8), schema (2), zero (2), length of the JSON text (4), JSON text;
* record: kind 1 (1), zero (3), length of the packed JSON text (4), length of the body (8), packed JSON text, body;
* trailer: the same with kind 2, an empty body, and in its text the number of records and the SHA-256 of all bytes
  before it.

JSON texts of records are packed with zlib: they repeat names. The trailer is the commit marker: a segment without one
is torn, and what it holds was never said to be durable.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobspec.frame import crc32c

MAGIC = b"CKMTLOG1"
SCHEMA = 1
_HEADER = struct.Struct("<8sHHI")
_RECORD = struct.Struct("<B3xIQ")
_CRC = struct.Struct("<I")
_STEP, _TRAILER = 1, 2
_MAX_TEXT = 256 << 20
"""Longest JSON text that is unpacked: a damaged or hostile one must not fill the memory."""


class SegmentDamage(ValueError):
    """Bytes of a segment that are not as they were written; the message says what and where."""


@dataclass(frozen=True)
class Record:
    """One record of a segment."""

    text: Mapping[str, Any]
    """Its JSON object."""
    body: memoryview
    """Its bytes."""


def encode_record(text: Mapping[str, Any], body: Sequence[bytes]) -> bytes:
    """Return a record with the JSON object `text` and the bytes of `body`, one part after the other."""
    return _record(_STEP, text, body)


def _record(kind: int, text: Mapping[str, Any], body: Sequence[bytes]) -> bytes:
    packed = zlib.compress(json.dumps(text, separators=(",", ":")).encode(), 1)
    data = b"".join((_RECORD.pack(kind, len(packed), sum(len(part) for part in body)), packed, *body))
    return data + _CRC.pack(crc32c(data))


def encode_segment(header: Mapping[str, Any], records: Sequence[bytes]) -> bytes:
    """Return the segment that holds `records` (from `encode_record`)."""
    text = json.dumps(header, separators=(",", ":")).encode()
    head = _HEADER.pack(MAGIC, SCHEMA, 0, len(text)) + text
    parts = [head, _CRC.pack(crc32c(head)), *records]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    trailer = _record(_TRAILER, {"records": len(records), "sha256": digest.hexdigest()}, ())
    return b"".join((*parts, trailer))


@dataclass(frozen=True)
class Segment:
    """What a segment holds, as far as it is whole."""

    header: Mapping[str, Any]
    """Its JSON object."""
    records: tuple[Record, ...]
    """Records up to the first one that is damaged."""
    damage: str | None
    """What is wrong with it, None when it is whole and committed."""


def decode_segment(data: bytes) -> Segment:
    """Read a segment: all of it, or what precedes the damage.

    Raises:
        SegmentDamage: the header is damaged already, or of a newer schema.
    """
    view = memoryview(data)
    header, position = _decode_header(view)
    records: list[Record] = []
    try:
        for kind, record, start, end in _records(view, position):
            if kind == _TRAILER:
                _check_trailer(record.text, len(records), data[:start])
                if end != len(data):
                    raise SegmentDamage(f"{len(data) - end} bytes follow the trailer")
                return Segment(header, tuple(records), None)
            records.append(record)
    except SegmentDamage as error:
        return Segment(header, tuple(records), str(error))
    return Segment(header, tuple(records), "is torn: it ends without a trailer")


def _decode_header(view: memoryview) -> tuple[Mapping[str, Any], int]:
    if len(view) < _HEADER.size:
        raise SegmentDamage("is torn: it ends within its header")
    magic, schema, _, length = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise SegmentDamage("is not a log segment: its magic is wrong")
    if schema != SCHEMA:
        raise SegmentDamage(f"has schema {schema}, this program reads {SCHEMA}")
    end = _HEADER.size + length
    _check_crc(view, 0, end, "header")
    return _parse(bytes(view[_HEADER.size : end]), "header"), end + _CRC.size


def _records(view: memoryview, position: int) -> Iterator[tuple[int, Record, int, int]]:
    """Yield kind, record, first byte and end of each."""
    while position < len(view):
        name = f"record at byte {position}"
        if position + _RECORD.size > len(view):
            raise SegmentDamage(f"is torn: it ends within the {name}")
        kind, packed, body = _RECORD.unpack_from(view, position)
        start = position + _RECORD.size
        end = start + packed + body
        _check_crc(view, position, end, name)
        if kind not in (_STEP, _TRAILER):
            raise SegmentDamage(f"{name}: kind {kind} is not known")
        text = _parse(_unpack(view[start : start + packed], name), name)
        yield kind, Record(text, view[start + packed : end]), position, end + _CRC.size
        position = end + _CRC.size


def _check_crc(view: memoryview, start: int, end: int, name: str) -> None:
    if end + _CRC.size > len(view):
        raise SegmentDamage(f"is torn: it ends within the {name}")
    if _CRC.unpack_from(view, end)[0] != crc32c(view[start:end]):
        raise SegmentDamage(f"{name}: CRC32C is wrong")


def _check_trailer(text: Mapping[str, Any], records: int, before: bytes) -> None:
    if text.get("records") != records or text.get("sha256") != hashlib.sha256(before).hexdigest():
        raise SegmentDamage("trailer: number of records or SHA-256 is wrong")


def _unpack(packed: memoryview, name: str) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packed, _MAX_TEXT)
    except zlib.error as error:
        raise SegmentDamage(f"{name}: its text cannot be unpacked: {error}") from error
    if not unpacker.eof:
        raise SegmentDamage(f"{name}: its text is cut short or longer than {_MAX_TEXT} bytes")
    return text


def _parse(text: bytes, name: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SegmentDamage(f"{name}: its text is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise SegmentDamage(f"{name}: its text is no JSON object")
    return value
