"""Which steps the faults of a run may cost, and for which reasons: everything else has to be on storage. Pure.

The bounds follow from the fault and from how a node gets over it, in steps of a run whose side channel is quicker than
a step (`background`); where it is not, the steps during which records were late are excused as well.

* *Replicas lost* (loss or congestion behind the switch, corruption, the switch's death) in step ``s``: each byte is
  replicated twice, so one lost frame costs nothing. Where two or more were lost, ``s`` may have a hole. That shows when
  ``s + 1`` is complete; the reply to its record asks for a state, which the trainer uploads after ``s + 2``. So ``s``
  and ``s + 1`` are lost. A state that did not help (the next step has a hole, too) doubles the distance to the next one
  (`StateRequests`): of the k-th such step up to ``s - 2 + 2 ** (k - 2)``.
* *Shadow node dead* from step ``a`` to ``b``: what was not on storage at its death dies with it. When it is back in
  ``b``, rank 0 announces the communicator with at most two attempts, which take at most a step; then the ranks announce
  their flows, with their records of ``b + 1``; the reply to the record of ``b + 2`` asks for a state, that after
  ``b + 3``. A state that was on its way at the death is taken by the next life: there, records of its step are missing
  that the former life was told, and bytes of the next step that came before the flows were announced.
* *Disk full or failing* during steps ``a`` to ``b``: all writes that happen then may fail, from the oldest point that
  was not written when it began, to that of ``b``.
* *Storage slow*: from the oldest point that was not written when it began, until nothing waits any more.
* *Records late*: from the oldest record that was not sent when the next step was trained, until none is; then as after
  a loss. The bytes of a change that was announced late are placed by the old layout: its step is lost. A call
  that is lost may be the one with the list of a rank's objects, which a record refers to.
* Loss before the switch, reordering, duplication, changes of the optimizer and dying ranks cost nothing: the network
  sends again, or the steps are trained again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from checkmate_common.recovery.reasons import GapReason
from topology.acceptance.scenarios import Injection

_HOLES = frozenset({GapReason.LOST_BYTES, GapReason.RESYNC_PENDING})
_UNANNOUNCED = _HOLES | {GapReason.UNKNOWN_LAYOUT, GapReason.DIGEST_MISMATCH}
_DEATH = _HOLES | {GapReason.SIDE_CHANNEL_MISSING}
REASONS: dict[Injection, frozenset[GapReason]] = {
    Injection.LOSS_AFTER: _HOLES,
    Injection.CORRUPT: _HOLES | {GapReason.CORRUPT_FRAME},
    Injection.CONGESTION: _HOLES,
    Injection.SWITCH_RESTART: _HOLES,
    Injection.SWITCH_FAILOVER: _HOLES,
    Injection.SIDE_CHANNEL: frozenset(
        {GapReason.SIDE_CHANNEL_MISSING, GapReason.OVERLOAD, GapReason.RESYNC_PENDING, GapReason.UNDECLARED_STATE}
    ),
    Injection.SHADOW_RESTART: _DEATH,
    Injection.TORN_WRITE: _DEATH,
    Injection.FULL_DISK: frozenset({GapReason.STORAGE_ERROR}),
    Injection.STORAGE_ERRORS: frozenset({GapReason.STORAGE_ERROR}),
    Injection.SLOW_STORAGE: frozenset({GapReason.OVERLOAD}),
}
"""Reasons that a fault may give; those that are not here cost no step."""
_HARMS_REPLICAS = frozenset({
    Injection.LOSS_AFTER, Injection.CORRUPT, Injection.CONGESTION, Injection.SWITCH_RESTART, Injection.SWITCH_FAILOVER,
})  # fmt: skip
AFTER_RESTART = 2
"""Steps that are lost after the one in which a shadow node is back."""
AFTER_LATE = 2
"""Steps that are lost after the one in which no record is late any more."""


class Excuse(NamedTuple):
    """Steps that a fault may have cost."""

    fault: str
    """The fault."""
    first: int
    """First step."""
    last: int
    """Last step."""
    reasons: tuple[str, ...]
    """Reasons that may be given for them."""

    def covers(self, step: int, reason: str) -> bool:
        """Tell whether a step that is not on storage for `reason` is excused."""
        return self.first <= step <= self.last and reason in self.reasons


def excused(excuses: Iterable[Excuse]) -> set[int]:
    """Return all steps that may be missing."""
    return {step for excuse in excuses for step in range(excuse.first, excuse.last + 1)}


def without_times(injections: Iterable[Injection], steps: int, *, orderly: bool) -> list[Excuse]:
    """Return what a run of real processes may lose, where nobody knows in which step what happens: reasons only.

    Ranks that are killed at the end (not `orderly`) take records of the last steps with them.
    """
    found = [
        Excuse(injection.value, 1, steps, _values(REASONS[injection]))
        for injection in injections
        if injection in REASONS
    ]
    if not orderly:
        cut = frozenset({GapReason.SIDE_CHANNEL_MISSING, GapReason.FLOW_RESET, GapReason.RESYNC_PENDING})
        found.append(Excuse("the end", 1, steps, _values(cut)))
    return found


class ExcuseBook:
    """Collects what the faults of a run excuse, as they happen."""

    def __init__(self, injections: Iterable[Injection]) -> None:
        """Begin a run with these faults."""
        self._injections = frozenset(injections)
        self._found: list[Excuse] = []
        self._open: dict[Injection, int] = {}
        self._holes: set[int] = set()

    def hole(self, step: int) -> None:
        """Note that replicas of a step may be missing."""
        if step in self._holes:
            return
        self._holes.add(step)
        number = len(self._holes)
        last = max(step + 1, step - 2 + (1 << number - 2 if number > 1 else 0))
        for injection in self._injections:
            if injection in _HARMS_REPLICAS:
                self._excuse(injection, step, last)

    def change(self, step: int) -> None:
        """Note a change of the optimizer from `step` on; where calls get lost it may be announced late."""
        if Injection.SIDE_CHANNEL in self._injections:
            self._found.append(Excuse(Injection.SIDE_CHANNEL.value, step, step + 2, _values(_UNANNOUNCED)))

    def begin(self, injection: Injection, step: int) -> None:
        """Note that a fault begins, which may cost steps from `step` on."""
        self._open[injection] = min(step, self._open.get(injection, step))

    def end(self, injection: Injection, step: int) -> None:
        """Note that a fault is over, which may have cost steps up to `step`."""
        if injection in self._open:
            self._excuse(injection, self._open.pop(injection), step)

    def is_open(self, injection: Injection) -> bool:
        """Tell whether a fault has begun and is not over."""
        return injection in self._open

    def all(self, last: int) -> list[Excuse]:
        """Return all excuses; a fault that is not over excuses steps up to `last`."""
        for injection in list(self._open):
            self.end(injection, last)
        found = [excuse._replace(last=min(excuse.last, last)) for excuse in self._found]
        return [excuse for excuse in found if excuse.first <= excuse.last]

    def _excuse(self, injection: Injection, first: int, last: int) -> None:
        self._found.append(Excuse(injection.value, first, last, _values(REASONS[injection])))


def _values(reasons: frozenset[GapReason]) -> tuple[str, ...]:
    return tuple(sorted(reason.value for reason in reasons))
