"""Reasons for a gap between trained, replica and durable step (recovery contract)."""

from __future__ import annotations

from enum import StrEnum


class GapReason(StrEnum):
    """Why a step is not (yet) a recovery point."""

    LOST_BYTES = "lost_bytes"
    """Bytes of the reduced gradient never arrived; the detail names flow, step and byte ranges."""
    CORRUPT_FRAME = "corrupt_frame"
    """A frame's CRC or header does not match."""
    UNKNOWN_LAYOUT = "unknown_layout"
    """The step uses a layout version that was not announced to the shadow."""
    SIDE_CHANNEL_MISSING = "side_channel_missing"
    """A rank's record of the step is missing."""
    UNDECLARED_STATE = "undeclared_state"
    """The trainer holds a state object that the job does not declare."""
    DIGEST_MISMATCH = "digest_mismatch"
    """The shadow's parameters differ from the ranks'."""
    FLOW_RESET = "flow_reset"
    """A flow's connection was re-established before the step was complete."""
    UNKNOWN_ISN = "unknown_isn"
    """The switch did not know the connection's initial sequence number."""
    OVERLOAD = "overload"
    """The shadow could not keep up and its buffers were full."""
    RESYNC_PENDING = "resync_pending"
    """An earlier step was lost; the trainer's state is needed to continue."""
    STORAGE_ERROR = "storage_error"
    """The recovery point could not be written."""
