"""The status of a group's replica: steps, gaps, lags, coverage, memory. Pure; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from checkmate_common.stream.frame import HEADER_BYTES
from placement.assembler import Assembler
from placement.plan import SlotPlan
from shadow_rx.group.arrivals import Arrivals
from shadow_rx.group.epoch import SHOWN_GAPS
from shadow_rx.group.history import History
from shadow_rx.group.ledger import Ledger
from shadow_rx.group.progress import Progress
from shadow_rx.options import ShadowOptions
from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.status.group_status import Gap, GroupStatus
from shadow_rx.status.health import Buffers, FlowCoverage, Health, Lag


def survey(
    group: str,
    progress: Progress,
    ledger: Ledger,
    arrivals: Arrivals,
    options: ShadowOptions,
    waiting_since: float | None,
    now: float,
) -> GroupStatus:
    """Return the status of a group at the time `now`; the step after the newest recovery point waits since then."""
    current, history, trained = progress.epoch, ledger.history, progress.trained
    assembler = current.assembler if current is not None else None
    gaps: dict[int, Gap] = {gap.step: gap for gap in history.losses()}
    gaps.update((gap.step, gap) for gap in history.storage_gaps())
    if current is not None:
        gaps.update((gap.step, gap) for gap in current.explain_until(trained))
    newest, shown = ledger.point(0), sorted(gaps.values(), key=lambda gap: -gap.step)
    return GroupStatus(
        group=group,
        epoch=current.number if current else 0,
        trained_step=trained,
        replica_step=history.replica_step,
        durable_step=history.durable_step,
        gaps=tuple(shown[:SHOWN_GAPS]),
        replica_packets=arrivals.packets,
        replica_payload_bytes=arrivals.payload_bytes,
        discarded=arrivals.discarded,
        pending_bytes=current.pending_bytes() if current is not None else {},
        state_from=progress.state_from,
        confirmed=newest.confirmed if newest is not None else (),
        health=Health(
            replica_lag=_replica_lag(progress, history, waiting_since, now),
            durable_lag=_durable_lag(history, assembler.plan.layout.nbytes if assembler else 0, now),
            collecting=assembler.next_step if assembler is not None else 0,
            coverage=_coverage(assembler) if assembler is not None else (),
            buffers=buffers(progress, ledger.points, options),
            totals=ledger.totals,
        ),
    )


def _replica_lag(progress: Progress, history: History, since: float | None, now: float) -> Lag:
    """Return the lag from trained to replica."""
    replica, trained, current = history.replica_step, progress.trained, progress.epoch
    if current is None or trained <= replica:
        return Lag()
    gap, plan = progress.explain(replica + 1), current.assembler.plan
    there = sum(count for step, count in current.pending_bytes().items() if replica < step <= trained)
    wanted = plan.layout.nbytes + plan.frames * HEADER_BYTES  # of a step, each byte once
    missing = max(0, (trained - replica) * wanted - there)
    waited = max(0.0, now - since) if since is not None else 0.0
    return Lag(trained - replica, waited, missing, gap.reason if gap else None, gap.detail if gap else "")


def _durable_lag(history: History, gradient_bytes: int, now: float) -> Lag:
    """Return the lag from replica to durable at the time `now`."""
    steps = history.replica_step - history.durable_step
    oldest = history.oldest_unstored()
    if steps <= 0 or oldest is None:
        return Lag()
    report, count = oldest
    gap = history.storage_gap(report.step)
    waited = max(0.0, now - report.applied_at)
    return Lag(steps, waited, count * gradient_bytes, gap.reason if gap else None, gap.detail if gap else "")


def _coverage(assembler: Assembler) -> tuple[FlowCoverage, ...]:
    """Return what has arrived of the oldest step that is being collected, flow by flow."""
    counts = assembler.slot(assembler.next_step).coverage()
    return tuple(FlowCoverage(flow_id, *of_flow) for flow_id, of_flow in sorted(counts.items()))


def buffers(progress: Progress, held: Sequence[Snapshot], options: ShadowOptions) -> Buffers:
    """Return the memory of a group that has the recovery points `held` in memory."""
    assembler = progress.epoch.assembler if progress.epoch is not None else None
    tensors = progress.state.tensors
    steps = range(0) if assembler is None else range(assembler.next_step, assembler.next_step + assembler.window)
    slots = [] if assembler is None else [assembler.slot(step) for step in steps]
    collecting, state = assembler.nbytes if assembler is not None else 0, _bytes([tensors])
    gradients = sum(len(snapshot.gradient or b"") for snapshot in held)
    # The newest held point has the tensors of the state; those that are shared count once.
    kept = _bytes([tensors, *(snapshot.tensors for snapshot in held)])
    return Buffers(
        slots=options.window,
        slots_used=sum(slot.touched for slot in slots),
        held=len(held),
        hold=options.hold,
        collecting_bytes=collecting,
        state_bytes=kept + gradients + (state if progress.state.usable else 0),
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
