"""A group's part in filling holes: what to ask other shadow nodes for, and what to give and take. Pure."""

from __future__ import annotations

import math

from checkmate_common.sidechannel import side_channel_pb2 as pb
from jobspec.model import Group, Job
from shadow_rx.group.epoch import Epoch
from shadow_rx.group.ledger import Ledger
from shadow_rx.group.progress import Progress
from shadow_rx.peers.frames import Piece, give_applied, give_collected

MOST_FRAMES = 4096
"""Frames that one request asks for; the next request asks for what is still missing."""
_INTERVAL_SECONDS = 0.02
"""Between two requests for the same step."""
_PATIENCE_SECONDS = 1.0
"""How long the same step is asked for."""


class PeerExchange:
    """Decides when other shadow nodes are asked, and when a step no longer waits for them.

    A step is asked for once a later step has begun, or all ranks have told that they finished it: what it lacks then
    has probably been lost. The peer may not have it yet either, so it is asked again, for a while.
    """

    def __init__(self, job: Job, group: Group, progress: Progress, ledger: Ledger) -> None:
        """Ask and answer for `group` of `job`; nothing is asked before `start`."""
        self._job, self._group = job, group
        self._progress, self._ledger = progress, ledger
        self._grace: float | None = None
        self._asked_for = (0, 0)
        self._since = self._last = 0.0

    def start(self, grace: float) -> None:
        """Have other nodes asked before a step is given up.

        Args:
            grace: seconds that bytes may be late, in the queue of a capture, before they count as lost.
        """
        self._grace = grace
        if self._progress.epoch is not None:
            self._progress.epoch.peers = True

    def stop(self, now: float) -> None:
        """Wait for other nodes no longer, from time `now` on."""
        self._grace = None
        if self._progress.epoch is not None:
            self._progress.epoch.peers = False
            self._progress.advance(now)

    @property
    def started(self) -> bool:
        """Whether other nodes are asked."""
        return self._grace is not None

    def request(self, now: float) -> pb.FramesRequest | None:
        """Return what to ask the other nodes for at time `now` (seconds), None for nothing.

        A step that was asked for long enough may be given up.
        """
        current = self._progress.epoch
        if self._grace is None or current is None:
            return None
        request = self._request(current, self._grace, now)
        if request is None:
            self._progress.advance(now)
        return request

    def _request(self, epoch: Epoch, grace: float, now: float) -> pb.FramesRequest | None:
        step = epoch.assembler.next_step
        slot = epoch.assembler.slot(step)
        if epoch.lost is not None or step <= epoch.peers_gave_up or slot.complete:
            return None
        if epoch.assembler.newest_seen <= step and epoch.book.missing(step):
            return None
        if self._asked_for != (epoch.number, step):
            self._asked_for, self._since, self._last = (epoch.number, step), now, -math.inf
        if now - self._since > _PATIENCE_SECONDS:
            epoch.peers_gave_up = step
            return None
        if now - self._since < grace or now - self._last < _INTERVAL_SECONDS:
            return None
        self._last = now
        table = slot.plan.table
        missing = (table.slots[table.copies[frame][0]] for frame in slot.unverified()[:MOST_FRAMES])
        frames = [pb.FrameKey(flow_id=flow_id, index=primary.index) for flow_id, primary in missing]
        return pb.FramesRequest(
            job=self._job.name, group=self._group.name, epoch=epoch.number, step=step, frames=frames
        )

    def give(self, request: pb.FramesRequest, key: pb.FrameKey) -> list[Piece]:
        """Return what is here of one frame of a request.

        Raises:
            ShadowError: another epoch.
        """
        current, step, keys = self._progress.present(request.epoch), request.step, [(key.flow_id, key.index)]
        first = current.assembler.next_step
        if current.lost is None and first <= step < first + current.assembler.window:
            return give_collected(current, step, keys)
        snapshot = self._ledger.point(step)
        if snapshot is None or snapshot.epoch != request.epoch:
            return []
        return give_applied(snapshot, current.assembler.plan, self._job.id, self._group.id, keys)

    def take(self, request: pb.FramesRequest, piece: pb.FrameBytes, now: float) -> int:
        """Take what another node gave for `request`; return how many bytes of it were missing.

        They are verified as replicas are. What is of no use any more is ignored.
        """
        current, key = self._progress.epoch, piece.frame
        if current is None or current.number != request.epoch or current.lost is not None:
            return 0
        placed = current.assembler.place_given(
            request.step, key.flow_id, key.index, piece.start, memoryview(piece.data), now
        )
        self._progress.advance(now)
        return placed
