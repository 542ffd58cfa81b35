"""Streams to messages: one behind the other, with the gaps in which headers were lost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gloo.stream import Stream
from gloo.wire import (
    HEADER_BYTES,
    SEQUENCE_BYTES,
    Opcode,
    find_header,
    is_collective,
    parse_header,
    parse_sequence,
    tag_of,
)

TLS_HANDSHAKE = b"\x16\x03"
"""How a TLS connection begins."""
_SEARCH_BYTES = 1 << 20
_MOST_SEARCHED = 8 << 20
"""Bytes without a header after which a stream is taken for something else."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    opcode: Opcode
    """What it is."""
    slot: int
    """Collective, see `gloo.wire`."""
    length: int
    """Bytes of payload that it has or announces."""
    start: int
    """Position of its header."""

    @property
    def payload(self) -> tuple[int, int]:
        """Positions of the payload of DATA."""
        return self.start + HEADER_BYTES, self.start + HEADER_BYTES + self.length

    @property
    def end(self) -> int:
        """Position behind it."""
        return self.start + HEADER_BYTES + (self.length if self.opcode is Opcode.DATA else 0)


@dataclass(frozen=True, slots=True)
class Gap:
    """Part of a stream in which no header could be read: some messages, whole ones, lie in it."""

    start: int
    """First position."""
    end: int
    """Where the next message begins, or the stream ends."""
    open: bool
    """Whether it may be longer: the stream begins or ends in it, at a position that is not known."""


class Content(Enum):
    """What a stream turned out to be."""

    UNKNOWN = "unknown"
    GLOO = "gloo"
    TLS = "gloo over TLS"
    OTHER = "other"


class Scanner:
    """Finds the messages of one stream as its bytes come."""

    def __init__(self, stream: Stream, initiator: bool | None) -> None:
        """Scan from the stream's start on; the side that connected begins with its number."""
        self.stream = stream
        """The bytes."""
        self.content = Content.UNKNOWN
        """What it is, as far as it is known."""
        self.sequence: int | None = None
        """Number that the side that connected began with: its rank."""
        self.messages: list[Message] = []
        """Messages in order."""
        self.gaps: list[Gap] = []
        """Gaps in order; an open one at the end is told by `tail`."""
        self._at = SEQUENCE_BYTES if initiator else 0
        self._initiator = initiator
        self._joined = stream.isn is not None
        self._searched = 0

    @property
    def at(self) -> int:
        """Position up to which messages are known."""
        return self._at

    def advance(self) -> None:
        """Read headers as far as they are there without a hole."""
        stream = self.stream
        if not self._joined or self.content in (Content.OTHER, Content.TLS):
            return
        if self._initiator and self.sequence is None and stream.good(0, SEQUENCE_BYTES):
            self.sequence = parse_sequence(stream.read(0, SEQUENCE_BYTES).tobytes())
            if self.sequence is None:
                self.content = Content.OTHER
                return
        while stream.good(self._at, self._at + HEADER_BYTES):
            data = stream.read(self._at, self._at + HEADER_BYTES).tobytes()
            header = parse_header(data)
            if header is None:
                if self.content is Content.UNKNOWN:
                    self.content = Content.TLS if data[:2] == TLS_HANDSHAKE and self._initiator else Content.OTHER
                return  # damaged: `skip` looks for the next one
            self.content = Content.GLOO
            self.messages.append(Message(header.opcode, header.slot, header.length, self._at))
            self._at = self.messages[-1].end

    def skip(self) -> bool:
        """Go on behind a hole at the next place that is a message's beyond doubt; tell whether there is one.

        Two headers one behind the other are such a place, or one that the stream ends with.
        """
        stream = self.stream
        if self.content in (Content.OTHER, Content.TLS):
            return False
        opened = not self._joined
        begin = stream.start if opened else self._at + (1 if stream.good(self._at, self._at + HEADER_BYTES) else 0)
        last = stream.there.last()
        for start, end in stream.spans(max(begin, self._searched), 0 if last is None else last + 1):
            found = self._search(start, end)
            if found is not None:
                self.gaps.append(Gap(begin if opened else self._at, found, opened))
                self._at = found
                self._joined = True
                self.content = Content.GLOO
                self.advance()
                return True
            self._searched = end - HEADER_BYTES + 1
        if self.content is Content.UNKNOWN and self._searched - begin > _MOST_SEARCHED:
            self.content = Content.OTHER
        return False

    def tail(self) -> Gap | None:
        """Return what may follow the last message, None where the stream is known to end there."""
        end = self.stream.end
        if end is not None and self._at >= end:
            return None
        return Gap(self._at, max(self._at, end or 0), end is None)

    def forget(self, tag: int) -> None:
        """Drop messages of collectives before number `tag`, up to the first that is not."""
        keep = next((n for n, message in enumerate(self.messages) if tag_of(message.slot) >= tag), len(self.messages))
        position = self.messages[keep].start if keep < len(self.messages) else self._at
        del self.messages[:keep]
        self.gaps = [gap for gap in self.gaps if gap.end >= position]
        self.stream.release(position)

    def _search(self, start: int, end: int) -> int | None:
        at = start
        while at + HEADER_BYTES <= end:
            stop = min(end, at + _SEARCH_BYTES)
            data = self.stream.read(at, stop).tobytes()
            found = find_header(data)
            while found >= 0:
                if self._proven(at + found):
                    return at + found
                found = find_header(data, found + 1)
            if stop == end:
                return None
            at = stop - HEADER_BYTES + 1
        return None

    def _proven(self, at: int) -> bool:
        header = parse_header(self.stream.read(at, at + HEADER_BYTES).tobytes())
        if header is None:
            return False
        following = at + header.message_bytes
        if not self.stream.good(following, following + HEADER_BYTES):
            return True
        other = parse_header(self.stream.read(following, following + HEADER_BYTES).tobytes())
        return other is not None and is_collective(other.slot)
