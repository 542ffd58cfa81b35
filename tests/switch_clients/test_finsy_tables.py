"""finsy writes and reads every table and group of our program."""

from __future__ import annotations

import asyncio

import finsy
import pytest
from finsy.p4entity import P4Replica

from p4src.constants import MAX_FLOWS, NotReplicated
from p4src.names import Action, Table
from tests.switch_clients.entries import EXAMPLES, GROUP, GROUPS
from tests.switch_clients.finsy_tools import connected, entry, fill, groups, key, options, read, run, sorted_entries


def test_every_table_is_written_modified_and_deleted(address: str) -> None:
    async def work() -> None:
        async with connected(address) as switch:
            assert switch.is_primary
            assert await read(switch, finsy.P4TableEntry()) == []
            await fill(switch)
            inserted = [entry(example) for example in EXAMPLES]
            assert sorted_entries(await read(switch, finsy.P4TableEntry())) == sorted_entries(inserted)
            for table in Table:
                expected = [entry(example) for example in EXAMPLES if example.table == table]
                assert sorted_entries(await read(switch, finsy.P4TableEntry(table))) == sorted_entries(expected), table
            for example in EXAMPLES:
                assert await read(switch, key(example)) == [entry(example)]
            changed = [entry(example, example.changed) for example in EXAMPLES]
            await switch.modify(changed)
            assert sorted_entries(await read(switch, finsy.P4TableEntry())) == sorted_entries(changed)
            await switch.delete([key(EXAMPLES[0]), key(EXAMPLES[3])])
            left = [one for number, one in enumerate(changed) if number not in (0, 3)]
            assert sorted_entries(await read(switch, finsy.P4TableEntry())) == sorted_entries(left)
            await switch.delete_all()
            assert await read(switch, finsy.P4TableEntry(), finsy.P4MulticastGroupEntry()) == []

    run(work)


def test_several_requests_in_one_read(address: str) -> None:
    async def work() -> None:
        async with connected(address) as switch:
            await fill(switch)
            found = await read(
                switch, finsy.P4TableEntry(Table.SHADOW), finsy.P4MulticastGroupEntry(GROUP), key(EXAMPLES[0])
            )
            assert found == [entry(EXAMPLES[-1]), *groups([GROUP]), entry(EXAMPLES[0])]

    run(work)


def test_wildcards_over_everything_of_a_kind(address: str, target: str) -> None:
    """What `docs/switches.md` says that upstream BMv2 does not answer."""
    requests = {
        "table entries": (finsy.P4TableEntry(), len(EXAMPLES)),
        "counters": (finsy.P4CounterEntry(), len(NotReplicated)),
        "direct counters of a table": (finsy.P4DirectCounterEntry("replicate_counter"), 2),
        "direct counters": (finsy.P4DirectCounterEntry(), 5),
        "digests": (finsy.P4DigestEntry(), 1),
        "registers": (finsy.P4RegisterEntry(), 2 * MAX_FLOWS),
    }
    not_by_bmv2 = {"direct counters", "digests", "registers"}

    async def work() -> None:
        async with connected(address) as switch:
            await fill(switch)
            await switch.insert([finsy.P4DigestEntry("flow_start_t", max_list_size=1)])
            for name, (request, number) in requests.items():
                if target == "bmv2" and name in not_by_bmv2:
                    with pytest.raises(finsy.P4ClientError) as caught:
                        await read(switch, request)
                    assert caught.value.code is finsy.GRPCStatusCode.UNIMPLEMENTED, name
                else:
                    assert len(await read(switch, request)) == number, name

    run(work)


def test_multicast_groups(address: str) -> None:
    async def work() -> None:
        async with connected(address) as switch:
            await switch.insert(groups())
            for number in GROUPS:
                assert await read(switch, finsy.P4MulticastGroupEntry(number)) == groups([number])
            everything = await read(switch, finsy.P4MulticastGroupEntry())
            assert sorted_entries(everything) == sorted_entries(groups())
            # The same port twice, told apart by the replica id: two shadow nodes behind one port.
            other = finsy.P4MulticastGroupEntry(GROUP, replicas=(P4Replica(3, instance=1), P4Replica(3, instance=2)))
            await switch.modify([other])
            assert await read(switch, finsy.P4MulticastGroupEntry(GROUP)) == [other]
            await switch.delete([other])
            left = groups([number for number in GROUPS if number != GROUP])
            assert sorted_entries(await read(switch, finsy.P4MulticastGroupEntry())) == sorted_entries(left)

    run(work)


def test_the_digest_is_configured(address: str) -> None:
    async def work() -> None:
        async with connected(address) as switch:
            config = finsy.P4DigestEntry("flow_start_t", max_list_size=4, max_timeout_ns=5_000_000, ack_timeout_ns=7)
            await switch.insert([config])
            assert await read(switch, finsy.P4DigestEntry("flow_start_t")) == [config]
            other = finsy.P4DigestEntry("flow_start_t", max_list_size=1)
            await switch.modify([other])
            assert await read(switch, finsy.P4DigestEntry("flow_start_t")) == [other]
            await switch.delete([other])
            with pytest.raises(finsy.P4ClientError) as caught:
                await read(switch, finsy.P4DigestEntry("flow_start_t"))
            # The specification wants one error a request, BMv2 says it of the whole read.
            assert caught.value.is_not_found_only or caught.value.code is finsy.GRPCStatusCode.NOT_FOUND

    run(work)


def test_default_actions_are_read_and_constant(address: str) -> None:
    defaults = {
        Table.SHADOW_PORTS: Action.NOACTION,
        Table.L2_FORWARD: Action.DROP_UNKNOWN,
        Table.REPLICATE: Action.NOACTION,
        Table.FLOW_BASE: Action.NOACTION,
        Table.REPLICATE_RDMA_IPV4: Action.NOACTION,
        Table.REPLICATE_RDMA_IPV6: Action.NOACTION,
        Table.SHADOW: Action.DROP_UNKNOWN_REPLICA,
    }

    async def work() -> None:
        async with connected(address) as switch:
            for table, action in defaults.items():
                (found,) = await read(switch, finsy.P4TableEntry(table, is_default_action=True))
                assert found.action == finsy.Action(action), table
                other = finsy.P4TableEntry(table, action=finsy.Action(action), is_default_action=True)
                with pytest.raises(finsy.P4ClientError) as caught:
                    await switch.modify([other])
                assert list(caught.value.details) == [0], table

    run(work)


def test_a_second_connection_finds_the_program_and_keeps_the_tables(address: str) -> None:
    async def work() -> None:
        async with connected(address) as switch:
            await fill(switch)
        async with connected(address) as again:
            assert again.is_primary
            assert len(await read(again, finsy.P4TableEntry())) == len(EXAMPLES)
        async with connected(address, finsy.SwitchOptions(device_id=1)) as reader:
            assert {table.alias for table in reader.p4info.tables} == set(Table)
            assert len(await read(reader, finsy.P4TableEntry())) == len(EXAMPLES)
        async with connected(address, options()(p4force=True)) as forced:
            assert await read(forced, finsy.P4TableEntry()) == []

    run(work)


def test_a_controller_drives_it(address: str) -> None:
    async def work() -> None:
        finished: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def ready(switch: finsy.Switch) -> None:
            await fill(switch)
            finished.set_result(len(await read(switch, finsy.P4TableEntry())))

        controller = finsy.Controller([finsy.Switch("switch", address, options()(ready_handler=ready))])
        async with controller:
            assert await finished == len(EXAMPLES)

    run(work)
