"""Frame header: 64 bytes, big-endian, before each frame's payload in a flow's byte stream.

    offset size field                offset size field
    0      4    magic "CKMT"         24     8    step
    4      1    version (1)          32     4    layout version
    5      1    phase                36     4    epoch
    6      1    dtype                40     8    element offset in the bucket
    7      1    header length (64)   48     4    payload bytes
    8      2    job                  52     4    CRC32C of the payload
    10     2    group                56     4    reserved, zero
    12     2    channel              60     4    CRC32C of bytes 0..59
    14     2    bucket
    16     2    hop
    18     2    chunk
    20     2    sending rank
    22     2    reserved, zero

CRC32C: Castagnoli, as in RFC 3720 appendix B.4. The header confirms the stream arithmetic (`schedule`) and
detects a lost sync; it is not needed to place bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c as _crc32c

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.ring import Phase

HEADER_BYTES = 64
MAGIC = b"CKMT"
VERSION = 1
FIELDS: tuple[tuple[str, str], ...] = (
    ("magic", "4s"), ("version", "B"), ("phase", "B"), ("dtype", "B"), ("header_bytes", "B"), ("job", "H"),
    ("group", "H"), ("channel", "H"), ("bucket", "H"), ("hop", "H"), ("chunk", "H"), ("rank", "H"), ("reserved1", "H"),
    ("step", "Q"), ("layout_version", "I"), ("epoch", "I"), ("element_offset", "Q"), ("payload_bytes", "I"),
    ("payload_crc", "I"), ("reserved2", "I"), ("header_crc", "I"),
)  # fmt: skip
"""Name and `struct` code of each field of the header, in order."""
_FIELDS = struct.Struct("!" + "".join(code for _, code in FIELDS[:-1]))
_CRC = struct.Struct("!I")


class FrameError(ValueError):
    """Bytes that are not a valid frame header; `field` names the invalid field."""

    def __init__(self, field: str, message: str) -> None:
        """Keep the name of the invalid field and the message."""
        self.field = field
        super().__init__(f"frame header: {field}: {message}")


@dataclass(frozen=True)
class FrameHeader:
    """All fields of a frame header."""

    job: int
    """Job number, 0..65535."""
    group: int
    """DP group number within the job."""
    epoch: int
    """Incarnation of the group's communicator; grows whenever its connections are re-established."""
    channel: int
    """Channel of the ring."""
    step: int
    """Training step, from 1."""
    layout_version: int
    """Version of the layout that the step uses."""
    bucket: int
    """Bucket index."""
    phase: Phase
    """Half of the all-reduce."""
    hop: int
    """Hop within the phase, from 0."""
    chunk: int
    """Chunk index, 0..N-1."""
    rank: int
    """Rank that sends the frame."""
    dtype: DType
    """Element type."""
    element_offset: int
    """First element of the payload in the bucket."""
    payload_bytes: int
    """Payload length in bytes."""
    payload_crc: int
    """CRC32C of the payload."""

    def pack(self) -> bytes:
        """Return the 64 bytes of the header."""
        body = _FIELDS.pack(
            MAGIC,
            VERSION,
            self.phase,
            self.dtype,
            HEADER_BYTES,
            self.job,
            self.group,
            self.channel,
            self.bucket,
            self.hop,
            self.chunk,
            self.rank,
            0,
            self.step,
            self.layout_version,
            self.epoch,
            self.element_offset,
            self.payload_bytes,
            self.payload_crc,
            0,
        )
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> FrameHeader:
        """Read a header from the first 64 bytes of `data`.

        Raises:
            FrameError: too short, wrong magic or version, a field out of range, or a wrong header CRC.
        """
        head = bytes(data[:HEADER_BYTES])
        if len(head) < HEADER_BYTES:
            raise FrameError("length", f"{len(head)} bytes, expected {HEADER_BYTES}")
        (magic, version, phase, dtype, size, job, group, channel, bucket, hop, chunk, rank, zero1, step, layout, epoch,
         offset, length, crc, zero2) = _FIELDS.unpack_from(head)  # fmt: skip
        if magic != MAGIC:
            raise FrameError("magic", f"{magic!r}, expected {MAGIC!r}")
        if _CRC.unpack_from(head, HEADER_BYTES - 4)[0] != crc32c(head[:-4]):
            raise FrameError("header CRC", "does not match the header's bytes")
        if version != VERSION:
            raise FrameError("version", f"{version}, but this program reads {VERSION}")
        if size != HEADER_BYTES:
            raise FrameError("header length", f"{size}, expected {HEADER_BYTES}")
        if zero1 or zero2:
            raise FrameError("reserved", "not zero")
        try:
            phase, dtype = Phase(phase), DType(dtype)
        except ValueError as error:
            raise FrameError("phase or dtype", str(error)) from error
        return cls(
            job, group, epoch, channel, step, layout, bucket, phase, hop, chunk, rank, dtype, offset, length, crc
        )


def crc32c(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """Return the CRC32C of `data`, or of `data` appended to bytes whose CRC32C is `before`."""
    return int(_crc32c.crc32c(data, before))
