"""A switch under test: install a state through the control plane, send frames, see everything that they cause.

After each frame a *mark* goes into the same port: a tagged SYN of a flow of its own, whose group sends it to every port
as it is. Frames from one port to another keep their order, and so do digests. So when the mark has come out of all
ports and its digest has arrived, nothing more is to come of the frame, and nobody has to wait for something that does
not happen.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from controlplane.dialect import counter_request
from controlplane.digests import FlowStart
from controlplane.entities import DigestConfig, Entity, MulticastGroup, Replica, SwitchState, TableEntry
from controlplane.pipeline import Pipeline
from controlplane.session import Session
from controlplane.snapshot import Count, Counters
from controlplane.target import Installation, Target
from p4src.constants import NotReplicated
from p4src.names import Action, Counter, Digest, MatchField, Param, Table
from tests.switch_contract.targets import DEVICE_ID, start
from tests.switch_contract.wire import Cables

PORTS = range(1, 8)
"""Ports of the switch; the last one is never a shadow's."""

EVERY_DIGEST = DigestConfig(str(Digest.FLOW_START_T), max_list_size=1, max_timeout_ns=0, ack_timeout_ns=0)
"""Each digest in a list of its own, at once, and equal ones again."""

_WAIT_S = 5.0
_MARK_FLOW = 1023
_MARK_GROUP = 0x7FFD
_MARK_MAC = 0x024D_0000_0001
_MARK_SOURCE, _MARK_TARGET = 0xC612_0001, 0xC612_0002  # 198.18.0.0/15 is for tests of network devices, RFC 2544
_MARK_PORT = 9
_MARK_DSCP = 0x2F


@dataclass(frozen=True)
class Outcome:
    """What a frame caused."""

    packets: dict[int, list[bytes]]
    """Port -> the frames that left it; ports that nothing left are not in it."""
    digests: list[FlowStart]
    """Digests in their order."""


class Rig:
    """A switch under test.

    Attributes:
        name: of the target.
        session, target: its control plane, as primary.
        cables: its ports.
        sent: frames sent since `install`, marks not counted.
        sent_bytes: their bytes.
    """

    def __init__(self, name: str, session: Session, cables: Cables) -> None:
        pipeline = Pipeline.committed()
        self.name = name
        self.session = session
        self.target = Target(session, pipeline)
        self.sent = self.sent_bytes = 0
        self.cables = cables
        self._pipeline = pipeline
        self._marks = 0
        self._marks_since = 0
        self._shadow_ports: frozenset[int] = frozenset()
        self._digests = self.target.flow_starts()

    def install(self, state: SwitchState) -> Installation:
        """Make the switch new (registers and counters too) and let it hold `state`, and what marks need."""
        if self.session.get_config() is not None:
            # BMv2 keeps multicast groups when a program is pushed, and forgets that it has them (docs/bmv2-quirks.md).
            self.target.install(SwitchState())
        self.session.set_config(self._pipeline.config())
        installation = self.change(state)
        self._marks_since = 0
        self._mark(PORTS[-1])  # what a failed test left in the cables comes with it
        self.sent = self.sent_bytes = 0
        return installation

    def change(self, state: SwitchState) -> Installation:
        """Let the switch hold `state` from now on; what it remembers stays."""
        entities = [entity for entity in state.entities if not isinstance(entity, DigestConfig)]
        installation = self.target.install(SwitchState.of([*entities, *_MARK_ENTITIES]))
        self._shadow_ports = frozenset(
            entry.field(MatchField.INGRESS_PORT) for entry in state.table(Table.SHADOW_PORTS)
        )
        return installation

    def send(self, port: int, frame: bytes) -> Outcome:
        """Send a frame into `port` and return all that it caused."""
        self.sent += 1
        self.sent_bytes += len(frame)
        if port in self._shadow_ports:
            # No mark gets through here. The counter tells when the frame has been looked at.
            before = self._reason(NotReplicated.FROM_SHADOW)
            self.cables.send(port, frame)
            self._wait_for_reason(NotReplicated.FROM_SHADOW, before + 1)
            port = PORTS[-1]
        else:
            self.cables.send(port, frame)
        return self._mark(port)

    def carries(self, frame: bytes) -> bool:
        """Return whether the cables bring `frame` to the switch."""
        return self.cables.carries(frame)

    def counters(self) -> Counters:
        """Return the counters, marks not counted."""
        _, counters = self.target.read_counters()
        own = {entity.key for entity in _MARK_ENTITIES}
        reasons = dict(counters.not_replicated)
        none = reasons[NotReplicated.NONE]
        marks = Count(self._marks_since, self._marks_since * _MARK_BYTES)
        reasons[NotReplicated.NONE] = Count(none.packets - marks.packets, none.bytes - marks.bytes)
        return Counters({key: count for key, count in counters.entries.items() if key not in own}, reasons)

    def reasons(self) -> dict[NotReplicated, int]:
        """Return how many packets were not replicated for which reason; reasons of none are left out."""
        found = self.counters().not_replicated
        return {reason: count.packets for reason, count in found.items() if count.packets}

    def _mark(self, port: int) -> Outcome:
        """Send a mark into `port`; return what came before it."""
        self._marks += 1
        self._marks_since += 1
        mark = _MARK_HEAD + self._marks.to_bytes(4, "big") + _MARK_TAIL
        self.cables.send(port, mark)
        packets = {port: self._until(port, mark) for port in PORTS}
        return Outcome({port: frames for port, frames in packets.items() if frames}, self._digests_until(self._marks))

    def _until(self, port: int, mark: bytes) -> list[bytes]:
        found: list[bytes] = []
        while True:
            try:
                frame = self.cables.receive(port)
            except LookupError as error:
                raise AssertionError(f"{self.name}: the mark behind the frame is lost: {error}; {found=}") from error
            if frame == mark:
                return found
            found.append(frame)

    def _digests_until(self, number: int) -> list[FlowStart]:
        found: list[FlowStart] = []
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            for message in self._digests.wait(_WAIT_S):
                if message.flow_id == _MARK_FLOW:
                    if message.isn == number:
                        return found
                else:
                    found.append(message)
        raise AssertionError(f"{self.name}: the digest of mark {number} is lost; {found=}")

    def _reason(self, reason: NotReplicated) -> int:
        schema = self._pipeline.schema
        [entity] = [
            entity
            for entity in self.session.read(counter_request(schema, Counter.NOT_REPLICATED))
            if entity.counter_entry.index.index == reason
        ]
        return int(entity.counter_entry.data.packet_count)

    def _wait_for_reason(self, reason: NotReplicated, count: int) -> None:
        end = time.monotonic() + _WAIT_S
        pause = threading.Event()
        while (found := self._reason(reason)) < count:
            assert time.monotonic() < end, f"{self.name}: {reason.name} counts {found}, not {count}"
            pause.wait(0.001)


