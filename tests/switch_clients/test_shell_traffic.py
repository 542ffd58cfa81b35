"""p4runtime-shell sees what packets do to a switch: digests and counters."""

from __future__ import annotations

import pytest

from p4src.constants import NotReplicated
from p4src.names import Table
from tests.switch_clients.entries import B_PORT, EXAMPLES, FLOW, GROUPS, SHADOW_PORT
from tests.switch_clients.frames import DATA, FLOW_START, LATE, SYN, UNTAGGED
from tests.switch_clients.rig import Network
from tests.switch_clients.shell_tools import Shell, needs_shell

pytestmark = [pytest.mark.netns, needs_shell]
REPLICATE = next(example.plain() for example in EXAMPLES if example.params.get("flow_id") == FLOW)
SHADOW = next(example.plain() for example in EXAMPLES if example.table == Table.SHADOW)
COUNTERS = {
    "CheckmateIngress.forward.replicate.replicate_tcp.replicate_counter": REPLICATE,
    "CheckmateEgress.rewrite.shadow_counter": SHADOW,
}


def fill(shell: Shell) -> None:
    for number, replicas in GROUPS.items():
        shell("group", "insert", number, replicas)
    for example in EXAMPLES:
        shell("insert", example.plain())


def send(network: Network, frame: bytes, *, replicated: bool) -> None:
    """Send a frame from host 1 and wait until the switch has finished with it."""
    network.hosts[1].send(frame)
    if replicated:
        assert network.hosts[SHADOW_PORT].receive() is not None
    assert network.hosts[B_PORT].receive() == frame


def test_a_flow_start_arrives_as_a_digest(network: Network) -> None:
    with Shell(network.address) as shell:
        fill(shell)
        shell("digest", "insert", "flow_start_t", {"max_list_size": 1, "ack_timeout_ns": 10**9})
        shell("listen")
        for _ in range(2):  # the second only comes if the first was acknowledged
            send(network, SYN, replicated=True)
            assert shell("digests", 10) == [list(FLOW_START.values())]


def test_direct_counters_are_read_and_reset(network: Network) -> None:
    with Shell(network.address) as shell:

        def counts() -> list[list[int]]:
            """Of the flow and of the shadow node, read in each of the ways that there are."""
            with_entry = [shell("read", one["table"], one["match"], True)[0]["counter"] for one in (REPLICATE, SHADOW)]
            of_entry = [shell("direct_counters", name, one)[0] for name, one in COUNTERS.items()]
            of_table = [max(shell("direct_counters", name)) for name in COUNTERS]
            assert with_entry == of_entry == of_table
            return with_entry

        fill(shell)
        assert counts() == [[0, 0], [0, 0]]
        send(network, SYN, replicated=True)
        send(network, DATA, replicated=True)
        size = len(SYN) + len(DATA)
        assert counts() == [[2, size], [2, size]]
        shell("reset_direct_counter", next(iter(COUNTERS)), REPLICATE)
        assert counts() == [[0, 0], [2, size]]


def test_reasons_not_to_replicate_are_counted(network: Network) -> None:
    with Shell(network.address) as shell:
        fill(shell)
        assert shell("counters", "not_replicated") == [[int(reason), 0, 0] for reason in NotReplicated]
        for frame, replicated in ((SYN, True), (UNTAGGED, False), (UNTAGGED, False), (LATE, False)):
            send(network, frame, replicated=replicated)
        counted = {index: (packets, size) for index, packets, size in shell("counters", "not_replicated") if packets}
        assert counted == {
            NotReplicated.UNTAGGED: (2, 2 * len(UNTAGGED)),
            NotReplicated.LATE_CONNECTION: (1, len(LATE)),
            NotReplicated.NONE: (1, len(SYN)),
        }
        untagged = int(NotReplicated.UNTAGGED)
        shell("reset_counter", "not_replicated", untagged)
        assert shell("counters", "not_replicated", untagged) == [[untagged, 0, 0]]
