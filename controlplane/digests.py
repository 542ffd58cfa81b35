"""New connections as reported by a switch, and a journal of them that outlives it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import cast

from finsy import P4Schema
from finsy.proto import p4r

from controlplane.dialect import failure_of
from controlplane.entities import TableEntry
from controlplane.errors import ControlPlaneError, ErrorKind
from controlplane.stream import P4Stream, StreamEnded
from p4src.names import Action, Digest, MatchField, Param, Table


@dataclass(frozen=True)
class FlowStart:
    """A tagged SYN: connection `src` -> `dst` of flow `flow_id` begins at sequence number `isn`."""

    flow_id: int
    """The flow."""
    isn: int
    """Initial sequence number of the sending rank, 0..2^32-1."""
    src_addr: IPv4Address
    """Address of the sending rank."""
    dst_addr: IPv4Address
    """Address of its successor."""
    src_port: int
    """TCP port of the sender: a different port means a different connection."""
    dst_port: int
    """TCP port of the successor."""


class FlowStarts:
    """Flow-start digests of one switch, in order of arrival.

    Args:
        stream: stream of the primary controller.
        schema: P4Info of the program that the switch runs.
        target: HOST:PORT, for errors.
    """

    def __init__(self, stream: P4Stream, schema: P4Schema, target: str) -> None:
        """Listen on `stream`."""
        self._stream = stream
        self._target = target
        digest = schema.digests[Digest.FLOW_START_T]
        self._digest_id = digest.id
        self._decode = digest.type_spec.decode_data

    def wait(self, timeout_s: float) -> tuple[FlowStart, ...]:
        """Return the new connections since the last call, waiting for one; () after `timeout_s`.

        Their lists are acknowledged, so that the switch reports a later SYN of the same connection again.

        Raises:
            ControlPlaneError: the stream has ended (STREAM_ENDED); no more digests will arrive.
        """
        starts: list[FlowStart] = []
        try:
            lists = self._stream.next_lists(timeout_s)
        except StreamEnded as ended:
            words = failure_of(ended.cause).message if ended.cause is not None else "closed by the switch"
            raise ControlPlaneError(
                ErrorKind.STREAM_ENDED,
                self._target,
                f"the switch closed the stream: {words}",
                hint="connect again",
            ) from ended
        for message in lists:
            if message.digest_id == self._digest_id:
                starts += self._starts(message)
            self._stream.acknowledge(message)
        return tuple(starts)

    def _starts(self, message: p4r.DigestList) -> Iterable[FlowStart]:
        for data in message.data:
            value = cast("dict[str, int]", self._decode(data))
            yield FlowStart(
                value["flow_id"],
                value["isn"],
                IPv4Address(value["src_addr"]),
                IPv4Address(value["dst_addr"]),
                value["src_port"],
                value["dst_port"],
            )


class ConnectionJournal:
    """The newest connection of each flow, needed by a switch whose registers are lost.

    A switch's registers are lost with it, and P4Runtime cannot write them on every switch; `flow_base` entries give a
    restarted or standby switch the same information.
    """

    def __init__(self, starts: Iterable[FlowStart] = ()) -> None:
        """Start with `starts`, oldest first."""
        self._newest: dict[int, FlowStart] = {}
        for start in starts:
            self.record(start)

    def record(self, start: FlowStart) -> bool:
        """Record a new connection; return whether it was unknown (a repeated SYN is not)."""
        known = self._newest.get(start.flow_id)
        self._newest[start.flow_id] = start
        return known != start

    def forget(self, flow_ids: Iterable[int]) -> None:
        """Forget flows; unknown ones are ignored."""
        for flow_id in flow_ids:
            self._newest.pop(flow_id, None)

    def newest(self, flow_id: int) -> FlowStart | None:
        """Return the newest connection of a flow, None if there is none."""
        return self._newest.get(flow_id)

    def starts(self) -> tuple[FlowStart, ...]:
        """Return the newest connection of each flow, by flow."""
        return tuple(start for _, start in sorted(self._newest.items()))

    def __len__(self) -> int:
        """Return the number of flows with a connection."""
        return len(self._newest)

    def flow_base_entries(self) -> tuple[TableEntry, ...]:
        """Return the `flow_base` entries of all known connections, by flow."""
        return tuple(flow_base_entry(start) for start in self.starts())


def flow_base_entry(start: FlowStart) -> TableEntry:
    """Return the entry for `start`; its source port keeps other connections from matching."""
    match = {MatchField.FLOW_ID: start.flow_id, MatchField.SRC_PORT: start.src_port}
    return TableEntry.make(Table.FLOW_BASE, match, Action.SET_ISN, {Param.ISN: start.isn})
