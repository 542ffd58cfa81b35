"""A group's status as the side channel's message."""

from __future__ import annotations

from checkmate_common.sidechannel import side_channel_pb2 as pb
from shadow_rx.status.group_status import GroupStatus
from shadow_rx.status.health import Buffers, Health, Lag
from shadow_rx.status.histogram import Distribution


def status_message(status: GroupStatus) -> pb.Status:
    """Return `status` as the side channel's message."""
    health = status.health
    return pb.Status(
        group=status.group,
        epoch=status.epoch,
        trained_step=status.trained_step,
        replica_step=status.replica_step,
        durable_step=status.durable_step,
        gaps=[pb.Gap(step=gap.step, reason=str(gap.reason), detail=gap.detail) for gap in status.gaps],
        replica_packets=status.replica_packets,
        replica_payload_bytes=status.replica_payload_bytes,
        discarded=dict(status.discarded),
        pending_bytes=dict(status.pending_bytes),
        state_wanted=status.state_from is not None,
        state_from=status.state_from or 0,
        confirmed=status.confirmed,
        replica_lag=_lag(health.replica_lag),
        durable_lag=_lag(health.durable_lag),
        collecting_step=health.collecting,
        coverage=[
            pb.FlowCoverage(
                flow_id=flow.flow_id,
                primary_bytes=flow.primary,
                primary_expected_bytes=flow.primary_expected,
                redundant_bytes=flow.redundant,
                redundant_expected_bytes=flow.redundant_expected,
            )
            for flow in health.coverage
        ],
        buffers=_buffers(health.buffers),
        load=_load(health),
        totals=pb.Totals(
            replicated_steps=health.totals.replicated_steps,
            stored_steps=health.totals.stored_steps,
            repaired_bytes=health.totals.repaired_bytes,
            peer_bytes=health.totals.peer_bytes,
            resyncs=health.totals.resyncs,
            lost_steps=dict(health.totals.lost_steps),
            unstored_steps=dict(health.totals.unstored_steps),
        ),
        apply_durations=_durations(health.apply_seconds),
        store_durations=_durations(health.store_seconds),
    )


def _lag(lag: Lag) -> pb.Lag:
    reason = str(lag.reason) if lag.reason is not None else ""
    nbytes = min(lag.bytes, (1 << 64) - 1)
    return pb.Lag(steps=lag.steps, seconds=lag.seconds, bytes=nbytes, reason=reason, detail=lag.detail)


def _buffers(buffers: Buffers) -> pb.Buffers:
    return pb.Buffers(
        slots_used=buffers.slots_used,
        slots=buffers.slots,
        held=buffers.held,
        hold=buffers.hold,
        queued=buffers.store.waiting,
        queue_limit=buffers.store.depth,
        store_stride=buffers.store.stride,
        collecting_bytes=buffers.collecting_bytes,
        state_bytes=buffers.state_bytes,
        queued_bytes=buffers.store.waiting_bytes,
        log_bytes=buffers.store.log_bytes,
        memory_limit_bytes=buffers.memory_limit,
    )


def _load(health: Health) -> pb.Load:
    load = health.load
    return pb.Load(
        step_seconds=load.step_seconds,
        apply_seconds=load.apply_seconds,
        store_seconds=load.store_seconds,
        overloaded=health.overloaded,
        nodes_needed=load.nodes_needed,
    )


def _durations(found: Distribution) -> pb.Durations:
    bounds, counts = zip(*found.cumulative(), strict=True)
    return pb.Durations(upper_bounds=bounds, cumulative_counts=counts, sum_seconds=found.total)
