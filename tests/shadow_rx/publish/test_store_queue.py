"""The queue of points that wait for storage: bounded, fair, thinned out evenly, never without the newest point."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from shadow_rx.publish.snapshot import Snapshot
from shadow_rx.publish.store_queue import MOST_STRIDE, STORE_COPIES, WRITE_COPIES, StoreQueue, snapshot_bytes
from shadow_rx.trainer.description import OptimizerPlan
from tests.shadow_rx.twin import make_layout

LAYOUT = make_layout()
STATE = {"param/a": torch.zeros(75)}
SIZE = 300 + 100


def point(step: int, group: str = "dp0") -> Snapshot:
    return Snapshot("job", group, 1, step, LAYOUT, OptimizerPlan("SGD", ()), (), STATE, b"g" * 100)


def drain(queue: StoreQueue) -> list[int]:
    steps = []
    while (taken := queue.take()) is not None:
        steps.append(taken.snapshot.step)
        queue.written(taken.snapshot.group, 0)
    return steps


def test_a_quick_storage_gets_every_point() -> None:
    queue = StoreQueue(2)
    for step in range(1, 10):
        assert queue.offer(point(step)) == []
        assert drain(queue) == [step]
    assert queue.status("dp0").stride == 1


def test_a_slow_storage_gets_points_further_and_further_apart_and_the_newest() -> None:
    queue = StoreQueue(4)
    dropped = [step for n in range(1, 41) for _, _, step in queue.offer(point(n))]
    waiting = [item[0].step for item in queue._lanes["dp0"].waiting]
    assert sorted(dropped + waiting) == list(range(1, 41)), "each is dropped or waits"
    assert waiting[-1] == 40
    assert len(waiting) <= 4
    stride = queue.status("dp0").stride
    assert stride >= 8
    assert all(step % (stride // 4) == 0 for step in waiting[:-1]), "on the grid that was in force when it came"


def test_the_stride_shrinks_when_storage_has_caught_up() -> None:
    queue = StoreQueue(1)
    for step in range(1, 20):
        queue.offer(point(step))
    high = queue.status("dp0").stride
    assert high > 1
    drain(queue)
    for step in range(20, 90):
        assert queue.offer(point(step)) == []
        drain(queue)
    assert queue.status("dp0").stride == 1


def test_the_stride_has_an_end() -> None:
    queue = StoreQueue(1)
    for step in range(1, 5000):
        queue.offer(point(step))
    assert queue.status("dp0").stride == MOST_STRIDE


def test_groups_take_turns_and_do_not_push_each_other_out() -> None:
    queue = StoreQueue(2)
    for step in range(1, 9):
        queue.offer(point(step, "dp0"))
    assert queue.offer(point(1, "dp1")) == []
    assert queue.offer(point(2, "dp1")) == []
    order = []
    while (taken := queue.take()) is not None:
        order.append(taken.snapshot.group)
    assert order in (["dp0", "dp1"] * 2, ["dp1", "dp0"] * 2)


def test_what_is_stored_shares_flushes_only_within_the_room() -> None:
    queue = StoreQueue(8)
    queue.offer(point(1))
    taken = queue.take()
    assert taken is not None
    assert (taken.hurry, taken.log_bytes) == (False, None), "no room was named, nothing else waits"
    queue.offer(point(2), STORE_COPIES * SIZE)
    queue.offer(point(3), STORE_COPIES * SIZE)
    taken = queue.take()
    assert taken is not None
    assert taken.hurry
    assert taken.log_bytes == (STORE_COPIES - WRITE_COPIES - 1) * SIZE // 8


def test_sizes_are_those_of_the_tensors_and_the_gradient() -> None:
    assert snapshot_bytes(point(1)) == SIZE


@given(
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(0, 30 * SIZE)),
    st.lists(st.sampled_from(["offer", "take", "written"]), max_size=80),
)
def test_the_bounds_hold_whatever_happens(depth: int, room: int | None, actions: list[str]) -> None:
    queue, step, out = StoreQueue(depth), 0, 0
    seen: list[int] = []
    for action in actions:
        if action == "offer":
            step += 1
            dropped = [number for _, _, number in queue.offer(point(step), room)]
            seen += dropped
            enough = room is None or room >= STORE_COPIES * SIZE
            assert not enough or step not in dropped, "the newest is kept where a point fits at all"
        elif action == "take" and not out:
            taken = queue.take()
            if taken is not None:
                seen.append(taken.snapshot.step)
                out = 1
        elif action == "written" and out:
            queue.written("dp0", 0)
            out = 0
        status = queue.status("dp0")
        assert status.waiting <= depth
        assert room is None or status.waiting_bytes <= max(room, out * SIZE * (1 + WRITE_COPIES))
    seen += drain(queue)
    assert sorted(seen) == list(range(1, step + 1)), "no point is lost, and none comes twice"
