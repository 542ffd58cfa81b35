"""Asks the other shadow nodes of a group for what this one lost: over gRPC in a thread, or by plain calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Protocol, Self

import grpc

from jobspec.sidechannel import side_channel_pb2 as pb
from jobspec.sidechannel import side_channel_pb2_grpc as rpc
from jobspec.sidechannel.limits import MAX_MESSAGE_BYTES
from jobspec.supervised import SupervisedThread
from jobspec.tls import ClientTls, open_channel
from jobspec.tls.probe import Answer, probe
from shadow_rx.core import ShadowCore
from shadow_rx.errors import Refusal, ShadowError, invalid
from shadow_rx.node import ShadowNode
from shadow_rx.peers.frames import PeerRequest
from shadow_rx.publish.snapshot import EncodedPoint
from shadow_rx.serve.status_message import status_message
from shadow_rx.status.health import Part

_CALL_SECONDS = 5.0
"""Longest that a peer may take to answer."""
_FETCH_SECONDS = 120.0
"""Longest that it may take to give a recovery point."""
_GRACE_SECONDS = 0.05
"""How late bytes may be before they count as lost."""
_PROBE_SECONDS = 1.0
"""Longest that a peer may take to say whether it accepts a connection."""
_POLL_SECONDS = 0.02
"""How often the thread looks whether something is missing."""


class Peer(Protocol):
    """Another shadow node."""

    def frames(self, request: pb.FramesRequest) -> Iterable[pb.FrameBytes]:
        """Return what it has of the frames that are asked for.

        Raises:
            ConnectionError: it cannot be reached, or refuses.
        """
        ...


class LocalPeer:
    """A peer in this process."""

    def __init__(self, node: ShadowNode) -> None:
        """Ask `node`."""
        self._node = node

    def frames(self, request: pb.FramesRequest) -> Iterator[pb.FrameBytes]:
        """See `Peer`."""
        yield from self._node.give_frames(request)

    def status(self, group: str) -> pb.Status:
        """See `peer_resume.StatePeer`."""
        return status_message(self._node.status(group))

    def recovery_point(self, group: str, most_bytes: int) -> EncodedPoint:
        """See `peer_resume.StatePeer`."""
        try:
            point = self._node.recovery_point(group, 0)
        except ShadowError as error:
            raise ConnectionError(str(error)) from error
        _check_size(len(point.state), most_bytes)
        return point


class GrpcPeer:
    """A peer at an address."""

    def __init__(self, address: str, tls: ClientTls | None = None) -> None:
        """Ask the side-channel server at `address`, in plain text without `tls`; it need not be there yet."""
        self.address = address
        """Where it listens."""
        self.trouble: str | None = None
        """Why it did not answer last time: it refuses us, or we it; None where it did, or is only not there."""
        self._tls = tls
        self._channel = open_channel(address, tls, [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)])
        self._stub = rpc.ShadowStub(self._channel)  # type: ignore[no-untyped-call]

    def frames(self, request: pb.FramesRequest) -> Iterator[pb.FrameBytes]:
        """See `Peer`."""
        try:
            yield from self._stub.GetFrames(request, timeout=_CALL_SECONDS)
            self.trouble = None
        except grpc.RpcError as error:
            self.trouble = self._refusal(error)
            raise ConnectionError(f"shadow node at {self.address}: {error}") from error

    def status(self, group: str) -> pb.Status:
        """See `peer_resume.StatePeer`."""
        try:
            status: pb.Status = self._stub.GetStatus(pb.StatusRequest(group=group), timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            raise self._not_given(error) from error
        return status

    def recovery_point(self, group: str, most_bytes: int) -> EncodedPoint:
        """See `peer_resume.StatePeer`."""
        # A list and one join: what comes in pieces must not be copied with each of them.
        manifest, data, size = list[str](), list[bytes](), 0
        call = self._stub.GetRecoveryPoint(pb.RecoveryPointRequest(group=group), timeout=_FETCH_SECONDS)
        try:
            for chunk in call:
                manifest.append(chunk.manifest_json)
                data.append(chunk.data)
                size += len(chunk.manifest_json) + len(chunk.data)
                _check_size(size, most_bytes)
        except grpc.RpcError as error:
            raise self._not_given(error) from error
        finally:
            call.cancel()
        return EncodedPoint("".join(manifest), b"".join(data))

    def _not_given(self, error: grpc.RpcError) -> ConnectionError:
        why = self._refusal(error) or error.details() or error.code().name
        return ConnectionError(f"shadow node at {self.address}: {why}")

    def _refusal(self, error: grpc.RpcError) -> str | None:
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            return error.details()
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            return None
        found = probe(self.address, self._tls, _PROBE_SECONDS)
        return found.reason if found.answer is Answer.REFUSED else None

    def close(self) -> None:
        """Close the connection; calls that are running end with an error."""
        self._channel.close()


def _check_size(nbytes: int, most: int) -> None:
    if nbytes > most:
        message = f"the recovery point is longer than {most} bytes; raise the memory limit"
        raise ShadowError(Refusal.RESOURCE_EXHAUSTED, "data", message)


def check_peers(core: ShadowCore, names: Iterable[str]) -> None:
    """Refuse names that are not other shadow nodes of one of the groups that `core` serves.

    Raises:
        ShadowError: such a name.
    """
    groups = [group for group in core.job.groups if group.name in core.groups]
    known = sorted({name for group in groups for name in group.shadows} - {core.shadow})
    for name in names:
        if name not in known:
            others = ", ".join(known) or "none"
            raise invalid("peer", f"{name!r} shares no group with {core.shadow}; those that do: {others}")


def ask_peers(node: ShadowNode, peers: Mapping[str, Peer]) -> int:
    """Ask `peers` (by shadow name) once for what `node` lacks in all of its groups; return how many bytes came.

    A peer that cannot be reached is passed over: the next round asks it again.
    """
    came = 0
    for group in node.core.job.groups:
        request = node.peer_request(group.name) if group.name in node.core.groups else None
        if request is None:
            continue
        message = to_message(node.core.job.name, request)
        for name in group.shadows:
            if name in peers and name != node.core.shadow:
                try:
                    for piece in peers[name].frames(message):
                        came += node.take_frame(request, piece)
                except ConnectionError:
                    continue
    return came


def to_message(job: str, request: PeerRequest) -> pb.FramesRequest:
    """Return `request` as the side channel's message."""
    frames = [pb.FrameKey(flow_id=flow_id, index=index) for flow_id, index in request.frames]
    return pb.FramesRequest(job=job, group=request.group, epoch=request.epoch, step=request.step, frames=frames)


