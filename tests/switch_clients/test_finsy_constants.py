"""Constant entries, and default actions that a client may change, on a small program that has both."""

from __future__ import annotations

import finsy
import pytest

from tests.switch_clients.entries import SAMPLE
from tests.switch_clients.finsy_tools import connected, options, read, run

KINDS = {0x0800: 4, 0x86DD: 6}
"""The constant entries of table `kind`: EtherType -> parameter."""


def sample() -> finsy.SwitchOptions:
    return options(SAMPLE / "p4rt_sample.p4info.txtpb", SAMPLE / "p4rt_sample.json")


def kind(ether_type: int, value: int | None) -> finsy.P4TableEntry:
    action = finsy.Action("set_kind", kind=value) if value is not None else None
    return finsy.P4TableEntry("kind", match=finsy.Match(type=ether_type), action=action)


async def kinds(switch: finsy.Switch) -> dict[int, int]:
    found = await read(switch, finsy.P4TableEntry("kind"))
    return {entry["type"]: entry.action.args["kind"] for entry in found}


def test_constant_entries_are_read(address: str) -> None:
    async def work() -> None:
        async with connected(address, sample()) as switch:
            assert await kinds(switch) == KINDS
            (one,) = await read(switch, kind(0x86DD, None))
            assert one.action == finsy.Action("set_kind", kind=6)

    run(work)


def test_constant_entries_cannot_be_written(address: str, target: str) -> None:
    # What BMv2 knows of entries that it did not get from a client is only that they are in its way.
    updates = [
        (+kind(0x0806, 1), {"softswitch": "PERMISSION_DENIED", "bmv2": "UNKNOWN"}),
        (~kind(0x0800, 1), {"softswitch": "PERMISSION_DENIED", "bmv2": "NOT_FOUND"}),
        (-kind(0x0800, None), {"softswitch": "PERMISSION_DENIED", "bmv2": "NOT_FOUND"}),
    ]

    async def work() -> None:
        async with connected(address, sample()) as switch:
            for update, code in updates:
                with pytest.raises(finsy.P4ClientError) as caught:
                    await switch.write([update])
                (error,) = caught.value.details.values()
                assert error.canonical_code.name == code[target]
            assert await kinds(switch) == KINDS

    run(work)


def test_deleting_everything_leaves_them(address: str) -> None:
    async def work() -> None:
        async with connected(address, sample()) as switch:
            dmac = finsy.P4TableEntry("dmac", match=finsy.Match(dst=1), action=finsy.Action("forward", port=1))
            await switch.insert([dmac])
            await switch.delete_all()
            assert await read(switch, finsy.P4TableEntry("dmac")) == []
            assert await kinds(switch) == KINDS

    run(work)


def test_a_default_action_is_changed_and_reset(address: str) -> None:
    async def work() -> None:
        async with connected(address, sample()) as switch:
            asked = finsy.P4TableEntry("dmac", is_default_action=True)

            async def action() -> finsy.Action:
                (found,) = await read(switch, asked)
                assert found.is_default_action
                return found.action

            assert await action() == finsy.Action("drop")
            changed = finsy.P4TableEntry("dmac", action=finsy.Action("forward", port=300), is_default_action=True)
            await switch.modify([changed])
            assert await action() == finsy.Action("forward", port=300)
            await switch.modify([asked])
            assert await action() == finsy.Action("drop")
            for update in (+changed, -asked):
                with pytest.raises(finsy.P4ClientError) as caught:
                    await switch.write([update])
                (error,) = caught.value.details.values()
                assert error.canonical_code.name == "INVALID_ARGUMENT"

    run(work)
