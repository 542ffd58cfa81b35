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

from checkmate_common.files.checked_json import MAX_BYTES, check_bounds
from checkmate_common.files.hashing import hashing
from checkmate_common.stream.frame import crc32c
from jobspec.store import MAX_EVERY

MAGIC = b"CKMTLOG1"
SCHEMA = 1
_HEADER = struct.Struct("<8sHHI")
_RECORD = struct.Struct("<B3xIQ")
_CRC = struct.Struct("<I")
_STEP, _TRAILER = 1, 2
Parts = tuple[bytes | memoryview, ...]
"""Bytes that follow each other."""
_MAX_HEADER = 1 << 16
"""Longest JSON text of a header."""


class SegmentDamage(ValueError):
    """Bytes of a segment that are not as they were written; the message says what and where."""


@dataclass(frozen=True)
class Record:
    """One record of a segment."""

    packed: memoryview
    """Its JSON object, packed."""
    body: memoryview
    """Its bytes."""

    def text(self) -> Mapping[str, Any]:
        """Unpack its JSON object: only now, because a small segment can hold much text.

        Raises:
            SegmentDamage: it cannot be unpacked, is too large, or no JSON object.
        """
        return _parse(_unpack(self.packed), "its text")


def encode_record(text: Mapping[str, Any], body: Sequence[bytes | memoryview]) -> Parts:
    """Return the parts of a record with the JSON object `text` and the bytes of `body`, which are not copied.

    Raises:
        ValueError: the text is larger than a reader takes.
    """
    return _record(_STEP, text, body)


def _record(kind: int, text: Mapping[str, Any], body: Sequence[bytes | memoryview]) -> Parts:
    plain = json.dumps(text, separators=(",", ":"))
    check_bounds(plain)
    packed = zlib.compress(plain.encode(), 1)
    parts = (_RECORD.pack(kind, len(packed), sum(map(len, body))) + packed, *body)
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return (*parts, _CRC.pack(crc))


def encode_segment(header: Mapping[str, Any], records: Sequence[Parts]) -> Iterator[bytes | memoryview]:
    """Yield the parts of the segment that holds `records` (from `encode_record`).

    They are hashed while they are taken and written.
    """
    text = json.dumps(header, separators=(",", ":")).encode()
    head = _HEADER.pack(MAGIC, SCHEMA, 0, len(text)) + text
    parts = (head + _CRC.pack(crc32c(head)), *(part for record in records for part in record))
    with hashing(parts) as digest:
        yield from parts
        yield from _record(_TRAILER, {"records": len(records), "sha256": digest.result()}, ())


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
                _check_trailer(record.text(), len(records), view[:start])
                if end != len(data):
                    raise SegmentDamage(f"{len(data) - end} bytes follow the trailer")
                return Segment(header, tuple(records), None)
            if len(records) == MAX_EVERY:
                raise SegmentDamage(f"has more than {MAX_EVERY} records")
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
    if length > _MAX_HEADER:
        raise SegmentDamage(f"header: a text of {length} bytes, expected at most {_MAX_HEADER}")
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
        yield kind, Record(view[start : start + packed], view[start + packed : end]), position, end + _CRC.size
        position = end + _CRC.size


def _check_crc(view: memoryview, start: int, end: int, name: str) -> None:
    if end + _CRC.size > len(view):
        raise SegmentDamage(f"is torn: it ends within the {name}")
    if _CRC.unpack_from(view, end)[0] != crc32c(view[start:end]):
        raise SegmentDamage(f"{name}: CRC32C is wrong")


def _check_trailer(text: Mapping[str, Any], records: int, before: memoryview) -> None:
    if text.get("records") != records or text.get("sha256") != hashlib.sha256(before).hexdigest():
        raise SegmentDamage("trailer: number of records or SHA-256 is wrong")


def _unpack(packed: memoryview) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packed, MAX_BYTES)
    except zlib.error as error:
        raise SegmentDamage(f"its text cannot be unpacked: {error}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise SegmentDamage(f"its text is cut short, longer than {MAX_BYTES} bytes, or more follows it")
    return text


def _parse(text: bytes, name: str) -> Mapping[str, Any]:
    try:
        plain = text.decode()
        check_bounds(plain)
        value = json.loads(plain)
    except (ValueError, RecursionError) as error:
        raise SegmentDamage(f"{name}: not JSON that can be read: {error}") from error
    if not isinstance(value, dict):
        raise SegmentDamage(f"{name}: no JSON object")
    return value
