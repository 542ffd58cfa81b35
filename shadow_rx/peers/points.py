"""Which state a shadow node that was started again goes on from: its own, or a newer one of another node. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from checkmate_common.recovery.point import RecoveryPointError, decode_recovery_point
from checkmate_common.recovery.state import Origin
from checkmate_common.sidechannel import side_channel_pb2 as pb
from jobspec.model import Group, Job
from shadow_rx.apply.model import LiveModel
from shadow_rx.errors import invalid
from shadow_rx.publish.snapshot import EncodedPoint, Snapshot
from shadow_rx.store.steplog import options_of
from shadow_rx.trainer.declared import split_constants
from shadow_rx.trainer.description import parse_layout, parse_optimizer
from shadow_rx.trainer.rank_step import RankStep

_RANK_PREFIX = "rank/"


@dataclass(frozen=True)
class PeerOffer:
    """The newest recovery point that another shadow node has of a group, as its status tells."""

    peer: str
    """Name of the node."""
    epoch: int
    """Epoch of the point; 0 where the node does not tell: it was started again, too, and no rank has come back yet."""
    step: int
    """The step, 0 for none."""


def worth_asking(own: tuple[int, int], offers: Iterable[PeerOffer]) -> list[PeerOffer]:
    """Return the offers that are newer than what is here, the newest first; last those that do not tell their epoch.

    Args:
        own: epoch and step of the newest recovery point on the own storage, (0, 0) for none.
        offers: of the other nodes.
    """
    newer = [offer for offer in offers if offer.step and (not offer.epoch or (offer.epoch, offer.step) > own)]
    return sorted(newer, key=lambda offer: (-offer.epoch, -offer.step, offer.peer))


def read_point(job: Job, group: Group, encoded: EncodedPoint) -> Snapshot:
    """Return the recovery point that another shadow node gave, after the checks that an uploaded state has to pass.

    Raises:
        ShadowError: damaged, of another job or group, not complete, or no state that its optimizer can go on from.
    """
    try:
        point = decode_recovery_point(encoded.manifest_json, encoded.state)
    except RecoveryPointError as error:
        raise invalid("data", str(error)) from error
    manifest = point.manifest
    for name, found, expected in (
        ("job", manifest.job, job.name),
        ("group", manifest.group, group.name),
        ("ranks", manifest.ranks, len(group.ring)),
        ("records", [record.rank for record in manifest.records], list(range(len(group.ring)))),
    ):
        if found != expected:
            raise invalid(f"manifest.{name}", f"{found!r}, expected {expected!r}")
    if manifest.epoch < 1 or manifest.step < 1:
        raise invalid("manifest.step", f"step {manifest.step} of epoch {manifest.epoch}, expected 1 or more of each")
    layout = parse_layout(json.dumps(manifest.layout))
    message = pb.OptimizerDescription(name=manifest.optimizer.name)
    for described in manifest.optimizer.groups:
        message.groups.add(params=described.params, options_json=json.dumps(described.options))
    optimizer = parse_optimizer(message, layout)
    told = {name: tensor for name, tensor in point.tensors.items() if name.startswith(_RANK_PREFIX)}
    state, constants = split_constants({name: t for name, t in point.tensors.items() if name not in told})
    model = LiveModel(layout, optimizer, state)
    captured = {(entry.rank, entry.name) for entry in manifest.objects if entry.origin is Origin.SNAPSHOT}
    records: list[RankStep] = []
    for record in manifest.records:
        prefix = f"{_RANK_PREFIX}{record.rank}/"
        tensors = {name.removeprefix(prefix): tensor for name, tensor in told.items() if name.startswith(prefix)}
        explicit = (name for name in (*tensors, *record.objects) if (record.rank, prefix + name) in captured)
        records.append(
            RankStep(
                record.rank, layout.version, options_of(manifest), record.loss, record.objects, {}, b"", tensors,
                frozenset(explicit),
            )
        )  # fmt: skip
    return Snapshot(
        job.name, group.name, manifest.epoch, manifest.step, layout, optimizer, tuple(records), model.snapshot(),
        constants=constants, confirmed=tuple(manifest.confirmed),
    )  # fmt: skip
