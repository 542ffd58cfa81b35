"""Memory in which steps are collected, allocated once and used again, and what is known of every frame in it.

Of a frame whose bytes came as nearly all do, each copy from its first byte on, a few numbers say everything: how much
of each copy is there, how much of the payload, and whether it is verified. A frame that is anything else (a hole,
copies that differ, wrong bytes) is a `Frame` object from then on, until the slot is used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from checkmate_common.stream.frame import HEADER_BYTES, crc32c
from placement.frames import Frame, FrameCopy, FrameIdentity
from placement.plan import ALIGNMENT, SlotPlan, aligned_memory
from placement.variants import Conflicts, SideBuffer

_STEP = slice(24, 32)
"""Of a frame header (`checkmate_common.stream.frame`): the step."""
_TOLD = slice(52, 56)
"""Of a frame header: CRC32C of the payload."""


class State(IntEnum):
    """What is known of a frame."""

    FILLING = 0
    """Some of its bytes are there, or none."""
    COVERED = 1
    """All bytes of the payload and a whole header are there; they are to be verified."""
    VERIFIED = 2
    """All bytes are there and right."""
    OBJECT = 3
    """`StepSlot.objects` has it."""


class Tally(IntEnum):
    """Counts of a slot: columns of `SlotMemory.tallies`."""

    REMAINING = 0
    """Frames that are not verified."""
    COVERED = 1
    """Frames that are to be verified."""
    RECEIVED = 2
    """Bytes placed."""
    WIRE = 3
    """Bytes of expected frames that came, headers and repeated ones included."""
    WIRE_PAYLOAD = 4
    """Those of them that are payload."""
    UNEXPECTED = 5
    """Bytes of other frames that came; see `Assembler`, `offline`."""


class SlotMemory:
    """Slots for a window of steps with one layout.

    Memory: `window` times (gradient + 64 bytes for each copy of a frame + 8 for each copy and 10 for each frame).
    """

    def __init__(
        self, plan: SlotPlan, first_step: int, window: int, side: SideBuffer, *, keep_conflicts: bool = False
    ) -> None:
        """Allocate slots for `window` steps from `first_step` on; copies that differ are kept within `side`.

        Raises:
            MemoryError: the memory is not there.
        """
        copies, frames = len(plan.table.slots), len(plan.table.copies)
        self.plan = plan
        """Where everything lies."""
        self.first_step = first_step
        """First step with this layout."""
        stride = max(ALIGNMENT, -(-plan.nbytes // ALIGNMENT) * ALIGNMENT)
        self.memory = aligned_memory(window * stride).reshape(window, stride)
        """[window, bytes] Buckets at `plan.bucket_offsets`, then the headers of all copies of the frames."""
        self.prefix = np.zeros((window, copies), np.int64)
        """[window, copies] Bytes of a copy that are there, header included; not of a frame that is an object."""
        self.filled = np.zeros((window, frames), np.int64)
        """[window, frames] Payload bytes that are there, whichever copy brought them; as `prefix`."""
        self.state = np.zeros((window, frames), np.uint8)
        """[window, frames] A `State`."""
        self.headed = np.zeros((window, frames), np.bool_)
        """[window, frames] Whether the whole header of some copy is there; as `prefix`."""
        self.tallies = np.zeros((window, len(Tally)), np.int64)
        """[window, tallies] By `Tally`."""
        # The header of each copy, with zeros for the step and for both CRCs; made when it is first needed.
        self._headers: NDArray[np.uint8] | None = None
        self.slots = [StepSlot(self, row, side, Conflicts() if keep_conflicts else None) for row in range(window)]
        """By step modulo the window."""

    def prove(self, rows: Sequence[int], frames: Sequence[int]) -> list[bool]:
        """Tell of covered frames whether all their whole headers are right and tell the CRC32C of the payload."""
        table = self.plan.table
        headed = [
            (index, row, copy)
            for index, (row, frame) in enumerate(zip(rows, frames, strict=True))
            for copy in table.copies[frame]
            if self.prefix[row, copy] >= HEADER_BYTES
        ]
        told: list[set[bytes]] = [set() for _ in frames]
        for (index, _, _), crc in zip(headed, self.told(headed), strict=True):
            told[index].add(crc)
        return [
            crcs == {crc32c(self.slots[row].memory[slice(*table.payloads[frame])]).to_bytes(4, "big")}
            for row, frame, crcs in zip(rows, frames, told, strict=True)
        ]

    def told(self, headed: Sequence[tuple[int, int, int]]) -> Iterator[bytes]:
        """Yield the payload CRC that the header of a (row, copy) tells, nothing where any field is not as expected.

        The expected header is known in every field but that CRC: comparing the 64 bytes checks all fields at once.
        """
        if self._headers is None:
            identities = self.slots[headed[0][1]].identities
            made = b"".join(
                replace(identities[flow_id], step=0).header(slot, 0).pack() for flow_id, slot in self.plan.table.slots
            )
            self._headers = np.frombuffer(made, np.uint8).reshape(-1, HEADER_BYTES).copy()
        rows, copies = np.array(headed, np.int64).reshape(-1, 3)[:, 1:].T
        places = self.plan.table.arrays.header[copies]
        found = self.memory[rows[:, np.newaxis], places[:, np.newaxis] + np.arange(HEADER_BYTES)]
        expected = self._headers[copies]
        steps = np.array([slot.step for slot in self.slots], ">u8").view(np.uint8).reshape(-1, 8)
        expected[:, _STEP], expected[:, _TOLD] = steps[rows], found[:, _TOLD]
        there, right = found.tobytes(), expected.tobytes()
        for at in range(0, len(there), HEADER_BYTES):
            header, body = there[at : at + HEADER_BYTES], right[at : at + HEADER_BYTES - 4]
            yield header[_TOLD] if header == body + crc32c(body).to_bytes(4, "big") else b""

    def verified(self, rows: Sequence[int], frames: Sequence[int]) -> None:
        """Note that covered frames are verified."""
        self.state[rows, frames] = State.VERIFIED
        primaries = np.array([self.plan.table.copies[frame][0] for frame in frames])
        # A verified frame counts for its size, whichever of its headers came.
        lacking = np.maximum(HEADER_BYTES - self.prefix[rows, primaries], 0)
        for row in set(rows):
            count = rows.count(row)
            self.tallies[row, :3] += (-count, -count, lacking[np.array(rows) == row].sum())


class StepSlot:
    """The gradient of one step while it is collected."""

    def __init__(self, home: SlotMemory, row: int, side: SideBuffer, conflicts: Conflicts | None) -> None:
        """Use row `row` of `home`; `reset` says for which step."""
        self.plan = home.plan
        """Where everything lies."""
        self.row = row
        """Row of the slot in the arrays of `SlotMemory`."""
        self.memory = memoryview(home.memory[row])[: max(1, home.plan.nbytes)]
        """Buckets at `plan.bucket_offsets`, then the headers of all copies of the frames."""
        self.step = 0
        """Step that is being collected."""
        self.peer_bytes = 0
        """Bytes placed that another shadow node gave."""
        self.first_byte_at: float | None = None
        """Time of the first placed byte in seconds of the caller's clock."""
        self.complete_at: float | None = None
        """Time of the last placed byte."""
        self.identities: dict[int, FrameIdentity] = {}
        """What each flow's frame headers must say."""
        self.damaged: dict[int, int] = {}
        """Replicas of this step that failed a checksum, by flow id."""
        self.dropped = 0
        """Replicas, of this step or of another one, that were dropped since it is collected: the node was too slow."""
        self.conflicts = conflicts
        """Copies that differ, where that is kept; see `Assembler`, `offline`."""
        self.objects: dict[int, Frame] = {}
        """Frames of which numbers do not say everything."""
        self._home = home
        self._side = side
        self._tally = home.tallies[row]

    def reset(self, step: int, job: int, group: int, epoch: int) -> None:
        """Forget the last step and begin to collect `step` of incarnation `epoch`."""
        self.forget()
        self.step = step
        self.peer_bytes = self.dropped = 0
        self.first_byte_at = self.complete_at = None
        self.damaged.clear()
        home, row = self._home, self.row
        for array in (home.prefix, home.filled, home.state, home.headed, home.tallies):
            array[row] = 0
        self._tally[Tally.REMAINING] = self.plan.frames
        version = self.plan.layout.version
        for flow_id, plan in self.plan.flows.items():
            shape = plan.plan.shape
            self.identities[flow_id] = FrameIdentity(job, group, epoch, shape.channel, shape.rank, step, version)
        if self.conflicts is not None:
            self.conflicts.clear()

    def forget(self) -> None:
        """Give back what the frames keep besides the slot's memory."""
        for frame in self.objects.values():
            frame.end()
        self.objects.clear()

    @property
    def remaining(self) -> int:
        """Frames that are not verified."""
        return int(self._tally[Tally.REMAINING])

    @property
    def complete(self) -> bool:
        """Whether every frame is verified."""
        return not self._tally[Tally.REMAINING]

    @property
    def received_bytes(self) -> int:
        """Bytes placed, one header a frame included; those of a frame that is wrong count each time."""
        return int(self._tally[Tally.RECEIVED])

    @property
    def touched(self) -> bool:
        """Whether any byte of the step has arrived."""
        return self.received_bytes > 0

    def count(self, placed: int, tally: Tally = Tally.RECEIVED) -> None:
        """Note that `placed` bytes more are there, or what else a tally counts."""
        self._tally[tally] += placed

    def counted(self, tally: Tally) -> int:
        """Return a tally."""
        return int(self._tally[tally])

    def state(self, frame: int) -> int:
        """Return the `State` of a frame."""
        return int(self._home.state[self.row, frame])

    def frame(self, frame: int) -> Frame:
        """Return a frame as it is now, to look at."""
        return self.objects.get(frame) or self._as_object(frame)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """All frames as they are now, to look at, by their primary copies: flow by flow, in stream order."""
        return tuple(self.frame(frame) for frame in range(len(self.plan.table.copies)))

    def unverified(self) -> list[int]:
        """Return the frames that are not verified, in order."""
        states = self._home.state[self.row]
        return [
            frame
            for frame in np.flatnonzero(states != State.VERIFIED).tolist()
            if frame not in self.objects or not self.objects[frame].verified
        ]

    def own(self, frame: int) -> Frame:
        """Return a frame as an object that takes bytes from now on."""
        found = self.objects.get(frame)
        if found is None:
            if self.state(frame) == State.COVERED:
                self._tally[Tally.COVERED] -= 1
            found = self.objects[frame] = self._as_object(frame)
            self._home.state[self.row, frame] = State.OBJECT
        return found

    def _as_object(self, number: int) -> Frame:
        table, home = self.plan.table, self._home
        copies: list[FrameCopy] = []
        for index, copy in enumerate(table.copies[number]):
            flow_id, slot = table.slots[copy]
            at = table.headers[copy]
            made = FrameCopy(index, flow_id, slot, self.memory[at : at + HEADER_BYTES])
            made.coverage.add(0, int(home.prefix[self.row, copy]))
            copies.append(made)
        start, end = table.payloads[number]
        frame = Frame(copies, self.memory[start:end], self._side, int(home.filled[self.row, number]))
        frame.audit(self.conflicts, self.identities)
        frame.verified = self.state(number) == State.VERIFIED
        return frame

    def verified(self, frame: int) -> None:
        """Note that a frame that is an object is verified."""
        self._tally[Tally.REMAINING] -= 1
        if len(self.plan.table.copies[frame]) > 1:
            return  # what is there of each copy is still of interest
        home, row = self._home, self.row
        [copy] = self.plan.table.copies[frame]
        self.objects.pop(frame).end()
        start, end = self.plan.table.payloads[frame]
        home.filled[row, frame], home.prefix[row, copy] = end - start, HEADER_BYTES + end - start
        home.state[row, frame] = State.VERIFIED

    def disputed(self) -> list[int]:
        """Return the frames of which whole, right headers tell different CRCs: nobody knows which is right."""
        table, home, row = self.plan.table, self._home, self.row
        headed = [
            (frame, row, copy)
            for frame, copies in enumerate(table.copies)
            if len(copies) > 1 and frame not in self.objects
            for copy in copies
            if home.prefix[row, copy] >= HEADER_BYTES
        ]
        told: dict[int, set[bytes]] = {}
        if headed:
            for (frame, _, _), crc in zip(headed, home.told(headed), strict=True):
                told.setdefault(frame, set()).update((crc,) if crc else ())
        found = {frame for frame, crcs in told.items() if len(crcs) > 1}
        objects = {number for number, frame in self.objects.items() if frame.in_dispute(self.identities)}
        return sorted(found | objects)

    @property
    def buckets(self) -> list[memoryview]:
        """The reduced gradient where it was collected: elements by bucket, little-endian as on the wire."""
        starts = zip(self.plan.bucket_offsets, self.plan.layout.buckets, strict=True)
        return [self.memory[start : start + bucket.nbytes] for start, bucket in starts]

    def gradient(self) -> bytes:
        """Return a copy of the reduced gradient: buckets in layout order, without the padding between them."""
        return b"".join(self.buckets)

    @property
    def repaired_bytes(self) -> int:
        """Bytes, headers included, that are there and right only because of a redundant copy."""
        arrays, home, row = self.plan.table.arrays, self._home, self.row
        primary = ~arrays.redundant
        frames = arrays.frame[primary]
        there = home.prefix[row, primary]
        counted = (arrays.copies[frames] > 1) & (home.state[row, frames] == State.VERIFIED)
        lacking = int((arrays.size[primary] - there)[counted].sum())
        return lacking + sum(frame.repaired for frame in self.objects.values())

    def coverage(self) -> dict[int, tuple[int, int, int, int]]:
        """Return by flow id how many bytes of its primary copies came and are expected, and of its redundant copies."""
        arrays, table, home = self.plan.table.arrays, self.plan.table, self._home
        there = home.prefix[self.row].copy()
        for number, frame in self.objects.items():
            for copy, one in zip(table.copies[number], frame.copies, strict=True):
                there[copy] = len(one.coverage)
        found: dict[int, tuple[int, int, int, int]] = {}
        for flow_id, flow in self.plan.flows.items():
            mine = slice(table.first_copy[flow_id], table.first_copy[flow_id] + len(flow.expected))
            kinds = (~arrays.redundant[mine], arrays.redundant[mine])
            counts = [int(of[mine][kind].sum()) for kind in kinds for of in (there, arrays.size)]
            found[flow_id] = (counts[0], counts[1], counts[2], counts[3])
        return found
