"""Steps of a DistributedDataParallel job from the collectives of its process group, in order of issue.

An unmodified script shows: an all-gather of the number of parameters and a broadcast of their sizes; broadcasts of
their initial values; broadcasts of buffers at each forward pass that synchronises; all-reduces of buckets at each
backward pass that does, with ``find_unused_parameters`` one of the used-map behind them; after the first step two
broadcasts of the rebuilt buckets. All-reduces of another size (metrics, ``Join``) are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gloo.buckets import Layout, Wire, bucket_bytes, match_first, rebuilt_layout, rebuilt_order, used_map, widened
from gloo.collective import Collective, Collectives
from gloo.model import Initial, Types, find_types, initial_values
from gloo.parameters import MOST_PARAMETERS, Parameter, read_shapes
from gloo.refused import refusal
from gloo.wire import Prefix, prefix_of
from packets.batch import Bytes

Kinds = Callable[[int], Sequence[str] | None]
"""Tells the declared element types of so many parameters, each of `gloo.model.ITEM_SIZES`."""
_SMALL = 8
"""Bytes of an all-reduce that a loop around DDP makes of one number."""
_LARGEST = 1 << 40
"""Size or stride of a parameter at most."""
_WAITING = 256
"""All-reduces of a first step at most that are kept until their layout is found."""


@dataclass(frozen=True, slots=True)
class Missing:
    """What is missing of a parameter's gradient."""

    parameter: int
    """Index in ``model.parameters()`` order."""
    ranges: tuple[tuple[int, int], ...]
    """Bytes of the gradient, as it was reduced; empty where all of it is missing."""
    reason: str
    """Why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One synchronised backward pass."""

    number: int
    """From 1 on."""
    gradients: tuple[Bytes | None, ...]
    """Reduced gradient of each parameter in its own type, contiguous; None where it was unused or is missing."""
    unused: frozenset[int]
    """Parameters that no rank used: their ``.grad`` is left alone."""
    missing: tuple[Missing, ...]
    """What is missing."""
    problem: str | None = None
    """Why the whole step cannot be rebuilt."""

    @property
    def complete(self) -> bool:
        """Whether every gradient is known."""
        return not self.missing and self.problem is None


