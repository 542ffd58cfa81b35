"""Places stream bytes of one epoch into a window of steps, and hands out each step when nothing more can come."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from jobspec.frame import HEADER_BYTES
from jobspec.ring import Phase
from jobspec.schedule import FrameSlot, Piece
from placement.unwrap import unwrap
from replay.cells import CellMap, StepGradient, check_header
from replay.plan import Binding, EpochPlan, PlannedFlow

WINDOW = 4
"""Steps that are collected at a time: ranks are up to one step apart, and a retransmission comes within the next."""
_PENDING = 512
"""Segments beyond the window that wait for a frame header which confirms that the streams have got so far."""
_MODULUS = 1 << 32


class StreamPosition:
    """One stream of one file: turns sequence numbers into stream positions."""

    def __init__(self, binding: Binding, *, base: int | None = None) -> None:
        """Follow the stream of `binding`; `base` where it is another than there (replicas of it)."""
        self.binding = binding
        """Where its bytes belong."""
        self.flow: PlannedFlow = binding.flow
        """Its flow."""
        self.original = binding.seen.original and base is None
        """Whether it is traffic between ranks."""
        self._base = binding.base if base is None else base
        self._reference = binding.reference
        self._recent: tuple[int, int, int, FrameSlot] | None = None

    def position(self, seq: int) -> int:
        """Return the stream position of the byte with sequence number `seq`; negative before the stream's begin."""
        return unwrap((seq - self._base + 1) % _MODULUS, self._reference)

    def locate(self, start: int, end: int) -> Sequence[Piece]:
        """Return what stream bytes [start, end) are; within the last frame, as is usual, without a search."""
        recent = self._recent
        if recent is not None and recent[0] <= start and end <= recent[1]:
            return (Piece(recent[2], recent[3], start - recent[0], end - recent[0]),)
        pieces = list(self.flow.schedule.locate(start, end))
        last = pieces[-1]
        begin = end - last.end
        self._recent = begin, begin + last.frame.end - last.frame.start, last.step, last.frame
        return pieces

    def confirmed(self, step: int, piece: Piece) -> None:
        """Note that a valid header of a frame was where it must be: later positions are near the next frame's.

        Of replicas the next frame is the next of hop 0: the hops between two of them may fill more than 2^31 bytes.
        """
        flow = self.flow
        end = flow.schedule.frame_range(step, piece.frame)[1]
        if not self.original:
            following = next((f for f in flow.at(step).primary if f.start >= piece.frame.end), None)
            if following is None:
                step, following = step + 1, next(iter(flow.at(step + 1).primary), None)
            end = flow.schedule.frame_range(step, following)[0] if following is not None else end
        self._reference = max(self._reference, end)


class Collector:
    """The steps of one epoch.

    Memory: `WINDOW` gradients with some hundred bytes for each frame, and `_PENDING` segments.
    """

    def __init__(
        self, plan: EpochPlan, on_step: Callable[[StepGradient], None], on_absent: Callable[[int, int], None]
    ) -> None:
        """Collect from the first step of `plan` on.

        Args:
            plan: what is expected.
            on_step: called with each step in order, complete or not.
            on_absent: called, in the same order, with the first and last of steps without a single byte.
        """
        self.plan = plan
        """What is expected."""
        self.discarded: Counter[str] = Counter()
        """Segments with bytes that were not placed, by cause."""
        self._cells = CellMap(plan, plan.layout_at(plan.first_step))
        self._slots = [StepGradient(self._cells, plan) for _ in range(WINDOW)]
        self._next = plan.first_step
        self._pending: deque[tuple[StreamPosition, int, memoryview]] = deque()
        self._on_step = on_step
        self._on_absent = on_absent
        for step in range(self._next, self._next + WINDOW):
            self._reset(step)

    def _reset(self, step: int) -> None:
        """Use the slot of `step` for it, with memory for its layout."""
        layout = self.plan.layout_at(step)
        if layout != self._cells.layout:
            self._cells = CellMap(self.plan, layout)
        if self._slot(step).map is not self._cells:
            self._slots[step % WINDOW] = StepGradient(self._cells, self.plan)
        self._slot(step).reset(step)

    def _slot(self, step: int) -> StepGradient:
        return self._slots[step % WINDOW]

    def place(self, stream: StreamPosition, start: int, payload: memoryview) -> None:
        """Take the bytes of a stream from position `start` on."""
        position = start
        for piece in stream.locate(start, start + len(payload)):
            size = piece.end - piece.start
            data = payload[position - start : position - start + size]
            if piece.step < self._next:
                self.discarded["late"] += 1
            elif piece.step < self._next + WINDOW:
                self._take(stream, piece, data)
            elif self._confirms(stream, piece, data):
                self._advance(piece.step)
                self._take(stream, piece, data)
                self._place_pending()
            else:
                if len(self._pending) >= _PENDING:
                    self._pending.popleft()
                    self.discarded["beyond_window"] += 1
                self._pending.append((stream, position, data))
            position += size

    def _take(self, stream: StreamPosition, piece: Piece, data: memoryview) -> None:
        frame = piece.frame
        if frame.phase is Phase.ALL_GATHER:
            if self._slot(piece.step).take(stream.flow, frame, piece.start, data):
                stream.confirmed(piece.step, piece)
        else:
            self._slot(piece.step).unreduced_bytes += len(data)
            self._confirms(stream, piece, data)

    def _confirms(self, stream: StreamPosition, piece: Piece, data: memoryview) -> bool:
        """Tell whether the bytes begin with the very frame header that must be there."""
        if piece.start or len(data) < HEADER_BYTES:
            return False
        header = check_header(bytes(data[:HEADER_BYTES]), self.plan, stream.flow, piece.frame, piece.step)
        if isinstance(header, str):
            return False
        stream.confirmed(piece.step, piece)
        return True

    def _advance(self, step: int) -> None:
        """Let `step` be within the window."""
        for _ in range(WINDOW):
            if step < self._next + WINDOW:
                return
            self._close_oldest()
        if step >= self._next + WINDOW:
            # Streams can be torn for long; nothing is to be done for each of those steps.
            first, self._next = self._next, step - WINDOW + 1
            self._on_absent(first, self._next - 1)
            for kept in range(self._next, self._next + WINDOW):
                self._reset(kept)

    def _place_pending(self) -> None:
        waiting, self._pending = self._pending, deque()
        for stream, start, data in waiting:
            self.place(stream, start, data)

    def _close_oldest(self) -> None:
        gradient = self._slot(self._next)
        if gradient.touched:
            self._on_step(gradient)
        else:
            self._on_absent(self._next, self._next)
        self._reset(self._next + WINDOW)
        self._next += 1

    def finish(self) -> None:
        """Hand out all steps that were begun: nothing more comes."""
        self.discarded["beyond_window"] += len(self._pending)
        self._pending.clear()
        begun = [step for step in range(self._next, self._next + WINDOW) if self._slot(step).touched]
        while begun and self._next <= begun[-1]:
            self._close_oldest()
        if self._next <= self.plan.last_step:
            self._on_absent(self._next, self.plan.last_step)
            self._next = self.plan.last_step + 1
