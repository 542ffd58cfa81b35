"""The P4Runtime stream: arbitration and digests. One reader thread, no other state."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import Any

import grpc
from finsy.proto import U128, p4r, p4r_grpc, rpc_code

MAX_WAITING_LISTS = 4096
"""Maximum number of digest lists kept for a consumer; the oldest are dropped, since the newest connections count."""
CLOSE_S = 1.0
"""Time, in seconds, that the switch has to close a stream cleanly."""


class StreamEnded(Exception):
    """The stream has ended; `cause` is the gRPC error, None if the switch closed it without one."""

    def __init__(self, cause: grpc.RpcError | None) -> None:
        """Keep the cause."""
        self.cause = cause
        super().__init__("the stream has ended")


class P4Stream:
    """An open stream of one client.

    Args:
        stub: stub of the P4Runtime service.
        device_id: device that the stream is for.
    """

    def __init__(self, stub: p4r_grpc.P4RuntimeStub, device_id: int) -> None:
        """Open the stream."""
        self._device_id = device_id
        self._requests: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._election_id = 0
        self._answers = 0
        self._arbitration = p4r.MasterArbitrationUpdate()
        self._lists: deque[p4r.DigestList] = deque(maxlen=MAX_WAITING_LISTS)
        self._ended = False
        self._cause: grpc.RpcError | None = None
        self._failure: Exception | None = None
        self._call: Any = stub.StreamChannel(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, name="p4runtime-stream", daemon=True)
        self._reader.start()

    def arbitrate(self, election_id: int, timeout_s: float) -> p4r.MasterArbitrationUpdate:
        """Arbitrate with `election_id`; return the switch's answer.

        If no controller is the primary, the id is raised to the highest one that the switch has ever seen, now and
        later: a switch's ids never go back, and it promotes no backup on its own (P4Runtime specification, section
        "Client Arbitration and Controller Replication").

        Raises:
            StreamEnded: the switch refused the id (wrong device, election id in use) or is gone.
            TimeoutError: no answer in time.
        """
        with self._changed:
            seen = self._answers
            self._bid(election_id)
            if not self._changed.wait_for(lambda: self._ended or self._answers > seen, timeout_s):
                raise TimeoutError
            if self._answers == seen:
                raise self._end()
            return self._arbitration

    @property
    def election_id(self) -> int:
        """The election id that was sent last."""
        with self._changed:
            return self._election_id

    @property
    def is_primary(self) -> bool:
        """Whether this client is the primary according to the switch's last arbitration update."""
        with self._changed:
            return not self._ended and self._answers > 0 and self._arbitration.status.code == rpc_code.OK

    def next_lists(self, timeout_s: float) -> list[p4r.DigestList]:
        """Return the digest lists that have arrived, waiting for the first; [] after `timeout_s`.

        Raises:
            StreamEnded: none are left, and no more will arrive.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lists or self._ended, timeout_s)
            if not self._lists and self._ended:
                raise self._end()
            found = list(self._lists)
            self._lists.clear()
            return found

    def acknowledge(self, digest: p4r.DigestList) -> None:
        """Acknowledge a list."""
        ack = p4r.DigestListAck(digest_id=digest.digest_id, list_id=digest.list_id)
        self._requests.put(p4r.StreamMessageRequest(digest_ack=ack))

    def close(self) -> None:
        """Close the stream; on return the switch has forgotten this client, if it answers at all."""
        self._requests.put(None)
        self._reader.join(CLOSE_S)
        self._call.cancel()
        self._reader.join(CLOSE_S)

    def _end(self) -> Exception:
        """Return the error for callers that wait on an ended stream; the lock is held."""
        if self._failure is None:
            return StreamEnded(self._cause)
        failed = RuntimeError(f"the reader of the switch's stream failed: {self._failure!r}")
        failed.__cause__ = self._failure
        return failed

    def _bid(self, election_id: int) -> None:
        self._election_id = election_id
        bid = p4r.MasterArbitrationUpdate(device_id=self._device_id, election_id=U128.encode(election_id))
        self._requests.put(p4r.StreamMessageRequest(arbitration=bid))

    def _read(self) -> None:
        cause: grpc.RpcError | None = None
        failure: Exception | None = None
        try:
            for message in self._call:
                self._take(message)
        except grpc.RpcError as error:
            cause = error
        except Exception as error:  # an internal error: raised to callers that wait on the stream
            failure = error
        with self._changed:
            self._ended, self._cause, self._failure = True, cause, failure
            self._changed.notify_all()
        # Ends the thread from which gRPC takes the requests.
        self._requests.put(None)

    def _take(self, message: p4r.StreamMessageResponse) -> None:
        kind = message.WhichOneof("update")
        with self._changed:
            if kind == "arbitration":
                self._arbitration = message.arbitration
                highest = U128.decode(message.arbitration.election_id)
                if message.arbitration.status.code == rpc_code.NOT_FOUND and highest > self._election_id:
                    self._bid(highest)
                else:
                    self._answers += 1
            elif kind == "digest":
                self._lists.append(message.digest)
            self._changed.notify_all()
