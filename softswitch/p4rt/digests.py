"""Digest messages bundled into DigestLists: buffering, duplicate suppression, acknowledgement.

P4Runtime specification, section "DigestEntry". Time is an argument (microseconds); nothing here reads a clock. Beyond
the specification: while no client can receive a digest, messages wait in the buffer (the data plane does not repeat the
digest of a connection's first packet, which must survive a restart of the controller).
"""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from softswitch.p4rt.errors import Code, P4RuntimeError, invalid
from softswitch.p4rt.p4data import encode_data
from softswitch.p4rt.schema import DigestInfo, Schema
from softswitch.p4rt.undo import Undo

MAX_BUFFERED = 4096
"""Maximum number of distinct waiting messages of one digest; later ones are dropped and counted."""

MAX_LIST = 512
"""Messages in one DigestList if the configuration sets no limit."""

Message = tuple[int, ...]


class DigestQueue:
    """The messages of one digest between the data plane and the client.

    Attributes:
        config: bundling settings.
        dropped: messages lost because the buffer was full.
    """

    def __init__(self, info: DigestInfo, config: p4r.DigestEntry.Config) -> None:
        """Create an empty queue."""
        self._info = info
        self.config = config
        self.dropped = 0
        self._buffer: dict[Message, None] = {}
        self._first_us = 0
        self._unacked: dict[int, tuple[int, tuple[Message, ...]]] = {}
        self._cache: set[Message] = set()
        self._last_list_id = 0

    def learn(self, message: Message, now_us: int) -> None:
        """Add a message of the data plane; a duplicate of a waiting or unacknowledged one is ignored."""
        self._expire(now_us)
        if message in self._cache or message in self._buffer:
            return
        if len(self._buffer) >= MAX_BUFFERED:
            self.dropped += 1
            return
        if not self._buffer:
            self._first_us = now_us
        self._buffer[message] = None

    def due_lists(self, now_us: int, timestamp_ns: int) -> Iterator[p4r.DigestList]:
        """Yield the lists to send now; their messages then count as sent."""
        self._expire(now_us)
        limit = self.config.max_list_size or MAX_LIST
        while self._buffer and (
            len(self._buffer) >= limit or (now_us - self._first_us) * 1000 >= self.config.max_timeout_ns
        ):
            messages = tuple(self._buffer)[:limit]
            for message in messages:
                del self._buffer[message]
            self._last_list_id += 1
            if self.config.ack_timeout_ns > 0:
                self._unacked[self._last_list_id] = (now_us, messages)
                self._cache.update(messages)
            yield p4r.DigestList(
                digest_id=self._info.id,
                list_id=self._last_list_id,
                data=[encode_data(self._info.type, message) for message in messages],
                timestamp=timestamp_ns,
            )

    def deadline_us(self) -> int | None:
        """Return the time by which `due_lists` yields something, None if nothing is waiting."""
        if not self._buffer:
            return None
        return self._first_us + -(-self.config.max_timeout_ns // 1000)

    def acknowledge(self, list_id: int) -> None:
        """Forget a sent list, so that its messages may be sent again; unknown lists are ignored."""
        _, messages = self._unacked.pop(list_id, (0, ()))
        self._cache.difference_update(messages)

    def forget_unacknowledged(self) -> None:
        """Forget every sent list, because another client is now the primary."""
        self._unacked.clear()
        self._cache.clear()

    def _expire(self, now_us: int) -> None:
        while self._unacked:
            list_id, (sent_us, _) = next(iter(self._unacked.items()))
            if (now_us - sent_us) * 1000 < self.config.ack_timeout_ns:
                return
            self.acknowledge(list_id)


class DigestTable:
    """The DigestEntry configuration and the queues of one pipeline."""

    def __init__(self, schema: Schema) -> None:
        """Start with every digest disabled."""
        self._schema = schema
        self._ids = {info.name: info.id for info in schema.digests.values()}
        self._queues: dict[int, DigestQueue] = {}

    def learn(self, name: str, message: Message, now_us: int) -> None:
        """Add a message of the digest `name`; ignored unless a client has enabled the digest."""
        queue = self._queues.get(self._ids.get(name, 0))
        if queue is not None:
            queue.learn(message, now_us)

    def queues(self) -> list[tuple[int, DigestQueue]]:
        """Return (digest id, queue) of every enabled digest."""
        return list(self._queues.items())

    def acknowledge(self, ack: p4r.DigestListAck) -> None:
        """Handle an acknowledgement.

        Raises:
            P4RuntimeError: INVALID_ARGUMENT for a digest id that is not in P4Info.
        """
        if ack.digest_id not in self._schema.digests:
            raise invalid(f"digest_id {ack.digest_id} is not a digest of the program")
        queue = self._queues.get(ack.digest_id)
        if queue is not None:
            queue.acknowledge(ack.list_id)

    def write(self, kind: p4r.Update.Type.ValueType, entry: p4r.DigestEntry) -> Undo:
        """Enable, change or disable a digest; return its undo.

        Raises:
            P4RuntimeError: NOT_FOUND for an unknown digest or one that is not enabled, ALREADY_EXISTS for one that is,
                INVALID_ARGUMENT for negative numbers.
        """
        info = self._schema.digests.get(entry.digest_id)
        if info is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"digest_id {entry.digest_id} is not a digest of the program")
        queue = self._queues.get(info.id)
        if kind == p4r.Update.DELETE:
            if queue is None:
                raise P4RuntimeError(Code.NOT_FOUND, f"digest {info.name} is not enabled")
            kept = queue
            del self._queues[info.id]
            return lambda: self._queues.__setitem__(info.id, kept)
        config = p4r.DigestEntry.Config()
        config.CopyFrom(entry.config)
        if min(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns) < 0:
            raise invalid(f"digest {info.name}: config must not have negative numbers")
        if kind == p4r.Update.INSERT:
            if queue is not None:
                raise P4RuntimeError(Code.ALREADY_EXISTS, f"digest {info.name} is already enabled")
            self._queues[info.id] = DigestQueue(info, config)
            return lambda: self._queues.__delitem__(info.id)
        if queue is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"digest {info.name} is not enabled")
        changed, before = queue, queue.config
        changed.config = config
        return lambda: setattr(changed, "config", before)

    def read(self, request: p4r.DigestEntry) -> Iterator[p4r.Entity]:
        """Yield the configuration of one digest, or of all enabled ones for id 0.

        Raises:
            P4RuntimeError: NOT_FOUND for an unknown digest or one that is not enabled.
        """
        if request.digest_id and request.digest_id not in self._queues:
            info = self._schema.digests.get(request.digest_id)
            problem = f"digest {info.name} is not enabled" if info else "is not a digest of the program"
            raise P4RuntimeError(Code.NOT_FOUND, f"digest_id {request.digest_id}: {problem}")
        for digest_id, queue in self._queues.items():
            if request.digest_id in (0, digest_id):
                yield p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=digest_id, config=queue.config))
