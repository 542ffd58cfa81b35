"""One rank's half of the ring all-reduce as a pure object: stream bytes in, stream bytes out.

The rank sends, per channel, the frames of its own `FlowShape` in the order of `checkmate_common.stream.schedule`, and
receives those of its predecessor. Pipelining has the grain of a frame: the outgoing frame of hop j >= 1
(counting the 2(N-1) hops of both phases) may go as soon as the incoming frame with the same bucket, chunk
and element offset of hop j - 1 was taken in. Reduce-scatter frames are added to the rank's own elements,
all-gather frames replace them, so that at the end all ranks hold the very same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from checkmate_common.recovery.tensors import TORCH_DTYPES, bytes_of
from checkmate_common.stream.frame import HEADER_BYTES, FrameError, FrameHeader, crc32c
from checkmate_common.stream.layout import Layout
from checkmate_common.stream.ring import Phase
from checkmate_common.stream.schedule import FlowShape, FrameSlot, StepPlan, step_plan
from jobspec.model import Group, Job
from nccl_emu.errors import RingError


@dataclass(frozen=True)
class RingPlace:
    """Where a rank stands, and what the frame headers say of it."""

    job: int
    """Job number."""
    group: int
    """DP group number."""
    epoch: int
    """Incarnation of the communicator."""
    rank: int
    """This rank, 0..N-1."""
    ring_size: int
    """Number of ranks N."""
    channels: int
    """Channels of the ring."""
    frame_payload: int
    """Largest payload of one frame in bytes."""
    primary_dscp: int
    """Codepoint of all-gather hop 0."""
    incoming_flows: tuple[int, ...]
    """Ids of the predecessor's flows by channel (for errors)."""
    redundant_dscp: int = 0
    """Codepoint of the other hops of `hops`; everything else has codepoint 0."""
    hops: tuple[int, ...] = (0,)
    """Hops of the all-gather that are replicated."""

    @classmethod
    def of(cls, job: Job, group: Group, rank: int, epoch: int) -> RingPlace:
        """Return the place of `rank` in a job's group."""
        before = (rank - 1) % len(group.ring)
        incoming = [flow for flow in job.flows if flow.group == group and flow.rank == before]
        return cls(
            job=job.id,
            group=group.id,
            epoch=epoch,
            rank=rank,
            ring_size=len(group.ring),
            channels=group.channels,
            frame_payload=job.framing.payload_bytes,
            primary_dscp=job.dscp.primary,
            incoming_flows=tuple(flow.id for flow in sorted(incoming, key=lambda flow: flow.channel)),
            redundant_dscp=job.dscp.redundant,
            hops=tuple(job.redundancy.hops),
        )

    def shape(self, rank: int, channel: int) -> FlowShape:
        """Return the shape of the flow that `rank` sends on `channel`."""
        return FlowShape(self.ring_size, rank, self.channels, channel, HEADER_BYTES, self.frame_payload)

    def dscp(self, slot: FrameSlot) -> int:
        """Return the codepoint of the packets that carry a frame: what the switch decides by."""
        if slot.phase is not Phase.ALL_GATHER or slot.hop not in self.hops:
            return 0
        return self.redundant_dscp if slot.hop else self.primary_dscp

    @property
    def predecessor(self) -> int:
        """The rank that sends to this one."""
        return (self.rank - 1) % self.ring_size


@dataclass(frozen=True, slots=True)
class StreamWrite:
    """Bytes for one outgoing stream, to be written in order: one frame with its header."""

    channel: int
    """Channel of the stream."""
    data: bytes
    """A copy: the buffers may change as soon as the step is done, while TCP may still have to retransmit."""
    dscp: int
    """Codepoint of the packets that carry the bytes."""


@dataclass(slots=True)
class _Channel:
    outgoing: StepPlan
    incoming: StepPlan
    needs: tuple[int, ...]  # incoming frames that must be taken in before outgoing frame i may go
    received: bytearray
    sent: int = 0  # outgoing frames handed out
    taken: int = 0  # incoming frames taken in
    fed: int = 0  # incoming bytes of this step, and of later ones, that were fed
    header: FrameHeader | None = None  # of the frame being received, once it was checked


