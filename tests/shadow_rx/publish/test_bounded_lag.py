"""Contract rule 4: a shadow that is too slow stays within its memory, stores less often, says so, and catches up."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from checkmate_common.recovery.point import decode_recovery_point
from shadow_rx.core import ShadowCore
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.publish.publisher import BackgroundPublisher
from shadow_rx.publish.store_queue import STORE_COPIES
from shadow_rx.status.events import OverloadChanged, StepNotStored, StepStored
from shadow_rx.store.storage.files import FileOperations, Parts
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.pressure_rig import PERIOD, POLICY, PressureRig, digest, limit, pressure_layout, sizes
from tests.shadow_rx.twin import Twin, upload
from tests.shadow_rx.wire import make_job

STEPS = 250


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As shadow processes do; several threads only get in each other's way with tensors this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check_truth(rig: PressureRig) -> Counter[str]:
    """Every published step is the trainer's, every other one is explained; the newest stored ones read back equal."""
    assert rig.published, "nothing was published"
    assert {step: rig.truth[step] for step in rig.published} == rig.published
    told = Counter(rig.explained(step) for step in range(1, rig.twin.step + 1))
    stored = {event.step for event in rig.events if isinstance(event, StepStored)}
    skipped = {event.gap.step for event in rig.events if isinstance(event, StepNotStored)}
    assert stored | skipped == set(rig.published), "each recovery point was stored or said not to be"
    assert not stored & skipped
    for step in sorted(stored)[-3:]:
        encoded = rig.node.recovery_point("dp0", step)
        point = decode_recovery_point(encoded.manifest_json, encoded.state)
        assert digest({k: v for k, v in point.tensors.items() if not k.startswith("rank/")}) == rig.truth[step]
    return told


def overloads(rig: PressureRig) -> list[OverloadChanged]:
    return [event for event in rig.events if isinstance(event, OverloadChanged)]


def check_caught_up(rig: PressureRig) -> None:
    status = rig.status()
    assert status.trained_step == status.replica_step == status.durable_step == rig.twin.step
    assert (status.health.replica_lag.steps, status.health.durable_lag.steps) == (0, 0)


