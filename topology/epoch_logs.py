"""Reads the files of a training epoch: the ranks' logs, the shadow node's events, its recovery points."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from checkmate_common.recovery.point import RecoveryPoint, RecoveryPointError, unpack_tensors
from checkmate_common.recovery.reasons import GapReason
from checkmate_common.sidechannel.side_channel_pb2 import Status
from shadow_rx.store.api import open_store
from shadow_rx.store.recover import StoreReader
from topology.compare import first_difference
from topology.fabric.participants import Track
from topology.fabric.run_files import RunFiles
from topology.results import Iteration

_GRADIENT_COMPLETE = {GapReason.DIGEST_MISMATCH, GapReason.SIDE_CHANNEL_MISSING, GapReason.UNDECLARED_STATE}
"""Gap reasons of steps whose gradient arrived in full."""


def state_path(logs: Path, step: int) -> Path:
    """Return the file of rank 0's state after `step`, as `nccl_emu.shadow_client.reporter` writes it."""
    return logs / f"state-{step:08d}.safetensors"


@dataclass(frozen=True)
class EpochLogs:
    """The logs of one epoch of one group and one of its shadow nodes."""

    epoch: int
    """Number of the epoch."""
    ranks: list[dict[int, dict[str, Any]]]
    """Results by rank and step (`nccl_emu.shadow_client.step_meter.StepResult`)."""
    events: dict[int, dict[str, Any]]
    """Last event of the shadow node by step (`shadow_rx.logs.event_log`)."""
    gaps: dict[int, tuple[str, str]]
    """(reason, detail) by step, from the shadow node's status at the end."""
    pending: dict[int, int]
    """Replica bytes placed of steps that were never completed, by step."""
    logs: Path
    """Folder of the ranks' logs."""
    checkpoints: Path
    """Folder of the recovery points."""
    group: str
    """Name of the group."""
    shadow: str
    """Name of the shadow node."""
    stored: Mapping[int, float] = field(default_factory=dict)
    """Time in seconds at which each step became durable."""

    def ranks_equal(self) -> bool:
        """Return whether all ranks held byte-equal state after every step."""
        hashes = [{step: line["state_sha256"] for step, line in rank.items()} for rank in self.ranks]
        return all(rank == hashes[0] for rank in hashes)

    def trainer_state(self, step: int) -> dict[str, torch.Tensor]:
        """Return rank 0's state after `step`."""
        return unpack_tensors(state_path(self.logs, step).read_bytes())

    def recovery_point(self, step: int) -> RecoveryPoint | None:
        """Return the recovery point of `step`, None if none was published.

        Raises:
            RecoveryPointError: it was published and cannot be read.
        """
        if not self.checkpoints.exists():
            return None
        return self._reader.find(self.group, step, self.epoch)

    @cached_property
    def _reader(self) -> StoreReader:
        # One reader for all steps: it keeps its last state, so that each gradient is replayed only once.
        return open_store(self.checkpoints)

    @property
    def start_time(self) -> float:
        """Earliest time in the logs, in seconds; 0 if they are empty."""
        return min(self._times(), default=0.0)

    def iterations(self, start: float) -> tuple[Iteration, ...]:
        """Compare every step's recovery point with the trainer's state; times are relative to `start` (seconds)."""
        return tuple(self._iteration(step, start) for step in sorted(self.ranks[0]))

    def _times(self) -> Iterable[float]:
        for rank in self.ranks:
            yield from (line["at"] for line in rank.values())
        for event in self.events.values():
            yield from (event[key] for key in ("first_byte_at", "applied_at") if event.get(key) is not None)

    def _iteration(self, step: int, start: float) -> Iteration:
        lines = [rank[step] for rank in self.ranks]
        event = self.events.get(step, {})
        matches, mismatch, published = None, None, False
        try:
            point = self.recovery_point(step)
        except RecoveryPointError as error:
            matches, mismatch = False, str(error)
        else:
            if point is not None:
                published = True
                mismatch = self._mismatch(point, step)
                matches = mismatch is None
        replicated = event.get("event") == "replicated"
        reason, detail = (None, None) if published else self._reason(step, event)
        return Iteration(
            group=self.group,
            shadow=self.shadow,
            step=step,
            loss=sum(line["loss"] for line in lines) / len(lines),
            wire_bytes=sum(line["frame_bytes"] for line in lines),
            tagged_payload_bytes=sum(line["tagged_bytes"] for line in lines),
            replica_payload_bytes=int(event["replica_bytes"]) if replicated else self.pending.get(step, 0),
            complete=replicated or reason in _GRADIENT_COMPLETE,
            applied=published,
            matches=matches,
            mismatch=mismatch,
            reason=reason,
            detail=detail,
            trained_at=max(line["at"] for line in lines) - start,
            published_at=event["applied_at"] - start if replicated else None,
            repaired_bytes=int(event.get("repaired_bytes", 0)),
            durable_at=self.stored[step] - start if step in self.stored else None,
        )

    def _mismatch(self, point: RecoveryPoint, step: int) -> str | None:
        if (point.manifest.step, point.manifest.epoch) != (step, self.epoch):
            return f"the manifest is of epoch {point.manifest.epoch}, step {point.manifest.step}"
        return first_difference(self.trainer_state(step), point.tensors)

    def _reason(self, step: int, event: Mapping[str, Any]) -> tuple[str, str]:
        if event.get("event") == "lost":
            return str(event["reason"]), str(event["detail"])
        known = self.gaps.get(step)
        if known is not None:
            return known
        lost = [number for number, other in self.events.items() if other["event"] == "lost" and number < step]
        if lost:
            return GapReason.RESYNC_PENDING, f"step {min(lost)} was lost before it"
        return "unexplained", "the shadow gave no reason"


def read_epoch(files: RunFiles, logs: Path, track: Track, epoch: int, status: Status) -> EpochLogs:
    """Read the files of an epoch.

    Args:
        files: paths of the run.
        logs: folder of the epoch's rank logs.
        track: group and shadow node.
        epoch: number of the epoch.
        status: status of the track at the end of the epoch.
    """
    group = next(group for group in files.participants.job.groups if group.name == track[0])
    folder, events = files.rank_logs(logs, group), files.events(track[1])
    by_rank: list[dict[int, dict[str, Any]]] = []
    for rank in range(len(group.ring)):
        lines = [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()]
        by_rank.append({int(line["step"]): line for line in lines})
    seen: dict[int, dict[str, Any]] = {}
    stored: dict[int, float] = {}
    for text in events.read_text().splitlines() if events.exists() else ():
        event = json.loads(text)
        if (event["group"], event["epoch"]) != (group.name, epoch):
            continue
        if event["event"] in ("replicated", "lost", "resynced"):
            seen[int(event["step"])] = event
        elif event["event"] == "stored" and "at" in event:
            stored[int(event["step"])] = event["at"]
    reasons = {gap.step: (gap.reason, gap.detail) for gap in status.gaps}
    pending = dict(status.pending_bytes)
    return EpochLogs(epoch, by_rank, seen, reasons, pending, folder, files.checkpoints(track[1]), *track, stored=stored)
