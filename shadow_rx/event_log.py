"""The event log: one JSON line for every step that became a recovery point or was lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shadow_rx.status import Event, StepReplicated


class EventLog:
    """Appends events to a file; an observer of a `ShadowNode`."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending; its folder is made where it is missing.

        Raises:
            OSError: it cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def __call__(self, event: Event) -> None:
        """Append `event`; readers see whole lines, because each is flushed."""
        self._file.write(json.dumps(event_fields(event)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def event_fields(event: Event) -> dict[str, Any]:
    """Return `event` as a JSON object; times are seconds of the node's clock."""
    if isinstance(event, StepReplicated):
        report = event.report
        return {
            "event": "replicated",
            "group": event.snapshot.group,
            "epoch": report.epoch,
            "step": report.step,
            "replica_bytes": report.replica_bytes,
            "first_byte_at": report.first_byte_at,
            "complete_at": report.complete_at,
            "applied_at": report.applied_at,
        }
    return {
        "event": "lost",
        "group": event.group,
        "epoch": event.epoch,
        "step": event.gap.step,
        "reason": event.gap.reason.value,
        "detail": event.gap.detail,
    }
