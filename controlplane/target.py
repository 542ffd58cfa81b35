"""A switch as its controller sees it: install, read, compare, restore; the same for every P4Runtime target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from checkmate_common.tls import ClientTls
from controlplane import backup
from controlplane.backup import BATCH
from controlplane.codec import encode, encode_update
from controlplane.describe import Names, describe_update
from controlplane.digests import FlowStarts
from controlplane.entities import SwitchState, TableEntry, is_flow_base
from controlplane.errors import ControlPlaneError, ErrorKind, Refusal
from controlplane.pipeline import Pipeline, PipelineStatus
from controlplane.plan import Plan, exact_plan, install_plan, table_plan
from controlplane.session import CONNECT_S, Session
from controlplane.snapshot import Counters, read_counters, read_state
from p4src.names import Table

_T = TypeVar("_T")

DEFAULT_ELECTION_ID = 1
"""Lowest useful election id: another controller that is already connected stays the primary."""


@dataclass(frozen=True)
class Installation:
    """What an installation changed, or a dry run would change."""

    pipeline: PipelineStatus
    """The program that the switch ran before; unless ``current``, it was replaced."""
    plan: Plan
    """The updates."""

    @property
    def changes_nothing(self) -> bool:
        """Whether the switch is already up to date."""
        return self.pipeline is PipelineStatus.CURRENT and not self.plan.updates


class Target:
    """A connection to a switch; use it as a context manager.

    Attributes:
        address: HOST:PORT of the switch.
        device_id: its P4Runtime device id.
    """

    def __init__(self, session: Session, pipeline: Pipeline) -> None:
        """Use an open session; see `connect`."""
        self.address = session.target
        self.device_id = session.device_id
        self._session = session
        self._pipeline = pipeline

    @classmethod
    def connect(
        cls,
        address: str,
        device_id: int,
        *,
        election_id: int | None = None,
        pipeline: Pipeline | None = None,
        timeout_s: float = CONNECT_S,
        tls: ClientTls | None = None,
    ) -> Self:
        """Connect to a switch.

        Args:
            address: HOST:PORT.
            device_id: its P4Runtime device id.
            election_id: election id to arbitrate with; None only reads, and disturbs no controller.
            pipeline: program that the switch must run, by default the committed one.
            timeout_s: time to answer, in seconds.
            tls: own credentials, None for plain text.

        Raises:
            ControlPlaneError: no such switch, or another controller is its primary.
        """
        session = Session(address, device_id, timeout_s, tls)
        try:
            if election_id is not None:
                session.become_primary(election_id)
        except BaseException:
            session.close()
            raise
        return cls(session, pipeline or Pipeline.committed())

    def close(self) -> None:
        """Disconnect from the switch."""
        self._session.close()

    def __enter__(self) -> Self:
        """Return the target."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    @property
    def is_primary(self) -> bool:
        """Whether this connection is currently the primary."""
        return self._session.is_primary

    def pipeline_status(self) -> PipelineStatus:
        """Return which program the switch runs."""
        return self._pipeline.status_of(self._session.get_config())

    def read_state(self) -> SwitchState:
        """Return the state of the switch.

        Raises:
            ControlPlaneError: it runs no program, or another one.
        """
        self._require_pipeline()
        return self._read()

    def read_counters(self) -> tuple[SwitchState, Counters]:
        """Return state and counters; errors as in `read_state`."""
        self._require_pipeline()
        return read_counters(self._session, self._pipeline.schema)

    def plan(self, desired: SwitchState) -> Installation:
        """Return what `install` would do, without doing it."""
        status = self.pipeline_status()
        actual = self._read() if status is PipelineStatus.CURRENT else SwitchState()
        return Installation(status, install_plan(desired, actual))

    def install(self, desired: SwitchState, names: Names | None = None) -> Installation:
        """Install `desired`: push the program if needed, then change only what differs.

        Args:
            desired: the state that it must have.
            names: names of hosts and flows for error messages.

        Raises:
            ValueError: `desired` has entities that the program does not define; nothing was changed.
            ControlPlaneError: an update was refused; the error says which, and whether the earlier state is in force
                again.
            RuntimeError: connected without an election id.
        """
        _ = self._session.stream  # a read-only session fails before it reads
        for entity in desired.entities:
            encode(entity, self._pipeline.schema)  # an entity that cannot be encoded must not leave a partial change
        status = self.pipeline_status()
        if status is PipelineStatus.CURRENT:
            before = self._read()
            plan = install_plan(desired, before)
            self._with_rollback(lambda: self._change(plan, names), lambda: self._restore(before))
            return Installation(status, plan)
        kept = backup.save(self._session)
        plan = self._with_rollback(lambda: self._replace(kept, desired, names), lambda: self._restore_program(kept))
        return Installation(status, plan)

    def restore_flow_base(self, entries: Iterable[TableEntry], names: Names | None = None) -> Plan:
        """Make `flow_base` hold exactly `entries` (see `ConnectionJournal`); change nothing else.

        Raises:
            ValueError: an entry of another table, or one that the program does not define.
            ControlPlaneError: as in `install`.
        """
        wanted = tuple(entries)
        others = [entry.table for entry in wanted if not is_flow_base(entry)]
        if others:
            raise ValueError(f"an entry of table {others[0]} does not belong in {Table.FLOW_BASE}")
        for entry in wanted:
            encode(entry, self._pipeline.schema)
        before = self.read_state()
        plan = table_plan(wanted, before, Table.FLOW_BASE)
        self._with_rollback(lambda: self._change(plan, names), lambda: self._restore(before))
        return plan

    def flow_starts(self) -> FlowStarts:
        """Return the new connections that the switch reports; needs an election id.

        Raises:
            RuntimeError: connected without one.
        """
        return FlowStarts(self._session.stream, self._pipeline.schema, self.address)

    def _read(self) -> SwitchState:
        return read_state(self._session, self._pipeline.schema)

    def _require_pipeline(self) -> None:
        status = self.pipeline_status()
        if status is PipelineStatus.MISSING:
            raise ControlPlaneError(
                ErrorKind.NO_PIPELINE,
                self.address,
                f"device {self.device_id} runs no program",
                hint="install a job first, or give the switch's --device-id",
            )
        if status is PipelineStatus.OTHER:
            raise ControlPlaneError(
                ErrorKind.OTHER_PIPELINE,
                self.address,
                "the switch runs another program than this version of Checkmate",
                hint="install the job again: that pushes this version's program",
            )

    def _with_rollback(self, work: Callable[[], _T], undo: Callable[[], str]) -> _T:
        """Do `work`; if it fails, `undo` it and add the outcome to the error."""
        try:
            return work()
        except ControlPlaneError as error:
            try:
                note = undo()
            except ControlPlaneError as failure:
                note = f"the previous state could NOT be restored: {failure.reason}"
                refused = "".join(f"; {refusal}" for refusal in failure.refusals)
                raise error.with_outcome(False, f"{note}{refused}; restart the switch and install again") from error
            raise error.with_outcome(True, note) from error

    def _replace(self, kept: backup.Backup | None, desired: SwitchState, names: Names | None) -> Plan:
        if kept is not None:
            self._session.verify_config(self._pipeline.config())  # a refused program must not lose the groups
            backup.forget_replication(self._session)
        self._session.set_config(self._pipeline.config())
        plan = install_plan(desired, self._read())
        self._change(plan, names)
        return plan

    def _change(self, plan: Plan, names: Names | None) -> None:
        """Write the updates of `plan` and check that they are in force."""
        if plan.updates:
            self._write(plan, names or Names())
            self._check(plan, names or Names())

    def _write(self, plan: Plan, names: Names) -> None:
        batches = (stage[i : i + BATCH] for stage in plan.stages() for i in range(0, len(stage), BATCH))
        for batch in batches:
            refused = self._session.write([encode_update(update, self._pipeline.schema) for update in batch])
            if refused:
                refusals = tuple(
                    Refusal(describe_update(batch[index], names), code, message)
                    for index, (code, message) in sorted(refused.items())
                )
                raise ControlPlaneError(
                    ErrorKind.UPDATE_REFUSED,
                    self.address,
                    f"the switch refuses {len(refusals)} of {len(batch)} updates",
                    refusals=refusals,
                    hint=_hint_for(refusals),
                )

    def _check(self, plan: Plan, names: Names) -> None:
        # A switch may accept an update without applying it, so read the state back.
        actual = self._read()
        final = {update.entity.key: update for update in plan.updates}
        for key, update in final.items():
            if actual.by_key.get(key) != update.result:
                raise ControlPlaneError(
                    ErrorKind.STATE_DIFFERS,
                    self.address,
                    f"the switch accepted this update but did not apply it: {describe_update(update, names)}",
                )

    def _restore(self, before: SwitchState) -> str:
        plan = exact_plan(before, self._read())
        self._write(plan, Names())
        if self._read() != before:
            raise ControlPlaneError(ErrorKind.STATE_DIFFERS, self.address, "it does not read back equal")
        if not plan.updates:
            return "nothing was changed: the switch has its previous state"
        return f"the previous state was restored ({len(plan.updates)} updates) and reads back equal"

    def _restore_program(self, kept: backup.Backup | None) -> str:
        if kept is None and self._session.get_config() is None:
            return "nothing was changed: the switch runs no program, as before"
        if kept is None:
            self._restore(SwitchState())
            return "the switch had no program before; it now runs Checkmate's, with empty tables"
        if backup.is_in_force(self._session, kept):
            return "nothing was changed: the switch has its previous program and state"
        if not backup.restore(self._session, kept):
            raise ControlPlaneError(ErrorKind.STATE_DIFFERS, self.address, "it does not read back equal")
        except_for = f" (except {', '.join(kept.not_covered)}, which start from zero)" if kept.not_covered else ""
        return f"the previous program and its state were restored and read back equal{except_for}"


def _hint_for(refusals: Sequence[Refusal]) -> str | None:
    codes = {refusal.code for refusal in refusals}
    if "RESOURCE_EXHAUSTED" in codes:
        return "the table is full: install fewer jobs on this switch"
    if "UNKNOWN" in codes:
        return "the switch gives no reason; usually a table is full"
    return None
