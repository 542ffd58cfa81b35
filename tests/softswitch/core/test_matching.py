"""A program with every match kind, constant entries, hit/miss and action_run; and direct counters."""

from __future__ import annotations

import pytest

from softswitch.core import SwitchCore
from softswitch.errors import ErrorKind, SwitchError
from softswitch.state import ActionCall, Exact, Lpm, MatchKind, Range, TableEntry, Ternary
from tests.softswitch.core_rig import load, only, pack, unpack

FIELDS = ("exact", "lpm", "ternary", "range", "optional", "const", "flow")


def probe(core: SwitchCore, a: int, b: int, c: int, tail: int | None = None) -> dict[str, int]:
    """Return what each table wrote for a packet with these keys."""
    frame = pack((a, 32), (b, 16), (c, 8), *[(0, 8)] * 7, *([] if tail is None else [(tail, 8)]))
    _, out = only(core, frame)
    assert len(out) == len(frame)
    return dict(zip(FIELDS, unpack(out, 32, 16, 8, *[8] * 7)[3:], strict=True))


def test_keys_are_read_from_the_json() -> None:
    core = load("matching")
    kinds = {name: [key.kind for key in table.keys] for name, table in core.tables.items() if table.keys}
    assert kinds["TestIngress.exact_table"] == [MatchKind.EXACT, MatchKind.EXACT]
    assert kinds["TestIngress.lpm_table"] == [MatchKind.EXACT, MatchKind.LPM]
    assert kinds["TestIngress.range_table"] == [MatchKind.RANGE, MatchKind.TERNARY]
    assert kinds["TestIngress.optional_table"] == [MatchKind.TERNARY, MatchKind.TERNARY]
    ternary = core.tables["TestIngress.ternary_table"]
    assert [(key.name, key.width) for key in ternary.keys][1:] == [
        ("hdr.probe.b", 16),
        ("hdr.tail.$valid$", 1),
        ("hdr.tail.value", 8),
    ]
    assert core.tables["TestIngress.exact_table"].size == 4


def test_an_empty_switch_runs_the_default_actions() -> None:
    result = probe(load("matching"), 1, 2, 3)
    assert (result["exact"], result["lpm"], result["ternary"]) == (0xEE, 0, 0x77)
    assert result["flow"] == 0b1100_0010  # lpm missed, neither red nor green, hits (3 from `always`) is odd


def test_exact_entry_hits_only_its_key_and_counts() -> None:
    core = load("matching")
    table = core.tables["TestIngress.exact_table"]
    match = (Exact(0x0A000001), Exact(7))
    table.insert(TableEntry(match, 0, ActionCall("TestIngress.set_exact", (0x11,))))
    assert probe(core, 0x0A000001, 7, 0)["exact"] == 0x11
    assert probe(core, 0x0A000001, 7, 0)["flow"] & 1 == 1
    assert probe(core, 0x0A000001, 8, 0)["exact"] == 0xEE
    assert table.counter(match, 0) == (2, 2 * 14)
    assert table.default_counter() == (1, 14)
    table.set_default_counter(5, 50)
    assert table.default_counter() == (5, 50)


def test_longest_prefix_wins_whatever_the_order() -> None:
    core = load("matching")
    table = core.tables["TestIngress.lpm_table"]
    for value, length, result in [(0x0A010000, 16, 16), (0, 0, 1), (0x0A010200, 24, 24), (0x0A000000, 8, 8)]:
        match = (Exact(5), Lpm(value, length))
        table.insert(TableEntry(match, 0, ActionCall("TestIngress.set_lpm", (result,))))
    results = [probe(core, a, 0, 5)["lpm"] for a in (0x0A010203, 0x0A010303, 0x0A020303, 0x0B000000)]
    assert results == [24, 16, 8, 1]
    assert probe(core, 0x0A010203, 0, 6)["lpm"] == 0
    assert probe(core, 0x0A010203, 0, 6)["flow"] & 2 == 2
    assert probe(core, 0x0A010203, 0, 5)["flow"] & 2 == 0