class PeerDriver:
    """Asks the peers in a thread of its own, from `__enter__` to `__exit__`."""

    def __init__(
        self,
        node: ShadowNode,
        addresses: Mapping[str, str],
        tls: ClientTls | None = None,
        on_trouble: Callable[[str, str], None] | None = None,
    ) -> None:
        """Fill holes of `node` from other shadow nodes.

        Args:
            node: the node.
            addresses: of the other nodes, by their names.
            tls: own credentials, None for plain text.
            on_trouble: told, in the thread that asks, when a node (its name) refuses us or we it, and why.
        """
        self._on_trouble = on_trouble
        self._told: dict[str, str | None] = {}
        self._node = node
        self._peers = {name: GrpcPeer(address, tls) for name, address in addresses.items()}
        self._stop = threading.Event()
        # What nobody asks for any more must not be waited for.
        self._thread = SupervisedThread("peers", self._run, lambda *_: node.use_no_peers())

    def part(self) -> Part:
        """Return how it is: the nodes that refuse us or we them."""
        troubles = [f"{name}: {peer.trouble}" for name, peer in self._peers.items() if peer.trouble is not None]
        return Part("peers", self._thread.trouble or "; ".join(troubles) or None)

    def __enter__(self) -> Self:
        """Begin to ask."""
        self._node.use_peers(self._peers, _GRACE_SECONDS)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop asking."""
        self._stop.set()
        for peer in self._peers.values():
            peer.close()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            try:
                ask_peers(self._node, self._peers)
                self._tell()
            except ValueError:
                # gRPC says so of a channel that was closed meanwhile.
                if not self._stop.is_set():
                    raise

    def _tell(self) -> None:
        for name, peer in self._peers.items():
            if peer.trouble != self._told.get(name):
                self._told[name] = peer.trouble
                if peer.trouble is not None and self._on_trouble is not None:
                    self._on_trouble(name, peer.trouble)
