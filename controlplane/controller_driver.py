"""The running controller: a thread per switch that performs the tasks of `ControllerCore` over P4Runtime."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from checkmate_common.tls import ClientTls
from checkmate_common.tls.probe import Answer, probe
from controlplane.controller import Connect, ControllerCore, ControllerEvent, EventKind, Idle, Install, Mirror, Task
from controlplane.describe import Names
from controlplane.errors import ControlPlaneError, ErrorKind
from controlplane.journal_file import write_journal
from controlplane.session import check_address
from controlplane.target import DEFAULT_ELECTION_ID, Target

OnEvent = Callable[[ControllerEvent], None]

_LOG = logging.getLogger(__name__)

_SLICE_S = 0.2
"""Longest wait, in seconds, without checking whether the controller must stop."""
_RETRY_S = 0.5
"""Pause, in seconds, before a switch that answers but refuses is retried."""
_PROBE_S = 2.0
"""Time, in seconds, that a switch has to answer a probe."""
_PAUSE_S = 0.05
"""Pause, in seconds, between two probes: short, because training waits while its switch has no program."""


class ControllerDriver:
    """Runs a controller in the background; use it as a context manager.

    Errors of `on_event` are logged and do not stop the controller. Any other error of a thread does: `check`, `wait`
    and leaving the context raise it.

    Args:
        core: makes the decisions; owned by the driver from now on.
        device_id: P4Runtime device id of the switches.
        election_id: election id to arbitrate with.
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
        """Prepare; entering the context starts the threads."""
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
        self._failure: ControlPlaneError | None = None
        self._threads = [
            threading.Thread(
                target=self._run_thread, args=(switch, self._run, switch), name=f"controller-{switch}", daemon=True
            )
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
        """Disconnect from the switches; they keep their state.

        Raises:
            ControlPlaneError: the controller has failed, and no other error is being raised.
        """
        self._stop()
        for thread in self._threads:
            thread.join()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise the error of a failed thread, if any.

        Raises:
            ControlPlaneError: a thread has failed (INTERNAL); no switch is controlled any more.
        """
        if self._failure is not None:
            raise self._failure

    def wait(self, holds: Callable[[ControllerCore], bool], timeout_s: float) -> bool:
        """Wait until `holds(core)`, evaluated after every change; return False after `timeout_s`.

        Raises:
            ControlPlaneError: as `check`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or holds(self._core), timeout_s)
            self.check()
            return holds(self._core)

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until every switch has its complete state; return False after `timeout_s`.

        Raises:
            ControlPlaneError: as `check`.
        """
        return self.wait(lambda core: all(core.is_ready(switch) for switch in core.switches), timeout_s)

    # --- one thread per switch, and one per connection

    def _stop(self) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()

    def _run_thread(self, switch: str, work: Callable[..., None], *arguments: object) -> None:
        """Run the body of a thread; an unexpected error stops the controller and is raised by `check` and `wait`."""
        try:
            work(*arguments)
        except Exception as error:
            _LOG.exception("the controller failed")
            message = f"the controller failed: {type(error).__name__}: {error}"
            self._failure = self._failure or ControlPlaneError(
                ErrorKind.INTERNAL, switch, message, hint="restart it; the switches keep their state"
            )
            self._stop()

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
                    self._perform(switch, task, link.target)
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
        """Return a connection as primary, None if the switch does not answer yet."""
        try:
            target = Target.connect(switch, self._device_id, election_id=self._election_id, tls=self._tls)
        except ControlPlaneError as error:
            if error.kind is not ErrorKind.UNREACHABLE:
                raise
            self._lost(switch, error)
            self._await_answer(switch)
            return None
        self._update_core(lambda now: self._core.connected(switch, now))
        return _Link(self, switch, target)

    def _await_answer(self, switch: str) -> None:
        """Wait until a switch answers at an address, or refuses: the next attempt to connect gets the reason."""
        while probe(switch, self._tls, _PROBE_S).answer is Answer.ABSENT:
            if self._stopping.wait(_PAUSE_S):
                return

    def _perform(self, switch: str, task: Task, target: Target) -> None:
        if isinstance(task, Install):
            done = target.install(task.state, self._names)
            updates = len(done.plan.updates)
            flow_base, before = task.flow_base, done.pipeline
            self._update_core(lambda now: self._core.installed(switch, flow_base, before, updates, now))
        elif isinstance(task, Mirror):
            mirrored = task.flow_base
            target.restore_flow_base(mirrored, self._names)
            self._update_core(lambda now: self._core.mirrored(switch, mirrored, now))

    def _lost(self, switch: str, error: ControlPlaneError) -> None:
        refused = "".join(f"; {refusal}" for refusal in error.refusals[:3])
        self._update_core(lambda now: self._core.lost(switch, f"{error.reason}{refused}", now))

    def listen(self, switch: str, target: Target, closing_down: threading.Event) -> None:
        """Run the thread that listens on a connection."""
        self._run_thread(switch, self._listen, switch, target, closing_down)

    def _listen(self, switch: str, target: Target, closing_down: threading.Event) -> None:
        """Record the connections that a switch reports until its stream ends or another controller takes over."""
        starts = target.flow_starts()
        while not closing_down.is_set():
            try:
                found = starts.wait(_SLICE_S)
                if found:
                    self._update_core(lambda now, found=found: self._core.flow_starts(switch, found, now))  # type: ignore[misc]
                if not target.is_primary:
                    raise ControlPlaneError(ErrorKind.NOT_PRIMARY, switch, "another controller has taken over")
            except ControlPlaneError as error:
                if not closing_down.is_set():
                    self._lost(switch, error)
                return

    def _update_core(self, update: Callable[[float], object]) -> None:
        """Apply `update` to the core, write its journal, pass on its events, wake waiting threads."""
        with self._changed:
            now = time.monotonic()
            changed = update(now)
            events = self._core.take_events()
            if changed is True and self._journal is not None:
                try:
                    write_journal(self._journal, self._core.journal.starts())
                except OSError as error:
                    message = f"journal {self._journal} cannot be written: {error.strerror}"
                    events.append(ControllerEvent(EventKind.TROUBLE, self._core.switches[0], now, message))
            self._changed.notify_all()
            for event in events:
                self._pass_on(event)

    def _pass_on(self, event: ControllerEvent) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            _LOG.exception("an event was not delivered; the controller continues: %s", event.message)


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
