"""Two finsy controllers at one switch, and batches of which one update is bad."""

from __future__ import annotations

import asyncio

import finsy
import pytest

from p4src.names import Table
from tests.switch_clients.entries import EXAMPLES
from tests.switch_clients.finsy_tools import connected, entry, fill, key, options, read, run, sorted_entries


def test_the_lower_election_id_may_only_read(address: str) -> None:
    async def work() -> None:
        async with connected(address, options(election_id=20)) as primary:
            await fill(primary)
            async with connected(address, options(election_id=10)) as backup:
                assert (primary.is_primary, backup.is_primary) == (True, False)
                assert (backup.election_id, backup.primary_id) == (10, 20)
                assert len(await read(backup, finsy.P4TableEntry())) == len(EXAMPLES)
                for attempt in (backup.delete([key(EXAMPLES[0])]), backup.modify([entry(EXAMPLES[1])])):
                    with pytest.raises(finsy.P4ClientError) as caught:
                        await attempt
                    assert caught.value.code is finsy.GRPCStatusCode.PERMISSION_DENIED
                assert len(await read(primary, finsy.P4TableEntry())) == len(EXAMPLES)
                await primary.delete([key(EXAMPLES[0])])

    run(work)


def test_a_higher_election_id_takes_the_switch(address: str) -> None:
    async def work() -> None:
        async with connected(address, options(election_id=10)) as first:
            await fill(first)
            async with connected(address, options(election_id=20)) as second:
                assert second.is_primary
                await second.delete([key(EXAMPLES[0])])
                with pytest.raises(finsy.P4ClientError) as caught:
                    await first.delete([key(EXAMPLES[1])])
                assert caught.value.code is finsy.GRPCStatusCode.PERMISSION_DENIED

    run(work)


def test_the_backup_takes_over_when_the_primary_goes(address: str) -> None:
    async def work() -> None:
        async with connected(address, options(election_id=10)) as backup:
            # First it is alone, and so the primary; then another comes, and goes.
            await fill(backup)
            demoted = backup.ee.event_future(finsy.SwitchEvent.BECOME_BACKUP)
            async with connected(address, options(election_id=20)) as primary:
                await demoted
                await primary.delete([key(EXAMPLES[0])])
                promoted = backup.ee.event_future(finsy.SwitchEvent.BECOME_PRIMARY)
            await promoted
            await backup.delete([key(EXAMPLES[1])])
            left = [entry(example) for example in EXAMPLES[2:]]
            assert sorted_entries(await read(backup, finsy.P4TableEntry())) == sorted_entries(left)

    run(work)


@pytest.mark.parametrize("bad", [0, 3, len(EXAMPLES)])
def test_a_batch_reports_exactly_the_bad_update(address: str, bad: int) -> None:
    async def work() -> None:
        async with connected(address) as switch:
            missing = finsy.P4TableEntry(Table.SHADOW, match=finsy.Match(rid=77))
            updates = [+entry(example) for example in EXAMPLES]
            updates.insert(bad, -missing)
            with pytest.raises(finsy.P4ClientError) as caught:
                await switch.write(updates)
            assert caught.value.code is finsy.GRPCStatusCode.UNKNOWN
            details = caught.value.details
            assert {index: error.canonical_code.name for index, error in details.items()} == {bad: "NOT_FOUND"}
            # All the others are in force.
            inserted = [entry(example) for example in EXAMPLES]
            assert sorted_entries(await read(switch, finsy.P4TableEntry())) == sorted_entries(inserted)

    run(work)


def test_the_codes_of_bad_updates(address: str) -> None:
    async def work() -> None:
        async with connected(address) as switch:
            await fill(switch)
            group, missing_group = finsy.P4MulticastGroupEntry(6), finsy.P4MulticastGroupEntry(7)
            updates = [
                +entry(EXAMPLES[0]),
                ~entry(EXAMPLES[1], EXAMPLES[1].changed),
                +finsy.P4TableEntry(Table.SHADOW, match=finsy.Match(rid=9)),
                ~finsy.P4TableEntry(Table.SHADOW, match=finsy.Match(rid=9), action=entry(EXAMPLES[-1]).action),
                +group,
                -missing_group,
            ]
            with pytest.raises(finsy.P4ClientError) as caught:
                await switch.write(updates)
            assert {index: error.canonical_code.name for index, error in caught.value.details.items()} == {
                0: "ALREADY_EXISTS",
                2: "INVALID_ARGUMENT",
                3: "NOT_FOUND",
                4: "ALREADY_EXISTS",
                5: "NOT_FOUND",
            }
            assert await read(switch, key(EXAMPLES[1])) == [entry(EXAMPLES[1], EXAMPLES[1].changed)]

    run(work)


def test_two_controllers_of_the_same_id_make_one_primary(address: str) -> None:
    """finsy bids one less when its election id is in use."""

    async def work() -> None:
        async with (
            connected(address, options(election_id=10)) as one,
            connected(address, options(election_id=10)) as other,
        ):
            await asyncio.sleep(0)
            assert (one.is_primary, other.is_primary) == (True, False)
            assert (one.election_id, other.election_id) == (10, 9)

    run(work)
