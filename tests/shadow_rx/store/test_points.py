"""What a restarted shadow may call durable: the newest steps on storage are read back before they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.store.stores import assert_equal, policy, reader, snapshots, write


def resumed(folder: Path, **options: object) -> RecoveryStore:
    return RecoveryStore(folder, policy=policy(**options), resume=True)  # type: ignore[arg-type]


def tear(path: Path, to: float = 0.5) -> None:
    """Leave the first part of a file, as a crash without fsync may."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * to)])


def steps(store: RecoveryStore) -> list[int]:
    found = store.points("dp0")
    store.close()
    assert {epoch for epoch, _ in found} <= {1}
    return [step for _, step in found]


def test_a_whole_store_is_durable_as_its_names_tell(tmp_path: Path) -> None:
    write(tmp_path, snapshots())
    assert steps(resumed(tmp_path)) == list(range(1, 15))


@pytest.mark.parametrize("to", [0.0, 0.02, 0.5, 0.9])
def test_a_torn_tail_is_not_durable(tmp_path: Path, to: float) -> None:
    write(tmp_path, snapshots())
    tear(tmp_path / "dp0/epoch-0001/log-00000014-00000014", to)
    assert steps(resumed(tmp_path)) == list(range(1, 14))


def test_a_segment_of_several_steps_counts_as_far_as_it_is_whole(tmp_path: Path) -> None:
    write(tmp_path, snapshots(), policy=policy(every=3, base_every=100))
    last = max((tmp_path / "dp0/epoch-0001").glob("log-*"))
    first, end = (int(part) for part in last.name.split("-")[1:])
    tear(last, 0.6)
    assert end - first == 0, "14 steps: a base, four times three, one"
    middle = tmp_path / "dp0/epoch-0001/log-00000011-00000013"
    tear(middle, 0.6)
    # The record of step 11 is whole; nothing leads from it to step 14.
    assert steps(resumed(tmp_path)) == list(range(1, 12))


def test_a_damaged_newest_base_leaves_what_the_log_gives(tmp_path: Path) -> None:
    write(tmp_path, snapshots(13))
    tear(tmp_path / "dp0/epoch-0001/step-00000013/state.safetensors")
    assert steps(resumed(tmp_path)) == list(range(1, 14)), "the log leads to step 13 from an older base"
    tear(tmp_path / "dp0/epoch-0001/log-00000013-00000013")
    assert steps(resumed(tmp_path)) == list(range(1, 13))


def test_an_epoch_of_which_nothing_is_left_is_none(tmp_path: Path) -> None:
    told = snapshots(3, epochs=2)
    write(tmp_path, told)
    for path in (tmp_path / "dp0/epoch-0002").rglob("*"):
        if path.is_file():
            tear(path)
    store = resumed(tmp_path)
    assert store.points("dp0") == [(1, 1), (1, 2), (1, 3)]
    store.close()
    assert_equal(reader(tmp_path).latest("dp0"), told[2])


def test_what_is_torn_does_not_count_as_kept(tmp_path: Path) -> None:
    """Retention: were torn steps among the four newest, older ones that can be recovered would go for them."""
    told = snapshots(14)
    write(tmp_path, told[:11], policy=policy(steps=4))
    for step in (10, 11):
        tear(tmp_path / f"dp0/epoch-0001/log-{step:08d}-{step:08d}")
    tear(tmp_path / "dp0/epoch-0001/step-00000009/state.safetensors")
    store = resumed(tmp_path, steps=4)
    kept = store.points("dp0")
    assert kept[-1] == (1, 9)
    result = store.publish(told[12])
    assert result.error is None
    assert result.removed == ()
    store.close()
    found = reader(tmp_path)
    for step in (5, 6, 7, 8, 9, 13):
        assert_equal(found.point("dp0", step), told[step - 1])
