"""One frame that a shadow expects: where its bytes go, which of them are there, whether they are right.

With redundant hops the same payload travels in several flows, each with a header of its own. All copies fill one
memory, byte by byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from checkmate_common.stream.frame import HEADER_BYTES, FrameError, FrameHeader, crc32c
from checkmate_common.stream.schedule import FrameSlot
from placement.coverage import Coverage
from placement.variants import Conflicts, SideBuffer, Variant, candidates, difference

DISPUTE = "valid headers say different CRCs"
"""What is wrong with a frame that is disputed."""


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


class FrameCopy:
    """One flow's copy of an expected frame: which of its bytes arrived, and its header.

    Positions are relative to the copy's first header byte.
    """

    __slots__ = ("coverage", "flow_id", "frame", "header", "index", "other", "slot")

    def __init__(self, index: int, flow_id: int, slot: FrameSlot, header: memoryview) -> None:
        """Take what flow `flow_id` sends as frame `slot`; its header goes to the writable view `header`."""
        self.index = index
        """Index within the frame's copies; 0 is the primary."""
        self.flow_id = flow_id
        """The flow."""
        self.slot = slot
        """Where the copy lies in the flow's stream."""
        self.header = header
        """The header's bytes, as far as they arrived."""
        self.coverage = Coverage()
        """Which bytes arrived, header included."""
        self.other: bytearray | None = None
        """The header with the bytes of later copies that differ laid over it, None where none does."""
        self.frame: Frame
        """The frame; set by it."""

    @property
    def size(self) -> int:
        """Bytes of the copy, header included."""
        return self.frame.size

    def place(self, start: int, data: memoryview) -> int:
        """Copy `data` (not empty) to position `start`, except where bytes are already.

        Bytes that are there are compared with those that arrive; both are kept where they differ, and the frame's
        CRC decides. Returns how many bytes were new to the frame: of the headers only the primary's counts, so that
        a frame never counts for more than its size.
        """
        frame = self.frame
        if frame.shared:
            return self._share(start, data)
        if frame.verified:
            if frame.conflicts is not None:
                self._compare(start, data)
            return 0
        placed = 0
        for low, high in self.coverage.fill(start, start + len(data)):
            placed += high - low
            if low >= HEADER_BYTES:
                frame.payload[low - HEADER_BYTES : high - HEADER_BYTES] = data[low - start : high - start]
            else:
                self._take(low, data[low - start : high - start])
        if placed < len(data):
            self._compare(start, data)
        return placed

    def _share(self, start: int, data: memoryview) -> int:
        placed = fresh = 0
        for low, high in self.coverage.fill(start, start + len(data)):
            fresh += high - low
            placed += self._take(low, data[low - start : high - start])
        if fresh < len(data) and (not self.frame.verified or self.frame.conflicts is not None):
            self._compare(start, data)
        return placed

    def _compare(self, start: int, data: memoryview) -> None:
        skip = max(0, HEADER_BYTES - start)
        if skip and self.frame.conflicts is not None:
            self._compare_header(start, data[:skip], self.frame.conflicts)
        if skip < len(data):
            self.frame.compare(start + skip - HEADER_BYTES, data[skip:], self.index)

    def _compare_header(self, start: int, data: memoryview, conflicts: Conflicts) -> None:
        """Compare bytes of the header with those that are there; a right one takes the place of a wrong one."""
        if self.header[start : start + len(data)] == data:
            return
        self.other = self.other or bytearray(self.header)
        self.other[start : start + len(data)] = data
        frame = self.frame
        identity = frame.identities[self.flow_id]
        told = told_crc(self.other, identity, self.slot)
        if told is None:
            conflicts.add(self.flow_id, self.slot, "its frame header differs from another copy's")
        elif self.headed and (mine := self.told_crc(identity)) is not None:
            if mine != told:
                frame.disputed = True
                conflicts.add(self.flow_id, self.slot, "its header says another CRC than a valid one of another copy")
        else:
            conflicts.add(self.flow_id, self.slot, "its frame header differs from another copy's")
            self.header[:] = self.other
            self.coverage.add(0, HEADER_BYTES)
            self.other = None
            frame.untried = True

    def _take(self, start: int, data: memoryview) -> int:
        placed = 0
        if start < HEADER_BYTES:
            count = min(len(data), HEADER_BYTES - start)
            self.header[start : start + count] = data[:count]
            data, start = data[count:], start + count
            self.frame.untried = True
            placed = 0 if self.index or self.frame.verified else count
        if len(data):
            placed += self.frame.put(start - HEADER_BYTES, data, self.index)
        return placed

    @property
    def whole(self) -> bool:
        """Whether every byte of the copy arrived."""
        return self.coverage.is_exactly(0, self.frame.size)

    @property
    def headed(self) -> bool:
        """Whether the whole header is there."""
        return not self.coverage.missing(0, HEADER_BYTES)

    def told_crc(self, identity: FrameIdentity) -> int | None:
        """Return the payload CRC that the (complete) header tells, None where any field is not as expected.

        The expected header is known in every field but the payload's CRC: comparing the 64 bytes checks the fields
        and the header's own CRC at once.
        """
        return told_crc(self.header, identity, self.slot)


