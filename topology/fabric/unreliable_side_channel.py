"""A side channel that loses requests and replies, and delivers requests twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from nccl_emu.errors import SideChannelError
from shadow_rx.node import ShadowNode
from topology.fabric.local_side_channel import LocalSideChannel

T = TypeVar("T")

_READS = frozenset({"GetStatus", "GetRecoveryPoint"})
"""Calls that are always delivered."""


class UnreliableSideChannel(LocalSideChannel):
    """A `LocalSideChannel` that injects faults while `fault_probability` is above 0."""

    def __init__(self, node: ShadowNode, rng: random.Random) -> None:
        """Call `node`; `rng` decides what gets lost."""
        super().__init__(node)
        self.fault_probability = 0.0
        """Probability of each: the request is lost, the reply is lost, the request arrives twice."""
        self.lost = 0
        """Number of requests and replies lost."""
        self._rng = rng

    def _call(self, name: str, action: Callable[[ShadowNode], T]) -> T:
        if name in _READS:
            return super()._call(name, action)
        if self._rng.random() < self.fault_probability:
            self.lost += 1
            raise SideChannelError(name, "UNAVAILABLE", "the request was lost")
        if self._rng.random() < self.fault_probability:
            super()._call(name, action)
        reply = super()._call(name, action)
        if self._rng.random() < self.fault_probability:
            self.lost += 1
            raise SideChannelError(name, "UNAVAILABLE", "the reply was lost")
        return reply
