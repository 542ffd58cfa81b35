"""Collectives of a process group: reduced and broadcast tensors, put together from all connections that carry them.

An all-reduced byte goes from rank to rank around the ring, so that several connections and hops carry copies of it.
They fill each other's holes and are compared: a byte that two of them tell differently is not believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gloo import ring
from gloo.count import Lengths, Link, Placed
from gloo.stream import Stream, covered, without
from gloo.wire import Prefix, prefix_of, tag_of
from packets.batch import Bytes
from placement.coverage import Coverage


@dataclass(frozen=True, slots=True)
class Member:
    """One connection of a process group."""

    link: Link
    """Its messages."""
    ranks: tuple[int | None, int | None]
    """Rank that sends in each direction, None where it is not known."""


@dataclass(frozen=True, slots=True)
class Collective:
    """What is known of one collective."""

    prefix: int
    """A `Prefix`, as far as the number is one."""
    tag: int
    """Number in the process group, in order of issue."""
    nbytes: int | None
    """Bytes of the tensor, None where they are not known."""
    lengths: Lengths
    """Lengths of the DATA messages of the direction that shows most of them."""
    value: Bytes | None
    """[nbytes] The tensor; of no meaning where `missing` says so. None unless it was asked for."""
    missing: tuple[tuple[int, int], ...]
    """Parts of the tensor that are not known, in order."""
    problem: str | None
    """Why parts are not known, None where all are."""

    @property
    def complete(self) -> bool:
        """Whether every byte is known."""
        return self.value is not None and not self.missing


class Tensor:
    """A tensor of `nbytes` bytes that copies of its parts fill."""

    def __init__(self, nbytes: int) -> None:
        """Begin with nothing."""
        self.value: Bytes = np.zeros(nbytes, np.uint8)
        """The bytes."""
        self._there, self._disputed = Coverage(), Coverage()

    def fill(self, at: int, stream: Stream, start: int, end: int) -> None:
        """Put the bytes [start, end) of `stream`, as far as they are there, to `at`."""
        shift = at - start
        for low, high in stream.spans(start, end):
            data = stream.read(low, high)
            for first, last in covered(self._there, low + shift, high + shift):
                piece = data[first - low - shift : last - low - shift]
                for place in np.flatnonzero(self.value[first:last] != piece).tolist():
                    self._disputed.add(first + place, first + place + 1)
            for first, last in self._there.missing(low + shift, high + shift):
                self.value[first:last] = data[first - low - shift : last - low - shift]
            self._there.add(low + shift, high + shift)

    @property
    def missing(self) -> tuple[tuple[int, int], ...]:
        """Parts that are not known."""
        whole = (0, len(self.value))
        disputed = covered(self._disputed, *whole)
        known = without(without([whole], self._there.missing(*whole)), disputed)
        return tuple(without([whole], known))

    @property
    def disputed(self) -> bool:
        """Whether copies of a byte differ."""
        return bool(self._disputed.spans())


class Collectives:
    """The collectives of a process group, as they are known at one time."""

    def __init__(self, count: int, members: Sequence[Member]) -> None:
        """Look at the connections of a group of `count` ranks."""
        self.count = count
        """Ranks of the group."""
        self._members = members
        self._sizes: dict[int, tuple[int, int] | str] = {}
        slots = {slot for member in members for slot in member.link.slots()}
        self.slots = {tag_of(slot): slot for slot in slots}
        """Slot by tag."""
        self.twice = sorted(tag_of(slot) for slot in slots if self.slots[tag_of(slot)] != slot)
        """Tags that two collectives have, which is no process group's doing."""

    def size(self, slot: int, hints: Sequence[int] = ()) -> tuple[int, int] | str:
        """Return bytes of an all-reduced tensor and of an element, or why they are not known.

        Args:
            slot: of an all-reduce.
            hints: tensors that it may be, where no witness is whole.
        """
        found = self._sizes.get(slot)
        if found is None:
            found = self._sizes[slot] = self._solve(slot)
        if isinstance(found, str) and hints:
            fitting = {fit for nbytes in set(hints) if (fit := self._fits(slot, nbytes)) is not None}
            if len(fitting) == 1:
                found = self._sizes[slot] = fitting.pop()
        return found

    def get(self, slot: int, hints: Sequence[int] = ()) -> Collective:
        """Return a collective with the tensor that it reduces or broadcasts.

        Args:
            slot: which one.
            hints: see `size`.
        """
        prefix, tag = prefix_of(slot), tag_of(slot)
        if prefix == Prefix.ALLREDUCE:
            return self._reduced(slot, tag, hints)
        lengths = self._lengths(slot)
        if prefix == Prefix.BROADCAST and len(lengths) == 1 and len(self._all(slot)) == 1:
            return self._same(slot, lengths, lengths[0], 1)
        if prefix == Prefix.ALLGATHER and set(self._all(slot)) == {4} and len(lengths) == 2 * (self.count - 1):
            # Eight bytes of each rank in two halves, which all ranks have alike (``_verify_params_across_processes``).
            return self._same(slot, lengths, 8, 2)
        return Collective(prefix, tag, None, lengths, None, (), None)

    def _members_of(self, slot: int) -> list[tuple[Member, int]]:
        return [(member, number) for member in self._members for number in (0, 1) if slot in member.link.slots()]

    def _lengths(self, slot: int) -> Lengths:
        found: Lengths = ()
        for member, number in self._members_of(slot):
            side, other = member.link.sides[number].of(slot), member.link.sides[1 - number].of(slot)
            data = tuple(message.length for message in side.data)
            found = max(found, data, tuple(side.sends), tuple(other.receives), key=len)
        return found

    def _all(self, slot: int) -> set[int]:
        found: set[int] = set()
        for member, number in self._members_of(slot):
            side = member.link.sides[number].of(slot)
            found |= {message.length for message in side.data} | set(side.sends) | set(side.receives)
        return found

    def _edges(self, slot: int) -> list[tuple[Member, int, int]]:
        """Return the directions that carry data of an all-reduce: member, direction and rank of the sender."""
        found = []
        for member, number in self._members_of(slot):
            sender, receiver = member.ranks[number], member.ranks[1 - number]
            if sender is not None and receiver == (sender - 1) % self.count:
                found.append((member, number, sender))
        return found

    def _solve(self, slot: int) -> tuple[int, int] | str:
        found: set[tuple[int, int]] = set()
        for member, number, rank in self._edges(slot):
            try:
                lengths = member.link.witnessed(number, slot)
            except ValueError as error:
                return str(error)
            if not lengths:
                continue
            size = ring.solve(lengths, self.count, rank)
            if size is None:
                return f"its messages are not those of a ring all-reduce of {self.count} ranks"
            found.add(size)
        if len({nbytes for nbytes, _ in found}) > 1:
            return "connections disagree on the tensor's size"
        return found.pop() if found else "the tensor's size is not known: messages and notices were lost"

    def _fits(self, slot: int, nbytes: int) -> tuple[int, int] | None:
        """Return bytes and element size where nothing that was seen of an all-reduce speaks against `nbytes` bytes."""
        seen = 0
        for element in ring.ELEMENT_SIZES:
            if nbytes % element:
                continue
            for member, number, rank in self._edges(slot):
                lengths = ring.lengths(nbytes, element, self.count, rank)
                side, other = member.link.sides[number].of(slot), member.link.sides[1 - number].of(slot)
                data = [message.length for message in side.data]
                for told in (data, side.sends, other.receives):
                    seen += len(told)
                    if len(told) > len(lengths) or not set(told) <= set(lengths):
                        return None
            return (nbytes, element) if seen else None
        return None

    def totals(self, member: Member, number: int, slot: int) -> Lengths | None:
        """Return the lengths of all DATA messages of a slot in one direction, None where they are not known."""
        try:
            witnessed = member.link.witnessed(number, slot)
        except ValueError:
            return None
        if witnessed is not None or prefix_of(slot) != Prefix.ALLREDUCE:
            return witnessed
        size, sender, receiver = self.size(slot), member.ranks[number], member.ranks[1 - number]
        if isinstance(size, str) or sender is None or receiver is None:
            return None
        return ring.lengths(*size, self.count, sender) if receiver == (sender - 1) % self.count else ()

    def _placed(self, member: Member, number: int, slot: int, lengths: Lengths) -> list[Placed]:
        return member.link.place(number, slot, lengths, lambda side, other: self.totals(member, side, other))

    def _reduced(self, slot: int, tag: int, hints: Sequence[int]) -> Collective:
        size, seen = self.size(slot, hints), self._lengths(slot)
        if isinstance(size, str):
            return Collective(Prefix.ALLREDUCE, tag, None, seen, None, (), size)
        tensor = Tensor(size[0])
        problem: str | None = None
        for member, number, rank in self._edges(slot):
            parts = ring.parts(*size, self.count, rank)
            scanner = member.link.sides[number].scanner
            if scanner is None:
                continue
            try:
                for placed in self._placed(member, number, slot, tuple(part.length for part in parts)):
                    part = parts[placed.index]
                    if part.gathers:
                        at = part.start + placed.begin - placed.start
                        tensor.fill(at, scanner.stream, placed.begin, placed.end)
            except ValueError as error:
                problem = str(error)
        return self._filled(Prefix.ALLREDUCE, tag, seen, tensor, problem)

    def _same(self, slot: int, lengths: Lengths, nbytes: int, parts: int) -> Collective:
        """Return a tensor that every DATA message holds, or in turns every `parts`-th part of it."""
        tensor, problem = Tensor(nbytes), None
        for member, number in self._members_of(slot):
            scanner = member.link.sides[number].scanner
            if scanner is None or (not member.link.sides[number].of(slot).data and not member.link.sides[number].gaps):
                continue
            total = self.totals(member, number, slot) or lengths
            try:
                for placed in self._placed(member, number, slot, total):
                    start = placed.index % parts * (nbytes // parts)
                    tensor.fill(start + placed.begin - placed.start, scanner.stream, placed.begin, placed.end)
            except ValueError as error:
                problem = str(error)
        return self._filled(prefix_of(slot), tag_of(slot), lengths, tensor, problem)

    @staticmethod
    def _filled(prefix: int, tag: int, seen: Lengths, tensor: Tensor, problem: str | None) -> Collective:
        missing = tensor.missing
        if not missing:
            problem = None
        elif tensor.disputed:
            problem = "copies of the same bytes differ"
        elif problem is None:
            problem = "the bytes were lost, or their place is not known"
        return Collective(prefix, tag, len(tensor.value), seen, tensor.value, missing, problem)
