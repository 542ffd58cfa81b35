"""Looks over a group's replica and says how it is: lags, coverage, memory, totals. Pure; reads, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from jobspec.frame import HEADER_BYTES
from placement.assembler import Assembler
from placement.plan import SlotPlan
from shadow_rx.apply.model import Tensors
from shadow_rx.group.epoch import Epoch
from shadow_rx.group.history import History
from shadow_rx.options import ShadowOptions
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.group_status import Gap
from shadow_rx.status.health import Buffers, FlowCoverage, Lag


def wanted_bytes(plan: SlotPlan) -> int:
    """Return the replica bytes of one step, frame headers included and each byte once."""
    return plan.layout.nbytes + plan.frames * HEADER_BYTES


def replica_lag(current: Epoch, trained: int, replica: int, since: float | None, now: float, gap: Gap | None) -> Lag:
    """Return the lag from trained to replica.

    Args:
        current: the present epoch.
        trained: newest announced step.
        replica: newest recovery point.
        since: when the step after it was announced, None where that is not known.
        now: the time.
        gap: why that step is no recovery point.
    """
    steps = trained - replica
    if steps <= 0:
        return Lag()
    there = sum(count for step, count in current.pending_bytes().items() if replica < step <= trained)
    missing = max(0, steps * wanted_bytes(current.assembler.plan) - there)
    waited = max(0.0, now - since) if since is not None else 0.0
    return Lag(steps, waited, missing, gap.reason if gap else None, gap.detail if gap else "")


def durable_lag(history: History, gradient_bytes: int, now: float) -> Lag:
    """Return the lag from replica to durable at the time `now`."""
    steps = history.replica_step - history.durable_step
    oldest = history.oldest_unstored()
    if steps <= 0 or oldest is None:
        return Lag()
    report, count = oldest
    gap = history.storage_gap(report.step)
    waited = max(0.0, now - report.applied_at)
    return Lag(steps, waited, count * gradient_bytes, gap.reason if gap else None, gap.detail if gap else "")


def coverage(assembler: Assembler) -> tuple[FlowCoverage, ...]:
    """Return what has arrived of the oldest step that is being collected, flow by flow."""
    counts = assembler.slot(assembler.next_step).coverage()
    return tuple(FlowCoverage(flow_id, *of_flow) for flow_id, of_flow in sorted(counts.items()))


def buffers(
    assembler: Assembler | None, base: Tensors, live: bool, held: Iterable[Snapshot], options: ShadowOptions
) -> Buffers:
    """Return the memory of a group.

    Args:
        assembler: of the present epoch.
        base: state of the newest applied step.
        live: whether there is a live copy of it.
        held: recovery points in memory.
        options: the node's bounds.
    """
    held = tuple(held)
    steps = range(0) if assembler is None else range(assembler.next_step, assembler.next_step + assembler.window)
    slots = [] if assembler is None else [assembler.slot(step) for step in steps]
    collecting, state = assembler.nbytes if assembler is not None else 0, _bytes([base])
    gradients = sum(len(snapshot.gradient or b"") for snapshot in held)
    # The newest held point has the tensors of `base`; those that are shared count once.
    kept = _bytes([base, *(snapshot.tensors for snapshot in held)])
    return Buffers(
        slots=options.window,
        slots_used=sum(slot.touched for slot in slots),
        held=len(held),
        hold=options.hold,
        collecting_bytes=collecting,
        state_bytes=kept + gradients + (state if live else 0),
        reserved_bytes=reserved_bytes(collecting, state, assembler.plan if assembler else None, options),
        memory_limit=options.memory_limit,
    )


def reserved_bytes(collecting: int, state: int, plan: SlotPlan | None, options: ShadowOptions) -> int:
    """Return the most that collecting, applying and holding may take: what storing must leave free."""
    gradient = plan.layout.nbytes if plan is not None else 0
    return collecting + (2 + options.hold) * state + options.hold * gradient


def _bytes(groups: Iterable[Mapping[str, torch.Tensor]]) -> int:
    storages = {
        tensor.data_ptr(): tensor.numel() * tensor.element_size() for group in groups for tensor in group.values()
    }
    return sum(storages.values())
