"""Which steps the faults of a run may cost, and for which reasons: all other steps must be on storage. Pure.

The bounds follow from the fault and from how a node recovers from it. They assume side-channel calls shorter than a
step (`timed_drivers`); where calls take longer, the steps during which records were late are excused too.

* *Replicas lost* (loss or congestion behind the switch, corruption, the switch's death) in step ``s``: each byte is
  replicated twice, so one lost frame costs nothing. After two or more, ``s`` may have a hole. It is found when
  ``s + 1`` is complete; the reply to its record requests a state, which the trainer uploads after ``s + 2``. So ``s``
  and ``s + 1`` are lost. If the next step has a hole too, the distance to the next request doubles (`StateRequests`):
  the k-th such step costs steps up to ``s - 2 + 2 ** (k - 2)``. While calls are lost, so may be the request or the
  upload: then the hole lasts as long as records are late. Where originals are lost too, ``s + 1`` may become complete,
  by a retransmission, after its record was answered: then the request is a step later.
* *Shadow node down* from step ``a`` to ``b``: what was not on storage when it was killed is lost. When it is up again
  in ``b``, rank 0 announces the communicator in at most two attempts, which take at most a step. Then the ranks
  announce their flows, with their records of ``b + 1``. The reply to the record of ``b + 2`` requests a state, which is
  uploaded after ``b + 3``. A state that was being uploaded when the node was killed reaches the restarted node, which
  lacks records of its step sent before, and bytes of the next step that arrived before the flows were announced.
* *Disk full or failing* during steps ``a`` to ``b``: from the oldest point not yet written in ``a``, to that of ``b``.
* *Storage slow*: from the oldest point not yet written when it begins, until no point waits.
* *Records late*: from the oldest record not sent when the next step is trained, until all are sent; then as after a
  loss. The bytes of a change that was announced late are placed by the old layout, so its step is lost. A lost call
  may have carried the list of a rank's objects, to which a record refers.
* Loss before the switch, reordering, duplication, changes of the optimizer and killed ranks cost nothing: TCP
  retransmits, or the steps are trained again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from checkmate_common.recovery.reasons import GapReason
from topology.acceptance.scenarios import Injection

_HOLE_REASONS = frozenset({GapReason.LOST_BYTES, GapReason.RESYNC_PENDING})
_LATE_CHANGE_REASONS = _HOLE_REASONS | {GapReason.UNKNOWN_LAYOUT, GapReason.DIGEST_MISMATCH}
_CRASH_REASONS = _HOLE_REASONS | {GapReason.SIDE_CHANNEL_MISSING}
REASONS: dict[Injection, frozenset[GapReason]] = {
    Injection.LOSS_AFTER: _HOLE_REASONS,
    Injection.CORRUPT: _HOLE_REASONS | {GapReason.CORRUPT_FRAME},
    Injection.CONGESTION: _HOLE_REASONS,
    Injection.SWITCH_RESTART: _HOLE_REASONS,
    Injection.SWITCH_FAILOVER: _HOLE_REASONS,
    Injection.SIDE_CHANNEL: frozenset(
        {GapReason.SIDE_CHANNEL_MISSING, GapReason.OVERLOAD, GapReason.RESYNC_PENDING, GapReason.UNDECLARED_STATE}
    ),
    Injection.SHADOW_RESTART: _CRASH_REASONS,
    Injection.TORN_WRITE: _CRASH_REASONS,
    Injection.FULL_DISK: frozenset({GapReason.STORAGE_ERROR}),
    Injection.STORAGE_ERRORS: frozenset({GapReason.STORAGE_ERROR}),
    Injection.SLOW_STORAGE: frozenset({GapReason.OVERLOAD}),
}
"""Reasons that a fault may lead to; a fault that is not listed costs no step."""
_DAMAGES_REPLICAS = frozenset({
    Injection.LOSS_AFTER, Injection.CORRUPT, Injection.CONGESTION, Injection.SWITCH_RESTART, Injection.SWITCH_FAILOVER,
})  # fmt: skip
AFTER_RESTART = 2
"""Steps that may be lost after the one in which a shadow node is up again."""
AFTER_LATE = 2
"""Steps that may be lost after the first one without late records."""


class Excuse(NamedTuple):
    """Steps that a fault may have cost, and the allowed reasons."""

    fault: str
    """The fault."""
    first: int
    """First step."""
    last: int
    """Last step."""
    reasons: tuple[str, ...]
    """`GapReason` values that may be given for them."""

    def covers(self, step: int, reason: str) -> bool:
        """Return whether a step may be missing from storage for `reason`."""
        return self.first <= step <= self.last and reason in self.reasons


def excused(excuses: Iterable[Excuse]) -> set[int]:
    """Return all steps that may be missing."""
    return {step for excuse in excuses for step in range(excuse.first, excuse.last + 1)}


def untimed_excuses(injections: Iterable[Injection], steps: int, every: int, *, orderly: bool) -> list[Excuse]:
    """Return the excuses of a run of real processes, for all its steps: when each fault happens is not known there.

    Ranks that are killed at the end (not `orderly`) may not have sent their last records.
    """
    found = [
        Excuse(injection.value, 1, steps, _values(REASONS[injection]))
        for injection in sorted(injections)
        if injection in REASONS
    ]
    found += flush_excuses(every, steps)
    if not orderly:
        cut = frozenset({GapReason.SIDE_CHANNEL_MISSING, GapReason.FLOW_RESET, GapReason.RESYNC_PENDING})
        found.append(Excuse("the end", 1, steps, _values(cut)))
    return found


def flush_excuses(every: int, last: int) -> list[Excuse]:
    """Return the excuse of the newest points, up to `last`: they wait until `every` share a flush (`store.every`)."""
    return [Excuse("store.every", last - every + 2, last, (GapReason.OVERLOAD.value,))] if every > 1 else []


class ExcuseTracker:
    """Collects the excuses of a run as its faults happen."""

    def __init__(self, injections: Iterable[Injection]) -> None:
        """Start a run with these faults."""
        self._injections = frozenset(injections)
        self._found: list[Excuse] = []
        self._open: dict[Injection, int] = {}
        self._damaged_steps: set[int] = set()

    def replicas_lost(self, step: int) -> None:
        """Record that replicas of a step may be missing."""
        if step in self._damaged_steps:
            return
        self._damaged_steps.add(step)
        number = len(self._damaged_steps)
        last = max(step + 1, step - 2 + (1 << number - 2 if number > 1 else 0))
        last += Injection.LOSS_BEFORE in self._injections
        for injection in sorted(self._injections & _DAMAGES_REPLICAS):  # in one order, for equal records
            self._add(injection, step, last)

    def optimizer_changed(self, step: int) -> None:
        """Record a change of the optimizer from `step` on; lost calls may delay its announcement."""
        if Injection.SIDE_CHANNEL in self._injections:
            self._found.append(Excuse(Injection.SIDE_CHANNEL.value, step, step + 2, _values(_LATE_CHANGE_REASONS)))

    def begin(self, injection: Injection, step: int) -> None:
        """Record that a fault begins, which may cost steps from `step` on."""
        self._open[injection] = min(step, self._open.get(injection, step))

    def end(self, injection: Injection, step: int) -> None:
        """Record that a fault ends, which may have cost steps up to `step`."""
        if injection in self._open:
            self._add(injection, self._open.pop(injection), step)

    def is_open(self, injection: Injection) -> bool:
        """Return whether a fault has begun and not ended."""
        return injection in self._open

    def all(self, last: int) -> list[Excuse]:
        """Return all excuses, up to step `last`; faults that are still on end there."""
        for injection in list(self._open):
            self.end(injection, last)
        late = [excuse for excuse in self._found if excuse.fault == Injection.SIDE_CHANNEL.value]
        found = [_prolonged(excuse, late) for excuse in self._found]
        found = [excuse._replace(last=min(excuse.last, last)) for excuse in found]
        return [excuse for excuse in found if excuse.first <= excuse.last]

    def _add(self, injection: Injection, first: int, last: int) -> None:
        self._found.append(Excuse(injection.value, first, last, _values(REASONS[injection])))


def _prolonged(excuse: Excuse, late: Iterable[Excuse]) -> Excuse:
    """Return the excuse of a hole until the calls that end it, the request of a state and its upload, can succeed."""
    if excuse.fault not in {injection.value for injection in _DAMAGES_REPLICAS}:
        return excuse
    lasts = [other.last for other in late if other.first <= excuse.last + 1]
    return excuse._replace(last=max([excuse.last, *lasts]))


def _values(reasons: frozenset[GapReason]) -> tuple[str, ...]:
    return tuple(sorted(reason.value for reason in reasons))
