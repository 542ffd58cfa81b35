"""One step's reduced gradient while it is collected: cells that several flows may fill, each proven by its CRC.

A **cell** is the payload of one frame of reduced elements. The same cell travels on several flows (hop 0, later hops)
and may be in several captures: the bytes are kept once, each further copy is compared with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from jobspec.frame import HEADER_BYTES, FrameError, FrameHeader, crc32c
from jobspec.layout import Layout
from jobspec.ring import Phase
from jobspec.schedule import FrameSlot, step_plan
from placement.coverage import Coverage
from replay.plan import EpochPlan, PlannedFlow

_KEPT_VARIANTS = 8
"""Pieces of a cell that differ from what is there and are kept, in case that those are the right ones."""


@dataclass(frozen=True)
class CellPlace:
    """Where a cell lies and who sends it."""

    index: int
    """Position among the step's cells."""
    bucket: int
    """Bucket index."""
    chunk: int
    """Chunk index."""
    channel: int
    """Channel."""
    start: int
    """First byte in the bucket's buffer."""
    nbytes: int
    """Length in bytes, at least one element."""
    itemsize: int
    """Bytes of an element."""
    carriers: tuple[tuple[PlannedFlow, FrameSlot], ...]
    """The flows that carry it, hop 0 first, with the frame that it is the payload of."""


class CellMap:
    """The cells of every step with one layout: pure arithmetic, shared by all those steps."""

    def __init__(self, plan: EpochPlan, layout: Layout) -> None:
        """Compute the cells that `layout` gives the flows of `plan`."""
        self.layout = layout
        """The layout."""
        plans = {place: step_plan(flow.schedule.shape, layout) for place, flow in plan.flows.items()}
        found: dict[tuple[int, int], list[tuple[PlannedFlow, FrameSlot]]] = {}
        for channel_and_rank, flow in plan.flows.items():
            for frame in plans[channel_and_rank].frames:
                if frame.phase is Phase.ALL_GATHER:
                    found.setdefault((frame.bucket, frame.element_offset), []).append((flow, frame))
        cells: list[CellPlace] = []
        for index, (_, carriers) in enumerate(sorted(found.items())):
            carriers.sort(key=lambda carrier: carrier[1].hop)
            flow, frame = carriers[0]
            place = CellPlace(
                index, frame.bucket, frame.chunk, flow.channel, frame.byte_offset, frame.payload_bytes,
                frame.dtype.itemsize, tuple(carriers),
            )  # fmt: skip
            cells.append(place)
        self.cells: tuple[CellPlace, ...] = tuple(cells)
        """All cells by bucket and element."""
        self.of_frame: dict[tuple[int, int], list[int]] = {
            place: [-1] * len(frames.frames) for place, frames in plans.items()
        }
        """Index of the cell that a frame carries by channel and rank, then frame; -1 for reduce-scatter frames."""
        for cell in cells:
            for flow, frame in cell.carriers:
                self.of_frame[flow.channel, flow.rank][frame.index] = cell.index
        self.nbytes: int = sum(bucket.nbytes for bucket in layout.buckets)
        """Bytes of one gradient."""


