"""From gradients to recovery points: the very shadow core, fed with the steps that are complete, in order.

The core gets what it gets on a network: the ranks' messages, and each reduced frame as a replica at its stream
position. So the same code decides what is a recovery point. A step that is not complete is not fed, and nothing after
it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from checkmate_common.recovery.point import (
    RecoveryPoint,
    RecoveryPointError,
    decode_recovery_point,
    pack_tensors,
    read_recovery_point,
)
from checkmate_common.recovery.reasons import GapReason
from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel.log import SideChannelLogError
from checkmate_common.stream.frame import crc32c
from jobspec.model import Job
from placement.segments import Replica
from replay.errors import ReplayError
from replay.gradient import StepGradient
from replay.plan import EpochPlan, PlannedFlow
from replay.records import Records
from replay.results import StepResult
from shadow_rx.core import ShadowCore
from shadow_rx.errors import ShadowError
from shadow_rx.options import ShadowOptions
from shadow_rx.publish.snapshot import encode
from shadow_rx.status.events import Event, StepLost, StepReplicated
from shadow_rx.store.names import base_name, epoch_folder
from shadow_rx.store.writer import RecoveryStore

_MODULUS = 1 << 32
_POINT = re.compile(r"epoch-(\d+)/step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """The recovery point that a replay begins from."""

    path: Path
    """Its folder."""
    point: RecoveryPoint
    """Its contents, checked."""

    @classmethod
    def read(cls, path: Path, job: Job) -> Checkpoint:
        """Read the recovery point ``STORE/<group>/epoch-%04d/step-%08d``, also where the store has it in its log only.

        Raises:
            ReplayError: it cannot be read, or is of another job.
        """
        named = _POINT.fullmatch("/".join(path.parts[-2:]))
        try:
            if path.is_dir() or named is None:
                point = read_recovery_point(path)
            else:
                found = RecoveryStore(path.parents[2]).read(path.parts[-3], int(named[1]), int(named[2]))
                point = decode_recovery_point(found.manifest_json, found.state, path)
        except RecoveryPointError as error:
            raise ReplayError("--checkpoint", str(error), "give a folder step-... that a run has published") from error
        manifest = point.manifest
        if manifest.job != job.name or manifest.group not in {group.name for group in job.groups}:
            problem = f"{path} is of group {manifest.group} of job {manifest.job}, and the job is {job.name}"
            raise ReplayError("--checkpoint", problem, "give one of this job")
        return cls(path, point)


class Applier:
    """Applies the steps of one group."""

    def __init__(
        self,
        job: Job,
        group: str,
        records: Records,
        checkpoint: Checkpoint | None,
        store: RecoveryStore | None,
        compare: RecoveryStore | None,
    ) -> None:
        """Begin with no state.

        Args:
            job: the job.
            group: name of the group.
            records: what the ranks told.
            checkpoint: where to begin; None: with the state that the trainer uploaded.
            store: where to write recovery points; None: nowhere.
            compare: a run's recovery points to compare with; None: nothing.
        """
        spec = next(g for g in job.groups if g.name == group)
        self._job = job
        self._group = group
        self._records = records
        self._checkpoint = checkpoint
        self._store = store
        self._compare = compare
        self._replica = ShadowCore(job, spec.shadows[0], ShadowOptions(window=2, hold=1)).group(group)
        self._epoch: EpochPlan | None = None
        self._first = 0
        self._stopped: str | None = None

    def take(self, gradient: StepGradient, result: StepResult) -> None:
        """Apply a step if it is the next one and complete, and note in `result` what came of it."""
        try:
            self._take(gradient, result)
        except (ShadowError, SideChannelLogError, OSError) as error:
            self._stop(result, GapReason.RESYNC_PENDING, str(error))

    def absent(self, epoch: int, first: int) -> None:
        """Note that steps from `first` on have no bytes, so that none after them can be applied."""
        if self._epoch is not None and self._epoch.epoch == epoch and first >= self._first and self._stopped is None:
            self._stopped = f"no byte of step {first} was captured"

    def _take(self, gradient: StepGradient, result: StepResult) -> None:
        plan, step = gradient.plan, gradient.step
        if self._epoch is not plan:
            self._begin(plan, step)
        if self._stopped is None and step < self._first:
            return  # the checkpoint has it
        if not result.complete:
            cause = any(hole.cause == GapReason.CORRUPT_FRAME for hole in result.holes)
            detail = f"{result.missing_bytes} bytes missing or wrong: {', '.join(map(str, result.holes[:4]))}"
            self._stop(result, GapReason.CORRUPT_FRAME if cause else GapReason.LOST_BYTES, detail)
            return
        if self._stopped is not None:
            result.reason, result.detail = GapReason.RESYNC_PENDING, self._stopped
            return
        for record in self._records.of_step(self._group, plan.epoch, step):
            if step == self._first:
                self._list_objects(record)
            self._replica.record(record)
        self._feed(gradient)
        self._conclude(self._replica.ledger.take_events(), result)

    def _stop(self, result: StepResult, reason: GapReason, detail: str) -> None:
        if self._stopped is None:
            self._stopped = f"step {result.step} was lost ({reason})"
            result.reason, result.detail = reason, detail
        elif result.complete:
            result.reason, result.detail = GapReason.RESYNC_PENDING, self._stopped
        else:
            result.reason, result.detail = reason, detail

    def _begin(self, plan: EpochPlan, step: int) -> None:
        """Attach the epoch and give its state before the first step."""
        self._epoch, self._stopped, self._first = plan, None, plan.first_step
        told = self._records.epoch(self._group, plan.epoch)
        if told is None:
            self._stopped = f"epoch {plan.epoch} is not in the records"
            return
        attach = pb.AttachRequest()
        attach.CopyFrom(told.attach)
        del attach.changes[:]  # they are announced below, each once
        state = self._checkpoint_state(plan.epoch, attach)
        self._first = attach.first_step
        changes = [change for _, change in sorted(told.changes.items())]
        for change in changes:
            if change.effective_step < self._first:
                attach.layout_json = change.layout_json or attach.layout_json
                attach.optimizer.CopyFrom(change.optimizer)
        need = self._replica.attach(attach)
        for change in changes:
            if change.effective_step >= self._first:
                self._replica.change(change)
        for flow in plan.flows.values():
            request = pb.OpenFlowRequest(group=self._group, epoch=plan.epoch, flow_id=flow.id)
            request.source_port = _port(flow, told.ports)
            self._replica.open_flow(request)
        if need:
            state = state or self._records.state(self._group, plan.epoch)
            if state is None:
                self._stopped = f"the state before step {self._first} is not known: give --checkpoint"
                return
            self._replica.upload(plan.epoch, state)
        self._replica.ledger.take_events()  # of the epoch before, which is over
        if step > self._first:
            self._stopped = f"no byte of step {self._first} was captured"

    def _checkpoint_state(self, epoch: int, attach: pb.AttachRequest) -> bytes | None:
        """Return the state in the checkpoint if the epoch can go on from it, and let `attach` begin behind it."""
        if self._checkpoint is None or self._checkpoint.point.manifest.group != self._group:
            return None
        manifest = self._checkpoint.point.manifest
        within = manifest.epoch == epoch and manifest.step >= attach.first_step
        if not within and manifest.step != attach.first_step - 1:
            return None
        self._prove(manifest.epoch, manifest.step)
        attach.first_step = manifest.step + 1
        tensors = self._checkpoint.point.tensors
        return pack_tensors({name: value for name, value in tensors.items() if not name.startswith("rank/")})

    def _prove(self, epoch: int, step: int) -> None:
        """Check that the checkpoint is of this run: equal step numbers alone mean nothing.

        Raises:
            ReplayError: what the ranks told of its step is not what its manifest has.
        """
        assert self._checkpoint is not None
        told = {record.rank: record for record in self._records.of_step(self._group, epoch, step)}
        for record in self._checkpoint.point.manifest.records:
            other = told.get(record.rank)
            if other is None or other.loss != record.loss or _objects(other) != dict(record.objects):
                problem = f"{self._checkpoint.path} holds another step {step} than the records (epoch {epoch}) tell of"
                raise ReplayError("--checkpoint", problem, "give one of the captured run")

    def _list_objects(self, record: pb.StepRecord) -> None:
        """Let the first record that the core gets list the rank's objects: ranks list them only when they change."""
        told = self._records.epoch(self._group, record.epoch)
        for step in range(record.step - 1, told.attach.first_step - 1, -1) if told is not None else ():
            if record.state_objects:
                return
            for before in self._records.of_step(self._group, record.epoch, step):
                if before.rank == record.rank:
                    record.state_objects.extend(before.state_objects)
                    break

    def _feed(self, gradient: StepGradient) -> None:
        """Give the reduced frames of a complete step to the core, as replicas."""
        plan = gradient.plan
        told = self._records.epoch(self._group, plan.epoch)
        ports = told.ports if told is not None else {}
        for flow in plan.flows.values():
            port = _port(flow, ports)
            base = flow.schedule.step_start(gradient.step) - flow.schedule.step_start(self._first)
            identity = plan.identity(flow, gradient.step)
            for frame in flow.at(gradient.step).primary:
                start = frame.byte_offset
                payload = memoryview(gradient.buckets[frame.bucket])[start : start + frame.payload_bytes]
                data = identity.header(frame, crc32c(payload)).pack() + payload
                sequence = (base + frame.start + 1) % _MODULUS
                self._replica.arrivals.on_replica(Replica(flow.id, port, sequence, memoryview(data)), 0.0)

    def _conclude(self, events: list[Event], result: StepResult) -> None:
        for event in events:
            if isinstance(event, StepLost) and (event.epoch, event.gap.step) == (result.epoch, result.step):
                self._stop(result, event.gap.reason, event.gap.detail)
                return
            if not isinstance(event, StepReplicated):
                continue
            snapshot = event.snapshot
            result.applied = True
            result.parameter_digest = next((r.digest.hex() for r in snapshot.records if r.digest), None)
            result.state_sha256 = hashlib.sha256(encode(snapshot).state).hexdigest()
            if self._store is not None:
                stored = self._store.publish(snapshot)
                if stored.error is not None:
                    raise ReplayError("--out", stored.error, "free space, or choose another folder")
                folder = f"{epoch_folder(result.group, result.epoch)}/{base_name(result.step)}"
                result.published = f"{self._store.target}/{folder}"
            if self._compare is not None:
                self._look_at_run(result)
        if not result.applied:
            gap = self._replica.progress.explain(result.step)
            reason = gap.reason if gap is not None else GapReason.SIDE_CHANNEL_MISSING
            self._stop(result, reason, gap.detail if gap is not None else "the step did not become a recovery point")

    def _look_at_run(self, result: StepResult) -> None:
        assert self._compare is not None
        try:
            found = self._compare.read(result.group, result.epoch, result.step)
        except RecoveryPointError as error:
            result.compare_problem = str(error)
            return
        result.compared = hashlib.sha256(found.state).hexdigest() == result.state_sha256
        if not result.compared:
            result.reason = GapReason.DIGEST_MISMATCH
            result.detail = f"the run's recovery point of this step in {self._compare.target} has another state"


def _port(flow: PlannedFlow, ports: Mapping[int, int]) -> int:
    """Return the source port that the flow was announced with; any will do where it was not."""
    return ports.get(flow.id, 1)


def _objects(record: pb.StepRecord) -> dict[str, object]:
    return {name: json.loads(v.json) for name, v in record.objects.items() if v.WhichOneof("value") == "json"}
