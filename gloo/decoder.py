"""Captured packets to steps of DistributedDataParallel jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gloo.collective import Collectives, Member
from gloo.count import TAGS_AT_ONCE, Link
from gloo.ddp import DdpDecoder, Kinds, Step
from gloo.intake import Flow, Intake
from gloo.mesh import Connection, Mesh, meshes, sends_ring_data
from gloo.scan import Content, Scanner
from gloo.wire import Prefix, build_slot, prefix_of, tag_of
from packets.batch import PacketBatch
from packets.headers import Headers

WINDOW_BYTES = 512 << 20
"""Bytes of streams that are kept by default, so that copies which come later still repair and are compared."""
_STUCK_BYTES = 16 << 20
"""Bytes behind a hole after which it is taken for lost, where the window is full."""
_HARD = 4
"""Windows of memory from which on the connection that is furthest decides what is done, not the one furthest back."""


@dataclass(slots=True)
class Group:
    """A process group and the model whose gradients it reduces."""

    number: int
    """In order of appearance, from 0 on."""
    ranks: int
    """Number of ranks."""
    ddp: DdpDecoder
    """The model and its steps."""
    problem: str | None = None
    """Why nothing can be said of it."""
    taken: int = 0
    """Collectives before this number are done."""
    ended: bool = False
    """Whether its connections were seen to close."""


@dataclass(slots=True)
class _Pair:
    """Both flows of a connection."""

    initiator: Flow | None
    listener: Flow | None
    order: int


class Decoder:
    """Decodes captures of one network, given in pieces, in turns, in the order in which packets came.

    Memory: the streams' bytes since the oldest collective that is not done, at least `window` bytes where there are so
    many, and at most about four times `window` and one collective.
    """

    def __init__(
        self, *, unfinished_checksums: bool = False, kinds: Kinds | None = None, window: int = WINDOW_BYTES
    ) -> None:
        """Begin.

        Args:
            unfinished_checksums: whether segments are taken whose checksum the sender's card had to fill in.
            kinds: tells declared element types of the parameters.
            window: bytes of streams that are kept.
        """
        self.intake = Intake(unfinished_checksums=unfinished_checksums)
        """Streams."""
        self.problems: list[str] = []
        """What cannot be decoded at all."""
        self._kinds, self._window = kinds, window
        self._scanners: dict[int, Scanner] = {}
        self._groups: dict[int, Group] = {}
        self._held = 0

    @property
    def groups(self) -> list[Group]:
        """Process groups in which there is a DDP model, or something that should be one."""
        return sorted(self._groups.values(), key=lambda group: group.number)

    def expect(self, headers: Headers) -> None:
        """Learn where connections begin, see `Intake.expect`."""
        self.intake.expect(headers)

    def feed(self, source: int, batch: PacketBatch, headers: Headers) -> None:
        """Take in packets of capture number `source`, with their decoded `headers`."""
        self.intake.feed(source, batch, headers)
        for flow in [flow for flow in self.intake.flows if flow.touched]:
            flow.touched = False
            scanner = self._scanners.get(flow.order)
            if scanner is None:
                scanner = self._scanners[flow.order] = Scanner(flow.stream, flow.initiator)
            scanner.advance()
            self._sort_out(flow, scanner)
        self._held = sum(flow.stream.nbytes for flow in self.intake.flows)
        if self._held > self._window:
            self._settle(final=False)

    def steps(self) -> Iterator[tuple[Group, Step]]:
        """Yield the steps that were done since the last call."""
        for group in self.groups:
            while group.ddp.steps:
                yield group, group.ddp.steps.pop(0)

    def finish(self) -> None:
        """Tell that there are no more packets: what is not complete now is missing."""
        for flow in list(self.intake.flows):
            scanner = self._scanners.get(flow.order)
            if scanner is not None:
                while scanner.skip():
                    pass
        self._settle(final=True)
        for group in self.groups:
            group.ddp.finish(group.ended)

    def _sort_out(self, flow: Flow, scanner: Scanner) -> None:
        if scanner.content is Content.UNKNOWN and flow.stream.nbytes > _STUCK_BYTES:
            scanner.skip()
        if scanner.content is Content.TLS:
            ends = f"{flow.direction.source} to {flow.direction.destination}"
            self.problems.append(f"{ends}: gloo over TLS (GLOO_DEVICE_TRANSPORT=TCP_TLS), which nobody can read")
        if scanner.content in (Content.TLS, Content.OTHER):
            self.intake.ignore(flow)
            self._scanners.pop(flow.order, None)

    # ---- process groups ----

    def _settle(self, *, final: bool) -> None:
        if not final:
            for scanner in self._scanners.values():
                last = scanner.stream.there.last()
                if last is not None and last - scanner.at > _STUCK_BYTES:
                    scanner.skip()
        pairs = [pair for pair in self._pairs() if self._is_gloo(pair)]
        links = {pair.order: Link(self._scanner(pair.initiator), self._scanner(pair.listener)) for pair in pairs}
        connections = [self._connection(pair, links[pair.order]) for pair in pairs]
        for mesh in meshes(connections):
            self._settle_group(mesh, links, {pair.order: pair for pair in pairs}, final=final)

    def _settle_group(self, mesh: Mesh, links: dict[int, Link], pairs: dict[int, _Pair], *, final: bool) -> None:
        end = self._end(mesh, links, final=final)
        group = self._group(mesh, links) if end > 0 else None
        if group is None or group.problem is not None:
            return
        try:
            ranks = mesh.ranks(group.ranks)
        except ValueError as error:
            group.problem = str(error)
            return
        members = [Member(links[c.order], (ranks.get(c.nodes[0]), ranks.get(c.nodes[1]))) for c in mesh.connections]
        senders = [member.ranks[side] for member, c in zip(members, mesh.connections, strict=True)
                   for side in (0, 1) if c.senders[side] and member.ranks[side] is not None]  # fmt: skip
        if len(set(senders)) < len(senders):
            group.problem = "two connections carry what one rank sends: process groups cannot be told apart"
            return
        collectives = Collectives(group.ranks, members)
        group.ended = all(self._closed(pairs[c.order]) for c in mesh.connections)
        if end <= group.taken:
            return
        group.ddp.run(collectives, end)
        group.taken = end
        if not final:
            for connection in mesh.connections:
                for flow in (pairs[connection.order].initiator, pairs[connection.order].listener):
                    scanner = self._scanner(flow)
                    if scanner is not None:
                        scanner.forget(end)

    def _end(self, mesh: Mesh, links: dict[int, Link], *, final: bool) -> int:
        """Return before which collective all is done: at the end all of them, before that what lies some tags back."""
        newest = [max(map(tag_of, links[c.order].slots()), default=-1) for c in mesh.connections]
        if final:
            return max(newest) + 1
        busy = [tag for tag, c in zip(newest, mesh.connections, strict=True) if any(c.senders)]
        behind = max if self._held > _HARD * self._window else min
        return behind(busy, default=0) - TAGS_AT_ONCE + 1

    def _group(self, mesh: Mesh, links: dict[int, Link]) -> Group | None:
        key = mesh.connections[0].order
        known = self._groups.get(key)
        if known is not None:
            return known
        ranks = _ranks_told([links[c.order] for c in mesh.connections])
        if ranks is None:
            if not any(any(c.senders) for c in mesh.connections):
                return None
            ranks = max(2, len(mesh.nodes))
        group = Group(len(self._groups), ranks, DdpDecoder(ranks, self._kinds))
        if len(mesh.hosts) > ranks:
            group.problem = f"{len(mesh.hosts)} addresses for {ranks} ranks: connections of several process groups"
        self._groups[key] = group
        return group

    def _pairs(self) -> list[_Pair]:
        found: list[_Pair] = []
        waiting = list(self.intake.flows)
        while waiting:
            flow = waiting.pop(0)
            other = next((known for known in waiting if _opposite(flow, known)), None)
            if other is not None:
                waiting.remove(other)
            swap = flow.initiator is False or (flow.initiator is None and other is not None and bool(other.initiator))
            first, second = (other, flow) if swap else (flow, other)
            found.append(_Pair(first, second, flow.order))
        return found

    def _scanner(self, flow: Flow | None) -> Scanner | None:
        return None if flow is None else self._scanners.get(flow.order)

    def _is_gloo(self, pair: _Pair) -> bool:
        scanners = [self._scanner(pair.initiator), self._scanner(pair.listener)]
        return any(scanner is not None and scanner.content is Content.GLOO for scanner in scanners)

    def _closed(self, pair: _Pair) -> bool:
        scanners = [self._scanner(pair.initiator), self._scanner(pair.listener)]
        return all(scanner is not None and scanner.tail() is None for scanner in scanners)

    def _connection(self, pair: _Pair, link: Link) -> Connection:
        flow = pair.initiator or pair.listener
        assert flow is not None
        direction = flow.direction if flow is pair.initiator else flow.direction.reverse
        scanner = self._scanner(pair.initiator)
        senders = [
            sends_ring_data([slot for slot, side in link.sides[number].slots.items() if side.data]) for number in (0, 1)
        ]
        rank = scanner.sequence if scanner is not None else None
        half = None in (scanner, self._scanner(pair.listener))
        if rank is None and (all(senders) or (half and _ranks_told([link]) == 2)):
            rank = _rank_of_two(link)
        return Connection(direction.source, direction.destination, rank, (senders[0], senders[1]), pair.order)


def _opposite(flow: Flow, other: Flow) -> bool:
    if other.direction != flow.direction.reverse:
        return False
    told = ((flow.peer_isn, other.stream.isn), (other.peer_isn, flow.stream.isn))
    return all(isn is None or seen is None or isn == seen for isn, seen in told)


def _ranks_told(links: Sequence[Link]) -> int | None:
    """Return the number of ranks that the gathering of the number of parameters tells, None where there was none.

    It sends eight bytes in two halves, N - 1 times in each direction of the ring (gloo/allgather.cc).
    """
    counts: Counter[int] = Counter()
    for link in links:
        for slot in link.slots():
            if prefix_of(slot) != Prefix.ALLGATHER:
                continue
            for side in link.sides:
                mine = side.of(slot)
                told = ([message.length for message in mine.data], mine.sends, mine.receives)
                counts.update(len(lengths) for lengths in told if set(lengths) == {4} and len(lengths) % 2 == 0)
    return max(counts) // 2 + 1 if counts else None


def _rank_of_two(link: Link) -> int | None:
    """Return the rank of the side that connected, of two: rank 0 broadcasts the sizes of a DDP model's parameters."""
    for slot in link.slots():
        following = build_slot(Prefix.BROADCAST, tag_of(slot) + 1)
        lengths = {message.length for side in link.sides for message in side.of(slot).data}
        if prefix_of(slot) == Prefix.ALLGATHER and lengths == {4} and following in link.slots():
            sends = [bool(side.of(following).data or side.of(following).sends) for side in link.sides]
            return int(sends[1]) if sends[0] != sends[1] else None
    return None
