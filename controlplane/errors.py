"""The one exception type of the control plane."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ErrorKind(StrEnum):
    """Machine-readable kind of an error."""

    BAD_ADDRESS = "bad_address"
    """The target is not of the form HOST:PORT."""
    UNREACHABLE = "unreachable"
    """Nothing answers at the target in time."""
    TLS = "tls"
    """Switch and controller do not accept each other's certificate, or only one of them speaks TLS."""
    NOT_P4RUNTIME = "not_p4runtime"
    """A server answers that does not serve P4Runtime."""
    WRONG_DEVICE = "wrong_device"
    """The switch has another device id."""
    NOT_PRIMARY = "not_primary"
    """Another controller is the primary."""
    NO_PIPELINE = "no_pipeline"
    """The switch runs no program yet."""
    OTHER_PIPELINE = "other_pipeline"
    """The switch runs a program that is not this version's."""
    PIPELINE_REFUSED = "pipeline_refused"
    """The switch does not accept the program."""
    UPDATE_REFUSED = "update_refused"
    """The switch does not accept an update of its state."""
    READ_REFUSED = "read_refused"
    """The switch's state cannot be read."""
    STATE_DIFFERS = "state_differs"
    """The switch accepted every update, but its state differs."""
    STREAM_ENDED = "stream_ended"
    """The switch closed the stream on which digests arrive."""
    INTERNAL = "internal"
    """Any other error."""


@dataclass(frozen=True)
class Refusal:
    """One update that the switch refused."""

    update: str
    """The update, e.g. ``insert replicate: 10.0.0.1 -> 10.0.0.2 ...``."""
    code: str
    """Canonical code, e.g. ``RESOURCE_EXHAUSTED``."""
    message: str
    """The switch's message; may be empty."""

    def __str__(self) -> str:
        """Return the refusal as one line."""
        return f"{self.update}: {self.code}" + (f": {self.message}" if self.message else "")


class ControlPlaneError(Exception):
    """A switch cannot be used, or refused something.

    Attributes:
        kind: kind of the error.
        target: HOST:PORT of the switch.
        refusals: the refused updates, in the order of the plan.
        hint: how to fix it.
        restored: after a refused update: True if the switch reads back as before, False if not; None if nothing had to
            be restored.
        restore_note: details of the restored (or not restored) state.
    """

    def __init__(
        self,
        kind: ErrorKind,
        target: str,
        message: str,
        *,
        hint: str | None = None,
        refusals: tuple[Refusal, ...] = (),
        restored: bool | None = None,
        restore_note: str | None = None,
    ) -> None:
        """Keep the fields and build the message from them."""
        self.kind = kind
        self.target = target
        self.reason = message
        self.hint = hint
        self.refusals = refusals
        self.restored = restored
        self.restore_note = restore_note
        lines = [f"{target}: {message}", *(f"  refused: {refusal}" for refusal in refusals)]
        if restore_note:
            lines.append(f"  {restore_note}")
        if hint:
            lines.append(f"  hint: {hint}")
        super().__init__("\n".join(lines))

    def with_outcome(self, restored: bool, note: str) -> ControlPlaneError:
        """Return the same error with the outcome of the rollback."""
        return ControlPlaneError(
            self.kind,
            self.target,
            self.reason,
            hint=self.hint,
            refusals=self.refusals,
            restored=restored,
            restore_note=note,
        )

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON-ready values."""
        return {
            "kind": str(self.kind),
            "target": self.target,
            "message": self.reason,
            "hint": self.hint,
            "refusals": [{"update": r.update, "code": r.code, "message": r.message} for r in self.refusals],
            "restored": self.restored,
            "restore_note": self.restore_note,
        }