def told_crc(header: memoryview | bytearray, identity: FrameIdentity, slot: FrameSlot) -> int | None:
    """Return the payload CRC that the header of frame `slot` tells, None where any field is not as expected."""
    found = bytes(header)
    told = int.from_bytes(found[52:56], "big")
    return told if identity.header(slot, told).pack() == found else None


class Frame:
    """One payload that a shadow expects, in one copy or in several: its bytes are shared, its headers are not.

    It is verified when every byte of the payload is there from whatever copies, and the CRC32C that one complete
    header (right in every field) tells is that of the payload. Once `verified` is set no byte changes any more.
    """

    __slots__ = ("_dropped", "_overflow", "_side", "_union", "_variants", "conflicts", "copies", "corrected",
                 "disputed", "identities", "overlaid", "payload", "problem", "shared", "size", "untried",
                 "verified")  # fmt: skip

    def __init__(self, copies: Sequence[FrameCopy], payload: memoryview, side: SideBuffer, filled: int = 0) -> None:
        """Collect the payload of `copies` (the primary first) in the writable view `payload`, of exactly its length.

        Variants of differing copies are accounted for in `side`. The first `filled` payload bytes are there already.
        """
        self.copies = tuple(copies)
        """The copies, by hop."""
        for copy in copies:
            copy.frame = self
        self.shared = len(copies) > 1
        """Whether there are several copies."""
        self.size = HEADER_BYTES + len(payload)
        """Bytes of one copy, header included."""
        self.verified = False
        """Whether all bytes are there and right."""
        self.disputed = False
        """Whether right headers were seen to tell different CRCs."""
        self.conflicts: Conflicts | None = None
        """Where copies that differ are noted; with it, verified frames are compared too."""
        self.identities: Mapping[int, FrameIdentity] = {}
        """What each flow's headers must say, where there is `conflicts`."""
        self.problem: str | None = None
        """What was wrong when the bytes were last complete, None when nothing was."""
        self.untried = False
        """Whether something besides new payload came since the bytes were last tried: a header, a variant."""
        self.overlaid = 0
        """Payload bytes that took the place of those that came first, because the CRC said so."""
        self.corrected = 0
        """Payload bytes of the primary that a redundant copy's took the place of, because the CRC said so."""
        self.payload = payload
        """The payload's bytes, as far as they arrived."""
        self._side = side
        # Which payload bytes are there from any copy; a sole copy's own coverage says it as well.
        self._union = Coverage() if self.shared else None
        if self._union is not None:
            self._union.add(0, filled)
        self._variants: list[Variant] = []
        self._overflow = False
        # Bytes that were counted as placed, and dropped later because they were wrong.
        self._dropped = 0

    def audit(self, conflicts: Conflicts | None, identities: Mapping[int, FrameIdentity]) -> None:
        """Note in `conflicts`, if any, the copies that differ; headers must be as `identities`, by flow id, say."""
        self.conflicts, self.identities = conflicts, identities

    @property
    def primary(self) -> FrameCopy:
        """The copy of hop 0."""
        return self.copies[0]

    def end(self) -> None:
        """Give back what is kept besides the memory; the frame is not used any more."""
        self._drop_variants()
        for copy in self.copies:
            del copy.frame  # a cycle would wait for the garbage collector

    def _forget(self) -> None:
        for copy in self.copies:
            copy.coverage.clear()
            copy.other = None
        if self._union is not None:
            self._union.clear()
        self._drop_variants()

    def _drop_variants(self) -> None:
        if self._variants:
            self._side.release(self._variants)
            self._variants.clear()
        self._overflow = False

    def put(self, start: int, data: memoryview, copy: int) -> int:
        """Copy payload bytes that are new to copy `copy`; return how many are new to the frame."""
        if self._union is None:
            self.payload[start : start + len(data)] = data
            return len(data)
        placed = 0
        if not self.verified:
            for low, high in self._union.fill(start, start + len(data)):
                self.payload[low:high] = data[low - start : high - start]
                placed += high - low
        if placed < len(data):
            self.compare(start, data, copy)
        return placed

    def compare(self, start: int, data: memoryview, copy: int) -> None:
        """Compare payload bytes of copy `copy` with those that are there; keep what differs until a CRC decides."""
        variant = difference(copy, start, self.payload[start : start + len(data)], data)
        if variant is None or variant in self._variants:
            return
        self._side.differing += 1
        if self.conflicts is not None:
            mine = self.copies[copy]
            self.conflicts.add(mine.flow_id, mine.slot, "bytes differ from another copy")
        if self.verified:
            return
        if self._side.reserve(len(variant.data)):
            self._variants.append(variant)
            self.untried = True
        else:
            self._overflow = True

    @property
    def covered(self) -> bool:
        """Whether every payload byte is there, and a whole header."""
        if self._union is None:
            return self.copies[0].whole
        return self._union.is_exactly(0, len(self.payload)) and any(copy.headed for copy in self.copies)

    def missing(self) -> list[tuple[int, int]]:
        """Return the byte ranges that no copy brought, in the primary's positions; all of a frame that is wrong."""
        if self.verified:
            return []
        if self.covered:
            return [(0, self.size)]
        primary = self.primary.coverage
        if self._union is None:
            return primary.missing(0, self.size)
        found = [] if any(copy.headed for copy in self.copies) else primary.missing(0, HEADER_BYTES)
        holes = self._union.missing(0, len(self.payload))
        return found + [(low + HEADER_BYTES, high + HEADER_BYTES) for low, high in holes]

    def held(self) -> list[tuple[int, bytes]]:
        """Return what is there, in the primary's positions: its header if it is whole, and runs of payload bytes."""
        found = [(0, bytes(self.primary.header))] if self.primary.headed else []
        if self._union is not None:
            spans = self._union.spans()
        else:
            own = self.primary.coverage.spans()
            spans = [(max(0, low - HEADER_BYTES), high - HEADER_BYTES) for low, high in own if high > HEADER_BYTES]
        return found + [(low + HEADER_BYTES, bytes(self.payload[low:high])) for low, high in spans]

    @property
    def correction(self) -> int:
        """What is to be added to the sum of what was placed of a verified frame, so that it is the frame's size."""
        return (self._headless if self.shared else 0) - self._dropped

    @property
    def _headless(self) -> int:
        return sum(end - start for start, end in self.primary.coverage.missing(0, HEADER_BYTES))

    @property
    def repaired(self) -> int:
        """Bytes that are there, and right, only because of a redundant copy: at most those of the primary."""
        if not (self.verified and self.shared):
            return 0
        return self.corrected + (0 if self.primary.whole else self.size - len(self.primary.coverage))

    def verify(self, identities: Mapping[int, FrameIdentity]) -> bool:
        """Check a covered frame against `identities`, by flow id.

        A wrong one keeps its bytes, so that a later copy shows which of them are wrong; but a wrong header loses
        its own, and a frame whose variants went beyond the bound all of them, so that later copies can fill them.
        """
        self.untried = False
        told: set[int] = set()
        wrong: FrameCopy | None = None
        for copy in self.copies:
            if copy.headed:
                crc = copy.told_crc(identities[copy.flow_id])
                if crc is not None:
                    told.add(crc)
                else:
                    wrong = copy
                    copy.coverage.remove(0, HEADER_BYTES)
                    self._dropped += 0 if copy.index else HEADER_BYTES
        if self.in_dispute(identities):
            self.problem = DISPUTE
            return False
        computed = crc32c(self.payload)
        if computed in told or (told and self._overlay(told)):
            self.verified = True
            self.problem = None
            self._drop_variants()
            return True
        if told:
            self.problem = f"payload has CRC32C {computed:#010x}, its header says {min(told):#010x}"
        elif wrong is not None:
            self.problem = _difference(bytes(wrong.header), identities[wrong.flow_id].header(wrong.slot, computed))
        if self._overflow:
            self._dropped += self.size - self._headless
            self._forget()
        return False

    def in_dispute(self, identities: Mapping[int, FrameIdentity]) -> bool:
        """Tell whether headers that are right in every field tell different CRCs: nobody knows which is right."""
        told = {copy.told_crc(identities[copy.flow_id]) for copy in self.copies if copy.headed} - {None}
        self.disputed = self.disputed or len(told) > 1
        return self.disputed

    def _overlay(self, told: set[int]) -> bool:
        for choice in candidates(self._variants):
            trial = bytearray(self.payload)
            for variant in choice:
                trial[variant.start : variant.start + len(variant.data)] = variant.data
            if crc32c(trial) in told:
                self.payload[:] = trial
                self.overlaid = sum(len(variant.data) for variant in choice)
                self.corrected = sum(len(variant.data) for variant in choice if variant.copy)
                return True
        return False


def _difference(found: bytes, expected: FrameHeader) -> str:
    try:
        header = FrameHeader.unpack(found)
    except FrameError as error:
        return str(error)
    # Headers that are equal in every field are equal, so that one differs; the CRC is the last that is looked at.
    names = (field.name for field in fields(FrameHeader))
    name = next((name for name in names if getattr(header, name) != getattr(expected, name)), "payload_crc")
    return f"header says {name} {getattr(header, name)!r}, expected {getattr(expected, name)!r}"
