"""Recovery points that wait for storage: bounded in number and bytes, thinned out when storage is slow. Pure.

When a point comes while as many wait as may, the oldest one is dropped and the stride doubles. With stride k a
waiting point whose step is no multiple of k gives way to the next one: every k-th step is kept for certain, and the
newest waits in any case, so that storage gets it as soon as it has time. The stride halves when storage has caught up
several times. So points on storage lie further apart the slower it is, and evenly.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from shadow_rx.apply.model import tensor_bytes
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.health import StoreStatus
from shadow_rx.store.names import Point

WRITE_COPIES = 3
"""Copies of a point that are made while it is written: its tensors as bytes, the file, the file encrypted."""
STORE_COPIES = 8
"""Recovery points that must fit beside what collecting and applying need, so that one can wait, be written and share
a flush with others."""
_COMMIT_COPIES = 3
"""Copies of the steps of a common flush: as they wait, the file, the file encrypted."""
MOST_STRIDE = 256
"""Largest stride."""
_CALM = 4
"""So many points in turn that nothing waits for halve the stride."""


def snapshot_bytes(snapshot: Snapshot) -> int:
    """Return the memory of a recovery point; constants are shared by all of them."""
    records = (sum(map(len, r.raw.values())) + tensor_bytes(r.tensors) for r in snapshot.records)
    return tensor_bytes(snapshot.tensors) + len(snapshot.gradient or b"") + sum(records)


@dataclass(frozen=True)
class Taken:
    """A point for storage to write."""

    snapshot: Snapshot
    """The point."""
    hurry: bool
    """Others wait: it may share a flush with them."""
    log_bytes: int | None
    """Most bytes of steps that may wait in the store for a common flush, None for any number."""


@dataclass
class _Lane:
    """What waits of one group."""

    waiting: deque[tuple[Snapshot, int]] = field(default_factory=deque)
    stride: int = 1
    calm: int = 0
    room: int | None = None
    writing: int = 0
    logged: int = 0


class StoreQueue:
    """Points of all groups that wait for the one that writes."""

    def __init__(self, depth: int) -> None:
        """Let at most `depth` points of each group wait, besides the one that is being written.

        Raises:
            ValueError: `depth` is below 1.
        """
        if depth < 1:
            raise ValueError(f"waiting points: {depth}, expected at least 1")
        self._depth = depth
        self._lanes: dict[str, _Lane] = {}
        self._order: deque[str] = deque()

    def __len__(self) -> int:
        """Return how many points wait."""
        return sum(len(lane.waiting) for lane in self._lanes.values())

    def offer(self, snapshot: Snapshot, room: int | None = None) -> list[Point]:
        """Take a recovery point; return those that are dropped, this one among them where there is no room for it.

        Args:
            snapshot: the point.
            room: bytes that the group's waiting points may take, with what writing them takes; None: any number.
        """
        lane = self._lanes.setdefault(snapshot.group, _Lane())
        lane.room = room
        size, dropped = snapshot_bytes(snapshot), list[Point]()
        self._relax(lane)
        if lane.waiting and lane.waiting[-1][0].step % lane.stride:
            dropped.append(_point(lane.waiting.pop()[0]))
        if lane.waiting and not self._fits(lane, size):
            lane.stride = min(MOST_STRIDE, lane.stride * 2)
        while lane.waiting and not self._fits(lane, size):
            dropped.append(_point(lane.waiting.popleft()[0]))
        if self._fits(lane, size):
            lane.waiting.append((snapshot, size))
        else:
            dropped.append(_point(snapshot))
        return dropped

    def take(self) -> Taken | None:
        """Return the oldest waiting point of the group whose turn it is, None when nothing waits."""
        for _ in range(len(self._lanes)):
            group = self._turn()
            lane = self._lanes[group]
            if lane.waiting:
                snapshot, lane.writing = lane.waiting.popleft()
                return Taken(snapshot, bool(lane.waiting), self._log_room(lane, lane.writing))
        return None

    def written(self, group: str, logged: int) -> None:
        """Note that what was taken of `group` is written, or failed; `logged` bytes of it wait in the store."""
        lane = self._lanes.setdefault(group, _Lane())
        lane.writing, lane.logged = 0, logged

    def status(self, group: str) -> StoreStatus:
        """Return what is held of `group`."""
        lane = self._lanes.get(group, _Lane())
        return StoreStatus(
            waiting=len(lane.waiting),
            depth=self._depth,
            waiting_bytes=_waiting(lane) + lane.writing * (1 + WRITE_COPIES),
            log_bytes=lane.logged,
            stride=lane.stride,
        )

    def _turn(self) -> str:
        """Return the groups one after the other, so that none starves."""
        if len(self._order) != len(self._lanes):
            self._order = deque(self._lanes)
        self._order.rotate(-1)
        return self._order[-1]

    def _fits(self, lane: _Lane, size: int) -> bool:
        if len(lane.waiting) >= self._depth:
            return False
        if lane.room is None:
            return True
        # Writing is counted whether something is being written or not: what waits is written next.
        kept = (1 + WRITE_COPIES) * size + _COMMIT_COPIES * (self._log_room(lane, size) or 0)
        return _waiting(lane) + size <= lane.room - kept

    def _log_room(self, lane: _Lane, size: int) -> int | None:
        """Return the bytes for steps that wait for a commit: an eighth of what waiting and committing may take."""
        return None if lane.room is None else max(0, lane.room - (1 + WRITE_COPIES) * size) // 8

    def _relax(self, lane: _Lane) -> None:
        lane.calm = 0 if lane.waiting else lane.calm + 1
        if lane.calm >= _CALM and lane.stride > 1:
            lane.stride //= 2
            lane.calm = 0


def _waiting(lane: _Lane) -> int:
    return sum(size for _, size in lane.waiting)


def _point(snapshot: Snapshot) -> Point:
    return snapshot.group, snapshot.epoch, snapshot.step