class Cell:
    """The bytes of one cell in one step."""

    __slots__ = ("_coverage", "_variants", "_view", "crc", "disputed", "place", "problem", "proven")

    def __init__(self, place: CellPlace, view: memoryview) -> None:
        """Collect the cell at `place` in `view`, which has its length."""
        self.place = place
        self._view = view
        self._coverage = Coverage()
        self._variants: list[tuple[int, bytes]] = []
        self.crc: int | None = None
        """CRC32C that a valid header of a carrier says, None while none was there."""
        self.proven = False
        """Whether all bytes are there and have that CRC."""
        self.disputed = False
        """Whether two valid headers say different CRCs: nobody can tell which is right."""
        self.problem: str | None = None
        """What was wrong with the last complete copy or with a header, None when nothing was."""

    def fill(self, start: int, data: memoryview) -> tuple[int, bool]:
        """Take bytes from `start` on; return how many were new, and whether the others were the same as before."""
        end = start + len(data)
        if self.proven:
            return 0, self._view[start:end] == data
        new = 0
        low = start
        same = True
        for hole, stop in self._coverage.fill(start, end):
            same = same and self._view[low:hole] == data[low - start : hole - start]
            self._view[hole:stop] = data[hole - start : stop - start]
            new += stop - hole
            low = stop
        same = same and self._view[low:end] == data[low - start :]
        if not same and len(self._variants) < _KEPT_VARIANTS:
            self._variants.append((start, bytes(data)))
        return new, same

    def told(self, crc: int) -> bool:
        """Take the CRC of a valid header; tell whether it agrees with what others said."""
        if self.crc is None:
            self.crc = crc
        elif self.crc != crc:
            self.disputed = True
        return self.crc == crc

    def settle(self) -> bool:
        """Tell whether the cell has become proven; wrong bytes are forgotten, so that a later copy may fill it."""
        if self.proven or self.crc is None or not self._coverage.is_exactly(0, self.place.nbytes):
            return False
        if crc32c(self._view) == self.crc or self._try_variants(self.crc):
            self.proven, self.problem = True, None
            self._variants.clear()
            return True
        self.problem = f"payload has CRC32C {crc32c(self._view):#010x}, its header says {self.crc:#010x}"
        self._coverage.clear()
        self._variants.clear()
        return False

    def _try_variants(self, crc: int) -> bool:
        for start, data in self._variants:
            kept = bytes(self._view[start : start + len(data)])
            self._view[start : start + len(data)] = data
            if crc32c(self._view) == crc:
                return True
            self._view[start : start + len(data)] = kept
        return False

    @property
    def good(self) -> bool:
        """Whether the cell's bytes may be used."""
        return self.proven and not self.disputed

    def covered(self) -> int:
        """Return how many bytes are there."""
        return self.place.nbytes if self.proven else len(self._coverage)

    def missing(self) -> list[tuple[int, int]]:
        """Return the byte ranges that are not there."""
        return [] if self.proven else self._coverage.missing(0, self.place.nbytes)

    def reset(self) -> None:
        """Forget everything, for the next use of the memory."""
        self._coverage.clear()
        self._variants.clear()
        self.crc = self.problem = None
        self.proven = self.disputed = False


class HeaderParts:
    """A frame header that arrives in several segments."""

    __slots__ = ("_bytes", "_coverage")

    def __init__(self) -> None:
        """Begin with nothing."""
        self._bytes = bytearray(HEADER_BYTES)
        self._coverage = Coverage()

    def add(self, start: int, data: memoryview) -> bytes | None:
        """Take bytes of the header; return it when it is whole. Bytes that came first stay."""
        for low, high in self._coverage.fill(start, start + len(data)):
            self._bytes[low:high] = data[low - start : high - start]
        return bytes(self._bytes) if self._coverage.is_exactly(0, HEADER_BYTES) else None

    def missing(self) -> list[tuple[int, int]]:
        """Return the byte ranges that are not there."""
        return self._coverage.missing(0, HEADER_BYTES)


