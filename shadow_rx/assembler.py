"""Places replica bytes by stream position into the buffers of the steps that are being collected.

Pure arithmetic and copying: no sockets, clocks or torch. One assembler serves one epoch of one group, so
that bytes of two epochs can never meet in one buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jobspec.layout import Layout
from jobspec.model import Flow
from jobspec.schedule import FlowSchedule, FrameSlot
from shadow_rx.capture import Discard, Replica
from shadow_rx.frames import FrameBuffer
from shadow_rx.slots import FlowPlan, SlotPlan, StepSlot, plan_slots
from shadow_rx.unwrap import unwrap


@dataclass(frozen=True)
class MissingRange:
    """Bytes of a step that have not arrived."""

    flow_id: int
    """The flow."""
    bucket: int
    """Bucket of the frame."""
    chunk: int
    """Chunk of the frame."""
    start: int
    """First byte, relative to the flow's first stream byte of the step."""
    end: int
    """One past the last byte."""


@dataclass(frozen=True)
class CorruptFrame:
    """A frame whose last complete copy was wrong."""

    flow_id: int
    """The flow."""
    bucket: int
    """Bucket of the frame."""
    chunk: int
    """Chunk of the frame."""
    problem: str
    """Which field or CRC differs."""


@dataclass(slots=True)
class _Recent:
    """The frame that a connection's last replica belonged to: in-order segments need no search."""

    start: int
    end: int
    buffer: FrameBuffer
    slot: StepSlot


class Connection:
    """One incarnation of a flow: its schedule, and a position that is near the present one."""

    def __init__(self, plan: FlowPlan, layout: Layout, source_port: int, first_step: int) -> None:
        """Let stream position 0 be the first byte of `first_step`."""
        self.flow_id = plan.flow.id
        """The flow."""
        self.source_port = source_port
        """TCP source port."""
        self.plan = plan
        """Frames of the flow."""
        self.schedule = FlowSchedule(plan.flow.shape, [(first_step, layout)], first_step)
        """Position arithmetic."""
        self.reference = 0
        """Where the next byte is expected."""
        self.recent: _Recent | None = None
        """Shortcut for in-order segments."""

    def expect(self, step: int, ordinal: int) -> None:
        """Move the reference forward to primary frame `ordinal` of `step` (or the first of the next step).

        Only verified frames move it: a replica with a damaged sequence number that passes its checksum must
        not, or it would make later positions wrong by a multiple of 2^32. It goes to the next *expected*
        byte rather than to the last one seen, because the hops between two primary frames may fill more
        than 2^31 stream bytes.
        """
        primary = self.plan.primary
        if not primary:
            return
        if ordinal >= len(primary):
            step, ordinal = step + 1, 0
        position = self.schedule.step_start(step) + primary[ordinal].start
        self.reference = max(self.reference, position)


