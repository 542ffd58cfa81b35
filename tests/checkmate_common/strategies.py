"""Hypothesis strategies for layouts and flows of any size."""

from __future__ import annotations

from hypothesis import strategies as st

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.frame import HEADER_BYTES
from checkmate_common.stream.layout import Layout, ParamSpec, build_layout

dtypes = st.sampled_from(list(DType))


@st.composite
def layouts(draw: st.DrawFn, version: int = 1, largest: int = 40) -> Layout:
    """Return a layout of 1..6 parameters of 0..`largest` elements each."""
    sizes = draw(st.lists(st.integers(0, largest), min_size=1, max_size=6))
    params = [ParamSpec(f"p{i}", (size,), draw(dtypes)) for i, size in enumerate(sizes)]
    return build_layout(params, draw(st.integers(1, 8 * largest)), version)


ring_sizes = st.integers(2, 16)
channel_counts = st.integers(1, 4)
frame_payloads = st.integers(8, 64)
header_sizes = st.sampled_from([0, HEADER_BYTES])
