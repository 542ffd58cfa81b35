"""Whether windows whose sizes fit an all-reduce really are one, and which of them are certain.

Sizes alone can deceive: a broadcast before an all-reduce, or a capture that begins in the middle of one, may show
the same sizes one step off, and then raw gradients would pass for reduced ones. What else is known speaks:

* the order in the capture: no rank sends what it could not have received yet;
* ranks that send reduced data have received some before: they announce buffers and acknowledge;
* the flags count steps from the first one on, so that a flow that is accounted for so far has no other reading;
* other readings, in which some flows begin later, must fail by the same measures.

The order proves nothing where packets are out of order: a flow that shows it lets the others be as far out of order.
What begins before the capture, or after something unknown, then needs other proof.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from rocev2.flow import Flow
from rocev2.shape import Contradiction, Undetermined, sent_chunk, solve
from rocev2.windows import Found, Reading, Window, sizes, start_of

_PARITY_STEPS = 4096


def judge(found: Found) -> None:
    """Judge an all-reduce by all that is known; set which of its windows are certain.

    Raises:
        Contradiction: it is none.
        Undetermined: it may be one, or something else.
    """
    windows = found.windows
    if not _receives(found, silent=False):
        raise Contradiction
    if not causal(found, [(window, 0) for window in windows]):
        raise Undetermined  # or the capture has packets far out of order
    if _adrift(found) and any(None in found.entries(window) for window in windows):
        raise Undetermined  # steps that nobody saw would fit whatever came before
    if _unordered(found) and found.channels < found.ring.channels:
        raise Undetermined  # which channels take part only the order tells
    if _contested(found) or not _confirmed(found) or not _receives(found, silent=True):
        raise Undetermined
    _other_channels(found)
    # What comes before an anchor is accounted for, and its first step is there: it begins where it seems to.
    anchors = [w for w in windows if w.chained and (w.flow.after_all_reduce or found.entries(w)[0] is not None)]
    if all(loop.uniform for loop in found.loops):
        pinned = [window for window in anchors if window.flow.after_all_reduce]
        if not pinned and not (anchors and (_whole_runs(found, anchors) or _alone(found))):
            raise Undetermined
        anchors = pinned or anchors
    fixed = [(anchor, 0) for anchor in anchors]
    for window in windows:
        window.certain = window in anchors or not any(
            found.fits(window, shift) and causal(found, [*fixed, (window, shift)])
            for shift in range(0 if window.chained else 1 - found.per_loop, found.per_loop)
            if shift
        )
    _proven(found)


def _possible(found: Found, reading: Reading, strict: bool = False) -> bool:
    """Return whether the order in the capture allows another reading, which it does where it proves nothing."""
    return _unordered(found) or causal(found, reading, strict)


def _unordered(found: Found) -> bool:
    """Return whether the order in the capture proves nothing of an all-reduce."""
    return _adrift(found) and not found.ring.ordered


def _adrift(found: Found) -> bool:
    """Return whether something may come before a window that is not accounted for."""
    return not all(window.chained for window in found.windows)


def causal(found: Found, reading: Reading, strict: bool = False) -> bool:
    """Return whether no rank sends what it could not have received yet.

    Args:
        found: the all-reduce.
        reading: the windows that are judged.
        strict: whether a message must have ended before the one that it causes; else it must have begun, which
            holds even where the capture has neighbouring packets out of order.
    """
    shape = found.loops[0]
    starts = {(window.index, window.channel): found.entries(window, shift) for window, shift in reading}
    for (index, channel), entries in starts.items():
        for distance in range(1, found.ranks):
            later = starts.get(((index + distance) % found.ranks, channel))
            for step in range(distance, found.per_loop) if later is not None else ():
                if not shape.size(sent_chunk(index, step - distance, found.ranks), channel):
                    continue  # nobody waits for an empty chunk
                cause, effect = entries[step - distance], later[step] if later is not None else None
                if cause is None or effect is None or cause.order < 0 or effect.order < 0:
                    continue
                if not strict and (not cause.seen or cause.first != cause.seen[0]):
                    continue  # its beginning is lost: it was earlier than what is seen of it
                if effect.order < (cause.last_order if strict else cause.order):
                    return False
    return True


def _receives(found: Found, silent: bool) -> bool:
    """Return whether ranks whose incoming data are not there show by other packets that they receive.

    Judged are those whose predecessor was not captured at all or, if `silent`, only not in this all-reduce.

    The root of a broadcast only sends; it could look like a rank of an all-reduce. A rank of an all-reduce sends
    reduced data only after it received some, into a buffer that it announced.
    """
    ring = found.ring
    for window in found.windows:
        place = _place(found, window.flow)
        signs = ring.receiving.get(place, [])
        captured = (place - 1) % found.ranks in ring.flows
        before = (window.index - 1) % found.ranks
        heard = any(other.index == before and found.shown(other) for other in found.windows)
        if captured != silent or heard or not signs:
            continue
        since = max((flow.last_seen for flow in ring.flows[place] if flow is not None), default=-1)
        reduced = [
            entry.order
            for entry in found.entries(window)[found.ranks - 1 :]
            if entry is not None and entry.order >= 0 and entry.size
        ]
        if reduced and not any(_between(flow.orders, since, min(reduced)) for flow in signs):
            return False
    return True


def _contested(found: Found) -> bool:
    """Return whether a later start would do as well, where nothing says that this one is right.

    Where one direction is absent, or the beginning, a broadcast before an all-reduce may pass for a part of it.
    """
    windows = found.windows
    if all(window.flow.after_all_reduce and window.chained for window in windows):
        return False
    whole = not any(None in found.entries(window) for window in windows)
    if len(found.ring.flows) == found.ranks and whole and any(window.chained for window in windows):
        return False
    if any(window.first < window.flow.contested for window in windows):
        return True
    for reading in _others(found):
        if not all(_tells(found, window, shift, whole) for window, shift in reading if shift):
            continue
        try:
            known, bounds = sizes(found.ranks, found.channels, reading)
            if whole and len(known) < found.ranks * found.channels:
                continue
            solve(found.ranks, found.channels, known, bounds)
        except Contradiction:
            continue
        except Undetermined:
            if whole:
                continue
        if _possible(found, reading):
            for window in windows:
                window.flow.contested = window.first + found.per_loop
            return True
    return False


def _tells(found: Found, window: Window, shift: int, whole: bool) -> bool:
    """Return whether a window, shifted, rests on steps that were captured: all if `whole`, else one that holds data."""
    entries = found.entries(window, shift)
    if whole:
        return None not in entries
    newest = window.first + shift + found.per_loop - 1
    return newest <= window.flow.table.last and any(entry is not None and entry.size for entry in entries)


def _confirmed(found: Found) -> bool:
    """Return whether every window that lacks steps, and does not follow an all-reduce, is borne out by another one.

    Of what is there of it, one step must carry a chunk that another flow shows with the same size.
    """
    for window in found.windows:
        entries = found.entries(window)
        if (window.flow.after_all_reduce and window.chained) or None not in entries or not found.shown(window):
            continue
        others, _ = sizes(found.ranks, found.channels, [(w, 0) for w in found.windows if w is not window])
        positions = {
            sent_chunk(window.index, step, found.ranks) * found.channels + window.channel
            for step, entry in enumerate(entries)
            if entry is not None and entry.size is not None
        }
        if not positions & others.keys():
            return False
    return True


def _others(found: Found) -> Iterator[Reading]:
    """Yield other readings: some windows begin later, as if their first steps belonged to something before.

    A broadcast, for one, takes steps of the ranks from its root on, on the first channels.
    """
    spans = {frozenset(range(count)) for count in range(1, found.channels + 1)}
    spans |= {frozenset(range(count, found.channels)) for count in range(found.channels)}
    ranks = {
        frozenset((root + number) % found.ranks for number in range(length))
        for root in range(found.ranks)
        for length in range(1, found.ranks + 1)
    }
    for shift in range(1, found.per_loop):
        for late in ranks:
            for channels in spans:
                reading = [(w, shift if w.index in late and w.channel in channels else 0) for w in found.windows]
                if any(by for _, by in reading):
                    yield reading


def _other_channels(found: Found) -> None:
    """Raise if a channel that does not take part speaks against the all-reduce."""
    ring = found.ring
    for other in ring.doubtful:
        if any(found.first_order <= step.order <= found.last_order for step in other.table.steps.values()):
            raise Undetermined
    since = max((flow.last_seen for row in ring.flows.values() for flow in row if flow is not None), default=-1)
    for channel in range(found.channels, ring.channels):
        flows = [row[channel] for row in ring.flows.values()]
        for flow in flows:
            if flow is None or flow.table.last < start_of(flow):
                continue
            entry = flow.table.steps.get(start_of(flow))
            if entry is None or entry.order < 0 or found.first_order <= entry.order <= found.last_order:
                raise Undetermined  # it takes part, or may do so
            if entry.order < found.first_order:
                raise Contradiction  # that one comes first
        # Without data of a channel in the capture, control writes show that it is used.
        signs = [column[channel] for column in ring.receiving.values() if channel < len(column)]
        if all(flow is None for flow in flows) and any(_between(s.orders, since, found.last_order) for s in signs):
            raise Undetermined


def _alone(found: Found) -> bool:
    """Return whether chunks of one size, after something else, can be read in this way only."""
    if len(found.ring.flows) < found.ranks or not causal(found, [(w, 0) for w in found.windows], strict=True):
        return False
    return not any(
        len({window.index for window, shift in reading if shift}) < found.ranks
        and all(found.fits(window, shift) for window, shift in reading)
        and _possible(found, reading, strict=True)
        for reading in _others(found)
    )


def _whole_runs(found: Found, anchors: list[Window]) -> bool:
    """Return whether equally large steps from here on are a whole number of such all-reduces, for every rank.

    Another collective of the same size just before would make the number odd, or not the same for all.
    """
    size = found.sizes(found.windows[0])[0]
    runs = set()
    for window in anchors:
        length = 0
        while length < _PARITY_STEPS:
            entry = window.flow.table.steps.get(window.first + length)
            if entry is None or entry.size != size:
                break
            length += 1
        runs.add(length)
    return len(runs) == 1 and runs.pop() % found.per_loop == 0


def _proven(found: Found) -> None:
    """Raise unless the windows that are certain tell the shape without the others."""
    certain = [window for window in found.windows if window.certain]
    if len(certain) == len(found.windows):
        return
    for place, loop in enumerate(found.loops):
        known, bounds = sizes(found.ranks, found.channels, [(window, place * found.per_loop) for window in certain])
        if solve(found.ranks, found.channels, known, bounds).rest != loop.rest:
            raise Undetermined


def _place(found: Found, flow: Flow) -> int:
    return next(place for place, row in found.ring.flows.items() if any(flow is other for other in row))


def _between(orders: list[int], low: int, high: int) -> bool:
    """Return whether one of the ascending `orders` is above `low` and not above `high`."""
    return bisect_right(orders, high) > bisect_right(orders, low)