class Assembler:
    """Collects the reduced gradients of one epoch of a group in a window of steps.

    Memory: `window` times (gradient + 64 bytes a frame), allocated once, plus at most two integers for each
    hole.
    """

    def __init__(
        self,
        *,
        layout: Layout,
        flows: Sequence[Flow],
        job: int,
        group: int,
        epoch: int,
        first_step: int,
        window: int,
    ) -> None:
        """Collect steps from `first_step` on, at most `window` (at least 2) of them at a time.

        Raises:
            MemoryError: the buffers cannot be allocated.
        """
        self.plan: SlotPlan = plan_slots(layout, flows)
        """Memory layout of a slot."""
        self.first_step = first_step
        """Step at stream position 0."""
        self.next_step = first_step
        """Oldest step that is being collected."""
        self.window = window
        """Steps that are being collected at a time."""
        self.discarded: Counter[Discard] = Counter()
        """Replicas with at least one byte that was not placed, by cause."""
        self.overrun: tuple[int, int] | None = None
        """Oldest and newest step of which bytes were dropped because they lie beyond the window."""
        self._ids = (job, group, epoch)
        self._connections: dict[tuple[int, int], Connection] = {}
        self._slots = [StepSlot(self.plan) for _ in range(window)]
        for step in range(first_step, first_step + window):
            self.slot(step).reset(step, *self._ids)

    def open(self, flow_id: int, source_port: int) -> None:
        """Accept replicas of `flow_id` from `source_port`; the stream begins with the epoch's first step."""
        key = (flow_id, source_port)
        if key not in self._connections:
            connection = Connection(self.plan.flows[flow_id], self.plan.layout, source_port, self.first_step)
            connection.expect(self.next_step, 0)
            self._connections[key] = connection

    def port_of(self, flow_id: int) -> int | None:
        """Return the source port of the flow's connection, None when it has none yet."""
        return next((port for flow, port in self._connections if flow == flow_id), None)

    def slot(self, step: int) -> StepSlot:
        """Return the slot of a step of the window."""
        return self._slots[step % self.window]

    @property
    def newest_touched(self) -> int:
        """Newest step of the window that has a byte, the step before `next_step` when none has."""
        steps = range(self.next_step, self.next_step + self.window)
        return max((step for step in steps if self.slot(step).touched), default=self.next_step - 1)

    @property
    def newest_seen(self) -> int:
        """Newest step of which a byte has arrived, kept or not."""
        return max(self.newest_touched, self.overrun[1] if self.overrun else 0)

    def place(self, replica: Replica, now: float) -> bool:
        """Copy the payload where it belongs; tell whether a step became complete or bytes overran.

        Args:
            replica: an intact replica.
            now: time in seconds of the caller's clock, kept as the slot's first and last byte times.
        """
        connection = self._connections.get((replica.flow_id, replica.source_port))
        if connection is None:
            self.discarded[Discard.UNKNOWN_CONNECTION] += 1
            return False
        length = len(replica.payload)
        if not length:
            return False
        start = unwrap(replica.sequence, connection.reference)
        if start < 0:
            self.discarded[Discard.BAD_POSITION] += 1
            return False
        recent = connection.recent
        if recent is not None and recent.start <= start and start + length <= recent.end:
            placed = self._fill(connection, recent.slot, recent.buffer, start - recent.start, replica.payload, now)
            if placed < length:
                self.discarded[Discard.DUPLICATE] += 1
            return recent.slot.complete
        return self._place_pieces(connection, start, replica.payload, now)

    def _place_pieces(self, connection: Connection, start: int, payload: memoryview, now: float) -> bool:
        causes: set[Discard] = set()
        look = False
        if not connection.plan.plan.length:
            self.discarded[Discard.MISPLACED] += 1
            return False
        position = start
        for piece in connection.schedule.locate(start, start + len(payload)):
            data = payload[position - start : position - start + piece.end - piece.start]
            position += len(data)
            ordinal = connection.plan.ordinal.get(piece.frame.index)
            if ordinal is None:
                causes.add(Discard.MISPLACED)
            elif piece.step < self.next_step:
                causes.add(Discard.DUPLICATE)
            elif piece.step >= self.next_step + self.window:
                causes.add(Discard.BEYOND_WINDOW)
                self._note_overrun(piece.step)
                look = True
            else:
                slot = self.slot(piece.step)
                buffer = slot.frames[connection.flow_id][ordinal]
                first = position - len(data) - piece.start
                connection.recent = _Recent(first, first + buffer.size, buffer, slot)
                if self._fill(connection, slot, buffer, piece.start, data, now) < len(data):
                    causes.add(Discard.DUPLICATE)
                look = look or slot.complete
        self.discarded.update(causes)
        return look

    def _fill(
        self,
        connection: Connection,
        slot: StepSlot,
        buffer: FrameBuffer,
        start: int,
        data: memoryview,
        now: float,
    ) -> int:
        placed = buffer.place(start, data)
        if not placed:
            return 0
        slot.received_bytes += placed
        if slot.first_byte_at is None:
            slot.first_byte_at = now
        if buffer.covered and buffer.verify(slot.identities[connection.flow_id]):
            slot.remaining -= 1
            connection.expect(slot.step, connection.plan.ordinal[buffer.slot.index] + 1)
            if slot.complete:
                slot.complete_at = now
        return placed

    def _note_overrun(self, step: int) -> None:
        first, last = self.overrun or (step, step)
        self.overrun = (min(first, step), max(last, step))

    def note_damaged(self, replica: Replica) -> None:
        """Note a replica that failed a checksum in the step that its (perhaps damaged) position points to."""
        connection = self._connections.get((replica.flow_id, replica.source_port))
        if connection is None or not connection.plan.plan.length:
            return
        start = unwrap(replica.sequence, connection.reference)
        if start < 0:
            return
        step = next(iter(connection.schedule.locate(start, start + 1))).step
        if self.next_step <= step < self.next_step + self.window:
            damaged = self.slot(step).damaged
            damaged[replica.flow_id] = damaged.get(replica.flow_id, 0) + 1

    def release(self) -> None:
        """Give the oldest step's buffer to the newest step of the window."""
        done = self.next_step
        self.next_step += 1
        self.slot(done).reset(done + self.window, *self._ids)
        for connection in self._connections.values():
            connection.recent = None
            connection.expect(self.next_step, 0)

    def missing(self, step: int) -> list[MissingRange]:
        """Return what has not arrived of a step of the window, adjacent ranges of the same chunk joined."""
        found: list[MissingRange] = []
        slot = self.slot(step)
        for flow_id, buffers in slot.frames.items():
            for buffer in buffers:
                for start, end in buffer.missing():
                    _append(found, flow_id, buffer.slot, start, end)
        return found

    def corrupt(self, step: int) -> list[CorruptFrame]:
        """Return the frames of a step of the window whose last complete copy was wrong."""
        return [
            CorruptFrame(flow_id, buffer.slot.bucket, buffer.slot.chunk, buffer.problem)
            for flow_id, buffers in self.slot(step).frames.items()
            for buffer in buffers
            if buffer.problem is not None
        ]


def _append(found: list[MissingRange], flow_id: int, frame: FrameSlot, start: int, end: int) -> None:
    start, end = frame.start + start, frame.start + end
    if found:
        last = found[-1]
        if (last.flow_id, last.bucket, last.chunk, last.end) == (flow_id, frame.bucket, frame.chunk, start):
            found[-1] = MissingRange(flow_id, last.bucket, last.chunk, last.start, end)
            return
    found.append(MissingRange(flow_id, frame.bucket, frame.chunk, start, end))
