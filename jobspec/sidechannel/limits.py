"""Sizes that both sides of the side channel keep to."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message in either direction: layouts of large models exceed gRPC's default of 4 MiB."""
MAX_RECORD_BYTES = MAX_MESSAGE_BYTES - (1 << 20)
"""Most bytes of tensors in the record of a step; the rest of the message is for what has no declared size."""
MAX_STEP = (1 << 62) - 1
"""Largest number of a step: those that follow from it must fit in 64 bits."""
CHUNK_BYTES = 1 << 20
"""Data of one message, where something is sent in several."""
