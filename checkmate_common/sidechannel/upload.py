"""A state as upload messages: a header with its length and SHA-256, then pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from checkmate_common.sidechannel.limits import CHUNK_BYTES
from checkmate_common.sidechannel.side_channel_pb2 import StateChunk, StateHeader


def state_header(group: str, epoch: int, state: bytes, step: int = 0, *, final: bool = False) -> StateHeader:
    """Return the header of `state` (a safetensors file) after `step`, 0: before the first.

    Args:
        group: DP group.
        epoch: incarnation of its communicator.
        state: the bytes that are sent.
        step: step after which they are valid.
        final: no further step will be trained.
    """
    return StateHeader(
        group=group, epoch=epoch, step=step, final=final,
        state_bytes=len(state), state_sha256=hashlib.sha256(state).digest(),
    )  # fmt: skip


def state_chunks(header: StateHeader, state: bytes, size: int = CHUNK_BYTES) -> Iterator[StateChunk]:
    """Yield the messages that upload `state`: the header with the first of them."""
    view = memoryview(state)
    for start in range(0, max(len(view), 1), size):
        yield StateChunk(header=header if start == 0 else None, data=bytes(view[start : start + size]))
