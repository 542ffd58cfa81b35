"""Fills holes of a shadow node from the others of its groups, and theirs from it: one round at each call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from checkmate_common.sidechannel import side_channel_pb2 as pb
from jobspec.model import Group
from shadow_rx.core import ShadowCore
from shadow_rx.errors import invalid
from shadow_rx.node import ShadowNode
from shadow_rx.peers.connections import Peer

PIECE_BYTES = 1 << 20
"""Bytes of a frame in one message to another shadow node."""


def check_peers(core: ShadowCore, names: Iterable[str]) -> None:
    """Refuse names that are not other shadow nodes of one of the groups that `core` serves.

    Raises:
        ShadowError: such a name.
    """
    known = sorted({name for group in _groups_of(core) for name in group.shadows} - {core.shadow})
    for name in names:
        if name not in known:
            others = ", ".join(known) or "none"
            raise invalid("peer", f"{name!r} shares no group with {core.shadow}; those that do: {others}")


def give_frames(node: ShadowNode, request: pb.FramesRequest) -> Iterator[pb.FrameBytes]:
    """Yield what `node` has of the frames that another shadow node asks for, in pieces.

    Raises:
        ShadowError: another job or epoch, or an unknown group.
    """
    if request.job != node.core.job.name:
        raise invalid("job", f"{request.job!r}, this shadow serves job {node.core.job.name!r}")
    for key in request.frames:
        # One frame at a time: a step may be larger than what should be in memory twice.
        with node.group(request.group) as replica:
            found = replica.peers.give(request, key)
        for _, first, data in found:
            for at in range(0, len(data), PIECE_BYTES):
                yield pb.FrameBytes(frame=key, start=first + at, data=data[at : at + PIECE_BYTES])


def use_peers(node: ShadowNode, names: Iterable[str], grace: float = 0.0) -> None:
    """Let a step of `node` wait for the shadow nodes `names` before it is given up; they are asked by `ask_peers`.

    Args:
        node: the node.
        names: shadow nodes; those that share no group with it are ignored.
        grace: seconds that bytes may be late before they count as lost.
    """
    known = set(names) - {node.core.shadow}
    for group in _groups_of(node.core):
        if known.intersection(group.shadows):
            with node.group(group.name) as replica:
                replica.peers.start(grace)


def use_no_peers(node: ShadowNode) -> None:
    """Wait for other shadow nodes no longer: nobody asks them any more."""
    for name in node.core.groups:
        with node.group(name) as replica:
            replica.peers.stop(node.clock())


def _groups_of(core: ShadowCore) -> list[Group]:
    return [group for group in core.job.groups if group.name in core.groups]


def ask_peers(node: ShadowNode, peers: Mapping[str, Peer]) -> int:
    """Ask `peers` (by shadow name) once for what `node` lacks in all of its groups; return how many bytes came.

    A peer that cannot be reached is passed over: the next round asks it again.
    """
    came = 0
    for group in _groups_of(node.core):
        with node.group(group.name) as replica:
            request = replica.peers.request(node.clock())
        if request is None:
            continue
        for name in group.shadows:
            if name in peers and name != node.core.shadow:
                try:
                    for piece in peers[name].frames(request):
                        with node.group(group.name) as replica:
                            came += replica.peers.take(request, piece, node.clock())
                except ConnectionError:
                    continue
    return came
