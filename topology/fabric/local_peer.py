"""Another shadow node in the same process, for simulations."""

from __future__ import annotations

from collections.abc import Iterator

from checkmate_common.sidechannel import side_channel_pb2 as pb
from shadow_rx.errors import ShadowError
from shadow_rx.node import ShadowNode
from shadow_rx.peers.connections import check_size
from shadow_rx.peers.repair import give_frames
from shadow_rx.publish.snapshot import EncodedPoint
from shadow_rx.serve.status_message import status_message


class LocalPeer:
    """A peer in this process."""

    def __init__(self, node: ShadowNode) -> None:
        """Call `node`."""
        self._node = node

    def frames(self, request: pb.FramesRequest) -> Iterator[pb.FrameBytes]:
        """Yield those of the requested frames that the node has."""
        yield from give_frames(self._node, request)

    def status(self, group: str) -> pb.Status:
        """Return the node's status."""
        return status_message(self._node.status(group))

    def recovery_point(self, group: str, most_bytes: int) -> EncodedPoint:
        """Return the node's newest recovery point of a group."""
        try:
            point = self._node.recovery_point(group, 0)
        except ShadowError as error:
            raise ConnectionError(str(error)) from error
        check_size(len(point.state), most_bytes)
        return point
