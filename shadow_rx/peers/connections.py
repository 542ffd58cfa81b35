"""Connections to the other shadow nodes of a group: over gRPC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import grpc

from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel import side_channel_pb2_grpc as rpc
from checkmate_common.sidechannel.limits import MAX_MESSAGE_BYTES
from checkmate_common.tls import ClientTls, open_channel
from checkmate_common.tls.probe import Answer, probe
from shadow_rx.errors import Refusal, ShadowError
from shadow_rx.publish.snapshot import EncodedPoint

_CALL_SECONDS = 5.0
"""Longest that a peer may take to answer."""
_FETCH_SECONDS = 120.0
"""Longest that it may take to give a recovery point."""
_PROBE_SECONDS = 1.0
"""Longest that a peer may take to say whether it accepts a connection."""


class Peer(Protocol):
    """Another shadow node. Methods raise ConnectionError where it cannot be reached, refuses, or has nothing."""

    def frames(self, request: pb.FramesRequest) -> Iterable[pb.FrameBytes]:
        """Return what it has of the frames that are asked for."""

    def status(self, group: str) -> pb.Status:
        """Return where it is."""

    def recovery_point(self, group: str, most_bytes: int) -> EncodedPoint:
        """Return its newest recovery point of a group.

        Raises:
            ShadowError: the point is longer than `most_bytes`.
        """


class GrpcPeer:
    """A peer at an address."""

    def __init__(self, address: str, tls: ClientTls | None = None) -> None:
        """Ask the side-channel server at `address`, in plain text without `tls`; it need not be there yet."""
        self.address = address
        """Where it listens."""
        self.trouble: str | None = None
        """Why it did not answer last time: it refuses us, or we it; None where it did, or is just down."""
        self._tls = tls
        self._channel = open_channel(address, tls, [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)])
        self._stub = rpc.ShadowStub(self._channel)  # type: ignore[no-untyped-call]

    def frames(self, request: pb.FramesRequest) -> Iterator[pb.FrameBytes]:
        """Return what it has of the frames that are asked for."""
        try:
            yield from self._stub.GetFrames(request, timeout=_CALL_SECONDS)
            self.trouble = None
        except grpc.RpcError as error:
            self.trouble = self._refusal(error)
            raise ConnectionError(f"shadow node at {self.address}: {error}") from error

    def status(self, group: str) -> pb.Status:
        """Return where it is."""
        try:
            status: pb.Status = self._stub.GetStatus(pb.StatusRequest(group=group), timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            raise self._not_given(error) from error
        return status

    def recovery_point(self, group: str, most_bytes: int) -> EncodedPoint:
        """Return its newest recovery point of a group."""
        # A list and one join: what comes in pieces must not be copied with each of them.
        manifest, data, size = list[str](), list[bytes](), 0
        call = self._stub.GetRecoveryPoint(pb.RecoveryPointRequest(group=group), timeout=_FETCH_SECONDS)
        try:
            for chunk in call:
                manifest.append(chunk.manifest_json)
                data.append(chunk.data)
                size += len(chunk.manifest_json) + len(chunk.data)
                check_size(size, most_bytes)
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


def check_size(nbytes: int, most: int) -> None:
    """Refuse a recovery point of more than `most` bytes.

    Raises:
        ShadowError: it has more.
    """
    if nbytes > most:
        message = f"the recovery point is longer than {most} bytes; raise the memory limit"
        raise ShadowError(Refusal.RESOURCE_EXHAUSTED, "data", message)
