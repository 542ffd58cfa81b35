"""Lets a shadow node that was started again take a recovery point of another one that is newer than its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobspec.model import Group
from shadow_rx.errors import ShadowError
from shadow_rx.node import ShadowNode
from shadow_rx.peers.connections import Peer
from shadow_rx.peers.points import PeerOffer, read_point, worth_asking


@dataclass(frozen=True)
class Resumed:
    """What came of a group's search for a newer state."""

    group: str
    """DP group name."""
    peer: str | None
    """Shadow node whose point was taken, None for none: what is on the own storage is the newest that is there."""
    step: int
    """Newest recovery point now, 0 for none."""
    since: int
    """First step that was not here before, of those up to the one before `step`."""
    troubles: tuple[str, ...]
    """Nodes that could not be asked, or gave what is not usable, and why."""

    def __str__(self) -> str:
        """Say it in a sentence."""
        found = f"no other shadow node has anything newer than step {self.step}"
        if self.peer is not None:
            lost = f"; steps {self.since} to {self.step - 1} are not here" if self.since < self.step else ""
            found = f"step {self.step} was taken from shadow node {self.peer}{lost}"
        return "; ".join([f"group {self.group}: {found}", *self.troubles])


def resume_from_peers(node: ShadowNode, peers: Mapping[str, Peer]) -> list[Resumed]:
    """Ask the other shadow nodes of each group, before any rank comes back, for what is newer than the own storage.

    Args:
        node: the node, which knows what is on its own storage.
        peers: other nodes, by their names.
    """
    mine = (group for group in node.core.job.groups if group.name in node.core.groups)
    return [_resume(node, group, peers) for group in mine if set(peers).intersection(group.shadows)]


def _resume(node: ShadowNode, group: Group, peers: Mapping[str, Peer]) -> Resumed:
    history, troubles = node.core.group(group.name).ledger.history, []
    own = (history.epoch, history.replica_step)
    offers: list[PeerOffer] = []
    for name in group.shadows:
        if name in peers and name != node.core.shadow:
            try:
                status = peers[name].status(group.name)
            except ConnectionError as error:
                troubles.append(str(error))
                continue
            offers.append(PeerOffer(name, status.epoch, status.replica_step))
    for offer in worth_asking(own, offers):
        try:
            encoded = peers[offer.peer].recovery_point(group.name, node.core.options.memory_limit)
            snapshot = read_point(node.core.job, group, encoded)
            # The node may be further on by now, or its point older than it told: what came decides.
            if (snapshot.epoch, snapshot.step) > own:
                with node.group(group.name) as replica:
                    replica.adopt(snapshot, offer.peer, node.clock())
                since = own[1] + 1 if own[0] == snapshot.epoch else 1
                return Resumed(group.name, offer.peer, snapshot.step, since, tuple(troubles))
        except (ConnectionError, ShadowError) as error:
            troubles.append(f"shadow node {offer.peer} gave no usable point: {error}")
    return Resumed(group.name, None, own[1], own[1] + 1, tuple(troubles))
