"""finsy as the tests use it: connections, and example entries as finsy's entities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import finsy
from finsy.p4entity import P4Replica

from tests.switch_clients.entries import DEVICE_CONFIG, EXAMPLES, GROUPS, P4INFO, Example
from tests.switch_clients.rig import DEVICE_ID

TIMEOUT_S = 20.0
_Result = TypeVar("_Result")


def run(work: Callable[[], Awaitable[_Result]]) -> _Result:
    """Run a test's coroutine, but not forever."""

    async def limited() -> _Result:
        return await asyncio.wait_for(work(), TIMEOUT_S)

    return asyncio.run(limited())


def options(p4info: Path = P4INFO, device_config: Path = DEVICE_CONFIG, election_id: int = 10) -> finsy.SwitchOptions:
    return finsy.SwitchOptions(
        p4info=p4info, p4blob=device_config, device_id=DEVICE_ID, initial_election_id=election_id, fail_fast=True
    )


@asynccontextmanager
async def connected(address: str, settings: finsy.SwitchOptions | None = None) -> AsyncIterator[finsy.Switch]:
    """Connect; where this client is the primary, the switch runs the program of `settings` afterwards."""
    async with finsy.Switch("switch", address, settings or options()) as switch:
        yield switch


def entry(example: Example, params: dict[str, int] | None = None) -> finsy.P4TableEntry:
    return finsy.P4TableEntry(
        example.table,
        match=finsy.Match(**example.match),
        action=finsy.Action(example.action, **(example.params if params is None else params)),
    )


def key(example: Example) -> finsy.P4TableEntry:
    return finsy.P4TableEntry(example.table, match=finsy.Match(**example.match))


def groups(wanted: Iterable[int] = tuple(GROUPS)) -> list[finsy.P4MulticastGroupEntry]:
    # finsy reads a copy with replica id 0 as a bare port.
    return [
        finsy.P4MulticastGroupEntry(
            number, replicas=tuple(P4Replica(port, instance=rid) if rid else port for port, rid in GROUPS[number])
        )
        for number in wanted
    ]


async def read(switch: finsy.Switch, *entities: finsy.p4entity.P4Entity) -> list[finsy.p4entity.P4Entity]:
    """Return what a read gives; the copies of a group, whose order means nothing, by port and replica id."""
    found = [entity async for entity in switch.read(list(entities))]
    for entity in found:
        if isinstance(entity, finsy.P4MulticastGroupEntry):
            entity.replicas = tuple(sorted(entity.replicas, key=_port_and_rid))
    return found


def _port_and_rid(copy: int | P4Replica) -> tuple[int, int]:
    return (copy.port, copy.instance) if isinstance(copy, P4Replica) else (copy, 0)


async def fill(switch: finsy.Switch) -> None:
    """Write the groups, then the entries that use them."""
    await switch.insert(groups())
    await switch.insert([entry(example) for example in EXAMPLES])


def sorted_entries(entries: Iterable[finsy.p4entity.P4Entity]) -> list[str]:
    """Entries in an order of their own: a switch may give them in any."""
    return sorted(map(repr, entries))
