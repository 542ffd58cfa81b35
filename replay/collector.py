"""Places stream bytes of one epoch into a window of steps, and hands out each step when nothing more can come."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from checkmate_common.stream.frame import HEADER_BYTES
from checkmate_common.stream.schedule import FrameSlot, Piece
from placement.assembler import Assembler
from placement.frames import told_crc
from placement.segments import Replica, Segments
from placement.slots import Tally
from placement.unwrap import unwrap
from replay.gradient import StepGradient, gradient_sha256
from replay.plan import Binding, EpochPlan, PlannedFlow

WINDOW = 4
"""Steps that are collected at a time: ranks are up to one step apart, and a retransmission comes within the next."""
_PENDING = 512
"""Segments beyond the window that wait for a frame header which confirms that the streams have got so far."""
_MODULUS = 1 << 32
NEAR = 1 << 30
"""Segments so far from a confirmed position are looked at one by one: their headers may confirm a newer one."""


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
        self.base = binding.base if base is None else base
        """TCP sequence number of position 0, mod 2^32."""
        self.reference = binding.reference
        """A confirmed position, near which others are."""
        self._recent: tuple[int, int, int, FrameSlot] | None = None

    def position(self, seq: int) -> int:
        """Return the stream position of the byte with sequence number `seq`; negative before the stream's begin."""
        return unwrap((seq - self.base + 1) % _MODULUS, self.reference)

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

    def confirm(self, position: int) -> None:
        """Note that bytes up to `position` were where they must be."""
        self.reference = max(self.reference, position)

    def confirm_frame(self, step: int, piece: Piece) -> None:
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
        self.confirm(end)


@dataclass(frozen=True, slots=True)
class Run:
    """Segments with payload of known streams, in the order of the capture; n is their number."""

    data: NDArray[np.uint8]
    """Memory that the payloads lie in."""
    streams: Sequence[StreamPosition]
    """The streams."""
    starts: NDArray[np.int64]
    """[n] First payload byte in `data`."""
    lengths: NDArray[np.int64]
    """[n] Payload bytes, at least 1."""
    stream: NDArray[np.int64]
    """[n] Index into `streams`."""
    positions: NDArray[np.int64]
    """[n] Stream position of the first byte."""
    first_steps: NDArray[np.int64]
    """[n] Step of the first byte."""
    last_steps: NDArray[np.int64]
    """[n] Step of the last byte."""

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self.starts)

    def part(self, which: slice | NDArray[np.bool_]) -> Run:
        """Return some of them."""
        return Run(self.data, self.streams, *(getattr(self, field.name)[which] for field in fields(self)[2:]))


