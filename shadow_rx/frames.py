"""One frame that a shadow expects: where its bytes go, which of them are there, whether they are right."""

from __future__ import annotations

from dataclasses import dataclass, fields

from jobspec.frame import FrameError, FrameHeader, crc32c
from jobspec.schedule import FrameSlot
from shadow_rx.coverage import Coverage


@dataclass(frozen=True)
class FrameIdentity:
    """The fields that all frames of one flow and step share."""

    job: int
    """Job number."""
    group: int
    """DP group number."""
    epoch: int
    """Incarnation of the group's communicator."""
    channel: int
    """Channel of the flow."""
    rank: int
    """Sending rank of the flow."""
    step: int
    """Training step."""
    layout_version: int
    """Layout of the step."""

    def header(self, slot: FrameSlot, payload_crc: int) -> FrameHeader:
        """Return the one header that frame `slot` may have when its payload has `payload_crc`."""
        return FrameHeader(
            job=self.job,
            group=self.group,
            epoch=self.epoch,
            channel=self.channel,
            step=self.step,
            layout_version=self.layout_version,
            bucket=slot.bucket,
            phase=slot.phase,
            hop=slot.hop,
            chunk=slot.chunk,
            rank=self.rank,
            dtype=slot.dtype,
            element_offset=slot.element_offset,
            payload_bytes=slot.payload_bytes,
            payload_crc=payload_crc,
        )


class FrameBuffer:
    """Collects the bytes of one expected frame in place.

    Positions are relative to the frame's first header byte. Once `verified` is set no byte changes any more.
    """

    __slots__ = ("_coverage", "_header", "_payload", "problem", "size", "slot", "verified")

    def __init__(self, slot: FrameSlot, header: memoryview, payload: memoryview) -> None:
        """Collect frame `slot` in the writable views `header` and `payload`, of exactly its lengths."""
        self.slot = slot
        self.size = len(header) + len(payload)
        """Bytes of the frame, header included."""
        self.verified = False
        """Whether all bytes are there and right."""
        self.problem: str | None = None
        """What was wrong with the last complete copy, None when none was wrong."""
        self._header = header
        self._payload = payload
        self._coverage = Coverage()

    def reset(self) -> None:
        """Forget everything, for the next use of the buffer."""
        self.verified = False
        self.problem = None
        self._coverage.clear()

    def place(self, start: int, data: memoryview) -> int:
        """Copy `data` (not empty) to position `start`, except where bytes are already; return how many were new."""
        if self.verified:
            return 0
        placed = 0
        for low, high in self._coverage.fill(start, start + len(data)):
            self._copy(low, data[low - start : high - start])
            placed += high - low
        return placed

    def _copy(self, start: int, data: memoryview) -> None:
        head = len(self._header)
        if start < head:
            count = min(len(data), head - start)
            self._header[start : start + count] = data[:count]
            data, start = data[count:], start + count
        if len(data):
            self._payload[start - head : start - head + len(data)] = data

    @property
    def covered(self) -> bool:
        """Whether every byte is there."""
        return self._coverage.is_exactly(0, self.size)

    @property
    def touched(self) -> bool:
        """Whether any byte is there."""
        return bool(len(self._coverage))

    def missing(self) -> list[tuple[int, int]]:
        """Return the byte ranges that are not there."""
        return [] if self.verified else self._coverage.missing(0, self.size)

    def verify(self, identity: FrameIdentity) -> bool:
        """Check a covered frame; a wrong one loses all its bytes, so that a later copy may fill it.

        The expected header is known in every field but the CRC, and that follows from the payload:
        comparing the 64 bytes checks fields, payload CRC and header CRC at once.
        """
        expected = identity.header(self.slot, crc32c(self._payload))
        found = bytes(self._header)
        if found == expected.pack():
            self.verified = True
            self.problem = None
            return True
        self.problem = _difference(found, expected)
        self._coverage.clear()
        return False


def _difference(found: bytes, expected: FrameHeader) -> str:
    try:
        header = FrameHeader.unpack(found)
    except FrameError as error:
        return str(error)
    for field in fields(FrameHeader):
        name = field.name
        if name != "payload_crc" and getattr(header, name) != getattr(expected, name):
            return f"header says {name} {getattr(header, name)!r}, expected {getattr(expected, name)!r}"
    return f"payload has CRC32C {expected.payload_crc:#010x}, its header says {header.payload_crc:#010x}"
