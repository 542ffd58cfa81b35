from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate_common.stream.dtypes import DType
from checkmate_common.stream.frame import HEADER_BYTES, FrameError, FrameHeader, crc32c
from checkmate_common.stream.ring import Phase

u16, u32, u64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
headers = st.builds(
    FrameHeader, job=u16, group=u16, epoch=u32, channel=u16, step=u64, layout_version=u32, bucket=u16,
    phase=st.sampled_from(Phase), hop=u16, chunk=u16, rank=u16, dtype=st.sampled_from(DType), element_offset=u64,
    payload_bytes=u32, payload_crc=u32,
)  # fmt: skip


def test_crc32c_is_the_castagnoli_polynomial() -> None:
    # RFC 3720, appendix B.4: 32 bytes of zeroes, of ones, and rising bytes.
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytearray(range(32))) == 0x46DD794E


@given(headers)
def test_pack_and_unpack_agree(header: FrameHeader) -> None:
    packed = header.pack()
    assert len(packed) == HEADER_BYTES
    assert FrameHeader.unpack(packed) == header
    assert FrameHeader.unpack(memoryview(packed + b"payload")) == header


def test_every_field_is_on_the_wire() -> None:
    header = FrameHeader(1, 2, 3, 4, 5, 6, 7, Phase.ALL_GATHER, 8, 9, 10, DType.BFLOAT16, 11, 12, 13)
    seen = {header.pack()}
    for field in dataclasses.fields(header):
        value = getattr(header, field.name)
        other = {Phase: Phase.REDUCE_SCATTER, DType: DType.FLOAT64}.get(type(value), value + 100)
        seen.add(dataclasses.replace(header, **{field.name: other}).pack())
    assert len(seen) == 1 + len(dataclasses.fields(header))


@given(headers, st.integers(0, HEADER_BYTES * 8 - 1))
def test_any_flipped_bit_is_noticed(header: FrameHeader, bit: int) -> None:
    damaged = bytearray(header.pack())
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        FrameHeader.unpack(damaged)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        FrameHeader.unpack(data)
    assert caught.value.field in str(caught.value)