def test_larger_priority_wins_and_a_header_that_is_not_there_matches_as_zero() -> None:
    core = load("matching")
    table = core.tables["TestIngress.ternary_table"]
    anything = Ternary(0, 0)

    def add(priority: int, valid: int, tail: Ternary, result: int) -> None:
        match = (Ternary(0x0A000000, 0xFF000000), anything, Exact(valid), tail)
        table.insert(TableEntry(match, priority, ActionCall("TestIngress.set_ternary", (result,))))

    add(1, 0, anything, 1)
    add(9, 0, Ternary(0, 0xFF), 2)
    add(5, 1, anything, 3)
    add(6, 1, Ternary(0x80, 0x80), 4)
    assert probe(core, 0x0A000001, 0, 0)["ternary"] == 2
    assert probe(core, 0x0A000001, 0, 0xFF, tail=0x01)["ternary"] == 3
    assert probe(core, 0x0A000001, 0, 0xFF, tail=0x81)["ternary"] == 4
    assert probe(core, 0x0B000001, 0, 0)["ternary"] == 0x77


def test_range_and_optional() -> None:
    core = load("matching")
    ranges = core.tables["TestIngress.range_table"]
    call = ActionCall("TestIngress.set_range", (1,))
    ranges.insert(TableEntry((Range(100, 200), Ternary(0, 0)), 1, call))
    ranges.insert(TableEntry((Range(150, 150), Ternary(2, 2)), 2, ActionCall("TestIngress.set_range", (2,))))
    assert [probe(core, 0, b, c)["range"] for b, c in [(99, 0), (100, 0), (200, 0), (201, 0)]] == [0, 1, 1, 0]
    assert [probe(core, 0, 150, c)["range"] for c in (1, 2)] == [1, 2]
    optional = core.tables["TestIngress.optional_table"]
    exact_b, any_value = Ternary(7, 0xFFFF), Ternary(0, 0)
    optional.insert(TableEntry((exact_b, any_value), 1, ActionCall("TestIngress.set_optional", (1,))))
    optional.insert(TableEntry((any_value, Ternary(9, 0xFF)), 2, ActionCall("TestIngress.set_optional", (2,))))
    assert [probe(core, 0, b, c)["optional"] for b, c in [(7, 0), (7, 9), (8, 9), (8, 8)]] == [1, 2, 2, 0]


def test_constant_entries_apply_in_their_order_and_cannot_be_changed() -> None:
    core = load("matching")
    table = core.tables["TestIngress.const_table"]
    assert table.const
    assert [probe(core, 0, b, 0)["const"] for b in (0x0102, 0x0004, 0x0005)] == [1, 3, 4]
    assert [entry.priority for entry in table.entries()] == [4, 3, 2, 1]
    entry = table.entries()[0]
    for operation in (
        lambda: table.insert(entry),
        lambda: table.modify(entry),
        lambda: table.delete(entry.match, entry.priority),
    ):
        with pytest.raises(SwitchError) as caught:
            operation()
        assert caught.value.kind is ErrorKind.PERMISSION_DENIED


def test_constant_default_action_cannot_be_changed() -> None:
    table = load("arithmetic").tables["TestIngress.operation"]
    assert table.const_default
    for operation in (lambda: table.set_default(ActionCall("NoAction")), table.reset_default):
        with pytest.raises(SwitchError) as caught:
            operation()
        assert caught.value.kind is ErrorKind.PERMISSION_DENIED


def test_switch_on_the_action_takes_the_action_that_ran() -> None:
    core = load("matching")
    table = core.tables["TestIngress.colour_table"]
    table.insert(TableEntry((Exact(1),), 0, ActionCall("TestIngress.red")))
    table.insert(TableEntry((Exact(2),), 0, ActionCall("TestIngress.green", (2,))))
    assert [probe(core, 0, 0, c)["flow"] >> 4 for c in (1, 2, 3)] == [0b0001, 0b0010, 0b1100]
    table.set_default(ActionCall("TestIngress.green", (1,)))
    assert probe(core, 0, 0, 3)["flow"] >> 4 == 0b1010


def test_reset_returns_to_the_freshly_loaded_program() -> None:
    core = load("matching")
    exact = core.tables["TestIngress.exact_table"]
    fresh = probe(core, 1, 2, 3)
    exact.insert(TableEntry((Exact(1), Exact(2)), 0, ActionCall("TestIngress.set_exact", (1,))))
    core.tables["TestIngress.ternary_table"].set_default(ActionCall("NoAction"))
    assert probe(core, 1, 2, 3) != fresh
    core.reset()
    assert exact.entries() == []
    assert exact.default_counter() == (0, 0)
    assert len(core.tables["TestIngress.const_table"].entries()) == 4
    assert probe(core, 1, 2, 3) == fresh
