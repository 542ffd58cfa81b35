"""Replica faults of a run: one replica of a step is damaged between the switch and the shadow node."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

from checkmate_common.stream.layout import Layout
from checkmate_common.stream.schedule import FlowSchedule, Piece
from jobspec.model import Job, ShadowNode
from packets.frame import parse_frame
from packets.template import PacketError
from topology.simulation.links import Link
from topology.simulation.step_option import parse_step_option

_ETHERNET_IPV4_TCP = 14 + 20 + 20


class FaultKind(StrEnum):
    """What happens to the replica."""

    DROP = "drop-replica"
    """It is lost."""
    DROP_BOTH = "drop-both"
    """It is lost, and so are all replicas of redundant hops with bytes of the same frame: it cannot be repaired."""
    FLIP = "flip-replica-bit"
    """One bit of its payload is flipped; its TCP checksum detects it."""
    FORGE = "forge-replica-bit"
    """One bit of its payload is flipped and the TCP checksum recomputed; only the frame's CRC32C detects it."""


@dataclass(frozen=True)
class Fault:
    """One fault."""

    kind: FaultKind
    """What happens."""
    step: int
    """Training step; its first replica with payload of the primary hop is damaged."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``KIND:STEP``.

        Raises:
            ValueError: another form; the message lists the allowed ones.
        """
        return cls(*parse_step_option(text, FaultKind, "fault"))

    def __str__(self) -> str:
        """Return the form that `parse` reads."""
        return f"{self.kind}:{self.step}"


class _Frame(NamedTuple):
    """Identifies a frame's payload, whichever hop carries it."""

    step: int
    bucket: int
    channel: int
    element_offset: int


class FaultyLink(Link):
    """The link to a shadow node, with faults; each damages the first replica of its step, once."""

    def __init__(
        self,
        link: Link,
        job: Job,
        shadow: ShadowNode,
        layout: Layout,
        first_step: int,
        faults: Sequence[Fault],
        seed: int,
    ) -> None:
        """Replace `link` for a communicator that begins at `first_step` with `layout`."""
        super().__init__(link.impairments, random.Random(f"faults/{seed}"))
        self._shadow = shadow
        self._pending = list(faults)
        self._rng = random.Random(f"faults/{seed}")
        self._schedules = {flow.id: FlowSchedule(flow.shape, [(1, layout)], first_step) for flow in job.flows}
        self._channels = {flow.id: flow.channel for flow in job.flows}
        self._dropped_frames: set[_Frame] = set()

    def transmit(self, frame: bytes, now: float) -> list[tuple[float, bytes]]:
        """See `Link.transmit`; apply the faults that are due."""
        channel, pieces = self._pieces_of(frame)
        frames = {_Frame(p.step, p.frame.bucket, channel, p.frame.element_offset) for p in pieces}
        if not pieces or pieces[0].frame.hop:
            return [] if frames & self._dropped_frames else super().transmit(frame, now)
        for fault in self._pending:
            if fault.step == pieces[0].step:
                self._pending.remove(fault)
                if fault.kind is FaultKind.DROP_BOTH:
                    self._dropped_frames |= frames
                if fault.kind in (FaultKind.DROP, FaultKind.DROP_BOTH):
                    return []
                return super().transmit(self._damage(frame, fault.kind), now)
        return super().transmit(frame, now)

    def _pieces_of(self, frame: bytes) -> tuple[int, list[Piece]]:
        """Return the channel and the pieces that a replica's payload carries; none for other frames."""
        try:
            parsed = parse_frame(frame)
        except PacketError:
            return 0, []
        if parsed is None or parsed.dst_ip != str(self._shadow.ip) or not parsed.segment.payload:
            return 0, []
        flow = parsed.segment.dst_port - self._shadow.base_port
        if flow not in self._schedules:
            return 0, []
        position = parsed.segment.seq - 1
        pieces = self._schedules[flow].locate(position, position + len(parsed.segment.payload))
        return self._channels[flow], list(pieces)

    def _damage(self, frame: bytes, kind: FaultKind) -> bytes:
        damaged = bytearray(frame)
        index = self._rng.randrange(_ETHERNET_IPV4_TCP, len(frame))
        mask = 1 << self._rng.randrange(8)
        before = damaged[index]
        damaged[index] ^= mask
        if kind is FaultKind.FORGE:
            # RFC 1624: the checksum moves by the difference of the changed 16-bit word.
            weight = 1 if (index - _ETHERNET_IPV4_TCP) % 2 else 256
            old = int.from_bytes(damaged[14 + 20 + 16 : 14 + 20 + 18], "big")
            new = (old + (before - damaged[index]) * weight) % 0xFFFF
            damaged[14 + 20 + 16 : 14 + 20 + 18] = new.to_bytes(2, "big")
        return bytes(damaged)
