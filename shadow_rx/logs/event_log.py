"""The event log: one JSON object a line for everything that happens to a group's steps.

Schema 1. Every line has ``v`` (schema), ``event``, ``group``, ``epoch``, ``step``, and where the log was given clocks
``at`` (seconds of the node's clock) and ``time`` (seconds since 1970). Fields are only ever added within a schema.
A line after others that could not be written has ``lost_before``: how many.

==============  =======================================================================================================
event           step, and further fields
==============  =======================================================================================================
attached        newest trained step; ``need_state``
rejoined        the same, of a communicator that ran already when this shadow was started
replicated      became a recovery point; ``replica_bytes``, ``repaired_bytes``, ``peer_bytes``, ``first_byte_at``,
                ``complete_at``, ``applied_at``
repaired        the same step, where bytes of it were repaired; ``repaired_bytes``, ``peer_bytes``
lost            cannot become one from its gradient; ``reason``, ``detail``
uploaded        step of the state that the trainer uploaded
resynced        the same, where it ends a loss; ``since``: first lost step
adopted         recovery point that another shadow node gave when this one was started again; ``peer``; ``since``:
                first step that was not here
stored          is durable
not_stored      was not written to storage and will not be; ``reason``, ``detail``
overload        newest recovery point when node or storage began to fall behind; ``step_seconds``, ``apply_seconds``,
                ``store_seconds``, ``nodes_needed``
overload_ended  the same, when they kept up again
==============  =======================================================================================================
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from checkmate_common.files.regular_files import regular
from checkmate_common.files.rotating_file import LogLimits, older_files
from checkmate_common.recovery.reasons import GapReason
from shadow_rx.logs.line_log import LineLog
from shadow_rx.logs.log_queue import LogQueue
from shadow_rx.status.events import (
    Attached,
    Event,
    OverloadChanged,
    StateAdopted,
    StateUploaded,
    StepLost,
    StepNotStored,
    StepReplicated,
    StepResynced,
    StepStored,
)
from shadow_rx.status.group_status import Gap, StepReport
from shadow_rx.status.health import Part

SCHEMA = 1
"""Version of the lines."""
_LINE_BYTES = 512
"""Memory of a line that waits, besides its detail."""
Clock = Callable[[], float]


class EventLog:
    """Appends events to a file; an observer of a `ShadowNode`."""

    def __init__(
        self,
        path: Path,
        clock: Clock | None = None,
        wall: Clock | None = None,
        limits: LogLimits = LogLimits(),  # noqa: B008
    ) -> None:
        """Open `path` for appending; its folder is made where it is missing. Both are their owner's alone.

        Args:
            path: the file.
            clock: the node's clock.
            wall: seconds since 1970.
            limits: when a new file is begun.

        Raises:
            OSError: it cannot be written.
        """
        self._lines = LineLog(path, limits)
        self._clocks = {name: clock for name, clock in (("at", clock), ("time", wall)) if clock is not None}
        self._queue = LogQueue("events", self._write)

    def __call__(self, event: Event) -> None:
        """Have `event` appended; readers see whole lines."""
        now = {name: clock() for name, clock in self._clocks.items()}
        for fields in event_lines(event):
            # Of the texts in a line only the detail is long.
            size = _LINE_BYTES + len(fields.get("detail", ""))
            self._queue.put({"v": SCHEMA, **fields, **now}, size)

    def _write(self, fields: dict[str, Any], lost: int) -> None:
        self._lines.append({**fields, "lost_before": lost} if lost else fields)

    def part(self) -> Part:
        """Return how it is."""
        return self._queue.part()

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._queue.close()
        self._lines.close()


def read_losses(path: Path, group: str) -> list[tuple[int, Gap]]:
    """Return what a log says that was lost of `group`, as (epoch, gap), in order; none where there is no log.

    A line that a killed process left unfinished, and any other that is no event of a loss, is passed over.
    """
    found: list[tuple[int, Gap]] = []
    for part in older_files(path):
        with contextlib.suppress(OSError), open(part, errors="replace", opener=regular) as lines:
            found += (loss for line in lines if (loss := _loss(line, group)) is not None)
    return found


def _loss(line: str, group: str) -> tuple[int, Gap] | None:
    try:
        event = json.loads(line)
        if event["event"] == "lost" and event["group"] == group:
            return int(event["epoch"]), Gap(int(event["step"]), GapReason(event["reason"]), str(event["detail"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def event_lines(event: Event) -> Iterator[dict[str, Any]]:
    """Yield `event` as JSON objects, without schema and times."""
    named = {"group": event.group, "epoch": event.epoch, "step": event.step}
    name, more = _named(event)
    yield {"event": name, **named, **more}
    if isinstance(event, StepReplicated) and any(_repaired(event.report).values()):
        yield {"event": "repaired", **named, **_repaired(event.report)}


def _repaired(report: StepReport) -> dict[str, int]:
    return {"repaired_bytes": report.repaired_bytes, "peer_bytes": report.peer_bytes}


def _named(event: Event) -> tuple[str, dict[str, Any]]:
    """Return the name of an event, and its further fields."""
    match event:
        case StepReplicated(report=report):
            times = {name: getattr(report, name) for name in ("first_byte_at", "complete_at", "applied_at")}
            return "replicated", {"replica_bytes": report.replica_bytes, **times, **_repaired(report)}
        case StateAdopted():
            return "adopted", {"peer": event.peer, "since": event.since}
        case StepLost() | StepNotStored():
            name = "lost" if isinstance(event, StepLost) else "not_stored"
            return name, {"reason": event.gap.reason.value, "detail": event.gap.detail}
        case Attached():
            undeclared = {"undeclared": event.undeclared} if event.undeclared is not None else {}
            return "rejoined" if event.rejoin else "attached", {"need_state": event.need_state, **undeclared}
        case StepResynced():
            return "resynced", {"since": event.since}
        case OverloadChanged(load=load):
            seconds = {name: getattr(load, name) for name in ("step_seconds", "apply_seconds", "store_seconds")}
            return "overload" if event.overloaded else "overload_ended", {**seconds, "nodes_needed": load.nodes_needed}
        case StateUploaded():
            return "uploaded", {}
        case StepStored():
            return "stored", {}
