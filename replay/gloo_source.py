"""Several captures of one network as batches, read side by side."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np

from capture.errors import CaptureError
from capture.reader import CaptureReader, open_capture
from packets.batch import PacketBatch
from packets.decode import decode
from packets.headers import Headers, Kind
from packets.segment import SYN
from replay.errors import ReplayError

_IDENTITY = [
    "source_high", "source_low", "destination_high", "destination_low", "source_port", "destination_port", "seq",
    "flags",
]  # fmt: skip
"""What tells a SYN from others."""

Progress = Callable[[str, int, int | None], None]
"""Called as progress(what is done, bytes read, bytes in all or None)."""


class Captures:
    """Batches of several captures, always of the one that is furthest behind.

    Clocks of the machines that captured may differ: by how much follows from packets that two captures share.
    """

    def __init__(self, paths: Sequence[Path], progress: Progress) -> None:
        """Read `paths`, each to its end or to the first damage, which `problems` tells."""
        self.problems: list[str] = []
        """Captures that ended early."""
        self._paths, self._progress = paths, progress
        self._offsets = [0 for _ in paths]

    def survey(self) -> Iterator[Headers]:
        """Yield the headers of all packets that begin connections, and compare the captures' clocks.

        Raises:
            ReplayError: a file cannot be opened, or is no capture.
        """
        seen: list[dict[bytes, int]] = []
        for path in self._paths:
            found: dict[bytes, int] = {}
            seen.append(found)
            with _open(path) as reader:
                for batch in _batches(reader, []):
                    self._progress("finding streams", reader.bytes_read, reader.size)
                    headers = decode(batch, verify=False)
                    rows = np.flatnonzero((headers["kind"] == Kind.TCP) & (headers["flags"] & SYN != 0))
                    for row in rows.tolist():
                        found.setdefault(headers[_IDENTITY][row].tobytes(), int(batch.times_ns[row]))
                    yield headers[rows]
        self._offsets = _offsets(seen)

    def __iter__(self) -> Iterator[tuple[int, PacketBatch, Headers]]:
        """Yield number of the capture, batch, and its headers with checksums verified.

        Raises:
            ReplayError: a file cannot be opened, or is no capture.
        """
        offsets = self._offsets
        with ExitStack() as stack:
            readers = [stack.enter_context(_open(path)) for path in self._paths]
            sources = [_batches(reader, self.problems) for reader in readers]
            heads: list[tuple[int, int, PacketBatch]] = []

            def push(number: int) -> None:
                batch = next(sources[number], None)
                if batch is not None:
                    heapq.heappush(heads, (int(batch.times_ns[0]) + offsets[number], number, batch))

            for number in range(len(sources)):
                push(number)
            sizes = [reader.size for reader in readers]
            total = None if None in sizes else sum(size or 0 for size in sizes)
            while heads:
                _, number, batch = heapq.heappop(heads)
                self._progress("decoding gloo", sum(reader.bytes_read for reader in readers), total)
                yield number, batch, decode(batch)
                push(number)


def _batches(reader: CaptureReader, problems: list[str]) -> Iterator[PacketBatch]:
    try:
        for batch in reader.batches():
            if len(batch):
                yield batch
    except CaptureError as error:
        problems.append(str(error))


def _offsets(seen: Sequence[Mapping[bytes, int]]) -> list[int]:
    """Return what to add to each capture's times, in nanoseconds, from the times of packets that captures share."""
    offsets: dict[int, int] = {0: 0}
    for _ in seen:
        for number in range(len(seen)):
            for known in [] if number in offsets else list(offsets):
                shared = [seen[known][key] - seen[number][key] for key in seen[number].keys() & seen[known].keys()]
                if shared:
                    offsets[number] = offsets[known] + int(median(shared))
                    break
    return [offsets.get(number, 0) for number in range(len(seen))]


def _open(path: Path) -> CaptureReader:
    try:
        return open_capture(path)
    except CaptureError as error:
        raise ReplayError(error.path, error.problem, error.fix) from error
    except OSError as error:
        raise ReplayError(str(path), f"cannot be read: {error.strerror}", "check the name") from error
