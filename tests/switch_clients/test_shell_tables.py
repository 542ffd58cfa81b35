"""p4runtime-shell writes and reads every table and group of our program."""

from __future__ import annotations

import pytest

from p4src.names import Action, Table
from tests.switch_clients.entries import EXAMPLES, GROUP, GROUPS, SAMPLE, Example
from tests.switch_clients.shell_tools import Shell, ShellError, needs_shell

pytestmark = needs_shell


def plain(example: Example, *, changed: bool = False) -> dict[str, object]:
    return {
        "table": example.table,
        "match": example.match,
        "action": example.action,
        "params": example.changed if changed else example.params,
    }


def in_order(entries: list[dict[str, object]]) -> list[str]:
    return sorted(map(repr, entries))


def refusals(error: ShellError) -> list[str]:
    return [code for _, code, _ in error.error]


def everything(shell: Shell) -> list[str]:
    return in_order([entry for table in Table for entry in shell("read", table)])


def test_every_table_is_written_modified_and_deleted(address: str) -> None:
    with Shell(address) as shell:
        assert shell("tables") == sorted(Table)
        assert everything(shell) == []
        for example in EXAMPLES:
            shell("insert", example.plain())
        assert everything(shell) == in_order([plain(example) for example in EXAMPLES])
        for example in EXAMPLES:
            assert shell("read", example.table, example.match) == [plain(example)]
            shell("modify", example.plain())
        assert everything(shell) == in_order([plain(example, changed=True) for example in EXAMPLES])
        for example in EXAMPLES:
            shell("delete", example.plain())
        assert everything(shell) == []


def test_multicast_groups(address: str) -> None:
    with Shell(address) as shell:
        for number, replicas in GROUPS.items():
            shell("group", "insert", number, replicas)
        expected = {str(number): sorted(map(list, replicas)) for number, replicas in GROUPS.items()}
        assert shell("groups") == expected
        assert shell("groups", GROUP) == {str(GROUP): expected[str(GROUP)]}
        shell("group", "modify", GROUP, [[3, 1], [3, 2]])
        assert shell("groups", GROUP) == {str(GROUP): [[3, 1], [3, 2]]}
        for number in GROUPS:
            shell("group", "delete", number)
        assert shell("groups") == {}


def test_the_digest_is_configured(address: str, target: str) -> None:
    name = "flow_start_t"
    with Shell(address) as shell:
        shell("digest", "insert", name, {"max_list_size": 4, "max_timeout_ns": 5_000_000, "ack_timeout_ns": 7})
        assert shell("digest_config", name) == [[5_000_000, 4, 7]]
        shell("digest", "modify", name, {"max_list_size": 1})
        assert shell("digest_config", name) == [[0, 1, 0]]
        shell("digest", "delete", name, {})
        with pytest.raises(ShellError) as caught:
            shell("digest_config", name)
        assert caught.value.error == {"softswitch": "UNKNOWN", "bmv2": "NOT_FOUND"}[target]


def test_default_actions(address: str) -> None:
    with Shell(address) as shell:
        (entry,) = shell("default", Table.L2_FORWARD)
        assert (entry["action"], entry["match"]) == (Action.DROP_UNKNOWN, {})
        with pytest.raises(ShellError) as caught:
            shell("set_default", Table.L2_FORWARD, Action.DROP_UNKNOWN, {})
        assert refusals(caught.value) == ["PERMISSION_DENIED"]


def test_constant_entries_and_a_default_action_that_can_be_changed(address: str, target: str) -> None:
    program = (str(SAMPLE / "p4rt_sample.p4info.txtpb"), str(SAMPLE / "p4rt_sample.json"))
    kind, dmac = "SampleIngress.kind", "SampleIngress.dmac"
    with Shell(address, config=program) as shell:
        constants = [
            {"table": kind, "match": {"type": 0x0800}, "action": "SampleIngress.set_kind", "params": {"kind": 4}},
            {"table": kind, "match": {"type": 0x86DD}, "action": "SampleIngress.set_kind", "params": {"kind": 6}},
        ]
        assert in_order(shell("read", kind)) == in_order(constants)
        for command in ("insert", "modify", "delete"):
            with pytest.raises(ShellError) as caught:
                shell(command, {**constants[0], "changed": {"kind": 9}})
            bmv2 = "UNKNOWN" if command == "insert" else "NOT_FOUND"
            assert refusals(caught.value) == [bmv2 if target == "bmv2" else "PERMISSION_DENIED"], command
        assert in_order(shell("read", kind)) == in_order(constants)
        shell("set_default", dmac, "SampleIngress.forward", {"port": 300})
        (entry,) = shell("default", dmac)
        assert (entry["action"], entry["params"]) == ("SampleIngress.forward", {"port": 300})
        shell("set_default", dmac)
        assert shell("default", dmac)[0]["action"] == "SampleIngress.drop"


def test_padded_byte_strings_are_taken_and_given_back_canonical(address: str) -> None:
    with Shell(address) as shell:
        shell("padded")
        for example in EXAMPLES:
            shell("insert", example.plain())
        values = [value for table in Table for value in shell("values", table)]
        assert [value for value in values if value.startswith("00") and value != "00"] == []
        assert len(values) == sum(len(example.match) + len(example.params) for example in EXAMPLES)
        with pytest.raises(ShellError) as caught:
            shell("insert", EXAMPLES[3].plain())
        assert refusals(caught.value) == ["ALREADY_EXISTS"]
