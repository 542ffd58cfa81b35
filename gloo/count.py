"""Which DATA message of its collective each one is, and what must lie in the gaps.

Three witnesses tell how many DATA messages a collective sends in a direction, and how long they are: the messages
themselves, the SEND_READY notices in the same direction, and the RECV_READY notices in the other one; within a slot all
three are first in, first out (gloo/transport/tcp/pair.cc). So messages are counted from the collective's first one, and
behind a gap from its last one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gloo.scan import Gap, Message, Scanner
from gloo.wire import HEADER_BYTES, Header, Opcode, build_header, is_collective, tag_of

TAGS_AT_ONCE = 3
"""Tags by which two collectives of a process group that are on the wire at a time differ less than: its two workers
take them in order of issue. A slot whose messages themselves show otherwise has the span that they show."""
_FAR = 1 << 62

Lengths = tuple[int, ...]


@dataclass(slots=True)
class SlotSide:
    """What one direction has of one slot."""

    data: list[Message] = field(default_factory=list)
    """DATA messages in order."""
    sends: list[int] = field(default_factory=list)
    """Lengths of the SEND_READY notices."""
    receives: list[int] = field(default_factory=list)
    """Lengths of the RECV_READY notices."""
    first: int = _FAR
    """Position of the first message."""
    last: int = -1
    """Position of the last message."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Payload whose place in its collective is known."""

    index: int
    """Number of its DATA message among those of its slot and direction."""
    start: int
    """Position in the stream of the message's payload, which may lie in a gap in part."""
    begin: int
    """First position of the part whose bytes are there as far as the stream has them."""
    end: int
    """Position behind the payload."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Messages that must lie in a gap."""

    data: dict[int, Lengths]
    """Lengths of DATA messages, by slot."""
    notices: int
    """Number of notices."""
    candidates: tuple[Header, ...]
    """What the notices may be."""

    @property
    def nbytes(self) -> int:
        """Bytes that they take."""
        payloads = sum(HEADER_BYTES * len(lengths) + sum(lengths) for lengths in self.data.values())
        return payloads + HEADER_BYTES * self.notices


class Side:
    """One direction of a connection, as it is known at one time."""

    def __init__(self, scanner: Scanner | None) -> None:
        """Sort the messages by slot; a direction that no capture has is one gap."""
        self.scanner = scanner
        """Messages and bytes, None where there are none."""
        self.slots: dict[int, SlotSide] = {}
        """What there is of each slot."""
        self.gaps: list[Gap] = [] if scanner is not None else [Gap(-_FAR, _FAR, True)]
        """Gaps in order, the open end included."""
        if scanner is not None:
            tail = scanner.tail()
            self.gaps += [Gap(-_FAR, gap.end, True) if gap.open else gap for gap in scanner.gaps]
            self.gaps += [] if tail is None else [Gap(tail.start, _FAR if tail.open else tail.end, tail.open)]
            for message in scanner.messages:
                if is_collective(message.slot):
                    self._sort_in(message)
        self._bounds: tuple[list[int], list[int], list[int]] = self._spans()

    def _sort_in(self, message: Message) -> None:
        mine = self.slots.setdefault(message.slot, SlotSide())
        mine.first, mine.last = min(mine.first, message.start), message.start
        if message.opcode is Opcode.DATA:
            mine.data.append(message)
        elif message.opcode is Opcode.SEND_READY:
            mine.sends.append(message.length)
        else:
            mine.receives.append(message.length)

    def _spans(self) -> tuple[list[int], list[int], list[int]]:
        """Return tags in order, the last position of any tag up to each, and the first of any from each on."""
        by_tag = sorted((tag_of(slot), side.first, side.last) for slot, side in self.slots.items())
        until, since = [-_FAR], [_FAR]
        for _, _, last in by_tag:
            until.append(max(until[-1], last))
        for _, first, _ in reversed(by_tag):
            since.append(min(since[-1], first))
        return [tag for tag, _, _ in by_tag], until, since[::-1]

    def of(self, slot: int) -> SlotSide:
        """Return what there is of a slot."""
        return self.slots.get(slot) or SlotSide()

    def gaps_of(self, slot: int) -> list[Gap]:
        """Return the gaps that messages of a slot may lie in."""
        if not self.gaps:
            return []
        tags, until, since = self._bounds
        tag, mine = tag_of(slot), self.of(slot)
        low = min(until[bisect_right(tags, tag - TAGS_AT_ONCE)], mine.first)
        high = max(since[bisect_left(tags, tag + TAGS_AT_ONCE)], mine.last)
        return [gap for gap in self.gaps if gap.end > low and gap.start < high]


