"""A shadow node put together: on a real network, in Mininet and in simulations alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from checkmate_common.files.rotating_file import LogLimits
from checkmate_common.tls import Credentials
from shadow_rx.core import ShadowCore
from shadow_rx.logs.access_log import AccessLog
from shadow_rx.logs.event_log import EventLog, read_losses
from shadow_rx.logs.message_log import MessageLog
from shadow_rx.node import Clock, Observer, ShadowNode
from shadow_rx.peers.connections import Peer
from shadow_rx.peers.resume import Resumed, resume_from_peers
from shadow_rx.publish.publisher import DirectPublisher, Publisher
from shadow_rx.serve.guard import Admission
from shadow_rx.serve.metrics import MetricsServer
from shadow_rx.serve.service import ShadowServer
from shadow_rx.status.group_status import Gap
from shadow_rx.status.health import Part
from shadow_rx.store.writer import RecoveryStore

MakePublisher = Callable[[RecoveryStore], Publisher]
"""Makes what takes the recovery points to a store."""
Losses = Iterable[tuple[int, Gap]]
"""What a group has lost, as (epoch, gap), in order."""


def start_node(
    core: ShadowCore,
    clock: Clock,
    store: RecoveryStore | None = None,
    make_publisher: MakePublisher = DirectPublisher,
    *,
    losses: Callable[[str], Losses] | None = None,
    observe: Observer | None = None,
    messages: MessageLog | None = None,
) -> ShadowNode:
    """Return a node that drives `core`.

    Args:
        core: the core, new.
        clock: time that it is driven with.
        store: where recovery points are stored; None: they stay in memory.
        make_publisher: makes what takes them there.
        losses: where the node is started again: what each group had lost before, beside what the store has of it.
        observe: told of every event (`ShadowNode`).
        messages: keeps what is told (`ShadowNode`).

    Raises:
        StoreError: the store cannot be used.
        OSError: the storage failed.
    """
    if store is not None and losses is not None:
        for group in core.groups:
            core.group(group).resume(store.points(group), losses(group))
    return ShadowNode(core, clock, make_publisher(store) if store is not None else None, observe, messages)


@dataclass(frozen=True)
class LogFiles:
    """The logs of a shadow node; None: there is no such log."""

    events: Path | None = None
    """What happens to steps."""
    messages: Path | None = None
    """What the ranks tell."""
    accesses: Path | None = None
    """Calls of the side channel, and scrapes."""
    limits: LogLimits = field(default_factory=LogLimits)
    """When a new file is begun."""


class ShadowAssembly:
    """A shadow node with its logs and servers, which end with it."""

    def __init__(
        self,
        core: ShadowCore,
        clock: Clock,
        files: LogFiles,
        store: RecoveryStore | None = None,
        make_publisher: MakePublisher = DirectPublisher,
        *,
        wall: Clock | None = None,
        resume: bool = False,
        tls: Credentials | None = None,
        any_client: bool = False,
    ) -> None:
        """Start the node; nothing is served yet.

        Args:
            core: the core, new.
            clock: time that it is driven with.
            files: its logs.
            store: where recovery points are stored; None: they stay in memory.
            make_publisher: makes what takes them there.
            wall: seconds since 1970, for the events.
            resume: whether the node is started again, and goes on with what its store and its events have.
            tls: own credentials (`Admission`).
            any_client: whom they let in (`Admission`).

        Raises:
            StoreError: the store cannot be used.
            OSError: the storage failed, or a log cannot be written.
        """
        self._store = store
        self.logs: list[Callable[[], Part]] = []
        """How the logs are."""

        def losses(group: str) -> Losses:
            return read_losses(files.events, group) if files.events is not None else []

        with ExitStack() as stack:
            events = messages = None
            if files.events is not None:
                events = EventLog(files.events, clock, wall, files.limits)
                stack.callback(events.close)
                self.logs.append(events.part)
            if files.messages is not None:
                messages = MessageLog(files.messages, files.limits)
                stack.callback(messages.close)
                self.logs.append(messages.part)
            self.node = start_node(
                core, clock, store, make_publisher, losses=losses if resume else None, observe=events, messages=messages
            )
            """The node."""
            for part in self.logs:
                self.node.add_part(part)
            access_log = None
            if files.accesses is not None:
                access_log = AccessLog(files.accesses, limits=files.limits)
                stack.callback(access_log.close)
                self.node.add_part(access_log.part)
            self._admission = Admission(tls, any_client, access_log)
            self._logs = stack.pop_all()
        self._servers = ExitStack()

    def take_newer_points(self, peers: Mapping[str, Peer]) -> list[Resumed]:
        """Take what other shadow nodes have that is newer than the own storage; before any rank is here."""
        return resume_from_peers(self.node, peers)

    def serve(self, address: str) -> str:
        """Serve the side channel (`ShadowServer`); return the address that it is reached at.

        Raises:
            ShadowError: the address cannot be listened on.
        """
        server = ShadowServer(self.node, address, self._admission)
        self._servers.callback(server.stop)
        return server.address

    def serve_metrics(self, address: str) -> str:
        """Serve metrics (`MetricsServer`); return the address that they are reached at.

        Raises:
            ShadowError: the address cannot be listened on.
        """
        server = MetricsServer(self.node, address, self._admission)
        self._servers.callback(server.stop)
        self.node.add_part(server.part)
        return server.address

    def close(self) -> None:
        """Stop serving, store what waits, and close the logs."""
        with self._logs, self._servers:
            self._servers.close()
            self.node.close()

    def kill(self) -> None:
        """End as SIGKILL does: nothing that waits for storage is written, and the lock of the store is free."""
        with self._logs, self._servers:
            if self._store is not None:
                self._store.close()
