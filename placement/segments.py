"""Segments of streams: one as an object, many as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Replica:
    """An intact segment of a flow, or what a damaged one would have been."""

    flow_id: int
    """The flow."""
    source_port: int
    """TCP source port: identifies the connection of the flow."""
    sequence: int
    """Number of the first payload byte minus the connection's ISN, mod 2^32: stream position + 1."""
    payload: memoryview
    """TCP payload."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments in the order in which they arrived; n is their number."""

    data: NDArray[np.uint8]
    """Memory that the payloads lie in."""
    starts: NDArray[np.int64]
    """[n] First payload byte in `data`."""
    lengths: NDArray[np.int64]
    """[n] Payload bytes."""
    sequences: NDArray[np.int64]
    """[n] As `Replica.sequence`."""
    flows: NDArray[np.int64]
    """[n] Flow ids."""
    source_ports: NDArray[np.int64]
    """[n] TCP source ports."""
    damaged: NDArray[np.bool_]
    """[n] Whether a checksum was wrong: not to be placed, and its fields are not to be trusted."""

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self.starts)

    def of_flows(self, flow_ids: Sequence[int]) -> Segments:
        """Return those of some flows."""
        mine = np.isin(self.flows, flow_ids)
        return Segments(self.data, *(getattr(self, field.name)[mine] for field in fields(self)[1:]))

    def replica(self, index: int) -> Replica:
        """Return one of them."""
        start = int(self.starts[index])
        payload = self.data.data[start : start + int(self.lengths[index])]
        return Replica(int(self.flows[index]), int(self.source_ports[index]), int(self.sequences[index]), payload)
