"""What kind of traffic a capture holds, and what of its run lies beside it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from capture.errors import CaptureError
from capture.reader import open_capture
from replay.errors import ReplayError
from replay.segments import look
from replay.survey import SeenStream

JOB_FILE = "job.yaml"
"""Name of the job file in a run's folder."""
LOG_PATTERN = "side-channel*.bin*"
"""Names of the side-channel logs in a run's folder."""
_CONNECTIONS = 1024
"""Connections that are looked at at a time for frame headers that lie in two segments."""


class Kind(StrEnum):
    """Traffic that gradients are found in."""

    TCP = "tcp"
    """Our own: framed streams between ranks, or replicas of them."""
    ROCEV2 = "rocev2"
    """NCCL over RoCEv2."""


def kind_of(path: Path) -> Kind | None:
    """Return the kind of the first gradient traffic in a capture, None where it has none of it.

    Raises:
        ReplayError: the file cannot be opened, or is no capture.
    """
    try:
        with open_capture(path) as reader:
            streams: dict[bytes, SeenStream] = {}
            for seen in look(reader.batches()):
                if seen.name == "rocev2":
                    return Kind.ROCEV2
                if seen.payload:
                    if len(streams) >= _CONNECTIONS:
                        streams.clear()
                    if streams.setdefault(seen.key, SeenStream(seen.key)).scan(seen.seq, seen.payload):
                        return Kind.TCP
    except CaptureError as error:
        if error.offset == 0:
            raise ReplayError(error.path, error.problem, error.fix) from error
    except OSError as error:
        raise ReplayError(str(path), f"cannot be read: {error.strerror}", "check the name") from error
    return None


def job_beside(captures: Sequence[Path]) -> Path | None:
    """Return the job file of the run whose folder the first capture is in, None without one."""
    found = captures[0].parent / JOB_FILE
    return found if found.is_file() else None


def records_beside(captures: Sequence[Path]) -> tuple[Path, ...]:
    """Return the side-channel logs of the run whose folder the first capture is in."""
    return tuple(sorted(captures[0].parent.glob(LOG_PATTERN)))
