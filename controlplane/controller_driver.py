"""The running controller: a thread for each switch that does what `ControllerCore` decides, over P4Runtime."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from controlplane.controller import Connect, ControllerCore, ControllerEvent, EventKind, Idle, Install, Mirror, Task
from controlplane.describe import Names
from controlplane.errors import ControlPlaneError, ErrorKind
from controlplane.journal_file import write_journal
from controlplane.session import check_address
from controlplane.target import DEFAULT_ELECTION_ID, Target
from jobspec.tls import ClientTls
from jobspec.tls.probe import Answer, probe

OnEvent = Callable[[ControllerEvent], None]

_LOG = logging.getLogger(__name__)

_SLICE_S = 0.2
"""Longest wait that does not look whether the controller shall end."""
_RETRY_S = 0.5
"""Pause before a switch that answers, but refuses, is tried again."""
_PROBE_S = 2.0
"""How long a switch may take to answer to a probe."""
_PAUSE_S = 0.05
"""Pause between two probes: training waits while its switch is without a program."""


class ControllerDriver:
    """Runs a controller in the background; use it as a context manager.

    What `on_event` raises is logged and does not stop control. Any other error of a thread ends the controller:
    `check`, `wait` and the end of the context raise it.

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
        self._failure: ControlPlaneError | None = None
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(switch, self._run, switch), name=f"controller-{switch}", daemon=True
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
        """Give up the switches; they keep what they hold.

        Raises:
            ControlPlaneError: the controller has failed, and no other error is on its way.
        """
        self._stop()
        for thread in self._threads:
            thread.join()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Do nothing while all threads work.

        Raises:
            ControlPlaneError: one has failed (INTERNAL); no switch is controlled any more.
        """
        if self._failure is not None:
            raise self._failure

    def wait(self, holds: Callable[[ControllerCore], bool], timeout_s: float) -> bool:
        """Wait until `holds(core)`, looked at after every change; return False when it does not in time.

        Raises:
            ControlPlaneError: as `check`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or holds(self._core), timeout_s)
            self.check()
            return holds(self._core)

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until every switch holds everything; return False when one does not in time.

        Raises:
            ControlPlaneError: as `check`.
        """
        return self.wait(lambda core: all(core.is_ready(switch) for switch in core.switches), timeout_s)

    # --- one thread a switch, and one for each connection

    def _stop(self) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()

    def _guarded(self, switch: str, work: Callable[..., None], *arguments: object) -> None:
        """Do the work of a thread; an error that nobody expects ends the controller, and is raised where it is used."""
        try:
            work(*arguments)
        except Exception as error:
            _LOG.exception("the controller fails")
            message = f"the controller failed: {type(error).__name__}: {error}"
            self._failure = self._failure or ControlPlaneError(
                ErrorKind.INTERNAL, switch, message, hint="start it again; the switches keep what they hold"
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
        """Wait until a switch answers at an address, or refuses: the next attempt to connect tells why."""
        while probe(switch, self._tls, _PROBE_S).answer is Answer.ABSENT:
            if self._stopping.wait(_PAUSE_S):
                return

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
        """Do the work of the thread that listens on a connection."""
        self._guarded(switch, self._listen, switch, target, closing_down)

    def _listen(self, switch: str, target: Target, closing_down: threading.Event) -> None:
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
            _LOG.exception("an event was not taken, and control goes on: %s", event.message)


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
