"""Replicas of one group: counted, and placed into the steps of the current epoch. Pure."""

from __future__ import annotations

from collections import Counter

import numpy as np

from placement.discard import Discard
from placement.segments import Replica, Segments
from shadow_rx.group.epoch import Epoch
from shadow_rx.group.progress import Progress


class Arrivals:
    """Takes what the network brings of a group. Times are seconds."""

    def __init__(self, progress: Progress) -> None:
        """Place into the epochs of `progress`, which goes on where a step may be complete."""
        self._progress = progress
        self._discarded: Counter[Discard] = Counter()
        self.packets = 0
        """Intact replicas."""
        self.payload_bytes = 0
        """Their payload bytes, repeated ones included."""
        self.last_at: float | None = None
        """Time of the newest of them."""

    def on_replica(self, replica: Replica, now: float) -> None:
        """Place an intact replica."""
        self._count(1, len(replica.payload), now)
        current = self._accepting(1)
        if current is not None and current.assembler.place(replica, now):
            self._placed(current, replica, now)

    def on_segments(self, segments: Segments, now: float) -> None:
        """Do what `on_replica` and `on_damaged` do for each of `segments`, in order."""
        intact = len(segments) - int(np.count_nonzero(segments.damaged))
        self._count(intact, int(segments.lengths.sum(where=~segments.damaged)), now)
        at = 0
        while at < len(segments):
            current = self._accepting(len(segments) - at - int(np.count_nonzero(segments.damaged[at:])))
            if current is None:
                return
            at, stopped = current.assembler.place_segments(segments, at, now)
            if stopped:
                self._placed(current, segments.replica(at - 1), now)

    def _count(self, intact: int, nbytes: int, now: float) -> None:
        self.packets += intact
        self.payload_bytes += nbytes
        if intact:
            self.last_at = now

    def _accepting(self, intact: int) -> Epoch | None:
        """Return the epoch that replicas are placed into; None, and `intact` ones discarded, where there is none."""
        current = self._progress.epoch
        if current is not None and (current.lost is None or current.resyncs):
            return current
        self._discarded[Discard.UNKNOWN_CONNECTION if current is None else Discard.RESYNC_PENDING] += intact
        return None

    def _placed(self, current: Epoch, replica: Replica, now: float) -> None:
        """Go on where a step became complete, or where `replica`, which was placed last, lies beyond the window."""
        self._progress.advance(now)
        beyond = current.assembler.next_step + current.assembler.window
        if current.lost is not None and current.assembler.overrun and current.assembler.overrun[0] == beyond:
            # While a state is awaited the newest steps are the ones to keep. One step at a time: a damaged
            # position may name any. What moves the window further are the ranks' records.
            current.slide(current.assembler.next_step + 1)
            current.assembler.place(replica, now)

    def on_damaged(self, replica: Replica) -> None:
        """Remember that a replica failed a checksum; it is not placed."""
        current = self._accepting(0)
        if current is not None:
            current.assembler.note_damaged(replica)

    def on_dropped(self, count: int) -> None:
        """Remember that replicas, of this group or of another one, were dropped for lack of buffer space."""
        if self._progress.epoch is not None:
            self._progress.epoch.assembler.note_dropped(count)

    def end_epoch(self) -> None:
        """Keep the counts of the current epoch, which ends."""
        if self._progress.epoch is not None:
            self._discarded.update(self._progress.epoch.assembler.discarded)

    @property
    def discarded(self) -> dict[str, int]:
        """Replicas that were not placed, by cause."""
        found = Counter(self._discarded)
        if self._progress.epoch is not None:
            found.update(self._progress.epoch.assembler.discarded)
        return {str(cause): count for cause, count in sorted(found.items()) if count}
