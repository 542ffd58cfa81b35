"""finsy sees what packets do to a switch: digests, direct counters, and the counter of reasons not to replicate."""

from __future__ import annotations

import asyncio

import finsy
import pytest

from p4src.constants import NotReplicated
from p4src.names import Counter, Digest, Table
from tests.switch_clients.entries import B_PORT, EXAMPLES, FLOW, SHADOW_PORT, Example
from tests.switch_clients.finsy_tools import connected, entry, fill, key, read, run
from tests.switch_clients.frames import DATA, FLOW_START, LATE, SYN, UNTAGGED
from tests.switch_clients.rig import Network

pytestmark = pytest.mark.netns
REPLICATE = next(example for example in EXAMPLES if example.params.get("flow_id") == FLOW)
SHADOW = next(example for example in EXAMPLES if example.table == Table.SHADOW)


def send(network: Network, frame: bytes, *, replicated: bool) -> None:
    """Send a frame from host 1 and wait until the switch has finished with it."""
    network.hosts[1].send(frame)
    if replicated:
        replica = network.hosts[SHADOW_PORT].receive()
        assert replica is not None
        assert len(replica) == len(frame)
    assert network.hosts[B_PORT].receive() == frame


def test_a_flow_start_arrives_as_a_digest(network: Network) -> None:
    async def work() -> None:
        async with connected(network.address) as switch:
            await fill(switch)
            await switch.insert([finsy.P4DigestEntry(Digest.FLOW_START_T, max_list_size=1, ack_timeout_ns=10**9)])
            digests = switch.read_digests(Digest.FLOW_START_T)
            first = asyncio.create_task(anext(digests))
            await asyncio.sleep(0)  # let it subscribe
            send(network, SYN, replicated=True)
            found = await first
            assert found.data == [FLOW_START]
            await switch.write([found.ack()])

    run(work)


def test_direct_counters_are_read_and_reset(network: Network) -> None:
    async def count(switch: finsy.Switch) -> list[tuple[int, int]]:
        """The counters of the flow and of the shadow node, read in each of the ways that there are."""
        with_entry = [
            (found.counter_data.packet_count, found.counter_data.byte_count)
            for example in (REPLICATE, SHADOW)
            for found in await read(switch, _counted(example))
        ]
        of_entry = [
            (found.packet_count, found.byte_count)
            for example in (REPLICATE, SHADOW)
            for found in await read(switch, finsy.P4DirectCounterEntry(table_entry=key(example)))
        ]
        of_table = [
            (found.packet_count, found.byte_count)
            for name in ("replicate_counter", "shadow_counter")
            for found in await read(switch, finsy.P4DirectCounterEntry(name))
            if found.table_entry.match in (key(REPLICATE).match, key(SHADOW).match)
        ]
        assert with_entry == of_entry == of_table
        return with_entry

    async def work() -> None:
        async with connected(network.address) as switch:
            await fill(switch)
            assert await count(switch) == [(0, 0), (0, 0)]
            send(network, SYN, replicated=True)
            for _ in range(3):
                send(network, DATA, replicated=True)
            size = len(SYN) + 3 * len(DATA)
            assert await count(switch) == [(4, size), (4, size)]
            await switch.modify([entry(REPLICATE), entry(SHADOW)])  # without a counter: it goes on
            assert await count(switch) == [(4, size), (4, size)]
            zero = finsy.P4CounterData(byte_count=0, packet_count=0)
            await switch.modify([finsy.P4DirectCounterEntry(table_entry=key(REPLICATE), data=zero)])
            assert await count(switch) == [(0, 0), (4, size)]
            reset = entry(SHADOW)
            reset.counter_data = zero
            await switch.modify([reset])
            assert await count(switch) == [(0, 0), (0, 0)]
            send(network, DATA, replicated=True)
            assert await count(switch) == [(1, len(DATA)), (1, len(DATA))]
            # An entry that is deleted and inserted again counts anew, from where the client says.
            await switch.delete([key(REPLICATE), key(SHADOW)])
            begun = entry(SHADOW)
            begun.counter_data = finsy.P4CounterData(byte_count=1000, packet_count=10)
            await switch.insert([entry(REPLICATE), begun])
            assert await count(switch) == [(0, 0), (10, 1000)]

    run(work)


def _counted(example: Example) -> finsy.P4TableEntry:
    request = key(example)
    request.counter_data = finsy.P4CounterData()
    return request


def test_reasons_not_to_replicate_are_counted(network: Network) -> None:
    async def counts(switch: finsy.Switch) -> dict[NotReplicated, tuple[int, int]]:
        found = await read(switch, finsy.P4CounterEntry(Counter.NOT_REPLICATED))
        return {NotReplicated(one.index): (one.packet_count, one.byte_count) for one in found if one.packet_count}

    async def work() -> None:
        async with connected(network.address) as switch:
            await fill(switch)
            assert await counts(switch) == {}
            await switch.delete([key(example) for example in EXAMPLES if example.table == Table.FLOW_BASE])
            send(network, DATA, replicated=False)
            send(network, SYN, replicated=True)
            send(network, UNTAGGED, replicated=False)
            send(network, UNTAGGED, replicated=False)
            send(network, LATE, replicated=False)
            expected = {
                NotReplicated.UNTAGGED: (2, 2 * len(UNTAGGED)),
                NotReplicated.UNKNOWN_ISN: (1, len(DATA)),
                NotReplicated.LATE_CONNECTION: (1, len(LATE)),
                NotReplicated.NONE: (1, len(SYN)),
            }
            assert await counts(switch) == expected
            (one,) = await read(switch, finsy.P4CounterEntry(Counter.NOT_REPLICATED, index=NotReplicated.UNKNOWN_ISN))
            assert (one.index, one.packet_count) == (NotReplicated.UNKNOWN_ISN, 1)
            zero = finsy.P4CounterData(byte_count=0, packet_count=0)
            await switch.modify([finsy.P4CounterEntry(Counter.NOT_REPLICATED, index=NotReplicated.UNTAGGED, data=zero)])
            del expected[NotReplicated.UNTAGGED]
            assert await counts(switch) == expected

    run(work)


def test_flow_base_knows_a_connection_that_the_switch_has_not_seen(network: Network) -> None:
    """What a controller does after a restart: the entry's ISN, the one of `DATA`, gives the stream position."""

    async def work() -> None:
        async with connected(network.address) as switch:
            await fill(switch)
            (known,) = [example for example in EXAMPLES if example.table == Table.FLOW_BASE]
            await switch.modify([entry(known, {"isn": FLOW_START["isn"]})])
            network.hosts[1].send(DATA)
            replica = network.hosts[SHADOW_PORT].receive()
            assert replica is not None
            assert int.from_bytes(replica[38:42], "big") == 1

    run(work)