class RingRunner:
    """All-reduces (sums) the buckets of one step after another; knows neither packets nor time."""

    def __init__(self, place: RingPlace, layout: Layout, first_step: int = 1) -> None:
        """Prepare the streams.

        Args:
            place: the rank.
            layout: layout of the steps until `change_layout`.
            first_step: step at the beginning of the streams, from 1.
        """
        self.place = place
        self.layout = layout
        self.step = first_step - 1
        """Step that runs or ran last; one less than the first step before that."""
        self.stream_bytes = 0
        """Bytes handed out for the running (or last) step, frame headers included."""
        self.tagged_bytes = 0
        """Those of `stream_bytes` that carry a codepoint, and so are replicated."""
        self._buckets: list[torch.Tensor] = []
        self._bytes: list[memoryview] = []
        self._channels = [self._channel(channel, layout) for channel in range(place.channels)]

    def change_layout(self, layout: Layout) -> None:
        """Let `layout` be that of the steps to come; the streams go on. Between two steps only.

        Raises:
            RingError: the last step is not done.
        """
        if not self.done:
            raise self._error("layout", f"step {self.step} is still running")
        for index, old in enumerate(self._channels):
            state = self._channel(index, layout)
            state.received, state.fed = old.received, old.fed - (old.incoming.length if self._buckets else 0)
            self._channels[index] = state
        self.layout = layout
        self._buckets, self._bytes = [], []

    def start(self, step: int, buckets: Sequence[torch.Tensor]) -> None:
        """Begin the all-reduce of `step`; the buckets are changed in place until `done`.

        Args:
            step: training step, the one after the last: stream positions leave no room for skipped steps.
            buckets: flat, contiguous CPU tensors, one a bucket of the layout, in its order.

        Raises:
            RingError: the last step is not done, the step or a bucket does not fit, or bytes that arrived
                early are not those of this step.
        """
        if not self.done:
            raise self._error("start", f"step {self.step} is still running", step=step)
        if step != self.step + 1:
            raise self._error("start", f"expected step {self.step + 1}", step=step)
        self._check(step, buckets)
        if self._buckets:
            for channel in self._channels:
                channel.fed -= channel.incoming.length
        self._buckets = [bucket.detach() for bucket in buckets]
        self._bytes = [bytes_of(bucket) for bucket in self._buckets]
        self.step = step
        self.stream_bytes = self.tagged_bytes = 0
        for channel in self._channels:
            channel.sent = channel.taken = 0
        for index in range(len(self._channels)):
            self._take_in(index)

    def feed(self, channel: int, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the incoming stream of `channel`.

        Bytes beyond the running step are held until their step is started; `wanted` tells how many bytes can
        be used now, so that a caller need not read beyond them (and TCP's window bounds what is held).

        Raises:
            RingError: the stream does not hold what the schedule says, or a CRC is wrong.
        """
        state = self._channels[channel]
        state.received += data
        state.fed += len(data)
        self._take_in(channel)

    def wanted(self, channel: int) -> int:
        """Return how many more bytes of `channel` the running step needs, 0 when none runs."""
        state = self._channels[channel]
        return max(0, state.incoming.length - state.fed) if self._buckets else 0

    def next_write(self, channel: int) -> StreamWrite | None:
        """Hand out the next frame of the outgoing stream of `channel`, None while none may go."""
        state = self._channels[channel]
        if not self._buckets or state.sent == len(state.outgoing.frames):
            return None
        if state.needs[state.sent] > state.taken:
            return None
        slot = state.outgoing.frames[state.sent]
        payload = bytes(self._bytes[slot.bucket][slot.byte_offset : slot.byte_offset + slot.payload_bytes])
        data = self._header(self.place.rank, channel, slot, crc32c(payload)).pack() + payload
        dscp = self.place.dscp(slot)
        state.sent += 1
        self.stream_bytes += len(data)
        self.tagged_bytes += len(data) if dscp else 0
        return StreamWrite(channel, data, dscp)

    @property
    def done(self) -> bool:
        """Whether every frame of the step was taken in and handed out (also before the first step)."""
        if not self._buckets:
            return True
        return all(
            state.taken == len(state.incoming.frames) and state.sent == len(state.outgoing.frames)
            for state in self._channels
        )

    def waits_for(self) -> str:
        """Describe what the step still lacks, for errors; empty when it is done."""
        parts = []
        for index, state in enumerate(self._channels):
            frames = len(state.incoming.frames)
            if self._buckets and state.taken < frames:
                flow = self.place.incoming_flows[index]
                parts.append(f"{frames - state.taken} of {frames} frames of flow {flow}")
        return ", ".join(parts)

    @property
    def frames_taken(self) -> int:
        """Incoming frames of the step that were taken in so far: a measure of progress."""
        return sum(state.taken for state in self._channels)

    def _channel(self, channel: int, layout: Layout) -> _Channel:
        place = self.place
        outgoing = step_plan(place.shape(place.rank, channel), layout)
        incoming = step_plan(place.shape(place.predecessor, channel), layout)
        arrival = {(s.bucket, _hop(s, place), s.element_offset): s.index for s in incoming.frames}
        needs = tuple(
            arrival[slot.bucket, hop - 1, slot.element_offset] + 1 if (hop := _hop(slot, place)) else 0
            for slot in outgoing.frames
        )
        return _Channel(outgoing, incoming, needs, bytearray())

    def _check(self, step: int, buckets: Sequence[torch.Tensor]) -> None:
        expected = self.layout.buckets
        if len(buckets) != len(expected):
            raise self._error("buckets", f"{len(buckets)} given, the layout has {len(expected)}", step=step)
        for bucket, tensor in zip(expected, buckets, strict=True):
            good = (
                tensor.device.type == "cpu"
                and tensor.dtype is TORCH_DTYPES[bucket.dtype]
                and tensor.shape == (bucket.elements,)
                and tensor.is_contiguous()
            )
            if not good:
                found = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
                message = f"{found}, expected a contiguous {bucket.dtype.label} ({bucket.elements},) on cpu"
                raise self._error(f"buckets[{bucket.index}]", message, step=step)

    def _header(self, rank: int, channel: int, slot: FrameSlot, crc: int) -> FrameHeader:
        place = self.place
        return FrameHeader(
            job=place.job,
            group=place.group,
            epoch=place.epoch,
            channel=channel,
            step=self.step,
            layout_version=self.layout.version,
            bucket=slot.bucket,
            phase=slot.phase,
            hop=slot.hop,
            chunk=slot.chunk,
            rank=rank,
            dtype=slot.dtype,
            element_offset=slot.element_offset,
            payload_bytes=slot.payload_bytes,
            payload_crc=crc,
        )

    def _take_in(self, channel: int) -> None:
        """Take in every frame that is complete."""
        state = self._channels[channel]
        if not self._buckets:
            return
        position = 0
        frames = state.incoming.frames
        while state.taken < len(frames):
            slot = frames[state.taken]
            if state.header is None:
                if len(state.received) - position < HEADER_BYTES:
                    break
                head = state.received[position : position + HEADER_BYTES]
                state.header = self._checked_header(channel, slot, head)
            first = position + HEADER_BYTES
            last = first + slot.payload_bytes
            if len(state.received) < last:
                break
            payload = state.received[first:last]
            crc = crc32c(payload)
            if crc != state.header.payload_crc:
                message = f"0x{crc:08x} over the payload, its header says 0x{state.header.payload_crc:08x}"
                raise self._error("payload CRC", message, channel, slot)
            self._apply(slot, payload)
            position = last
            state.header = None
            state.taken += 1
        del state.received[:position]

    def _checked_header(self, channel: int, slot: FrameSlot, data: bytearray) -> FrameHeader:
        try:
            header = FrameHeader.unpack(data)
        except FrameError as error:
            raise self._error(error.field, f"not a frame header: {error}", channel, slot) from error
        expected = self._header(self.place.predecessor, channel, slot, header.payload_crc)
        if header != expected:
            names = (field.name for field in fields(header))
            name = next(name for name in names if getattr(header, name) != getattr(expected, name))
            message = f"{getattr(header, name)!r}, the schedule says {getattr(expected, name)!r}"
            raise self._error(name, message, channel, slot)
        return header

    def _error(
        self,
        field: str,
        message: str,
        channel: int | None = None,
        slot: FrameSlot | None = None,
        step: int | None = None,
    ) -> RingError:
        return RingError(
            field,
            message,
            step=self.step if step is None else step,
            flow=None if channel is None else self.place.incoming_flows[channel],
            frame=None if slot is None else slot.index,
        )

    def _apply(self, slot: FrameSlot, payload: bytearray) -> None:
        if slot.phase is Phase.ALL_GATHER:
            self._bytes[slot.bucket][slot.byte_offset : slot.byte_offset + slot.payload_bytes] = payload
            return
        received = torch.frombuffer(payload, dtype=TORCH_DTYPES[slot.dtype])
        self._buckets[slot.bucket][slot.element_offset : slot.element_offset + slot.elements].add_(received)


def _hop(slot: FrameSlot, place: RingPlace) -> int:
    """Return the hop counted over both phases, 0..2N-3."""
    return slot.hop + (place.ring_size - 1 if slot.phase is Phase.ALL_GATHER else 0)