def test_storage_at_half_the_speed(tmp_path: Path) -> None:
    rig = PressureRig(tmp_path)
    rig.train(5)
    gradient, state = sizes(rig.twin)
    assert rig.status().health.buffers.store.stride == 1
    # What the policy wants written of a step takes two steps' time.
    rig.publisher.bytes_per_second = (gradient + state / POLICY.base_every) / (2 * PERIOD)
    strides = []
    for _ in range(STEPS // 25):
        rig.train(25)
        assert rig.live_bytes() <= rig.limit
        strides.append(rig.status().health.buffers.store.stride)
    assert rig.most_memory <= rig.limit, "what is told stays within the bound at every instant"
    status = rig.status()
    # Replication is not held up by storage at all.
    assert status.replica_step == rig.twin.step
    assert max(strides) > 1, "flushes thinned out"
    assert status.health.overloaded
    load = status.health.load
    assert load.step_seconds == pytest.approx(PERIOD)
    assert load.store_utilisation == pytest.approx(2, rel=0.35)
    assert load.nodes_needed == 3
    assert overloads(rig)[0].load.nodes_needed >= 2
    gap = status.health.durable_lag
    assert gap.reason == "overload"
    told = rig.status().gaps[-1].detail
    assert "nodes would be enough" in told or "not written to storage yet" in told
    # Storage is itself again; training goes on at its pace.
    rig.publisher.bytes_per_second = float("inf")
    rig.train(60)
    rig.settle(5 * PERIOD)
    check_caught_up(rig)
    assert rig.status().health.buffers.store.stride == 1
    assert not rig.status().health.overloaded
    assert [event.overloaded for event in overloads(rig)] == [True, False]
    told = check_truth(rig)
    assert set(told) == {"durable", "overload"}
    # Half of what was wanted is what storage was able to take; as bases take more, fewer steps are durable.
    assert told["durable"] - 65 > STEPS / 20
    assert rig.status().health.totals.unstored_steps == {"overload": told["overload"]}


def test_applying_at_half_the_speed(tmp_path: Path) -> None:
    rig = PressureRig(tmp_path, inbox_bytes=4 * 30_000, options={"window": 3})
    rig.train(5)
    rig.apply_seconds = 2 * PERIOD
    for _ in range(STEPS // 25):
        rig.train(25)
        assert rig.live_bytes() <= rig.limit
        assert rig._filled <= rig.inbox_bytes
    assert rig.most_memory <= rig.limit
    status = rig.status()
    assert rig.dropped, "the inbox overflowed"
    assert status.discarded["kernel_drop"] > 0
    assert status.health.overloaded
    assert status.health.load.step_seconds == pytest.approx(PERIOD, rel=0.2)
    assert status.health.load.apply_seconds == pytest.approx(2 * PERIOD, rel=0.1)
    assert status.health.load.nodes_needed >= 2
    assert status.health.totals.resyncs == rig.uploads or status.state_from is not None
    assert status.trained_step - status.replica_step < 25, "it goes on from the trainer's state, and stays near"
    rig.apply_seconds = 0.1 * PERIOD
    rig.train(80)
    rig.settle(5 * PERIOD)
    check_caught_up(rig)
    assert not rig.status().health.overloaded
    told = check_truth(rig)
    # What was lost was lost because the node was too slow, or waited for the state after such a loss.
    assert set(told) <= {"durable", "overload", "resync_pending", "side_channel_missing"}
    assert told["overload"] > 10
    assert told["durable"] > STEPS / 4
    assert rig.status().health.totals.lost_steps.keys() <= {"overload", "resync_pending", "side_channel_missing"}


class SlowDisk(FileOperations):
    """Writes at a fixed rate in real time, until it is told to be quick."""

    def __init__(self, bytes_per_second: float) -> None:
        self.rate = bytes_per_second
        self._stopped = threading.Event()

    def quicken(self) -> None:
        self._stopped.set()

    def write(self, path: Path, data: Parts) -> None:
        # Not a wait for something to become ready: this is how long the device takes.
        whole = b"".join(data)
        self._stopped.wait(len(whole) / self.rate)
        super().write(path, [whole])


def test_slow_storage_in_real_time(tmp_path: Path) -> None:
    twin = Twin(make_job(frame_payload=2048), pressure_layout())
    job = twin.job.model_copy(update={"store": POLICY})
    gradient, _ = sizes(twin)
    bound = limit(twin, ShadowOptions())
    core = ShadowCore(job, "sh0", ShadowOptions(store_copies=STORE_COPIES, memory_limit=bound))
    disk = SlowDisk(gradient / 0.05)  # 20 steps a second; more than twice as many come
    node = ShadowNode(core, time.monotonic, BackgroundPublisher(RecoveryStore(tmp_path, None, disk, policy=POLICY), 64))
    assert node.attach(twin.attach(1))
    upload(node, 1, twin.state_bytes())
    for message in twin.open_flows(1):
        node.open_flow(message)
    stride = 1
    for _ in range(150):
        began = time.monotonic()
        node.on_frames(twin.frames(twin.train(), mss=8000))
        for message in twin.records(1):
            node.record(message)
        status = node.status("dp0")
        assert status.replica_step == twin.step
        assert status.health.buffers.memory_bytes <= bound
        stride = max(stride, status.health.buffers.store.stride)
        time.sleep(max(0.0, 0.02 - (time.monotonic() - began)))
    status = node.status("dp0")
    assert status.durable_step < status.replica_step
    assert stride > 1
    assert status.health.totals.unstored_steps["overload"] > 0
    assert status.health.store_seconds.count > 0
    disk.quicken()
    node.close()
    status = node.status("dp0")
    assert status.durable_step == status.replica_step == twin.step
    skipped = {gap.step for gap in (node.explain("dp0", step) for step in range(1, twin.step)) if gap is not None}
    assert len(skipped) == status.health.totals.unstored_steps["overload"]
