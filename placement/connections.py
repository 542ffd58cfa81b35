"""The connections of an epoch's flows, and where each of them is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placement.segments import Segments

_PORT_BITS = 16


class Connections:
    """Incarnations of flows by number, each with a position that is near its present one."""

    def __init__(self, flows: Sequence[int]) -> None:
        """Have none yet, of the flows with these ids."""
        self._flow_index = {flow_id: index for index, flow_id in enumerate(flows)}
        self._numbers: dict[tuple[int, int], int] = {}
        self.flows: list[int] = []
        """Flow id by connection."""
        self.arrays = self._grown(())
        self._keys = np.empty(0, np.int64)
        self._order = np.empty(0, np.int64)

    def _grown(self, old: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], ...]:
        """Return, by connection: index of the flow, reference, the reference once all covered frames are verified, and
        the copy of a frame that was found last.
        """
        if not old:
            return tuple(np.zeros(0, np.int64) for _ in range(4))
        return tuple(np.append(array, 0) for array in old)

    def find(self, flow_id: int, source_port: int) -> int:
        """Return the number of a connection, -1 where there is none."""
        return self._numbers.get((flow_id, source_port), -1)

    def add(self, flow_id: int, source_port: int) -> int:
        """Add a connection that is at position 0; return its number."""
        number = len(self.flows)
        self._numbers[flow_id, source_port] = number
        self.flows.append(flow_id)
        self.arrays = self._grown(self.arrays)
        self.arrays[0][number] = self._flow_index[flow_id]
        keys = np.array([flow << _PORT_BITS | port for flow, port in self._numbers], np.int64)
        self._order = np.argsort(keys)
        self._keys = keys[self._order]
        return number

    def port_of(self, flow_id: int) -> int | None:
        """Return the source port of the flow's first connection, None when it has none yet."""
        return next((port for flow, port in self._numbers if flow == flow_id), None)

    def of(self, segments: Segments) -> NDArray[np.int64]:
        """Return the connection of each segment, -1 where there is none."""
        if not self.flows:
            return np.full(len(segments), -1, np.int64)
        keys = segments.flows << _PORT_BITS | segments.source_ports
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[places] == keys, self._order[places], -1)

    def reference(self, number: int) -> int:
        """Return where the next byte of a connection is expected."""
        return int(self.arrays[1][number])

    def move(self, number: int, position: int) -> None:
        """Expect the next byte at `position`, if that lies ahead."""
        reference, ahead = self.arrays[1], self.arrays[2]
        if position > reference[number]:
            reference[number] = ahead[number] = position

    def advance(self) -> None:
        """Note that all frames that were covered are verified."""
        self.arrays[1][:] = self.arrays[2]

    def settled(self) -> None:
        """Note that no covered frame waits to be verified."""
        self.arrays[2][:] = self.arrays[1]
