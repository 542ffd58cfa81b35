"""The outgoing messages of one client: filled by any thread, emptied by the thread of its RPC."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from threading import Condition

from finsy.proto import p4r

MAX_WAITING = 4096
"""Maximum number of messages that wait for a slow client; further packet-ins and digests are dropped."""


class Outbox:
    """A queue that never blocks its writers."""

    def __init__(self) -> None:
        """Create an empty outbox."""
        self._messages: deque[p4r.StreamMessageResponse] = deque()
        self._changed = Condition()
        self._closed = False

    def put(self, message: p4r.StreamMessageResponse) -> bool:
        """Append a message; return False if it was dropped (closed, or full and not an arbitration message)."""
        with self._changed:
            if self._closed:
                return False
            if len(self._messages) >= MAX_WAITING and message.WhichOneof("update") != "arbitration":
                return False
            self._messages.append(message)
            self._changed.notify()
            return True

    def close(self) -> None:
        """Let the reader end after the remaining messages."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __iter__(self) -> Iterator[p4r.StreamMessageResponse]:
        """Yield messages as they arrive, until the outbox is closed and empty."""
        while True:
            with self._changed:
                while not self._messages and not self._closed:
                    self._changed.wait()
                if not self._messages:
                    return
                message = self._messages.popleft()
            yield message
