"""Tables of every kind against a search through all entries, while entries come and go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.errors import ErrorKind, SwitchError
from softswitch.match import key_shifts
from softswitch.state import (
    ActionCall,
    ActionSpec,
    Exact,
    KeySpec,
    Lpm,
    MatchKey,
    MatchKind,
    Range,
    Table,
    TableEntry,
    TableSpec,
    Ternary,
)

WIDTH = 6
"""Small, so that random entries overlap often."""
FULL = (1 << WIDTH) - 1


def make_table(match_type: MatchKind, kinds: Sequence[MatchKind], size: int = 1000) -> Table:
    keys = tuple(KeySpec(f"k{number}", WIDTH, kind) for number, kind in enumerate(kinds))
    actions = (ActionSpec("act", (16,)), ActionSpec("miss", ()))
    return Table(TableSpec("t", match_type, keys, actions, size, False, False, ActionCall("miss"), True, ()))


def matches(key: MatchKey, value: int) -> bool:
    if isinstance(key, Exact):
        return key.value == value
    if isinstance(key, Lpm):
        shift = WIDTH - key.prefix_len
        return key.value >> shift == value >> shift
    if isinstance(key, Ternary):
        return value & key.mask == key.value
    return key.low <= value <= key.high


def naive(entries: Sequence[TableEntry], values: Sequence[int]) -> TableEntry | None:
    """Return the entry that wins: highest priority, longest prefix, inserted first."""

    def prefix(entry: TableEntry) -> int:
        return max((key.prefix_len for key in entry.match if isinstance(key, Lpm)), default=0)

    found = [e for e in entries if all(map(matches, e.match, values))]
    return max(found, key=lambda e: (e.priority, 0 if e.priority else prefix(e)), default=None)


def look_up(table: Table, match_type: MatchKind, values: Sequence[int]) -> int | None:
    """Return the argument of the entry that the table finds."""
    if match_type in (MatchKind.LPM, MatchKind.TERNARY):
        shifts = key_shifts(table.keys)
        row = table.lookup.find(sum(value << shift for value, shift in zip(values, shifts, strict=True)))
    elif len(values) == 1 and match_type is MatchKind.EXACT:
        row = table.lookup.find(values[0])
    else:
        row = table.lookup.find(tuple(values))
    if row is None:
        return None
    assert isinstance(row[2], int)
    return row[2]


def key_strategy(kind: MatchKind) -> st.SearchStrategy[MatchKey]:
    value = st.integers(0, FULL)
    if kind is MatchKind.EXACT:
        return st.builds(Exact, value)
    if kind is MatchKind.LPM:
        return st.tuples(value, st.integers(0, WIDTH)).map(
            lambda p: Lpm(p[0] >> (WIDTH - p[1]) << (WIDTH - p[1]), p[1])
        )
    if kind is MatchKind.TERNARY:
        return st.tuples(value, value).map(lambda p: Ternary(p[0] & p[1], p[1]))
    return st.tuples(value, value).map(lambda p: Range(min(p), max(p)))


E, L, T, R = MatchKind.EXACT, MatchKind.LPM, MatchKind.TERNARY, MatchKind.RANGE
SHAPES = [
    (E, (E,)),
    (E, (E, E)),
    (L, (L,)),
    (L, (E, L)),
    (T, (T,)),
    (T, (T, E, L)),
    (R, (R,)),
    (R, (R, T, L, E)),
]


@pytest.mark.parametrize(("match_type", "kinds"), SHAPES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_lookup_agrees_with_a_search_through_all_entries(
    match_type: MatchKind, kinds: tuple[MatchKind, ...], data: st.DataObject
) -> None:
    table = make_table(match_type, kinds)
    priority = st.integers(1, 4) if table.needs_priority else st.just(0)
    match = st.tuples(*map(key_strategy, kinds))
    installed: dict[tuple[tuple[MatchKey, ...], int], TableEntry] = {}
    for number in range(data.draw(st.integers(1, 25))):
        entry = TableEntry(data.draw(match), data.draw(priority), ActionCall("act", (number,)))
        place = (entry.match, entry.priority)
        if place not in installed:
            table.insert(entry)
            installed[place] = entry
        elif data.draw(st.booleans()):
            table.modify(entry)
            installed[place] = entry
        else:
            table.delete(*place)
            del installed[place]
    assert table.entries() == list(installed.values())
    for _ in range(15):
        values = data.draw(st.tuples(*[st.integers(0, FULL)] * len(kinds)))
        expected = naive(list(installed.values()), values)
        assert look_up(table, match_type, values) == (None if expected is None else expected.action.args[0])


def refused(kind: ErrorKind) -> pytest.RaisesExc[SwitchError]:
    return pytest.raises(SwitchError, check=lambda error: error.kind is kind)


GOOD = TableEntry((Exact(1),), 0, ActionCall("act", (5,)))


def test_insert_refuses_a_second_entry_with_the_same_match() -> None:
    table = make_table(E, (E,))
    table.insert(GOOD)
    with refused(ErrorKind.ALREADY_EXISTS):
        table.insert(GOOD)


def test_insert_refuses_more_entries_than_the_table_holds_and_deleting_makes_room() -> None:
    table = make_table(E, (E,), size=2)
    table.insert(GOOD)
    table.insert(TableEntry((Exact(2),), 0, GOOD.action))
    third = TableEntry((Exact(3),), 0, GOOD.action)
    with refused(ErrorKind.RESOURCE_EXHAUSTED):
        table.insert(third)
    table.delete(GOOD.match, 0)
    table.insert(third)
    assert [entry.match for entry in table.entries()] == [(Exact(2),), (Exact(3),)]


def test_operations_on_a_missing_entry_are_refused() -> None:
    table = make_table(E, (E,))
    for operation in (
        lambda: table.modify(GOOD),
        lambda: table.delete(GOOD.match, 0),
        lambda: table.get(GOOD.match, 0),
        lambda: table.counter(GOOD.match, 0),
        lambda: table.set_counter(GOOD.match, 0, 1, 1),
    ):
        with refused(ErrorKind.NOT_FOUND):
            operation()


@pytest.mark.parametrize(
    ("match_type", "entry", "word"),
    [
        (E, TableEntry((Exact(1), Exact(1)), 0, GOOD.action), "2 match fields"),
        (E, TableEntry((Exact(64),), 0, GOOD.action), "6 bits"),
        (E, TableEntry((Ternary(1, 1),), 0, GOOD.action), "Ternary"),
        (E, TableEntry((Exact(1),), 3, GOOD.action), "priority"),
        (E, TableEntry((Exact(1),), 0, ActionCall("act", ())), "takes 1"),
        (E, TableEntry((Exact(1),), 0, ActionCall("act", (1 << 16,))), "16 bits"),
        (E, TableEntry((Exact(1),), 0, ActionCall("other", ())), "other"),
        (L, TableEntry((Lpm(1, 5),), 0, GOOD.action), "outside its mask"),
        (L, TableEntry((Lpm(0, 7),), 0, GOOD.action), "prefix"),
        (T, TableEntry((Ternary(3, 1),), 1, GOOD.action), "outside its mask"),
        (T, TableEntry((Ternary(1, 1),), 0, GOOD.action), "priority"),
        (R, TableEntry((Range(5, 4),), 1, GOOD.action), "range"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused_with_the_reason(
    match_type: MatchKind, entry: TableEntry, word: str
) -> None:
    table = make_table(match_type, (match_type,))
    with pytest.raises(SwitchError, match=word) as caught:
        table.insert(entry)
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT
    assert caught.value.place == "table t"
    assert table.entries() == []


def test_default_action_can_be_changed_and_reset() -> None:
    table = make_table(E, (E,))
    assert table.default == ActionCall("miss")
    table.set_default(ActionCall("act", (7,)))
    assert table.default == ActionCall("act", (7,))
    with refused(ErrorKind.INVALID_ARGUMENT):
        table.set_default(ActionCall("act", ()))
    assert table.default == ActionCall("act", (7,))
    table.reset_default()
    assert table.default == ActionCall("miss")


def test_modify_keeps_the_counter_and_a_new_entry_starts_at_zero() -> None:
    table = make_table(E, (E,))
    table.insert(GOOD)
    table.set_counter(GOOD.match, 0, 3, 300)
    table.modify(TableEntry(GOOD.match, 0, ActionCall("act", (6,))))
    assert table.counter(GOOD.match, 0) == (3, 300)
    table.delete(GOOD.match, 0)
    table.insert(GOOD)
    assert table.counter(GOOD.match, 0) == (0, 0)