class Link:
    """Both directions of a connection, as they are known at one time."""

    def __init__(self, forward: Scanner | None, backward: Scanner | None) -> None:
        """Look at the messages of both directions."""
        self.sides = (Side(forward), Side(backward))
        """The directions."""
        self._lost: dict[tuple[int, Gap], Lost | None] = {}

    def slots(self) -> set[int]:
        """Return all slots of which there is something."""
        return set(self.sides[0].slots) | set(self.sides[1].slots)

    def witnessed(self, number: int, slot: int) -> Lengths | None:
        """Return the lengths of the DATA messages of a slot in direction `number`, None where no witness is whole.

        Raises:
            ValueError: two whole witnesses contradict each other.
        """
        side, other = self.sides[number], self.sides[1 - number]
        mine = side.of(slot)
        told: list[Lengths] = []
        if not side.gaps_of(slot):
            told += [tuple(message.length for message in mine.data), tuple(mine.sends)]
        if not other.gaps_of(slot):
            told.append(tuple(other.of(slot).receives))
        if len(set(told)) > 1:
            raise ValueError("messages and the notices that announce them do not agree")
        return told[0] if told else None

    def place(
        self, number: int, slot: int, lengths: Lengths, totals: Callable[[int, int], Lengths | None]
    ) -> list[Placed]:
        """Return the payloads of a slot in direction `number` whose index is beyond doubt.

        Args:
            number: which direction.
            slot: the slot.
            lengths: the lengths of all its DATA messages in this direction.
            totals: tells the same of another direction and slot of this link, None where it is not known.

        Raises:
            ValueError: a message has another length than it should have.
        """
        side = self.sides[number]
        data, gaps = side.of(slot).data, side.gaps_of(slot)
        if len(data) > len(lengths):
            raise ValueError(f"{len(data)} messages where {len(lengths)} are expected")
        if not gaps and len(data) < len(lengths):
            raise ValueError(f"{len(data)} messages where {len(lengths)} are expected")
        placed: list[Placed] = []
        for index, message in self._numbered(number, slot, lengths, totals, placed):
            if index >= len(lengths):
                raise ValueError(f"more messages than the {len(lengths)} that are expected")
            if message.length != lengths[index]:
                raise ValueError(f"a message of {message.length} bytes where one of {lengths[index]} is expected")
            start, end = message.payload
            placed.append(Placed(index, start, start, end))
        return placed

    def _numbered(
        self,
        number: int,
        slot: int,
        lengths: Lengths,
        totals: Callable[[int, int], Lengths | None],
        placed: list[Placed],
    ) -> Iterator[tuple[int, Message]]:
        """Yield the DATA messages whose index is known; add to `placed` what is there of those that a gap hides."""
        side = self.sides[number]
        data = side.of(slot).data
        if len(data) == len(lengths):
            yield from enumerate(data)
            return
        index = at = 0
        for gap in [*side.gaps_of(slot), None]:
            while at < len(data) and (gap is None or data[at].start < gap.start):
                yield index, data[at]
                index, at = index + 1, at + 1
            lost = self.lost(number, gap, totals) if gap is not None else None
            if gap is None or lost is None:
                return
            index += len(lost.data.get(slot, ()))
            if list(lost.data) == [slot] and index <= len(lengths):
                piece = _straddling(side, gap, lost, lengths[index - 1])
                if piece is not None:
                    placed.append(Placed(index - 1, piece[1] - lengths[index - 1], *piece))

    def lost(self, number: int, gap: Gap, totals: Callable[[int, int], Lengths | None]) -> Lost | None:
        """Return what must lie in a gap, None where that is not beyond doubt.

        It is beyond doubt where all that is lost of all slots that may lie there fills the gap to the byte.
        """
        key = (number, gap)
        if key not in self._lost:
            self._lost[key] = self._explain(number, gap, totals)
        return self._lost[key]

    def _explain(self, number: int, gap: Gap, totals: Callable[[int, int], Lengths | None]) -> Lost | None:
        if gap.open:
            return None
        side = self.sides[number]
        data: dict[int, Lengths] = {}
        notices, candidates = 0, set[Header]()
        for slot in self.slots():
            gaps = side.gaps_of(slot)
            if gap not in gaps:
                continue
            mine = side.of(slot)
            sent, received = self._told(number, slot, gap, totals), self._told(1 - number, slot, gap, totals)
            if sent is None or received is None:
                return None
            lost = (len(sent) - len(mine.data), len(sent) - len(mine.sends), len(received) - len(mine.receives))
            if min(lost) < 0 or (any(lost) and any(other != gap and not other.open for other in gaps)):
                return None
            if lost[0]:
                before = sum(message.start < gap.start for message in mine.data)
                data[slot] = sent[before : before + lost[0]]
            notices += lost[1] + lost[2]
            candidates |= {Header(Opcode.SEND_READY, slot, length) for length in sent if lost[1]}
            candidates |= {Header(Opcode.RECV_READY, slot, length) for length in received if lost[2]}
        found = Lost(data, notices, tuple(candidates))
        return found if found.nbytes == gap.end - gap.start else None

    def _told(self, number: int, slot: int, gap: Gap, totals: Callable[[int, int], Lengths | None]) -> Lengths | None:
        """Return the DATA messages of a slot that came or lie in `gap`, None where that is not known.

        Where the capture may end within the slot that is what the witness says that tells most: what did not come
        before the end lies in no gap, so that what is lost fills the gap only without it.
        """
        side, other = self.sides[number], self.sides[1 - number]
        hidden = side.gaps_of(slot) + other.gaps_of(slot)
        if not any(hides.open for hides in hidden):
            return totals(number, slot)
        if any(hides != gap and not hides.open for hides in hidden):
            return None
        mine = side.of(slot)
        told = (tuple(message.length for message in mine.data), tuple(mine.sends), tuple(other.of(slot).receives))
        return max(told, key=len)


def _straddling(side: Side, gap: Gap, lost: Lost, length: int) -> tuple[int, int] | None:
    """Return the bytes at the end of a gap that are the end of the last DATA message in it, None without any.

    Args:
        side: the direction.
        gap: the gap, with DATA of one slot in it.
        lost: what lies in the gap.
        length: payload of the last of the DATA messages.
    """
    if side.scanner is None:
        return None
    spans = side.scanner.stream.spans(gap.start, gap.end)
    if not spans or spans[-1][1] != gap.end:
        return None
    begin = max(spans[-1][0], gap.end - length)
    tail = side.scanner.stream.read(begin, gap.end).tobytes()
    if len(tail) < HEADER_BYTES and any(build_header(header).endswith(tail) for header in lost.candidates):
        return None
    return begin, gap.end
