"""Places bytes of streams by their position into the buffers of the steps that are being collected.

One assembler serves one epoch of one group, so that bytes of two epochs can never meet in one buffer. `Assembler.place`
says what becomes of a segment; `Assembler.place_segments` does the same for many, by `placement.kernel` as far as that
goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from checkmate_common.stream.frame import HEADER_BYTES
from checkmate_common.stream.layout import Layout
from checkmate_common.stream.schedule import FlowSchedule, FrameSlot
from placement.connections import Connections
from placement.discard import Discard
from placement.era import COVERED, WHOLE, WRAPPED, Era, place_batch
from placement.frames import Frame
from placement.plan import Flow, SlotPlan, plan_slots
from placement.segments import Replica, Segments
from placement.slots import SlotMemory, State, StepSlot, Tally
from placement.stop import Count, Stop
from placement.unwrap import unwrap
from placement.variants import SideBuffer

T = TypeVar("T")
_COUNTED = {
    Count.UNKNOWN_CONNECTION: Discard.UNKNOWN_CONNECTION,
    Count.BAD_POSITION: Discard.BAD_POSITION,
    Count.DUPLICATE: Discard.DUPLICATE,
    Count.REDUNDANT: Discard.REDUNDANT,
}


@dataclass(slots=True)
class _Recent:
    """The copy that a connection's last replica belonged to: in-order segments need no search."""

    start: int
    end: int
    copy: int
    slot: StepSlot


