"""Size limits of the side channel, for both sides."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message in either direction: layouts of large models exceed gRPC's default of 4 MiB."""
MAX_RECORD_BYTES = MAX_MESSAGE_BYTES - (1 << 20)
"""Most bytes of tensors in a step record; the rest of the message is for parts without a declared size."""
MAX_STEP = (1 << 62) - 1
"""Largest step number: numbers derived from it must fit in 64 bits."""
CHUNK_BYTES = 1 << 20
"""Bytes of data per message when something is sent in several."""
