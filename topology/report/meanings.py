"""Gap reasons and switch counters in plain words, for readers who do not know the project."""

from __future__ import annotations

from checkmate_common.recovery.reasons import GapReason
from p4src.constants import NotReplicated

UNREPORTED = "unreported"
"""Reason shown for a gap without one, which the recovery contract forbids."""

GAP_MEANING: dict[GapReason, str] = {
    GapReason.LOST_BYTES: (
        "Bytes of the reduced gradient never reached the shadow node: replicas were lost or damaged on their "
        "way, and nothing repaired them. The detail names the flow and the byte ranges."
    ),
    GapReason.CORRUPT_FRAME: (
        "All bytes arrived, but a frame's CRC or header did not match, so the gradient could not be trusted "
        "and was not applied."
    ),
    GapReason.UNKNOWN_LAYOUT: (
        "The step's gradient was laid out in buckets that the shadow had not been told of, so it could not "
        "say which byte belongs to which parameter."
    ),
    GapReason.SIDE_CHANNEL_MISSING: (
        "A rank's record of the step (learning rates, random states, data position) never came, and a "
        "checkpoint without it could not be resumed exactly."
    ),
    GapReason.UNDECLARED_STATE: (
        "The trainer holds state that the job does not declare; a checkpoint would have left it out."
    ),
    GapReason.DIGEST_MISMATCH: (
        "The shadow's parameters differed from the digest that the ranks sent, so the step was withheld."
    ),
    GapReason.FLOW_RESET: (
        "A connection between two ranks was made anew before the step was complete, and what the old "
        "connection still owed never came."
    ),
    GapReason.UNKNOWN_ISN: (
        "The switch did not know a connection's initial sequence number, so it did not replicate its packets "
        "rather than give them a wrong position."
    ),
    GapReason.OVERLOAD: (
        "The shadow could not keep up: its buffers were full, and it dropped replicas to bound its memory."
    ),
    GapReason.RESYNC_PENDING: (
        "An earlier step was lost. Each step builds on the one before, so the shadow needs a snapshot of the "
        "trainer before it can go on."
    ),
    GapReason.STORAGE_ERROR: "The recovery point was computed but could not be written.",
}
"""Explanation by gap reason."""

COUNTER_MEANING: dict[str, str] = {
    "replicated": "copied to a shadow node",
    NotReplicated.UNTAGGED.name.lower(): (
        "TCP without a matching entry: reduce-scatter, later hops, acknowledgements (the normal case)"
    ),
    NotReplicated.UNKNOWN_ISN.name.lower(): "tagged, but the connection's initial sequence number is unknown",
    NotReplicated.LATE_CONNECTION.name.lower(): "tagged, but a late segment of an earlier connection",
    NotReplicated.NO_GROUP.name.lower(): "tagged, but the flow's entry names no multicast group",
    NotReplicated.UNSUPPORTED_HEADER.name.lower(): "TCP behind IPv4 options, in a fragment or cut short",
    NotReplicated.FROM_SHADOW.name.lower(): "sent by a shadow node: dropped, so that it reaches no rank",
    NotReplicated.UNKNOWN_DESTINATION.name.lower(): "no such destination address: dropped",
    NotReplicated.NONE.name.lower(): "replicated, flooded, or not TCP: no reason applied",
}
"""Explanation by name of a switch counter, in lower case."""


def gap_meaning(reason: str) -> str:
    """Return the explanation of a reason, also of one that the contract does not list."""
    if reason == UNREPORTED:
        return "No recovery point and no reason given: a defect of the shadow, which must always say why."
    try:
        return GAP_MEANING[GapReason(reason)]
    except ValueError:
        return "Not a reason that the recovery contract knows."


def counter_meaning(name: str) -> str:
    """Return what a switch counter counts; empty for an unknown counter."""
    return COUNTER_MEANING.get(name.lower(), "")