class StepGradient:
    """The cells of one step."""

    def __init__(self, cells: CellMap, plan: EpochPlan) -> None:
        """Allocate the memory: one gradient, and some hundred bytes a cell."""
        self.map = cells
        self.plan = plan
        self.buckets: Sequence[bytearray] = [bytearray(bucket.nbytes) for bucket in cells.layout.buckets]
        """Elements by bucket, little-endian as on the wire; to be used where `complete`."""
        views = [memoryview(bucket) for bucket in self.buckets]
        self.cells = [Cell(p, views[p.bucket][p.start : p.start + p.nbytes]) for p in cells.cells]
        """All cells."""
        self.step = 0
        """Step that is being collected."""
        self.remaining = 0
        """Cells that are not proven."""
        self.headers: dict[tuple[int, int, int], HeaderParts | None] = {}
        """By channel, rank and frame: parts of a header, None once it was valid."""
        self.wire_bytes = 0
        """Stream bytes of all-gather frames, headers and repeated ones included."""
        self.unreduced_bytes = 0
        """Stream bytes of reduce-scatter frames, which are of no use."""
        self.repeated_bytes = 0
        """Payload bytes that were there already and were compared."""
        self.conflicts: list[str] = []
        """Copies that differ from what is there: the first ones in words."""
        self.conflict_count = 0
        """How many there were."""

    def reset(self, step: int) -> None:
        """Begin to collect `step`."""
        self.step = step
        self.remaining = len(self.cells)
        self.headers.clear()
        self.wire_bytes = self.unreduced_bytes = self.repeated_bytes = self.conflict_count = 0
        self.conflicts = []
        for cell in self.cells:
            cell.reset()

    @property
    def touched(self) -> bool:
        """Whether any stream byte of the step was there."""
        return bool(self.wire_bytes or self.unreduced_bytes)

    @property
    def complete(self) -> bool:
        """Whether every cell is proven and none disputed."""
        return self.remaining == 0 and not any(cell.disputed for cell in self.cells)

    def take(self, flow: PlannedFlow, frame: FrameSlot, start: int, data: memoryview) -> bool:
        """Take bytes of a frame from position `start` (header included) on; tell whether its header became valid.

        Args:
            flow: the flow that they came on.
            frame: an all-gather frame of it.
            start: first byte relative to the frame.
            data: the bytes, which end within the frame.
        """
        cell = self.cells[self.map.of_frame[flow.channel, flow.rank][frame.index]]
        self.wire_bytes += len(data)
        confirmed = False
        head = frame.header_bytes
        if start < head:
            part, data = data[: head - start], data[head - start :]
            confirmed = self._header(flow, frame, cell, start, part)
            start = head
        if len(data):
            new, same = cell.fill(start - head, data)
            self.repeated_bytes += len(data) - new
            if not same:
                self._conflict(flow, frame, "bytes differ from another copy")
        if cell.settle():
            self.remaining -= 1
        return confirmed

    def _header(self, flow: PlannedFlow, frame: FrameSlot, cell: Cell, start: int, part: memoryview) -> bool:
        key = (flow.channel, flow.rank, frame.index)
        if start or len(part) < HEADER_BYTES:
            parts = self.headers.setdefault(key, HeaderParts())
            whole = parts.add(start, part) if parts is not None else None
        else:
            whole = bytes(part)
        if whole is None:
            return False
        problem = check_header(whole, self.plan, flow, frame, self.step)
        if isinstance(problem, str):
            if key in self.headers and self.headers[key] is None:
                self._conflict(flow, frame, f"another copy's {problem}")
                return False
            self.headers.pop(key, None)
            if not cell.proven:
                cell.problem = f"{flow.label}: {problem}"
            return False
        self.headers[key] = None
        if not cell.told(problem.payload_crc):
            self._conflict(flow, frame, "its header says another CRC than a valid one of another copy")
        return True

    def _conflict(self, flow: PlannedFlow, frame: FrameSlot, text: str) -> None:
        self.conflict_count += 1
        if len(self.conflicts) < _KEPT_VARIANTS:
            self.conflicts.append(f"{flow.label} bucket {frame.bucket} chunk {frame.chunk}: {text}")


def check_header(data: bytes, plan: EpochPlan, flow: PlannedFlow, frame: FrameSlot, step: int) -> FrameHeader | str:
    """Return the header in `data` when it is the one that `frame` of `step` must have, else what is wrong with it."""
    try:
        header = FrameHeader.unpack(data)
    except FrameError as error:
        return str(error)
    expected = plan.identity(flow, step).header(frame, header.payload_crc)
    if header == expected:
        return header
    for field in fields(FrameHeader):
        found, wanted = getattr(header, field.name), getattr(expected, field.name)
        if found != wanted:
            return f"frame header says {field.name} {found!r}, expected {wanted!r}"
    return "frame header differs"
