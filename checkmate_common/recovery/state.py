"""The objects of a framework checkpoint and their origins (recovery contract, state objects).

A trainer names its objects by section and key: ``model.0.weight`` (model.state_dict(), buffers included),
``optimizer.0.weight.exp_avg`` (state of a parameter), ``param_groups.0.lr`` (options of a parameter group),
``scheduler.last_epoch``, ``rng.torch``, ``data.position``, ``trainer.seed`` (user metadata) and so on. The job declares
the origin of each, by name or by pattern.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import translate
from functools import cached_property
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from checkmate_common.fields import Strict
from checkmate_common.sidechannel.side_channel_pb2 import StateObjectInfo

SHARED_PREFIX = "state/"
"""Tensors of a recovery point that all ranks share and that the replay does not advance: ``state/<object>``."""


class Origin(StrEnum):
    """Where a state object comes from (recovery contract, state objects)."""

    REPLAY = "replay"
    """Advanced by the shadow from gradients: trained parameters and optimizer state."""
    SIDE_CHANNEL = "side_channel"
    """Sent by each rank with each step."""
    SNAPSHOT = "snapshot"
    """Sent by each rank with the declared steps only; only those are recovery points."""
    CONSTANT = "constant"
    """The same for the whole run: captured once, when the state is uploaded."""


class StateRule(Strict):
    """Origin of the objects of one name or pattern."""

    origin: Origin
    """The origin."""
    every: int = Field(default=1, ge=1)
    """For `Origin.SNAPSHOT`: sent at steps that are multiples of this number."""


def _written_short(value: Any) -> Any:
    # `name: replay` is short for `name: {origin: replay}`.
    return {"origin": value} if isinstance(value, str) else value


Pattern = Annotated[str, Field(pattern=r"^[^\s/]{1,512}$")]
"""Name of an object, or a pattern with ``*`` and ``?`` (a dot is like any other character)."""
StateRules = dict[Pattern, Annotated[StateRule, BeforeValidator(_written_short)]]
"""The section ``state`` of a job: rule by name or pattern."""

DEFAULT_STATE: Mapping[str, str] = {
    "model.*": "replay",
    "model.*.running_mean": "side_channel",
    "model.*.running_var": "side_channel",
    "model.*.num_batches_tracked": "side_channel",
    "optimizer.*": "replay",
    "param_groups.*": "side_channel",
    "scheduler.*": "side_channel",
    "rng.*": "side_channel",
    "data.*": "side_channel",
    "trainer.*": "side_channel",
}
"""Rules of a job without a section ``state``: everything in the testbed's workload except frozen parameters."""


def default_state() -> dict[str, StateRule]:
    """Return `DEFAULT_STATE` as rules."""
    return {pattern: StateRule(origin=Origin(origin)) for pattern, origin in DEFAULT_STATE.items()}


@dataclass(frozen=True)
class Declared:
    """The declaration of an object."""

    pattern: str
    """Name or pattern of the rule that applies."""
    rule: StateRule
    """Its rule."""

    @property
    def origin(self) -> Origin:
        """The origin."""
        return self.rule.origin

    def due(self, step: int) -> bool:
        """Return whether a rank's record of `step` carries the object's value."""
        if self.origin is Origin.SNAPSHOT:
            return step % self.rule.every == 0
        return self.origin is Origin.SIDE_CHANNEL


@dataclass(frozen=True)
class StateManifest:
    """The declarations of a job. If several rules match a name, the most specific applies.

    That is the name itself, else the pattern with the most characters besides wildcards, else the later one.
    """

    rules: Mapping[str, StateRule]
    """By name or pattern, in the order of the file."""

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], Declared]]:
        wild = [(len(name) - name.count("*") - name.count("?"), index, name) for index, name in enumerate(self.rules)
                if "*" in name or "?" in name]  # fmt: skip
        return [(re.compile(_expression(name)), Declared(name, self.rules[name]))
                for _, _, name in sorted(wild, reverse=True)]  # fmt: skip

    @cached_property
    def _found(self) -> dict[str, Declared | None]:
        return {}

    def find(self, name: str) -> Declared | None:
        """Return the declaration of the object `name`, None if no rule matches."""
        if name in self.rules:
            return Declared(name, self.rules[name])
        if name not in self._found:
            # Names come from trainers, so the cache is bounded.
            if len(self._found) >= 1 << 16:
                self._found.clear()
            fits = (declared for pattern, declared in self._patterns if pattern.match(name))
            self._found[name] = next(fits, None)
        return self._found[name]

    @property
    def exact_names(self) -> tuple[str, ...]:
        """Objects that are declared by name: a trainer must have them."""
        return tuple(name for name in self.rules if "*" not in name and "?" not in name)


def _expression(pattern: str) -> str:
    # Brackets are ordinary characters: names such as "layers[0]" are common; character classes are not supported.
    return translate(pattern.replace("[", "[[]"))


def inventory_digest(objects: Iterable[StateObjectInfo]) -> bytes:
    """Return the SHA-256 over names, kinds, shapes and types of `objects`, which are sorted by name.

    Values are not included: it changes only if an object appears, disappears, or changes kind, shape or type.
    """
    digest = hashlib.sha256()
    for item in objects:
        text = f"{item.kind}\0{item.dtype}\0{','.join(map(str, item.shape))}\0{len(item.name)}\0{item.name}"
        data = text.encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.digest()


def members_text(optimizer: str, params: Iterable[str]) -> str:
    """Return the inventory's entry for the members of a parameter group: ``<class>:<digest of the names>``."""
    names = "\0".join(params)
    return f"{optimizer}:{hashlib.sha256(names.encode()).hexdigest()[:32]}"


def value_digest(dtype: str, shape: Iterable[int], data: bytes | memoryview) -> bytes:
    """Return the SHA-256 over element type, shape and little-endian bytes of a constant object."""
    digest = hashlib.sha256(f"{dtype}\0{','.join(map(str, shape))}\0".encode())
    digest.update(data)
    return digest.digest()
