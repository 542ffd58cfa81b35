"""Header stacks in the controls, against a model that shifts a list."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.softswitch.core_rig import load, only

CORE = load("stacks")
SIZE = 4
(PUSH1, PUSH2, POP1, POP3, WRITE, READ, COPY_STACK, COPY_ONE, SWAP, INVALIDATE, REVIVE, LAST) = range(12)


@dataclass
class Model:
    """What a packet becomes: items are values of 7 bits with the `last` bit, or None where not valid."""

    items: list[int | None]
    value: int
    index: int
    extra: bytes = b""

    def run(self, command: int) -> None:
        items, valid = self.items, [item for item in self.items if item is not None]
        if command == PUSH1:
            self.items = [(self.value & 0x7F) << 1, *items[:-1]]
        elif command == PUSH2:
            self.items = [None, None, *items[:-2]]
        elif command in (POP1, POP3):
            count = 1 if command == POP1 else 3
            self.items = items[count:] + [None] * count
        elif command == WRITE and self.index < SIZE and items[self.index] is not None:
            items[self.index] = (self.value & 0x7F) << 1 | (items[self.index] or 0) & 1
        elif command == READ and self.index < SIZE and items[self.index] is not None:
            self.value = (items[self.index] or 0) >> 1
        elif command == COPY_STACK:
            self.extra = bytes(valid)
        elif command == COPY_ONE:
            self.extra = bytes([] if items[1] is None else [items[1]])
        elif command == SWAP:
            items[0], items[1] = items[1], items[0]
        elif command == INVALIDATE:
            items[0] = None
        elif command == REVIVE:
            items[0] = 0x55 << 1
        elif command == LAST:
            self.value = len(valid) - 1 if valid else 0

    def emitted(self, command: int, count: int) -> bytes:
        valid = bytes(item for item in self.items if item is not None)
        return bytes([command, self.index, self.value, count]) + valid + self.extra


@pytest.mark.parametrize("command", range(13))
@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.integers(0, 127), max_size=SIZE),
    value=st.integers(0, 255),
    choice=st.integers(0, SIZE),
    payload=st.binary(max_size=4),
)
def test_stack_operation(command: int, values: list[int], value: int, choice: int, payload: bytes) -> None:
    # READ and WRITE of an element that is not valid are undefined in P4: stay with valid ones.
    index = choice % max(1, len(values)) if command in (READ, WRITE) else choice
    if command in (READ, WRITE) and not values:
        return
    items = [v << 1 | (position == len(values) - 1) for position, v in enumerate(values)]
    model = Model([*items, *[None] * (SIZE - len(values))], value, index)
    frame = model.emitted(command, len(values)) + payload
    if not values:
        frame = bytes([command, index, value, 0]) + payload
    model.run(command)
    assert only(CORE, frame) == (1, model.emitted(command, len(values)) + payload)
