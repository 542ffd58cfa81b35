"""A switch as its controller sees it: install, read, compare, restore. The same on every P4Runtime target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from controlplane import backup
from controlplane.backup import BATCH
from controlplane.codec import encode, encode_update
from controlplane.describe import Names, describe_update
from controlplane.digests import FlowStarts
from controlplane.entities import SwitchState, TableEntry, is_flow_base
from controlplane.errors import ControlPlaneError, ErrorKind, Refusal
from controlplane.pipeline import Pipeline, PipelineStatus
from controlplane.reconcile import Plan, exact_plan, reconcile, table_plan
from controlplane.session import CONNECT_S, Session
from controlplane.snapshot import Counters, read_counters, read_state
from jobspec.tls import ClientTls
from p4src.names import Table

_T = TypeVar("_T")

DEFAULT_ELECTION_ID = 1
"""Bid of a controller that does not insist: any other controller that is there keeps the switch."""


@dataclass(frozen=True)
class Installation:
    """What an installation did, or a dry run would do."""

    pipeline: PipelineStatus
    """What the switch ran before; unless ``current``, the program was pushed."""
    plan: Plan
    """The updates."""

    @property
    def changes_nothing(self) -> bool:
        """Whether the switch is already as it must be."""
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
            election_id: bid for the right to write; None only reads, beside any controller that is there.
            pipeline: program that the switch shall run, by default the committed one.
            timeout_s: how long it may take to answer, in seconds.
            tls: own credentials, None for plain text.

        Raises:
            ControlPlaneError: no such switch, or another controller holds it.
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
        """Give up the switch."""
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
        """Whether the switch takes updates from this connection at the moment."""
        return self._session.is_primary

    def pipeline_status(self) -> PipelineStatus:
        """Return what the switch runs."""
        return self._pipeline.status_of(self._session.get_config())

    def read_state(self) -> SwitchState:
        """Return everything that the switch holds.

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
        return Installation(status, reconcile(desired, actual))

    def install(self, desired: SwitchState, names: Names | None = None) -> Installation:
        """Make the switch hold `desired`: push the program where needed, then change only what differs.

        Args:
            desired: what it must hold.
            names: names of hosts and flows for error messages.

        Raises:
            ValueError: `desired` holds what the program does not know; nothing was changed.
            ControlPlaneError: something is refused; the error says what, and whether the earlier state is in
                force again.
            RuntimeError: connected without an election id.
        """
        _ = self._session.stream  # a session that only reads is told before it reads
        for entity in desired.entities:
            encode(entity, self._pipeline.schema)  # what cannot be said must not leave a half-made change
        status = self.pipeline_status()
        if status is PipelineStatus.CURRENT:
            before = self._read()
            plan = reconcile(desired, before)
            self._or_undo(lambda: self._change(plan, names), lambda: self._put_back(before))
            return Installation(status, plan)
        kept = backup.take(self._session)
        plan = self._or_undo(lambda: self._replace(kept, desired, names), lambda: self._put_back_program(kept))
        return Installation(status, plan)

    def restore_flow_base(self, entries: Iterable[TableEntry], names: Names | None = None) -> Plan:
        """Make `flow_base` hold exactly `entries` (see `ConnectionJournal`) and touch nothing else.

        Raises:
            ValueError: an entry of another table, or one that does not fit.
            ControlPlaneError: as in `install`.
        """
        wanted = tuple(entries)
        strangers = [entry.table for entry in wanted if not is_flow_base(entry)]
        if strangers:
            raise ValueError(f"an entry of table {strangers[0]} does not belong into {Table.FLOW_BASE}")
        for entry in wanted:
            encode(entry, self._pipeline.schema)
        before = self.read_state()
        plan = table_plan(wanted, before, Table.FLOW_BASE)
        self._or_undo(lambda: self._change(plan, names), lambda: self._put_back(before))
        return plan

    def flow_starts(self) -> FlowStarts:
        """Return the connections that begin, as the switch reports them; needs an election id.

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

    def _or_undo(self, work: Callable[[], _T], undo: Callable[[], str]) -> _T:
        """Do `work`; where that fails, `undo` it and let the error say what became of that."""
        try:
            return work()
        except ControlPlaneError as error:
            try:
                note = undo()
            except ControlPlaneError as failure:
                note = f"the state from before could NOT be put back: {failure.reason}"
                refused = "".join(f"; {refusal}" for refusal in failure.refusals)
                raise error.with_outcome(False, f"{note}{refused}; restart the switch and install again") from error
            raise error.with_outcome(True, note) from error

    def _replace(self, kept: backup.Backup | None, desired: SwitchState, names: Names | None) -> Plan:
        if kept is not None:
            self._session.verify_config(self._pipeline.config())  # a refused program must not cost the groups
            backup.forget_replication(self._session)
        self._session.set_config(self._pipeline.config())
        plan = reconcile(desired, self._read())
        self._change(plan, names)
        return plan

    def _change(self, plan: Plan, names: Names | None) -> None:
        """Make the updates of `plan` and check that they are in force."""
        if plan.updates:
            self._make(plan, names or Names())
            self._check(plan, names or Names())

    def _make(self, plan: Plan, names: Names) -> None:
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
        # A switch may take an update and not do it: what counts is what it holds.
        actual = self._read()
        final = {update.entity.key: update for update in plan.updates}
        for key, update in final.items():
            if actual.by_key.get(key) != update.result:
                raise ControlPlaneError(
                    ErrorKind.STATE_DIFFERS,
                    self.address,
                    f"the switch accepted, but did not do: {describe_update(update, names)}",
                )

    def _put_back(self, before: SwitchState) -> str:
        plan = exact_plan(before, self._read())
        self._make(plan, Names())
        if self._read() != before:
            raise ControlPlaneError(ErrorKind.STATE_DIFFERS, self.address, "it does not read back equal")
        if not plan.updates:
            return "nothing was changed: the switch holds what it held before"
        return f"the state from before was put back ({len(plan.updates)} updates) and reads back equal"

    def _put_back_program(self, kept: backup.Backup | None) -> str:
        if kept is None and self._session.get_config() is None:
            return "nothing was changed: the switch runs no program, as before"
        if kept is None:
            self._put_back(SwitchState())
            return "the switch had no program before; it now runs Checkmate's, with empty tables"
        if backup.is_in_force(self._session, kept):
            return "nothing was changed: the switch runs what it ran and holds what it held before"
        if not backup.put_back(self._session, kept):
            raise ControlPlaneError(ErrorKind.STATE_DIFFERS, self.address, "it does not read back equal")
        left_out = f" (except {', '.join(kept.left_out)}, which start anew)" if kept.left_out else ""
        return f"the program from before and its state were put back and read back equal{left_out}"


def _hint_for(refusals: Sequence[Refusal]) -> str | None:
    codes = {refusal.code for refusal in refusals}
    if "RESOURCE_EXHAUSTED" in codes:
        return "the table is full: install fewer jobs on this switch"
    if "UNKNOWN" in codes:
        return "the switch does not say why; a full table is the usual reason"
    return None
