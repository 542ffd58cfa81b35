"""Places replica bytes by stream position into the buffers of the steps that are being collected.

Pure arithmetic and copying: no sockets, clocks or torch. One assembler serves one epoch of one group, so
that bytes of two epochs can never meet in one buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from jobspec.layout import Layout
from jobspec.model import Flow
from jobspec.schedule import FlowSchedule, FrameSlot
from shadow_rx.capture import Discard, Replica
from shadow_rx.frames import Frame, FrameCopy
from shadow_rx.slots import FlowPlan, SlotPlan, StepSlot, plan_slots
from shadow_rx.unwrap import unwrap
from shadow_rx.variants import SideBuffer

T = TypeVar("T")


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
    redundant: tuple[int, ...] = ()
    """Flows whose redundant hops carry the same bytes, which did not arrive from them either."""


@dataclass(frozen=True)
class CorruptFrame:
    """A frame whose bytes were wrong when they were last complete."""

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
    copy: FrameCopy
    slot: StepSlot


class Connection:
    """One incarnation of a flow: its schedule, and a position that is near the present one."""

    def __init__(self, plan: FlowPlan, layout: Layout, source_port: int, first_step: int) -> None:
        """Let stream position 0 be the first byte of `first_step`."""
        self.flow_id = plan.flow.id
        """The flow."""
        self.source_port = source_port
        """TCP source port."""
        self._plans = [(first_step, plan)]
        self.schedule = FlowSchedule(plan.flow.shape, [(first_step, layout)], first_step)
        """Position arithmetic."""
        self.reference = 0
        """Where the next byte is expected."""
        self.recent: _Recent | None = None
        """Shortcut for in-order segments."""

    def change(self, step: int, plan: FlowPlan, layout: Layout) -> None:
        """Let `plan`, that of `layout`, be in force from `step` on; positions go on."""
        self._plans.append((step, plan))
        self.schedule.add_layout(step, layout)

    def plan_at(self, step: int) -> FlowPlan:
        """Return the frames of the flow at `step`."""
        return in_force(self._plans, step)

    @property
    def carries_bytes(self) -> bool:
        """Whether there is a step of which the flow carries bytes."""
        return any(plan.plan.length for _, plan in self._plans)

    def expect(self, step: int, ordinal: int) -> None:
        """Move the reference forward to expected frame `ordinal` of `step` (or the first of the next step).

        Only verified frames move it, and only those that arrived whole in this connection: a replica with a damaged
        sequence number that passes its checksum must not, or it would make later positions wrong by a multiple of
        2^32. It goes to the next *expected* byte rather than to the last one seen, because the hops
        between two expected frames may fill more than 2^31 stream bytes.
        """
        expected = self.plan_at(step).expected
        if ordinal >= len(expected):
            step, ordinal = step + 1, 0
            expected = self.plan_at(step).expected
        if not expected:
            return
        position = self.schedule.step_start(step) + expected[ordinal].start
        self.reference = max(self.reference, position)


class Assembler:
    """Collects the reduced gradients of one epoch of a group in a window of steps.

    Memory: `window` times (gradient + 64 bytes for each copy of a frame), allocated once, plus at most two integers
    for each hole, plus `variants.SIDE_BUFFER_BYTES` for copies that differ.
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
        self._flows = flows
        self._plans: list[tuple[int, SlotPlan]] = [(first_step, plan_slots(layout, flows))]
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
        self._side = SideBuffer()
        self._differing = 0  # of `SideBuffer.differing`: what was counted as discarded
        self._slots = [StepSlot(self.plan_at(first_step), self._side) for _ in range(window)]
        for step in range(first_step, first_step + window):
            self._reset(step)

    def plan_at(self, step: int) -> SlotPlan:
        """Return the memory layout of the slot of `step`."""
        return in_force(self._plans, step)

    @property
    def plan(self) -> SlotPlan:
        """The memory layout of the slot of the oldest step."""
        return self.plan_at(self.next_step)

    def change(self, step: int, layout: Layout) -> None:
        """Let `layout` be in force from `step` on, later than every layout before; the streams go on.

        Bytes of such steps that came already, placed by the layout until now, are forgotten: there should be none.

        Raises:
            MemoryError: the buffers cannot be allocated; nothing has changed then.
        """
        plan = plan_slots(layout, self._flows)
        last = self.next_step + self.window
        fresh = {known % self.window: StepSlot(plan, self._side) for known in range(max(step, self.next_step), last)}
        self._plans.append((step, plan))
        for connection in self._connections.values():
            connection.recent = None
            connection.change(step, plan.flows[connection.flow_id], layout)
        for index, slot in fresh.items():
            self._slots[index] = slot
        for known in range(max(step, self.next_step), last):
            self._reset(known)

    def _reset(self, step: int) -> None:
        """Begin to collect `step` in the slot that is its."""
        index, plan = step % self.window, self.plan_at(step)
        if self._slots[index].plan is not plan:
            self._slots[index] = StepSlot(plan, self._side)
        self._slots[index].reset(step, *self._ids)

    def open(self, flow_id: int, source_port: int) -> None:
        """Accept replicas of `flow_id` from `source_port`; the stream begins with the epoch's first step."""
        key = (flow_id, source_port)
        if key not in self._connections:
            first = self.plan_at(self.first_step)
            connection = Connection(first.flows[flow_id], first.layout, source_port, self.first_step)
            for since, plan in self._plans[1:]:
                connection.change(since, plan.flows[flow_id], plan.layout)
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
            placed = self._fill(connection, recent.slot, recent.copy, start - recent.start, replica.payload, now)
            if placed < length:
                self.discarded.update(self._why_not(recent.copy.slot))
            return recent.slot.complete
        return self._place_pieces(connection, start, replica.payload, now)

    def _place_pieces(self, connection: Connection, start: int, payload: memoryview, now: float) -> bool:
        causes: set[Discard] = set()
        look = False
        if not connection.carries_bytes:
            self.discarded[Discard.MISPLACED] += 1
            return False
        position = start
        for piece in connection.schedule.locate(start, start + len(payload)):
            data = payload[position - start : position - start + piece.end - piece.start]
            position += len(data)
            ordinal = connection.plan_at(piece.step).ordinal.get(piece.frame.index)
            if ordinal is None:
                causes.add(Discard.MISPLACED)
            elif piece.step < self.next_step:
                causes.add(_not_needed(piece.frame))
            elif piece.step >= self.next_step + self.window:
                causes.add(Discard.BEYOND_WINDOW)
                self._note_overrun(piece.step)
                look = True
            else:
                slot = self.slot(piece.step)
                copy = slot.copies[connection.flow_id][ordinal]
                first = position - len(data) - piece.start
                connection.recent = _Recent(first, first + copy.size, copy, slot)
                if self._fill(connection, slot, copy, piece.start, data, now) < len(data):
                    causes.update(self._why_not(piece.frame))
                look = look or slot.complete
        self.discarded.update(causes)
        return look

    def _fill(
        self,
        connection: Connection,
        slot: StepSlot,
        copy: FrameCopy,
        start: int,
        data: memoryview,
        now: float,
    ) -> int:
        frame = copy.frame
        placed = copy.place(start, data)
        if placed:
            slot.received_bytes += placed
            if slot.first_byte_at is None:
                slot.first_byte_at = now
        whole = copy.coverage.is_exactly(0, frame.size)
        if (whole or frame.shared) and (placed or frame.untried) and not frame.verified and frame.covered:
            self._verify(slot, frame, now)
        if whole and frame.verified:
            connection.expect(slot.step, slot.plan.flows[copy.flow_id].ordinal[copy.slot.index] + 1)
        return placed

    def place_given(self, step: int, flow_id: int, index: int, start: int, data: memoryview, now: float) -> int:
        """Copy bytes that another shadow node gave to where they are missing; return how many were missing.

        Positions of connections are not touched. Bytes that do not lie in an expected primary frame of a step of the
        window are not placed.

        Args:
            step: the step.
            flow_id: flow of the frame's primary copy.
            index: `FrameSlot.index` of it.
            start: first byte, relative to the frame's header.
            data: the bytes.
            now: as in `place`.
        """
        plan = self.plan.flows.get(flow_id)
        ordinal = plan.ordinal.get(index) if plan is not None else None
        if ordinal is None or not self.next_step <= step < self.next_step + self.window:
            return 0
        slot = self.slot(step)
        copy = slot.copies[flow_id][ordinal]
        frame = copy.frame
        if copy.index or frame.verified or not len(data) or start < 0 or start + len(data) > frame.size:
            return 0
        placed = copy.place(start, data)
        slot.received_bytes += placed
        slot.peer_bytes += placed
        if placed and slot.first_byte_at is None:
            slot.first_byte_at = now
        if self._side.differing != self._differing:
            self._differing = self._side.differing
            self.discarded[Discard.COPIES_DIFFER] += 1
        if (placed or frame.untried) and frame.covered:
            self._verify(slot, frame, now)
            # What was there was wrong, and these bytes made it right.
            slot.peer_bytes += frame.overlaid
        return placed

    def _verify(self, slot: StepSlot, frame: Frame, now: float) -> None:
        if not frame.verify(slot.identities):
            return
        slot.remaining -= 1
        # A verified frame counts for its size, whichever of its headers came and whatever was wrong before.
        slot.received_bytes += frame.correction
        if slot.complete:
            slot.complete_at = now

    def _why_not(self, slot: FrameSlot) -> tuple[Discard, ...]:
        """Return why bytes of `slot` that were just given to its copy were not all placed."""
        if self._side.differing == self._differing:
            return (_not_needed(slot),)
        self._differing = self._side.differing
        return _not_needed(slot), Discard.COPIES_DIFFER

    def _note_overrun(self, step: int) -> None:
        first, last = self.overrun or (step, step)
        self.overrun = (min(first, step), max(last, step))

    def note_damaged(self, replica: Replica) -> None:
        """Note a replica that failed a checksum in the step that its (perhaps damaged) position points to."""
        connection = self._connections.get((replica.flow_id, replica.source_port))
        if connection is None or not connection.carries_bytes:
            return
        start = unwrap(replica.sequence, connection.reference)
        if start < 0:
            return
        step = next(iter(connection.schedule.locate(start, start + 1))).step
        if self.next_step <= step < self.next_step + self.window:
            damaged = self.slot(step).damaged
            damaged[replica.flow_id] = damaged.get(replica.flow_id, 0) + 1

    def note_dropped(self, count: int) -> None:
        """Note `count` replicas that were dropped before they could be looked at: of whichever step of the window."""
        for step in range(self.next_step, self.next_step + self.window):
            self.slot(step).dropped += count

    def release(self) -> None:
        """Give the oldest step's buffer to the newest step of the window."""
        done = self.next_step
        self.next_step += 1
        self._reset(done + self.window)
        for connection in self._connections.values():
            connection.recent = None
            connection.expect(self.next_step, 0)

    def skip_to(self, step: int) -> None:
        """Give up the steps before `step`: collect from there on, and keep what has come of the steps that stay.

        Nothing happens where `step` is not after `next_step`. Bytes that were dropped because they lay beyond the
        window are forgotten; where the window reaches now, their steps have holes.
        """
        if step <= self.next_step:
            return
        for fresh in range(max(step, self.next_step + self.window), step + self.window):
            self._reset(fresh)
        self.next_step = step
        self.overrun = None
        for connection in self._connections.values():
            connection.recent = None
            connection.expect(step, 0)

    def missing(self, step: int) -> list[MissingRange]:
        """Return what has not arrived of a step of the window, adjacent ranges of the same chunk joined."""
        found: list[MissingRange] = []
        for frame in self.slot(step).frames:
            for start, end in frame.missing():
                _append(found, frame, start, end)
        return found

    def corrupt(self, step: int) -> list[CorruptFrame]:
        """Return the frames of a step of the window whose bytes were wrong when they were last complete."""
        return [
            CorruptFrame(frame.primary.flow_id, frame.primary.slot.bucket, frame.primary.slot.chunk, frame.problem)
            for frame in self.slot(step).frames
            if frame.problem is not None
        ]


def in_force(plans: Sequence[tuple[int, T]], step: int) -> T:
    """Return which of `plans`, each with its first step, is in force at `step`."""
    for since, plan in reversed(plans):
        if since <= step:
            return plan
    return plans[0][1]


def _not_needed(slot: FrameSlot) -> Discard:
    return Discard.REDUNDANT if slot.hop else Discard.DUPLICATE


def _append(found: list[MissingRange], frame: Frame, start: int, end: int) -> None:
    flow_id, slot = frame.primary.flow_id, frame.primary.slot
    redundant = tuple(copy.flow_id for copy in frame.copies[1:])
    start, end = slot.start + start, slot.start + end
    if found:
        last = found[-1]
        if (last.flow_id, last.bucket, last.chunk, last.end) == (flow_id, slot.bucket, slot.chunk, start):
            found[-1] = MissingRange(flow_id, last.bucket, last.chunk, last.start, end, redundant)
            return
    found.append(MissingRange(flow_id, slot.bucket, slot.chunk, start, end, redundant))