@contextmanager
def run(name: str, folder: Path) -> Iterator[Rig]:
    """Start a target and connect to it; `folder` is for its files."""
    with start(name, PORTS, folder) as running:
        session = Session(running.address, DEVICE_ID)
        try:
            session.become_primary(1)
            yield Rig(name, session, running.cables)
        finally:
            session.close()


def _mark_head() -> bytes:
    """Return the mark's bytes in front of its sequence number."""
    ethernet = _MARK_MAC.to_bytes(6, "big") + bytes.fromhex("024d00000002 0800")
    ip_head = struct.pack("!BBHHHBBH", 0x45, _MARK_DSCP << 2, 40, 0, 0, 64, 6, 0)
    addresses = struct.pack("!II", _MARK_SOURCE, _MARK_TARGET)
    return ethernet + ip_head + addresses + struct.pack("!HH", _MARK_PORT, _MARK_PORT)


_MARK_HEAD = _mark_head()
# No acknowledgement number, header of 20 bytes, SYN; the switch looks at no checksum.
_MARK_TAIL = struct.pack("!IBBHHH", 0, 5 << 4, 0x02, 0xFFFF, 0, 0)
_MARK_BYTES = len(_MARK_HEAD) + 4 + len(_MARK_TAIL)
_MARK_ENTITIES: Sequence[Entity] = (
    EVERY_DIGEST,
    TableEntry.make(Table.L2_FORWARD, {MatchField.DST_ADDR: _MARK_MAC}, Action.SET_PORT, {Param.PORT: PORTS[-1]}),
    TableEntry.make(
        Table.REPLICATE,
        {
            MatchField.SRC_ADDR: _MARK_SOURCE,
            MatchField.DST_ADDR: _MARK_TARGET,
            MatchField.DST_PORT: _MARK_PORT,
            MatchField.DSCP: _MARK_DSCP,
        },
        Action.REPLICATE_FLOW,
        {Param.FLOW_ID: _MARK_FLOW, Param.GROUP: _MARK_GROUP},
    ),
    MulticastGroup(_MARK_GROUP, frozenset(Replica(port, 0) for port in PORTS)),
)
