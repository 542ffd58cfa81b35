"""The running controller: a thread for each switch that does what `ControllerCore` decides, over P4Runtime."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from controlplane.controller import Connect, ControllerCore, ControllerEvent, EventKind, Idle, Install, Mirror, Task
from controlplane.describe import Names
from controlplane.errors import ControlPlaneError, ErrorKind
from controlplane.journal_file import write_journal
from controlplane.session import check_address
from controlplane.target import DEFAULT_ELECTION_ID, Target
from jobspec.tls import ClientTls, open_channel
from jobspec.tls.probe import Answer, probe

OnEvent = Callable[[ControllerEvent], None]

_SLICE_S = 0.2
"""Longest wait that does not look whether the controller shall end."""
_RETRY_S = 0.5
"""Pause before a switch that answers, but refuses, is tried again."""
_BACKOFF_MS = 50
"""Longest pause between two attempts to connect: training waits while its switch is without a program."""
_WAIT_OPTIONS: list[tuple[str, int]] = [
    ("grpc.initial_reconnect_backoff_ms", _BACKOFF_MS),
    ("grpc.min_reconnect_backoff_ms", _BACKOFF_MS),
    ("grpc.max_reconnect_backoff_ms", _BACKOFF_MS),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
]


class ControllerDriver:
    """Runs a controller in the background; use it as a context manager.

    Args:
        core: what decides; the driver owns it from now on.
        device_id: P4Runtime device id of the switches.
        election_id: bid for the right to write.
        names: names of hosts and flows for error messages.
        journal: file to keep the connections in; None for none.
        tls: own credentials, None for plain text.
        on_event: called for every event, one at a time, from any of the driver's threads; must not block for long.

    Raises:
        ControlPlaneError: a switch's name is not of the form HOST:PORT.
    """

    def __init__(
        self,
        core: ControllerCore,
        device_id: int,
        *,
        election_id: int = DEFAULT_ELECTION_ID,
        names: Names | None = None,
        journal: Path | None = None,
        tls: ClientTls | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        """Prepare; entering the context begins."""
        for switch in core.switches:
            check_address(switch)
        self._core = core
        self._device_id = device_id
        self._election_id = election_id
        self._names = names
        self._journal = journal
        self._tls = tls
        self._on_event = on_event
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(switch,), name=f"controller-{switch}", daemon=True)
            for switch in core.switches
        ]

    def __enter__(self) -> Self:
        """Start."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give up the switches; they keep what they hold."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def wait(self, holds: Callable[[ControllerCore], bool], timeout_s: float) -> bool:
        """Wait until `holds(core)`, looked at after every change; return False when it does not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(self._core), timeout_s)

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until every switch holds everything; return False when one does not in time."""
        return self.wait(lambda core: all(core.is_ready(switch) for switch in core.switches), timeout_s)

    # --- one thread a switch

    def _run(self, switch: str) -> None:
        link = None
        while not self._stopping.is_set():
            task = self._next_task(switch)
            try:
                if isinstance(task, Connect):
                    if link is not None:
                        link.close()
                        link = None
                    link = self._connect(switch)
                elif link is not None:
                    self._do(switch, task, link.target)
            except ControlPlaneError as error:
                self._lost(switch, error)
                if error.kind is not ErrorKind.UNREACHABLE:
                    self._stopping.wait(_RETRY_S)
        if link is not None:
            link.close()

    def _next_task(self, switch: str) -> Task:
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopping.is_set() or not isinstance(self._core.next_task(switch), Idle)
            )
            return self._core.next_task(switch)

    def _connect(self, switch: str) -> _Link | None:
        """Return a connection as primary, None when the controller ends before there is one."""
        try:
            target = Target.connect(switch, self._device_id, election_id=self._election_id, tls=self._tls)
        except ControlPlaneError as error:
            if error.kind is not ErrorKind.UNREACHABLE:
                raise
            self._lost(switch, error)
            self._await_answer(switch)
            return None
        self._tell(lambda now: self._core.connected(switch, now))
        return _Link(self, switch, target)

    def _await_answer(self, switch: str) -> None:
        """Wait until something listens at the address of a switch."""
        with closing(open_channel(switch, self._tls, _WAIT_OPTIONS)) as channel:
            ready = grpc.channel_ready_future(channel)
            while not self._stopping.is_set():
                try:
                    ready.result(timeout=_SLICE_S)
                    return
                except grpc.FutureTimeoutError:
                    if probe(switch, self._tls, _SLICE_S).answer is Answer.REFUSED:
                        break  # the next attempt to connect tells why
            ready.cancel()

    def _do(self, switch: str, task: Task, target: Target) -> None:
        if isinstance(task, Install):
            done = target.install(task.state, self._names)
            updates = len(done.plan.updates)
            flow_base, before = task.flow_base, done.pipeline
            self._tell(lambda now: self._core.installed(switch, flow_base, before, updates, now))
        elif isinstance(task, Mirror):
            mirrored = task.flow_base
            target.restore_flow_base(mirrored, self._names)
            self._tell(lambda now: self._core.mirrored(switch, mirrored, now))

    def _lost(self, switch: str, error: ControlPlaneError) -> None:
        refused = "".join(f"; {refusal}" for refusal in error.refusals[:3])
        self._tell(lambda now: self._core.lost(switch, f"{error.reason}{refused}", now))

    def listen(self, switch: str, target: Target, closing_down: threading.Event) -> None:
        """Take the connections that a switch reports until its stream ends, or another controller takes it over."""
        starts = target.flow_starts()
        while not closing_down.is_set():
            try:
                found = starts.wait(_SLICE_S)
                if found:
                    self._tell(lambda now, found=found: self._core.flow_starts(switch, found, now))  # type: ignore[misc]
                if not target.is_primary:
                    raise ControlPlaneError(ErrorKind.NOT_PRIMARY, switch, "another controller has taken it over")
            except ControlPlaneError as error:
                if not closing_down.is_set():
                    self._lost(switch, error)
                return

    def _tell(self, note: Callable[[float], object]) -> None:
        """Let the core note something, keep its journal, pass on its events, wake who waits."""
        with self._changed:
            now = time.monotonic()
            changed = note(now)
            events = self._core.take_events()
            if changed is True and self._journal is not None:
                try:
                    write_journal(self._journal, self._core.journal.starts())
                except OSError as error:
                    message = f"journal {self._journal} cannot be written: {error.strerror}; a restart will not know it"
                    events.append(ControllerEvent(EventKind.TROUBLE, events[0].switch, now, message))
            if self._on_event is not None:
                for event in events:
                    self._on_event(event)
            self._changed.notify_all()


class _Link:
    """A connection to a switch and the thread that listens on it."""

    def __init__(self, driver: ControllerDriver, switch: str, target: Target) -> None:
        self.target = target
        self._closing = threading.Event()
        arguments = (switch, target, self._closing)
        self._listener = threading.Thread(target=driver.listen, args=arguments, name=f"listen-{switch}", daemon=True)
        self._listener.start()

    def close(self) -> None:
        self._closing.set()
        self._listener.join()
        self.target.close()
