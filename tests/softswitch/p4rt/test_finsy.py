"""finsy, a full P4Runtime client, against our server: nothing here was written with our code in mind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import finsy
import pytest
from finsy.p4entity import P4Replica

from softswitch.p4rt import Device, serve
from tests.softswitch.p4rt_client import CPU_PORT, PROGRAMS, TIMEOUT_S, ether, mac

MAC1 = int.from_bytes(mac(1), "big")

Ready = Callable[[finsy.Switch], Awaitable[None]]


def run_with_finsy(device: Device, ready: Ready, **options: Any) -> None:
    """Run `ready` as finsy's ready handler of a switch that finsy has connected to and configured."""

    async def scenario() -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def handler(switch: finsy.Switch) -> None:
            try:
                await ready(switch)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        settings = finsy.SwitchOptions(
            p4info=PROGRAMS / "p4rt_sample.p4info.txtpb",
            p4blob=PROGRAMS / "p4rt_sample.json",
            device_id=device.device_id,
            ready_handler=handler,
            **options,
        )
        switch = finsy.Switch("sw", server.address, settings)
        runner = asyncio.create_task(switch.run())
        try:
            await asyncio.wait_for(done, TIMEOUT_S)
        finally:
            runner.cancel()
            await asyncio.gather(runner, return_exceptions=True)

    with serve(device) as server:
        asyncio.run(scenario())


def test_finsy_programs_every_kind_of_entity_and_reads_it_back() -> None:
    device = Device(1, cpu_port=CPU_PORT)

    async def ready(sw: finsy.Switch) -> None:
        written = [
            finsy.P4TableEntry("dmac", match=finsy.Match(dst=MAC1), action=finsy.Action("forward", port=2)),
            finsy.P4TableEntry("dmac", match=finsy.Match(dst=MAC1 + 1), action=finsy.Action("flood", group=7)),
            finsy.P4TableEntry(
                "routes", match=finsy.Match(prefix=(0x0A000000, 8)), action=finsy.Action("forward", port=3)
            ),
            finsy.P4TableEntry(
                "acl",
                match=finsy.Match(src=(0x0A000000, 0xFF0000FF), protocol=6, ttl=(1, 5)),
                action=finsy.Action("drop"),
                priority=10,
            ),
        ]
        groups = [finsy.P4MulticastGroupEntry(7, replicas=(1, P4Replica(port=2, instance=4)))]
        sessions = [finsy.P4CloneSessionEntry(3, replicas=(1,))]
        digests = [finsy.P4DigestEntry("learn_t", max_list_size=1)]
        await sw.insert([*written, *groups, *sessions, *digests])
        found = [entry async for entry in sw.read(finsy.P4TableEntry())]
        assert [entry for entry in found if entry.table_id != "kind"] == written
        assert [entry async for entry in sw.read(finsy.P4MulticastGroupEntry())] == groups
        assert [entry async for entry in sw.read(finsy.P4CloneSessionEntry())] == sessions
        assert [entry async for entry in sw.read(finsy.P4DigestEntry())] == digests
        frame = ether(mac(1), mac(9))
        assert device.inject(4, frame, 0) == [(2, frame)]
        counters = [entry async for entry in sw.read(finsy.P4DirectCounterEntry("dmac_counter"))]
        assert [(entry.packet_count, entry.byte_count) for entry in counters] == [(1, len(frame)), (0, 0)]
        await sw.delete([*groups, *sessions])
        await sw.delete_all()
        assert [e async for e in sw.read(finsy.P4TableEntry()) if e.table_id != "kind"] == []
        assert [entry async for entry in sw.read(finsy.P4MulticastGroupEntry())] == []
        assert [entry async for entry in sw.read(finsy.P4DigestEntry())] == []

    run_with_finsy(device, ready)


def test_finsy_packet_io_and_digests() -> None:
    device = Device(1, cpu_port=CPU_PORT)

    async def ready(sw: finsy.Switch) -> None:
        await sw.insert(
            [
                finsy.P4DigestEntry("learn_t", max_list_size=1),
                finsy.P4TableEntry("dmac", match=finsy.Match(dst=MAC1), action=finsy.Action("to_cpu", reason=9)),
            ]
        )
        frame = ether(mac(1), mac(5))
        packets = sw.read_packets()
        digests = sw.read_digests("learn_t")
        first_packet = asyncio.create_task(anext(packets))
        first_digest = asyncio.create_task(anext(digests))
        await asyncio.sleep(0)  # let both subscribe
        device.inject(6, frame, 0)
        packet = await first_packet
        assert packet.payload == frame
        assert packet.metadata == {"ingress_port": 6, "reason": 9}
        digest = await first_digest
        assert digest.data == [{"src": int.from_bytes(mac(5), "big"), "port": 6}]
        await sw.write([finsy.P4DigestListAck("learn_t", digest.list_id)])
        await sw.write([finsy.P4PacketOut(frame, egress_port=8, pad=0)])
        while not (frames := device.poll(0)):
            await asyncio.sleep(0)
        assert frames == [(8, frame)]

    run_with_finsy(device, ready)


def test_finsy_understands_our_errors() -> None:
    device = Device(1)

    async def ready(sw: finsy.Switch) -> None:
        good = finsy.P4TableEntry("dmac", match=finsy.Match(dst=1), action=finsy.Action("drop"))
        await sw.insert([good])
        missing = finsy.P4TableEntry("dmac", match=finsy.Match(dst=2))
        with pytest.raises(finsy.P4ClientError) as caught:
            await sw.insert([good, missing, finsy.P4MulticastGroupEntry(1)])
        error = caught.value
        assert error.code is finsy.GRPCStatusCode.UNKNOWN
        assert {index: item.canonical_code.name for index, item in error.details.items()} == {
            0: "ALREADY_EXISTS",
            1: "INVALID_ARGUMENT",
        }
        with pytest.raises(finsy.P4ClientError) as caught:
            await sw.delete([missing])
        assert caught.value.is_not_found_only

    run_with_finsy(device, ready)


def test_finsy_backup_takes_over_when_the_primary_goes() -> None:
    """The rule that nobody is promoted without asking suits finsy: it asks."""

    async def scenario(address: str) -> None:
        events: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()

        def make(name: str, election_id: int) -> finsy.Switch:
            async def handler(switch: finsy.Switch) -> None:
                switch.ee.add_listener(finsy.SwitchEvent.BECOME_PRIMARY, lambda s: events.put_nowait((name, True)))
                events.put_nowait((name, switch.is_primary))

            settings = finsy.SwitchOptions(
                p4info=PROGRAMS / "p4rt_sample.p4info.txtpb",
                p4blob=PROGRAMS / "p4rt_sample.json",
                device_id=1,
                initial_election_id=election_id,
                ready_handler=handler,
            )
            return finsy.Switch(name, address, settings)

        first = asyncio.create_task(make("first", 20).run())
        assert await asyncio.wait_for(events.get(), TIMEOUT_S) == ("first", True)
        second = asyncio.create_task(make("second", 10).run())
        assert await asyncio.wait_for(events.get(), TIMEOUT_S) == ("second", False)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert await asyncio.wait_for(events.get(), TIMEOUT_S) == ("second", True)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)

    with serve(Device(1)) as server:
        asyncio.run(scenario(server.address))
