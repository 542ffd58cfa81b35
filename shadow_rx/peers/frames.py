"""Frames that one shadow node of a group gives to another. Pure.

Frames are given in the form that their flow's primary hop has on the wire: verified ones whole, of others the bytes
that are there, because each node may lack another part of the same frame. Who takes them treats them as a replica's
bytes: nothing is believed before the frame's CRC32C fits. So a peer can fill a hole, and cannot damage anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from checkmate_common.stream.frame import crc32c
from checkmate_common.stream.schedule import FrameSlot
from placement.frames import FrameIdentity
from placement.plan import SlotPlan
from shadow_rx.group.epoch import Epoch
from shadow_rx.publish.snapshot import Snapshot

FrameKey = tuple[int, int]
"""Flow id, and index of the frame in the flow's stream of one step: the primary copy of a frame."""

Piece = tuple[FrameKey, int, bytes]
"""The frame, the first byte relative to its header, and the bytes."""


def give_collected(epoch: Epoch, step: int, keys: Iterable[FrameKey]) -> list[Piece]:
    """Return what is there of the frames `keys` of a step of the window."""
    slot = epoch.assembler.slot(step)
    found: list[Piece] = []
    for key in keys:
        place = _primary(slot.plan, key)
        if place is None:
            continue
        table = slot.plan.table
        frame = slot.frame(table.place[table.first_copy[key[0]] + place[0]][0])
        if frame.verified:
            payload = bytes(frame.payload)
            header = slot.identities[key[0]].header(frame.primary.slot, crc32c(payload))
            found.append((key, 0, header.pack() + payload))
        else:
            found += [(key, start, data) for start, data in frame.held()]
    return found


def give_applied(snapshot: Snapshot, plan: SlotPlan, job: int, group: int, keys: Iterable[FrameKey]) -> list[Piece]:
    """Return the frames `keys` of a step that was applied, from the gradient that its snapshot keeps.

    None of them where it keeps none, because the state was uploaded, or where `plan` is not of its layout.
    """
    gradient = snapshot.gradient
    if gradient is None or plan.layout != snapshot.layout:
        return []
    starts = list(accumulate((bucket.nbytes for bucket in plan.layout.buckets), initial=0))
    found: list[Piece] = []
    for key in keys:
        place = _primary(plan, key)
        if place is None:
            continue
        flow, slot = plan.flows[key[0]].flow, place[1]
        identity = FrameIdentity(
            job, group, snapshot.epoch, flow.shape.channel, flow.shape.rank, snapshot.step, snapshot.layout.version
        )
        start = starts[slot.bucket] + slot.byte_offset
        payload = gradient[start : start + slot.payload_bytes]
        found.append((key, 0, identity.header(slot, crc32c(payload)).pack() + payload))
    return found


def _primary(plan: SlotPlan, key: FrameKey) -> tuple[int, FrameSlot] | None:
    """Return position among the flow's expected frames, and place, of a primary copy; None where there is no such."""
    flow_id, index = key
    flow = plan.flows.get(flow_id)
    ordinal = flow.ordinal.get(index) if flow is not None else None
    if flow is None or ordinal is None or flow.expected[ordinal].hop:
        return None
    return ordinal, flow.expected[ordinal]