class Collector:
    """The steps of one epoch.

    Memory: that of an `Assembler` for `WINDOW` steps, and `_PENDING` segments.
    """

    def __init__(
        self,
        plan: EpochPlan,
        on_step: Callable[[StepGradient], None],
        on_absent: Callable[[int, int], None],
        hashers: Executor,
    ) -> None:
        """Collect from the first step of `plan` on.

        Args:
            plan: what is expected.
            on_step: called with each step in order, complete or not.
            on_absent: called, in the same order, with the first and last of steps without a single byte.
            hashers: what digests gradients meanwhile.
        """
        self.plan = plan
        """What is expected."""
        self.discarded: Counter[str] = Counter()
        """Segments with bytes that were not placed, by cause."""
        self._assembler = Assembler(
            layout=plan.layout_at(plan.first_step), flows=list(plan.flows.values()), job=plan.job,
            group=plan.group_id, epoch=plan.epoch, first_step=plan.first_step, window=WINDOW, offline=True,
        )  # fmt: skip
        self._layouts = deque((since, layout) for since, layout in plan.layouts if since > plan.first_step)
        self._numbers: dict[StreamPosition, int] = {}
        self._pending: deque[tuple[StreamPosition, int, memoryview]] = deque()
        self._on_step = on_step
        self._on_absent = on_absent
        self._hashers = hashers
        self._digests: dict[int, Future[str]] = {}
        self._change_layouts()

    @property
    def _next(self) -> int:
        return self._assembler.next_step

    @property
    def _end(self) -> int:
        """The first step beyond the window."""
        return self._assembler.next_step + WINDOW

    def _connection(self, stream: StreamPosition) -> int:
        number = self._numbers.get(stream)
        if number is None:
            number = self._numbers[stream] = len(self._numbers) % (1 << 16)
            self._assembler.open(stream.flow.id, number)
        return number

    # ---- many segments ----

    def place_run(self, run: Run) -> None:
        """Take segments of this epoch's streams."""
        at = 0
        while at < len(run):
            beyond = run.last_steps[at:] >= self._end
            stop = at + int(beyond.argmax()) if beyond.any() else len(run)
            self._place_within(run.part(slice(at, stop)))
            if stop < len(run):
                start = int(run.starts[stop])
                payload = run.data.data[start : start + int(run.lengths[stop])]
                self.place(run.streams[run.stream[stop]], int(run.positions[stop]), payload)
            at = stop + 1

    def _place_within(self, run: Run) -> None:
        late = run.last_steps < self._next
        if late.any():
            self.discarded["late"] += int(late.sum())
            run = run.part(~late)
        if not len(run):
            return
        flows = np.array([stream.flow.id for stream in run.streams], np.int64)[run.stream]
        used = np.unique(run.stream)
        numbers = np.zeros(len(run.streams), np.int64)
        for index in used.tolist():
            numbers[index] = self._connection(run.streams[index])
        segments = Segments(
            run.data, run.starts, run.lengths, run.positions + 1, flows, numbers[run.stream],
            np.zeros(len(run), np.bool_),
        )  # fmt: skip
        at = 0
        while at < len(segments):
            at, complete = self._assembler.place_segments(segments, at, 0.0)
            if complete:
                self._begin_digests()
        for index in used.tolist():
            stream = run.streams[index]
            stream.confirm(self._assembler.reference(stream.flow.id, self._connection(stream)))

    def _begin_digests(self) -> None:
        for step in range(self._next, self._end):
            slot = self._assembler.slot(step)
            if slot.complete and step not in self._digests and slot.plan.table.copies:
                self._digests[step] = self._hashers.submit(gradient_sha256, slot)

    # ---- one segment ----

    def place(self, stream: StreamPosition, start: int, payload: memoryview) -> None:
        """Take the bytes of a stream from position `start` on."""
        position = start
        for piece in stream.locate(start, start + len(payload)):
            size = piece.end - piece.start
            data = payload[position - start : position - start + size]
            if piece.step < self._next:
                self.discarded["late"] += 1
            elif piece.step < self._end:
                self._take(stream, piece, position, data)
            elif self._confirms(stream, piece, data):
                self._advance(piece.step)
                self._take(stream, piece, position, data)
                self._place_pending()
            else:
                if len(self._pending) >= _PENDING:
                    self._pending.popleft()
                    self.discarded["beyond_window"] += 1
                self._pending.append((stream, position, memoryview(bytes(data))))
            position += size

    def _take(self, stream: StreamPosition, piece: Piece, position: int, data: memoryview) -> None:
        replica = Replica(stream.flow.id, self._connection(stream), position + 1, data)
        self._assembler.place(replica, 0.0)
        self._confirms(stream, piece, data)

    def _confirms(self, stream: StreamPosition, piece: Piece, data: memoryview) -> bool:
        """Tell whether the bytes begin with the very frame header that must be there."""
        if piece.start or len(data) < HEADER_BYTES:
            return False
        identity = self.plan.identity(stream.flow, piece.step)
        if told_crc(data[:HEADER_BYTES], identity, piece.frame) is None:
            return False
        stream.confirm_frame(piece.step, piece)
        return True

    # ---- the window ----

    def _advance(self, step: int) -> None:
        """Let `step` be within the window."""
        for _ in range(WINDOW):
            if step < self._end:
                return
            self._close_oldest()
        if step >= self._end:
            # Streams can be torn for long; nothing is to be done for each of those steps.
            first = self._next
            self._assembler.skip_to(step - WINDOW + 1)
            self._change_layouts()
            self._on_absent(first, self._next - 1)

    def _change_layouts(self) -> None:
        while self._layouts and self._layouts[0][0] < self._end:
            self._assembler.change(*self._layouts.popleft())

    def _place_pending(self) -> None:
        waiting, self._pending = self._pending, deque()
        for stream, start, data in waiting:
            self.place(stream, start, data)

    def _touched(self, step: int) -> bool:
        slot = self._assembler.slot(step)
        return bool(slot.counted(Tally.WIRE) or slot.counted(Tally.UNEXPECTED))

    def _close_oldest(self) -> None:
        step = self._next
        digest = self._digests.pop(step, None)
        if self._touched(step):
            slot = self._assembler.slot(step)
            self._on_step(StepGradient(self.plan, slot, frozenset(slot.disputed()), digest))
            if digest is not None:
                digest.result()  # whoever did not ask for it: the memory is used again
        else:
            self._on_absent(step, step)
        self._assembler.release()
        self._change_layouts()

    def finish(self) -> None:
        """Hand out all steps that were begun: nothing more comes."""
        self.discarded["beyond_window"] += len(self._pending)
        self._pending.clear()
        begun = [step for step in range(self._next, self._end) if self._touched(step)]
        while begun and self._next <= begun[-1]:
            self._close_oldest()
        if self._next <= self.plan.last_step:
            self._on_absent(self._next, self.plan.last_step)
