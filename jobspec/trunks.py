"""Switches and the trunks between them as a graph: which port of a switch leads to another switch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

End = tuple[str, int]
"""A switch and one of its ports."""


@dataclass(frozen=True)
class TrunkGraph:
    """Switches by name, and links between ports of two of them."""

    switches: tuple[str, ...]
    """Names; searches for paths start at the first."""
    trunks: tuple[tuple[End, End], ...]
    """Both ends of each trunk."""

    def ports(self, switch: str) -> dict[int, str]:
        """Return the trunk ports of `switch`, each with the switch at its other end."""
        found = {}
        for (one, port), (other, far_port) in self.trunks:
            if one == switch:
                found[port] = other
            if other == switch:
                found[far_port] = one
        return found

    def redundant_trunks(self) -> list[int]:
        """Return the trunks (by index) between switches that earlier trunks already connect.

        A flooded frame would loop forever.
        """
        cluster = {name: {name} for name in self.switches}
        closing = []
        for index, ((one, _), (other, _)) in enumerate(self.trunks):
            if other in cluster[one]:
                closing.append(index)
                continue
            cluster[one] |= cluster[other]
            for name in cluster[one]:
                cluster[name] = cluster[one]
        return closing

    def unreachable(self) -> list[str]:
        """Return the switches without a path of trunks to the first."""
        found = {self.switches[0]} if self.switches else set()
        waiting = list(found)
        while waiting:
            for neighbour in self.ports(waiting.pop()).values():
                if neighbour not in found:
                    found.add(neighbour)
                    waiting.append(neighbour)
        return [name for name in self.switches if name not in found]

    def port_towards(self, switch: str, target: str) -> int:
        """Return the port of `switch` on the only path to `target`, another switch.

        Raises:
            ValueError: there is no path.
        """
        ports = self.ports(switch)
        for port, neighbour in ports.items():
            if target in self._reachable_without(neighbour, switch):
                return port
        raise ValueError(f"no trunk leads from switch {switch} to {target}")

    def _reachable_without(self, switch: str, without: str) -> set[str]:
        """Return the switches reachable from `switch` without passing `without`."""
        found, waiting = {switch}, [switch]
        while waiting:
            for neighbour in self.ports(waiting.pop()).values():
                if neighbour not in found and neighbour != without:
                    found.add(neighbour)
                    waiting.append(neighbour)
        return found


def without_unknown(graph_switches: Iterable[str], trunks: Sequence[tuple[End, End]]) -> TrunkGraph:
    """Return the graph without trunks to unknown switches."""
    names = tuple(dict.fromkeys(graph_switches))
    return TrunkGraph(names, tuple((a, b) for a, b in trunks if a[0] in names and b[0] in names))
