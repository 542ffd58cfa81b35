from __future__ import annotations

import json

import pytest
from hypothesis import given

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.layout import Bucket, Layout, ParamSpec, Slot, build_layout
from tests.checkmate_common.strategies import layouts


def test_buckets_fill_in_reverse_order_up_to_the_cap() -> None:
    params = [
        ParamSpec("a", (10,), DType.FLOAT32),
        ParamSpec("b", (2, 5), DType.FLOAT32),
        ParamSpec("c", (3,), DType.FLOAT32),
    ]
    layout = build_layout(params, bucket_bytes=52)
    assert [(s.param.name, s.bucket, s.offset) for s in layout.slots] == [("a", 1, 0), ("b", 0, 3), ("c", 0, 0)]
    assert layout.buckets == (Bucket(0, DType.FLOAT32, 13), Bucket(1, DType.FLOAT32, 10))
    assert layout.nbytes == 92


def test_a_bucket_holds_one_element_type() -> None:
    params = [
        ParamSpec("a", (1,), DType.FLOAT32),
        ParamSpec("b", (1,), DType.BFLOAT16),
        ParamSpec("c", (1,), DType.FLOAT32),
    ]
    assert [bucket.dtype for bucket in build_layout(params, 1000).buckets] == [
        DType.FLOAT32,
        DType.BFLOAT16,
        DType.FLOAT32,
    ]


@given(layouts())
def test_json_round_trip(layout: Layout) -> None:
    again = Layout.from_json(layout.to_json())
    assert again == layout
    assert again.digest() == layout.digest()


@given(layouts())
def test_every_element_has_one_place(layout: Layout) -> None:
    counts = [[0] * bucket.elements for bucket in layout.buckets]
    for slot in layout.slots:
        for index in range(slot.offset, slot.offset + slot.param.elements):
            counts[slot.bucket][index] += 1
    assert all(count == 1 for bucket in counts for count in bucket)


def test_overlaps_holes_and_wrong_types_are_refused() -> None:
    a, b = ParamSpec("a", (4,), DType.FLOAT32), ParamSpec("b", (4,), DType.FLOAT32)
    bucket = Bucket(0, DType.FLOAT32, 8)
    with pytest.raises(ValueError, match="expected 4: slots must neither overlap"):
        Layout(1, (bucket,), (Slot(a, 0, 0), Slot(b, 0, 3)))
    with pytest.raises(ValueError, match="expected 4: slots must neither overlap"):
        Layout(1, (bucket,), (Slot(a, 0, 0), Slot(b, 0, 5)))
    with pytest.raises(ValueError, match="does not exist"):
        Layout(1, (bucket,), (Slot(a, 0, 0), Slot(b, 1, 0)))
    with pytest.raises(ValueError, match="its bucket float16"):
        Layout(1, (Bucket(0, DType.FLOAT16, 4),), (Slot(a, 0, 0),))
    with pytest.raises(ValueError, match="declares 9 elements"):
        Layout(1, (Bucket(0, DType.FLOAT32, 9),), (Slot(a, 0, 0), Slot(b, 0, 4)))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 1, "params": [{"name": "a"}]}', '{"version": 1, "params": 3}']
)
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Layout.from_json(text)


def test_a_gap_in_bucket_numbers_is_refused() -> None:
    doc = json.loads(build_layout([ParamSpec("a", (2,), DType.FLOAT32)], 100).to_json())
    doc["params"][0]["bucket"] = 1
    with pytest.raises(ValueError, match=r"are not 0\.\.0"):
        Layout.from_json(json.dumps(doc))


def test_bad_requests_are_refused() -> None:
    a = ParamSpec("a", (4,), DType.FLOAT32)
    with pytest.raises(ValueError, match="at least one parameter"):
        build_layout([], 100)
    with pytest.raises(ValueError, match="repeat"):
        build_layout([a, a], 100)
    with pytest.raises(ValueError, match="bucket_bytes is 0"):
        build_layout([a], 0)
    with pytest.raises(ValueError, match="int64"):
        DType.from_label("torch.int64")