class DdpDecoder:
    """Follows one DDP model through the collectives of one process group."""

    def __init__(self, ranks: int, kinds: Kinds | None = None) -> None:
        """Begin before the group's first collective; `kinds` tells declared element types."""
        self.parameters: tuple[Parameter, ...] | None = None
        """The model's, None before they were told."""
        self.types: Types | None = None
        """Their element types, None while they are not known."""
        self.initial = Initial(None, "the parameters' sizes were not captured")
        """Their values before the first step."""
        self.problem: str | None = None
        """Why nothing more can be rebuilt, None while it can."""
        self.steps: list[Step] = []
        """Steps that are done and not yet taken."""
        self.begun = False
        """Whether there is a DDP model."""
        self._ranks, self._kinds = ranks, kinds
        self._next = 0
        self._number = 1
        self._count: int | None = None
        self._broadcasts: list[Collective] | None = []
        self._lengths: list[int | None] = []
        self._waiting: list[Collective] = []
        self._foreign: list[int] = []
        self._known_foreign: set[int] = set()
        self._layout: Layout | None = None
        self._wire = Wire(False)
        self._taken: list[Collective] = []
        self._order: tuple[tuple[int, ...], int] | None = None
        self._rebuilt = False
        self._maps = False
        self._static: tuple[int, ...] | None = None

    def run(self, collectives: Collectives, end: int) -> None:
        """Go through the collectives before number `end`."""
        expected = self._next
        for tag in [*sorted(tag for tag in collectives.slots if self._next <= tag < end), end]:
            if self.begun and tag > expected:
                self._fail(f"collective {expected} of the process group was not captured")
            if tag == end or (self.begun and self.problem is not None):
                break
            slot = collectives.slots[tag]
            if tag in collectives.twice:
                self._fail(f"collective {tag} is there twice: connections of several process groups are mixed up")
            elif prefix_of(slot) == Prefix.ALLREDUCE:
                if self.begun:
                    self._reduced(collectives.get(slot, self._hints()))
            else:
                self._other(collectives.get(slot))
            expected = tag + 1
        self._next = max(self._next, end)

    def finish(self, ended: bool) -> None:
        """Tell that no more collectives follow; `ended` says whether the job's connections were seen to close."""
        if not self.begun or self.parameters is None:
            return
        if self._layout is not None and len(self._taken) == len(self._layout):
            told = self._rebuilt or (self.problem is None and (self._number > 1 or ended))
            self._close(None if told else (-1,) * len(self.parameters))
        if self.problem is None:
            sizes = [*(c.nbytes or 0 for c in self._waiting), *self._foreign]
            left = [size for size in sizes if size > _SMALL and size not in self._known_foreign]
            if len(left) > 1 or (left and self._number == 1):
                self._fail(refusal(self.parameters, left))
        if self.problem is None and self._taken:
            self._fail("the capture ends within the step")
        if self.problem is not None:
            self.steps.append(Step(self._number, (None,) * len(self.parameters), frozenset(), (), self.problem))

    # ---- before the first step ----

    def _other(self, found: Collective) -> None:
        if self.begun and self._layout is not None and len(self._taken) == len(self._layout):
            self._close(None)
        if found.prefix == Prefix.ALLGATHER:
            self._gathered(found)
        elif found.prefix == Prefix.BROADCAST:
            if self._count is not None:
                self._read_sizes(found, self._count)
            elif self.begun and self.problem is None:
                self._broadcast(found)
        self._count = self._count if found.prefix == Prefix.ALLGATHER else None

    def _gathered(self, found: Collective) -> None:
        self._count = None
        if found.lengths[:2] == (36, 36) and self.begun:
            self._fail("sparse gradients are gathered, not reduced: such models cannot be rebuilt")
        elif found.nbytes == 8 and found.value is not None:
            if found.missing:
                self._count = 0
                return
            count = int(found.value.view("<i8")[0])
            self._count = count if 0 < count <= MOST_PARAMETERS else None

    def _read_sizes(self, found: Collective, count: int) -> None:
        if found.nbytes is not None and found.nbytes % 16:
            return
        if self.begun:
            self._fail("the process group reduces two DistributedDataParallel models: steps cannot be told apart")
            return
        if count and found.complete and found.value is not None:
            numbers = found.value.view("<i8").tolist()
            try:
                self.parameters = read_shapes(numbers, count)
            except ValueError as error:
                if min(numbers, default=0) < 0 or max(numbers, default=0) > _LARGEST:
                    return  # another collective
                self.problem = f"{count} parameters: {error}; scalars cannot be told apart"
                self.initial = Initial(None, self.problem)
        else:
            self.problem = "the broadcast of the parameters' sizes was lost"
            self.initial = Initial(None, self.problem)
        self.begun = True

    def _broadcast(self, found: Collective) -> None:
        assert self.parameters is not None
        if self._broadcasts is not None:
            self._broadcasts.append(found)
            return
        count = len(self.parameters)
        if self._order is not None:
            layout = rebuilt_layout(self._order[0], found, self._order[1])
            self._order = None
            if layout is None:
                self._fail("the broadcast of the rebuilt buckets was lost")
                return
            self._layout, self._rebuilt = layout, True
            return
        if not self._rebuilt and self._layout is not None:
            self._order = rebuilt_order(found, count)
            lost = found.nbytes == 4 * (count + 1) and not found.complete
            if self._order is None and lost and found.nbytes not in self._lengths:
                self._fail("the broadcast of the rebuilt buckets was lost")

    def _begin(self) -> None:
        """Make of the broadcasts before the first all-reduce what they tell."""
        assert self.parameters is not None
        assert self._broadcasts is not None
        self._lengths = [broadcast.nbytes for broadcast in self._broadcasts]
        kinds = self._kinds(len(self.parameters)) if self._kinds is not None else None
        if kinds is not None:
            if len(kinds) != len(self.parameters):
                self._fail(f"{len(kinds)} element types are declared for {len(self.parameters)} parameters")
            else:
                self.types = Types.declared(kinds)
        else:
            self.types = find_types(self.parameters, [length or 0 for length in self._lengths])
        if self.types is not None:
            self.initial = initial_values(self.parameters, self.types, self._broadcasts)
        else:
            self.initial = Initial(None, "element types are not known")
        self._broadcasts = None

    # ---- steps ----

    def _hints(self) -> list[int]:
        """Return the bytes that the next all-reduce may have."""
        if self.parameters is None:
            return []
        found = [4 * len(self.parameters)]
        if self._layout is not None and self.types is not None:
            buckets = self._layout if len(self._taken) == len(self._layout) else self._layout[len(self._taken) :]
            found.append(bucket_bytes(buckets[0], self.parameters, self.types, self._wire))
        else:
            elements = sum(parameter.elements for parameter in self.parameters)
            found += [elements * size for size in (2, 4, 8)]
        return found

    def _reduced(self, found: Collective) -> None:
        assert self.parameters is not None
        if self._broadcasts is not None:
            self._begin()
        if found.nbytes is None:
            self._fail(f"collective {found.tag}: {found.problem}")
            return
        count = len(self.parameters)
        if self._layout is None:
            if not self._waiting and self._static is None:
                self._static = used_map(found, count, self._ranks)
                if self._static is None and found.nbytes == 4 * count and not found.complete:
                    self._static = (0,) * count
                if self._static is not None:
                    return
            self._first(found)
            return
        if len(self._taken) == len(self._layout):
            used = used_map(found, count, self._ranks) if not self._rebuilt else None
            if used is not None:
                self._maps = True
                self._close(used)
                return
            if found.nbytes == 4 * count and not found.complete and not self._rebuilt:
                self._close((-1,) * count)
                return
            self._close(None)
        self._take(found)

    def _take(self, found: Collective) -> None:
        assert self.parameters is not None
        assert self._layout is not None
        assert self.types is not None
        bucket = self._layout[len(self._taken)]
        if found.nbytes == bucket_bytes(bucket, self.parameters, self.types, self._wire):
            self._taken.append(found)
        elif found.nbytes is not None:
            self._foreign.append(found.nbytes)

    def _first(self, found: Collective) -> None:
        """Collect all-reduces of the first step until they make up a layout."""
        assert self.parameters is not None
        self._waiting.append(found)
        if self.types is None:
            self._fail("element types cannot be told from what was broadcast: declare them (dtypes)")
            return
        if len(self._waiting) > _WAITING:
            self._fail(refusal(self.parameters, [c.nbytes or 0 for c in self._waiting]))
            return
        large = [c for c in self._waiting if (c.nbytes or 0) > _SMALL]
        for some in ([found], self._waiting, large):
            match = match_first([c.nbytes or 0 for c in some], self.parameters, self.types)
            if match is not None:
                self._layout, self._wire = match
                self._taken = list(some)
                self._waiting = []
                return

    def _close(self, used: tuple[int, ...] | None) -> None:
        """Make the step of the buckets that were taken; `used` is its map, -1 where it was lost."""
        assert self.parameters is not None
        assert self._layout is not None
        assert self.types is not None
        gradients: list[Bytes | None] = [None] * len(self.parameters)
        missing: list[Missing] = []
        unused = set()
        for bucket, reduced in zip(self._layout, self._taken, strict=True):
            at = 0
            for index in bucket:
                size = self._wire.size(self.types.sizes[index])
                end = at + size * self.parameters[index].elements
                holes = tuple((max(a, at) - at, min(b, end) - at) for a, b in reduced.missing if a < end and b > at)
                reason = self._doubt(index, used)
                if used is not None and used[index] == 0:
                    unused.add(index)
                elif holes or reason is not None or reduced.value is None:
                    missing.append(Missing(index, holes, reason or reduced.problem or "lost"))
                else:
                    data = widened(reduced.value[at:end].copy(), size, self.types.sizes[index])
                    gradients[index] = self.parameters[index].contiguous(data, self.types.sizes[index])
                at = end
        missing.sort(key=lambda hole: hole.parameter)
        self.steps.append(Step(self._number, tuple(gradients), frozenset(unused), tuple(missing)))
        self._number += 1
        self._taken = []
        self._known_foreign |= set(self._foreign)
        self._foreign = []

    def _doubt(self, index: int, used: tuple[int, ...] | None) -> str | None:
        """Return why it is not known whether a parameter was used."""
        if self._static is not None and self._static[index] == 0:
            return "static_graph with a parameter that no rank uses, or a lost map of used parameters"
        if used is None and self._maps:
            return "the map of used parameters was not captured"
        return "the map of used parameters was lost" if used is not None and used[index] < 0 else None

    def _fail(self, problem: str) -> None:
        if self.problem is None:
            self.problem = problem
