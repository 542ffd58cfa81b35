"""The controller of a run whose switch fails: installs and restores the switch and prepares its standby."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from checkmate_common.tls import ClientTls
from controlplane.controller import ControllerCore, ControllerEvent, EventKind
from controlplane.controller_driver import ControllerDriver
from controlplane.describe import Names
from controlplane.desired import desired_state
from controlplane.errors import ControlPlaneError
from jobspec.model import Job
from topology.errors import TestbedError
from topology.processes.switch_events import EventKind as SwitchEventKind
from topology.processes.switch_events import SwitchEvent

ELECTION_ID = 1 << 16
"""Election id of the testbed's controllers: higher than the default, so that they become primary."""


class SwitchSupervisor:
    """The controller of a job's only switch; a context manager that runs it."""

    def __init__(
        self, job: Job, primary: str, standby: str | None, timeout: float, tls: ClientTls | None = None
    ) -> None:
        """Prepare.

        Args:
            job: the job, with one switch.
            primary: P4Runtime address of the switch.
            standby: P4Runtime address of its standby, None if there is none.
            timeout: seconds that a switch may take to become ready.
            tls: credentials for P4Runtime, None for plain text.
        """
        self._switches = [primary, *([standby] if standby is not None else [])]
        self._timeout = timeout
        self._stack = ExitStack()
        self._installed: Counter[str] = Counter()
        self._flows: set[int] = set()
        self._newest: dict[str, ControllerEvent] = {}
        self._trouble: dict[str, str] = {}
        core = ControllerCore(self._switches, desired_state([job]))
        self._driver = ControllerDriver(
            core, job.switch.device_id, election_id=ELECTION_ID, names=Names.of([job]), tls=tls, on_event=self._on_event
        )

    def __enter__(self) -> Self:
        """Install the job on every switch.

        Raises:
            TestbedError: a switch does not become ready.
        """
        with ExitStack() as stack:
            stack.enter_context(self._driver)
            for switch in self._switches:
                self.await_installed(switch, 1)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the controller; the switches keep their state.

        Raises:
            TestbedError: the controller has failed.
        """
        try:
            self._stack.close()
        except ControlPlaneError as failed:
            if kind is None:
                raise TestbedError("controller", str(failed)) from failed

    def installations(self, switch: str) -> int:
        """Return how often the job has been installed on a switch."""
        return self._installed[switch]

    def await_installed(self, switch: str, times: int) -> ControllerEvent:
        """Wait until a switch is ready after its installation number `times`; return the event of the last one.

        Raises:
            TestbedError: the switch is not ready in time.
        """
        if not self._wait(lambda core: self._installed[switch] >= times and core.is_ready(switch)):
            why = self._trouble.get(switch, "the controller does not say why")
            raise TestbedError("controller", f"switch {switch} is not ready after {self._timeout:g} s: {why}")
        return self._newest[switch]

    def await_prepared(self, connections: int) -> None:
        """Wait until `connections` flows have a connection and every switch knows them all.

        Raises:
            TestbedError: they do not in time.
        """
        if not self._wait(lambda core: len(core.journal) >= connections and all(map(core.is_ready, core.switches))):
            known = len(self._flows)
            raise TestbedError("controller", f"{known} of {connections} connections known after {self._timeout:g} s")

    def outcome(self, event: SwitchEvent, name: str, switch: str) -> str:
        """Describe the outcome of `event` at the switch `name`; `switch` is the address that is active now."""
        if event.kind is SwitchEventKind.FAILOVER:
            return f"{event}: {name} was killed; its standby, which knew {len(self._flows)} connections, took over"
        details = self._newest[switch].details
        restored = f"{details['connections']} connections were restored {details['after_s']:.2f} s after it was lost"
        return f"{event}: {name} was killed and started again; {restored}"

    def _wait(self, holds: Callable[[ControllerCore], bool]) -> bool:
        try:
            return self._driver.wait(holds, self._timeout)
        except ControlPlaneError as error:
            raise TestbedError("controller", str(error)) from error

    def _on_event(self, event: ControllerEvent) -> None:
        # Called with the driver's lock held, as are the conditions above.
        if event.kind is EventKind.INSTALLED:
            self._installed[event.switch] += 1
            self._newest[event.switch] = event
        elif event.kind is EventKind.CONNECTION:
            self._flows.add(int(event.details["flow"]))
        elif event.kind is EventKind.TROUBLE:
            self._trouble[event.switch] = event.message