class Assembler:
    """Collects the reduced gradients of one epoch of a group in a window of steps.

    Memory: `window` times (gradient + 64 bytes for each copy of a frame), allocated once (`placement.slots` adds some
    bytes for each frame), plus some hundred bytes and two integers a hole for each frame that did not come in order,
    plus `variants.SIDE_BUFFER_BYTES` for copies that differ. Where the layout changes, those of the old layout as well
    until its steps are done. Nothing is allocated for a segment.
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
        offline: bool = False,
    ) -> None:
        """Collect steps from `first_step` on, at most `window` (at least 2) of them at a time.

        With `offline`, for captures: sequence numbers are stream positions plus 1, whatever their size; bytes of frames
        that are not expected are counted (`Tally.UNEXPECTED`) and no cause to discard; and every byte is compared with
        what is there already, of verified frames too (`StepSlot.conflicts`).

        Raises:
            MemoryError: the buffers cannot be allocated.
        """
        plan = plan_slots(layout, flows)
        self._flows = flows
        self._plans: list[tuple[int, SlotPlan]] = [(first_step, plan)]
        self._schedules = {flow.id: FlowSchedule(flow.shape, [(first_step, layout)], first_step) for flow in flows}
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
        self._offline = offline
        self._modulus = WHOLE if offline else WRAPPED
        self._side = SideBuffer()
        self._differing = 0  # of `SideBuffer.differing`: what was counted as discarded
        self._connections = Connections(list(plan.flows))
        self._recent: dict[int, _Recent] = {}
        self._counts = np.zeros(len(Count), np.int64)
        self._covered = np.zeros((COVERED, 3), np.int64)
        self._memories = [Era(self._slots(plan, first_step), self._schedules)]
        self._in_use = self._memories[0]
        for step in range(first_step, first_step + window):
            self._reset(step)

    def _slots(self, plan: SlotPlan, first_step: int) -> SlotMemory:
        return SlotMemory(plan, first_step, self.window, self._side, keep_conflicts=self._offline)

    def plan_at(self, step: int) -> SlotPlan:
        """Return the memory layout of the slot of `step`."""
        return in_force(self._plans, step)

    @property
    def plan(self) -> SlotPlan:
        """The memory layout of the slot of the oldest step."""
        return self.plan_at(self.next_step)

    @property
    def nbytes(self) -> int:
        """Bytes of memory for gradients and frame headers."""
        return self.window * sum(era.slots.plan.nbytes for era in self._memories)

    def change(self, step: int, layout: Layout) -> None:
        """Let `layout` be in force from `step` on, later than every layout before; the streams go on.

        Bytes of such steps that came already, placed by the layout until now, are forgotten: there should be none.

        Raises:
            MemoryError: the buffers cannot be allocated; nothing has changed then.
        """
        plan = plan_slots(layout, self._flows)
        slots = self._slots(plan, step)
        for known in range(max(step, self.next_step), self.next_step + self.window):
            self.slot(known).forget()
        self._plans.append((step, plan))
        for schedule in self._schedules.values():
            schedule.add_layout(step, layout)
        self._recent.clear()
        self._memories.append(Era(slots, self._schedules))
        self._memories[-2].end(step, self._schedules)
        for known in range(max(step, self.next_step), self.next_step + self.window):
            self._reset(known)
        self._drop_old()

    def _era(self, step: int) -> Era:
        if len(self._memories) > 1:
            for era in reversed(self._memories):
                if era.slots.first_step <= step:
                    return era
        return self._memories[0]

    def _drop_old(self) -> None:
        """Free the memory of layouts whose steps are done."""
        while len(self._memories) > 1 and self._memories[1].slots.first_step <= self.next_step:
            for slot in self._memories.pop(0).slots.slots:
                slot.forget()
        if self._in_use not in self._memories:
            self._in_use = self._memories[0]

    def _reset(self, step: int) -> None:
        """Begin to collect `step` in the slot that is its."""
        self.slot(step).reset(step, *self._ids)

    def open(self, flow_id: int, source_port: int) -> None:
        """Accept replicas of `flow_id` from `source_port`; the stream begins with the epoch's first step."""
        if self._connections.find(flow_id, source_port) < 0:
            self._move(self._connections.add(flow_id, source_port), self.next_step, 0)

    def port_of(self, flow_id: int) -> int | None:
        """Return the source port of the flow's connection, None when it has none yet."""
        return self._connections.port_of(flow_id)

    def reference(self, flow_id: int, source_port: int) -> int:
        """Return the position up to which frames of an open connection arrived whole and are verified."""
        return self._connections.reference(self._connections.find(flow_id, source_port))

    def slot(self, step: int) -> StepSlot:
        """Return the slot of a step of the window."""
        return self._era(step).slots.slots[step % self.window]

    @property
    def newest_touched(self) -> int:
        """Newest step of the window that has a byte, the step before `next_step` when none has."""
        steps = range(self.next_step, self.next_step + self.window)
        return max((step for step in steps if self.slot(step).touched), default=self.next_step - 1)

    @property
    def newest_seen(self) -> int:
        """Newest step of which a byte has arrived, kept or not."""
        return max(self.newest_touched, self.overrun[1] if self.overrun else 0)

    # ---- many segments ----

    def place_segments(self, segments: Segments, at: int, now: float) -> tuple[int, bool]:
        """Place segments from `at` on, as `place` and `note_damaged` do; return the next one, and what `place` tells.

        It returns early when `place` would tell True: the window may have to move before the next segment.
        """
        connections = self._connections.of(segments)
        while at < len(segments):
            era = self._in_use
            at, stop, covered = place_batch(
                at, segments.data, segments.starts, segments.lengths, segments.sequences, connections,
                segments.damaged, *self._connections.arrays, *era.bounds, self.next_step, *era.arrays,
                self._counts, self._covered, self._modulus, self._offline,
            )  # fmt: skip
            if self._counts.any():
                self.discarded.update({_COUNTED[Count(i)]: n for i, n in enumerate(self._counts.tolist()) if n})
                self._counts[:] = 0
            era.note_first_bytes(now)
            if covered and self._settle(era, self._covered[:covered].tolist(), now):
                return at, True
            if stop == Stop.OTHER:
                replica, damaged = segments.replica(at), segments.damaged[at]
                at += 1
                if damaged:
                    self.note_damaged(replica)
                elif self.place(replica, now):
                    return at, True
        return at, False

    def _settle(self, era: Era, covered: Sequence[tuple[int, int, int]], now: float) -> bool:
        """Verify frames that a kernel has found to be covered; tell whether a step became complete."""
        slots, table = era.slots, era.slots.plan.table
        rows = [row for row, _, _ in covered]
        frames = [table.place[copy][0] for _, copy, _ in covered]
        proven = slots.prove(rows, frames)
        good = [index for index, right in enumerate(proven) if right]
        if good:
            slots.verified([rows[index] for index in good], [frames[index] for index in good])
        if len(good) == len(covered):
            self._connections.advance()
        for index, (row, copy, connection) in enumerate(covered if len(good) < len(covered) else ()):
            slot, frame = slots.slots[row], frames[index]
            whole = slots.prefix[row, copy] == table.arrays.size[copy]
            if (proven[index] or self._verify(slot, frame, slot.own(frame), now)) and whole:
                self._expect(connection, slot, copy)
        self._connections.settled()
        complete = [slots.slots[row] for row in set(rows) if slots.slots[row].complete]
        for slot in complete:
            slot.complete_at = now
        return bool(complete)

    # ---- one segment ----

    def place(self, replica: Replica, now: float) -> bool:
        """Copy the payload where it belongs; tell whether a step became complete or bytes overran.

        Args:
            replica: an intact replica.
            now: time in seconds of the caller's clock, kept as the slot's first and last byte times.
        """
        connection = self._connections.find(replica.flow_id, replica.source_port)
        if connection < 0:
            self.discarded[Discard.UNKNOWN_CONNECTION] += 1
            return False
        length = len(replica.payload)
        if not length:
            return False
        start = self._position(connection, replica.sequence)
        if start < 0:
            self.discarded[Discard.BAD_POSITION] += 1
            return False
        recent = self._recent.get(connection)
        if recent is None or start < recent.start or start + length > recent.end:
            return self._place_pieces(connection, start, replica, now)
        slot, before = recent.slot, recent.slot.remaining
        placed = self._fill(connection, slot, recent.copy, start - recent.start, replica.payload, now)
        if placed < length:
            self.discarded.update(self._why_not(slot.plan.table.slots[recent.copy][1]))
        return before > 0 and slot.complete

    def _position(self, connection: int, sequence: int) -> int:
        return unwrap(sequence, self._connections.reference(connection), self._modulus)

    def _place_pieces(self, connection: int, start: int, replica: Replica, now: float) -> bool:
        flow_id, payload = replica.flow_id, replica.payload
        if not self._carries_bytes(flow_id):
            self.discarded[Discard.MISPLACED] += 1
            return False
        causes: set[Discard] = set()
        look = False
        position = start
        for piece in self._schedules[flow_id].locate(start, start + len(payload)):
            data = payload[position - start : position - start + piece.end - piece.start]
            position += len(data)
            ordinal = self.plan_at(piece.step).flows[flow_id].ordinal.get(piece.frame.index)
            if ordinal is None and self._offline:
                if self.next_step <= piece.step < self.next_step + self.window:
                    self.slot(piece.step).count(len(data), Tally.UNEXPECTED)
            elif ordinal is None:
                causes.add(Discard.MISPLACED)
            elif piece.step < self.next_step:
                causes.add(_not_needed(piece.frame))
            elif piece.step >= self.next_step + self.window:
                causes.add(Discard.BEYOND_WINDOW)
                self._note_overrun(piece.step)
                look = True
            else:
                self._in_use = self._era(piece.step)
                slot = self.slot(piece.step)
                copy, before = slot.plan.table.first_copy[flow_id] + ordinal, slot.remaining
                first = position - len(data) - piece.start
                self._recent[connection] = _Recent(first, first + piece.frame.end - piece.frame.start, copy, slot)
                if self._fill(connection, slot, copy, piece.start, data, now) < len(data):
                    causes.update(self._why_not(piece.frame))
                look = look or (before > 0 and slot.complete)
        self.discarded.update(causes)
        return look

    def _fill(self, connection: int, slot: StepSlot, copy: int, start: int, data: memoryview, now: float) -> int:
        number, index = slot.plan.table.place[copy]
        slot.count(len(data), Tally.WIRE)
        slot.count(max(0, start + len(data) - max(start, HEADER_BYTES)), Tally.WIRE_PAYLOAD)
        if not self._offline and slot.state(number) == State.VERIFIED and len(slot.plan.table.copies[number]) == 1:
            self._expect(connection, slot, copy)
            return 0
        frame = slot.own(number)
        mine = frame.copies[index]
        placed = mine.place(start, data)
        if placed:
            slot.count(placed)
            if slot.first_byte_at is None:
                slot.first_byte_at = now
        whole = mine.whole
        if (whole or frame.shared) and (placed or frame.untried) and not frame.verified and frame.covered:
            self._verify(slot, number, frame, now)
        if whole and frame.verified:
            self._expect(connection, slot, copy)
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
        if not self.next_step <= step < self.next_step + self.window:
            return 0
        slot = self.slot(step)
        plan = slot.plan.flows.get(flow_id)
        ordinal = plan.ordinal.get(index) if plan is not None else None
        if ordinal is None:
            return 0
        number, among = slot.plan.table.place[slot.plan.table.first_copy[flow_id] + ordinal]
        if among or slot.frame(number).verified:
            return 0
        frame = slot.own(number)
        if not len(data) or start < 0 or start + len(data) > frame.size:
            return 0
        placed = frame.primary.place(start, data)
        slot.count(placed)
        slot.peer_bytes += placed
        if placed and slot.first_byte_at is None:
            slot.first_byte_at = now
        if self._side.differing != self._differing:
            self._differing = self._side.differing
            self.discarded[Discard.COPIES_DIFFER] += 1
        if (placed or frame.untried) and frame.covered:
            self._verify(slot, number, frame, now)
            # What was there was wrong, and these bytes made it right.
            slot.peer_bytes += frame.overlaid
        return placed

    def _verify(self, slot: StepSlot, number: int, frame: Frame, now: float) -> bool:
        if frame.verify(slot.identities):
            # A verified frame counts for its size, whichever of its headers came and whatever was wrong before.
            slot.verified(number)
            slot.count(frame.correction)
            if slot.complete:
                slot.complete_at = now
        return frame.verified

    def _expect(self, connection: int, slot: StepSlot, copy: int) -> None:
        """Move a connection's reference past a verified `copy` that arrived whole in it.

        Only such copies move it: a replica with a damaged sequence number that passes its checksum must not, or it
        would make later positions wrong by a multiple of 2^32.
        """
        flow_id = self._connections.flows[connection]
        self._move(connection, slot.step, copy - slot.plan.table.first_copy[flow_id] + 1)

    def _move(self, connection: int, step: int, ordinal: int) -> None:
        """Move a connection's reference to expected frame `ordinal` of `step` (or the first of the next step).

        It goes to the next *expected* byte rather than to the last one seen, because the hops between two expected
        frames may fill more than 2^31 stream bytes.
        """
        flow_id = self._connections.flows[connection]
        expected = self.plan_at(step).flows[flow_id].expected
        if ordinal >= len(expected):
            step, ordinal = step + 1, 0
            expected = self.plan_at(step).flows[flow_id].expected
        if expected:
            start = self._schedules[flow_id].step_start(step) + expected[ordinal].start
            self._connections.move(connection, start)

    def _carries_bytes(self, flow_id: int) -> bool:
        return any(plan.flows[flow_id].plan.length for _, plan in self._plans)

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
        connection = self._connections.find(replica.flow_id, replica.source_port)
        if connection < 0 or not self._carries_bytes(replica.flow_id):
            return
        start = self._position(connection, replica.sequence)
        if start < 0:
            return
        step = next(iter(self._schedules[replica.flow_id].locate(start, start + 1))).step
        if self.next_step <= step < self.next_step + self.window:
            damaged = self.slot(step).damaged
            damaged[replica.flow_id] = damaged.get(replica.flow_id, 0) + 1

    def note_dropped(self, count: int) -> None:
        """Note `count` replicas that were dropped before they could be looked at: of whichever step of the window."""
        for step in range(self.next_step, self.next_step + self.window):
            self.slot(step).dropped += count

    # ---- the window ----

    def release(self) -> None:
        """Give the oldest step's buffer to the newest step of the window."""
        self._reset(self.next_step + self.window)
        self._begin_at(self.next_step + 1)

    def skip_to(self, step: int) -> None:
        """Give up the steps before `step`: collect from there on, and keep what has come of the steps that stay.

        Nothing happens where `step` is not after `next_step`. Bytes that were dropped because they lay beyond the
        window are forgotten; where the window reaches now, their steps have holes.
        """
        if step <= self.next_step:
            return
        for fresh in range(max(step, self.next_step + self.window), step + self.window):
            self._reset(fresh)
        self.overrun = None
        self._begin_at(step)

    def _begin_at(self, step: int) -> None:
        self.next_step = step
        self._drop_old()
        self._recent.clear()
        for connection in range(len(self._connections.flows)):
            self._move(connection, step, 0)


def in_force(plans: Sequence[tuple[int, T]], step: int) -> T:
    """Return which of `plans`, each with its first step, is in force at `step`."""
    for since, plan in reversed(plans):
        if since <= step:
            return plan
    return plans[0][1]


def _not_needed(slot: FrameSlot) -> Discard:
    return Discard.REDUNDANT if slot.hop else Discard.DUPLICATE
