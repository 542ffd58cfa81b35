"""Side-channel records of steps: checked, kept until all ranks' are there, compared when they come again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobspec.sidechannel import side_channel_pb2 as pb
from shadow_rx.description import OptimizerPlan, Options, parse_options
from shadow_rx.errors import invalid, premature
from shadow_rx.jsonvalue import parse_json

DIGEST_BYTES = 32
"""Length of a SHA-256."""
_REMEMBERED_STEPS = 1024
"""Steps for which a repeated record is still compared with the first one, each 32 bytes a rank."""


@dataclass(frozen=True)
class RankStep:
    """What one rank told of one step."""

    rank: int
    """The rank."""
    layout_version: int
    """Layout version that the step used."""
    options: tuple[Options, ...]
    """Hyperparameters of each parameter group that the step used."""
    loss: float
    """Mean loss of the rank's share of the batch."""
    objects: Mapping[str, Any]
    """JSON objects by name."""
    raw: Mapping[str, bytes]
    """Raw objects by name."""
    digest: bytes
    """SHA-256 of the parameters after the step, empty without."""


class RecordBook:
    """Records of one epoch by step and rank.

    Memory: the contents of at most `pending` steps that are not applied yet, plus 32 bytes a rank and step
    for comparison.
    """

    def __init__(self, plan: OptimizerPlan, ranks: int, first_step: int, pending: int, digests: bool) -> None:
        """Keep records of steps from `first_step` on.

        Args:
            plan: the optimizer that options are checked with.
            ranks: records that make a step complete.
            first_step: first step of the epoch.
            pending: most steps, counted from the oldest one that is not applied, whose records are kept.
            digests: whether every record has to carry a parameter digest.
        """
        self._plan = plan
        self._ranks = ranks
        self._first_step = first_step
        self._pending = pending
        self._digests = digests
        self._steps: dict[int, dict[int, RankStep]] = {}
        self._seen: dict[int, dict[int, bytes]] = {}
        self._next_step = first_step
        self._checked: dict[tuple[int, str], Options] = {}
        self.refused_step: int | None = None
        """Oldest step whose record was not kept because too many were pending."""

    def add(self, message: pb.StepRecord) -> bool:
        """Keep a record; tell whether it is new (an equal one is not).

        Raises:
            ShadowError: a field is wrong, or another record of this rank and step came before.
        """
        record = self._parse(message)
        step = message.step
        fingerprint = hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
        known = self._seen.setdefault(step, {}).get(record.rank)
        if known is not None:
            if known != fingerprint:
                raise premature("step", f"rank {record.rank} told another record of step {step} before")
            return False
        self._seen[step][record.rank] = fingerprint
        while len(self._seen) > _REMEMBERED_STEPS:
            del self._seen[min(self._seen)]
        if step < self._next_step:
            return False
        if step >= self._next_step + self._pending:
            self.refused_step = min(step, self.refused_step or step)
            return True
        self._steps.setdefault(step, {})[record.rank] = record
        return True

    def _parse(self, message: pb.StepRecord) -> RankStep:
        if message.step < self._first_step:
            raise invalid("step", f"{message.step} is before this epoch's first step {self._first_step}")
        if message.rank >= self._ranks:
            raise invalid("rank", f"{message.rank}, expected 0..{self._ranks - 1}")
        groups = self._plan.groups
        if len(message.group_options_json) != len(groups):
            found = len(message.group_options_json)
            raise invalid("group_options_json", f"{found} entries, the optimizer has {len(groups)} groups")
        options = tuple(self._options(index, text) for index, text in enumerate(message.group_options_json))
        digest = message.parameter_digest
        if len(digest) not in (0, DIGEST_BYTES):
            raise invalid("parameter_digest", f"{len(digest)} bytes, expected {DIGEST_BYTES} (SHA-256) or none")
        if self._digests and not digest:
            raise invalid("parameter_digest", "is empty, but the job asks for digests")
        objects: dict[str, Any] = {}
        raw: dict[str, bytes] = {}
        for name, value in message.objects.items():
            if not name:
                raise invalid("objects", "an object has no name")
            kind = value.WhichOneof("value")
            if kind is None:
                raise invalid(f"objects[{name!r}]", "has no value")
            if kind == "raw":
                raw[name] = value.raw
                continue
            objects[name] = parse_json(value.json, f"objects[{name!r}]")
        return RankStep(message.rank, message.layout_version, options, message.loss, objects, raw, digest)

    def _options(self, index: int, text: str) -> Options:
        # All ranks send the same text, and often one step sends what the last one did: check it once.
        key = (index, text)
        options = self._checked.get(key)
        if options is None:
            field = f"group_options_json[{index}]"
            options = parse_options(self._plan.name, text, field)
            missing = set(self._plan.groups[index].options) - set(options)
            if missing:
                raise invalid(field, f"lacks {sorted(missing)}, which the group had when the trainer attached")
            if len(self._checked) >= 2 * len(self._plan.groups) + 16:
                self._checked.clear()
            self._checked[key] = options
        return options

    def missing(self, step: int) -> list[int]:
        """Return the ranks whose record of `step` is not there."""
        present = self._steps.get(step, {})
        return [rank for rank in range(self._ranks) if rank not in present]

    def get(self, step: int) -> list[RankStep]:
        """Return the records of `step` that are there, in rank order."""
        return [record for _, record in sorted(self._steps.get(step, {}).items())]

    def release(self, step: int) -> None:
        """Drop the contents of records up to `step`; they are applied."""
        self._next_step = step + 1
        for old in [known for known in self._steps if known <= step]:
            del self._steps[old]

    def drop(self) -> None:
        """Drop all contents and keep none from now on: nothing of this epoch can be applied any more."""
        self._steps.clear()
        self._pending = 0
