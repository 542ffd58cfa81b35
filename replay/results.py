"""What a replay finds, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checkmate_common.recovery.reasons import GapReason

MAX_HOLES = 256
"""Holes of a step that are listed; `StepResult.missing_bytes` counts all."""


@dataclass(frozen=True)
class Hole:
    """Bytes of a reduced gradient that are not there, or not proven."""

    flow: int | None
    """Flow that should have brought them, None without a job."""
    rank: int
    """Rank that sends on the flow."""
    channel: int
    """Channel of the flow."""
    captured: bool
    """Whether any frame of this hop of the flow was captured."""
    bucket: int
    """Bucket index."""
    chunk: int
    """Chunk index."""
    stream: tuple[int, int]
    """Bytes [start, end) of the flow's stream, relative to its first byte of the step, frame headers included."""
    elements: tuple[int, int]
    """Elements [start, stop) of the bucket whose bytes are missing or wrong; empty where only a header is missing."""
    cause: str
    """``lost_bytes``, or ``corrupt_frame``: all bytes were there and wrong, or two valid headers contradict."""
    detail: str | None = None
    """What is wrong with a corrupt frame."""

    def to_json(self) -> dict[str, Any]:
        """Return the hole as a JSON object."""
        return {**vars(self), "stream": list(self.stream), "elements": list(self.elements)}

    def __str__(self) -> str:
        """Return the hole in words."""
        who = f"rank {self.rank}" if self.flow is None else f"flow {self.flow}"
        text = f"{who} bytes [{self.stream[0]}, {self.stream[1]}): bucket {self.bucket} chunk {self.chunk}"
        text += f" elements [{self.elements[0]}, {self.elements[1]})"
        return text if self.detail is None else f"{text}: {self.detail}"


@dataclass
class StepResult:
    """One step of one epoch of one group."""

    group: str
    """DP group name."""
    epoch: int
    """Incarnation."""
    step: int
    """Training step."""
    complete: bool
    """Whether the whole reduced gradient is there and every frame's CRC is right."""
    bytes: int
    """Gradient bytes that are there."""
    gradient_bytes: int
    """Gradient bytes of a step."""
    frames: int
    """Frames that carry the gradient once."""
    frames_proven: int
    """Those whose payload is there and has the CRC that its header says."""
    missing_bytes: int
    """Stream bytes (gradient and frame headers) that are missing or wrong."""
    wire_bytes: int
    """Stream bytes of the all-gather in the captures, headers and repetitions included."""
    repeated_bytes: int
    """Gradient bytes that were there more than once, and were compared."""
    conflicts: int
    """Copies that differed from what was there."""
    conflict_details: tuple[str, ...]
    """The first of them in words."""
    holes: tuple[Hole, ...]
    """What is missing, at most `MAX_HOLES`."""
    sha256: str | None
    """SHA-256 of the gradient: buckets in order, little-endian; None unless complete."""
    reason: GapReason | None = None
    """Why the step is no recovery point; None when it is one, or when nobody asked."""
    detail: str | None = None
    """The reason in words."""
    applied: bool = False
    """Whether the optimizer step was applied, and the result is a recovery point."""
    state_sha256: str | None = None
    """SHA-256 of the recovery point's state file, where the step was applied."""
    parameter_digest: str | None = None
    """Digest of the parameters, where the ranks told theirs and it is equal."""
    published: str | None = None
    """Folder of the recovery point, where it was written."""
    compared: bool | None = None
    """Whether the recovery point equals the one that it was compared with; None where there was none."""
    compare_problem: str | None = None
    """Why there was none to compare with, where that was asked for."""

    @property
    def crc(self) -> str:
        """``ok``, ``bad`` or ``missing``, over all frames."""
        if self.frames_proven == self.frames:
            return "ok"
        return "bad" if any(hole.cause == GapReason.CORRUPT_FRAME for hole in self.holes) else "missing"

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {**vars(self), "crc": self.crc, "holes": [hole.to_json() for hole in self.holes],
                "conflict_details": list(self.conflict_details)}  # fmt: skip


@dataclass(frozen=True)
class AbsentSteps:
    """Steps of which no byte was captured, though the run had them."""

    group: str
    """DP group name."""
    epoch: int
    """Incarnation."""
    first: int
    """First step."""
    last: int
    """Last step."""


@dataclass(frozen=True)
class StreamResult:
    """One direction of one TCP connection in one file."""

    file: str
    """The capture."""
    source: str
    """``address:port``."""
    destination: str
    """``address:port``."""
    kind: str
    """``original`` between ranks, ``replica`` on the way to a shadow node."""
    payload_bytes: int
    """TCP payload in the file, repetitions included."""
    sync: str
    """How its position is known: ``syn``, its SYN was captured; ``header``, it was proven from frame headers alone;
    ``unknown_isn``, it is not known to the switch program."""
    group: str | None = None
    """DP group name."""
    epoch: int | None = None
    """Incarnation."""
    flow: int | None = None
    """Flow id, None without a job."""
    rank: int | None = None
    """Sending rank."""
    channel: int | None = None
    """Channel."""
    problem: str | None = None
    """Why its bytes were not used."""


@dataclass
class ReplayReport:
    """Everything that a replay of our own traffic found."""

    files: tuple[str, ...]
    """The captures."""
    job: str | None
    """Job name."""
    records: tuple[str, ...]
    """Side-channel logs that were used."""
    through_switch: bool
    """Whether the frames went through the switch program first."""
    packets: int = 0
    """Packets in all files."""
    other: Mapping[str, int] = field(default_factory=dict)
    """Packets that carry no gradients, by name."""
    discarded: Mapping[str, int] = field(default_factory=dict)
    """Segments of the streams that were not used, by cause."""
    oddities: Mapping[str, int] = field(default_factory=dict)
    """What was odd about packets that were used, and how many they were."""
    streams: list[StreamResult] = field(default_factory=list)
    """Streams with gradients."""
    steps: list[StepResult] = field(default_factory=list)
    """Steps in order of group, epoch and step."""
    absent: list[AbsentSteps] = field(default_factory=list)
    """Steps without a single byte."""
    problems: list[str] = field(default_factory=list)
    """What is damaged or contradicts itself."""

    @property
    def complete(self) -> bool:
        """Whether every step is complete and, where it was applied or compared, right."""
        steps = all(step.complete and step.reason is None and step.compared is not False for step in self.steps)
        return bool(self.steps) and steps and not self.absent and not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "kind": "tcp",
            "files": list(self.files),
            "job": self.job,
            "records": list(self.records),
            "through_switch": self.through_switch,
            "packets": self.packets,
            "other": dict(self.other),
            "discarded": dict(self.discarded),
            "oddities": dict(self.oddities),
            "streams": [vars(stream) for stream in self.streams],
            "steps": [step.to_json() for step in self.steps],
            "absent": [vars(absent) for absent in self.absent],
            "problems": list(self.problems),
            "complete": self.complete,
        }
