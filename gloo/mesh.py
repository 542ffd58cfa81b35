"""Which connections belong to one process group, and which rank sends in each direction.

Each process group (``ProcessGroupGloo``) has a mesh of its own: every rank listens at one port for the group, and the
side with the larger address connects (gloo/transport/tcp/device.cc). Slots are the same in all groups, so that only
connections tell them apart. The number that the side that connects begins with is its rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gloo.intake import Endpoint
from gloo.wire import Prefix, prefix_of


@dataclass(frozen=True, slots=True)
class Connection:
    """What is known of one gloo connection."""

    initiator: Endpoint
    """Who connected."""
    listener: Endpoint
    """Who listened."""
    rank: int | None
    """Rank of the initiator, None where its number was not captured."""
    senders: tuple[bool, bool]
    """Whether initiator and listener send DATA of all-reduces."""
    order: int
    """Number of the connection in order of appearance."""

    @property
    def nodes(self) -> tuple[str, str]:
        """Name what identifies the ranks of initiator and listener within their group.

        That is the address, but where a host talks to itself (ranks of one machine, captured on its loopback).
        """
        if self.initiator.host != self.listener.host:
            return self.initiator.host, self.listener.host
        name = str(self.initiator) if self.rank is None else f"{self.initiator.host} rank {self.rank}"
        return name, str(self.listener)

    @property
    def pair(self) -> bool:
        """Whether this is a ring of two: all-reduced data go both ways only there."""
        return all(self.senders)


@dataclass(slots=True)
class Mesh:
    """Connections of one process group."""

    connections: list[Connection]
    """In order of appearance."""

    @property
    def nodes(self) -> set[str]:
        """All ranks that are seen, by the names of `Connection.nodes`."""
        return {node for connection in self.connections for node in connection.nodes}

    @property
    def hosts(self) -> set[str]:
        """All addresses."""
        return {end.host for connection in self.connections for end in (connection.initiator, connection.listener)}

    def takes(self, other: Connection) -> bool:
        """Tell whether a connection may be of this group."""
        if other.pair or any(connection.pair for connection in self.connections):
            return False
        for connection in self.connections:
            mine, its = connection.nodes, other.nodes
            if set(mine) == set(its):
                return False
            if mine[1] == its[1] and connection.listener != other.listener:
                return False
            known = connection.rank is not None and other.rank is not None
            if known and (mine[0] == its[0]) != (connection.rank == other.rank):
                return False
        return True

    def listens(self, endpoint: Endpoint) -> bool:
        """Tell whether a rank of this group listens there."""
        return any(connection.listener == endpoint for connection in self.connections)

    def ranks(self, count: int) -> dict[str, int]:
        """Return the ranks of the nodes that follow from the numbers, the ring and, for a last one, elimination.

        Raises:
            ValueError: they contradict each other.
        """
        found: dict[str, int] = {}
        for node, rank in self._told(count):
            if rank >= count or found.setdefault(node, rank) != rank:
                raise ValueError(f"the ranks of {node} contradict each other")
        for _ in range(len(self.connections)):
            for source, destination in self.edges():
                if source in found:
                    found.setdefault(destination, (found[source] - 1) % count)
                elif destination in found:
                    found[source] = (found[destination] + 1) % count
        rest = self.nodes - set(found)
        if len(rest) == 1 and len(self.nodes) == count:
            found[rest.pop()] = (set(range(count)) - set(found.values())).pop()
        if any(found[source] != (found[destination] + 1) % count for source, destination in self.edges()
               if source in found and destination in found):  # fmt: skip
            raise ValueError("data do not go from each rank to the one before it")
        return found

    def _told(self, count: int) -> Iterator[tuple[str, int]]:
        for connection in self.connections:
            if connection.rank is not None:
                yield connection.nodes[0], connection.rank
                if count == 2:
                    yield connection.nodes[1], 1 - connection.rank

    def edges(self) -> list[tuple[str, str]]:
        """Return sender and receiver of all-reduced data, where there are more than two ranks."""
        found: list[tuple[str, str]] = []
        for connection in self.connections:
            initiator, listener = connection.nodes
            if not connection.pair:
                found += [(initiator, listener)] * connection.senders[0] + [(listener, initiator)] * connection.senders[
                    1
                ]
        return found


def meshes(connections: Sequence[Connection]) -> list[Mesh]:
    """Return the process groups that connections belong to.

    What listens at one port is one group. Beyond that a group is filled before the next one begins, because
    ``init_process_group`` and ``new_group`` return when their mesh is connected: the contents then have to agree.
    """
    found: list[Mesh] = []
    for connection in sorted(connections, key=lambda connection: connection.order):
        mesh = next((mesh for mesh in found if mesh.listens(connection.listener)), None)
        mesh = mesh or next((mesh for mesh in found if mesh.takes(connection)), None)
        if mesh is None:
            mesh = Mesh([])
            found.append(mesh)
        mesh.connections.append(connection)
    return found


def sends_ring_data(slots: Sequence[int]) -> bool:
    """Tell whether DATA of such slots are those of all-reduces."""
    return any(prefix_of(slot) == Prefix.ALLREDUCE for slot in slots)
