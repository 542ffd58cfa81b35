"""One rank as a process: the pure node and trainer on a real interface, with a real clock."""

from __future__ import annotations

import contextlib
import random
import select
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from checkmate_common.recovery.point import read_recovery_point
from checkmate_common.tls.identity import Role, server_name
from checkmate_common.tls.options import TlsOptions
from jobspec.loader import load_job
from jobspec.model import Group, Job
from nccl_emu.errors import LinkError, SideChannelError, TrainerError
from nccl_emu.net.bond import Bond
from nccl_emu.ring.rank_node import RankNode
from nccl_emu.shadow_client.record_sender import RecordSender
from nccl_emu.shadow_client.reporter import Reporter
from nccl_emu.shadow_client.restore import restore_trainer
from nccl_emu.shadow_client.shadow_session import LAST_ATTEMPTS, ShadowSession
from nccl_emu.shadow_client.side_channel import GrpcSideChannel
from nccl_emu.shadow_client.step_meter import StepMeter
from nccl_emu.signals import StopSignals
from nccl_emu.training.trainer import DataParallelTrainer, run_seed

T = TypeVar("T")
_FLUSH_SECONDS = 5.0
"""Time for the queued step records after an error: the shadow can then still publish the steps before it."""
_POLL_SECONDS = 0.05
"""Time between two questions whether the shadow knows the communicator."""
_LOOK_SECONDS = 1.0
"""Time between two looks whether a shadow still knows the communicator, while its connections are made."""
_PATIENCE_SECONDS = 3.0
"""Time that a shadow may take for the last step before it is given its state."""


@dataclass(frozen=True)
class RankOptions:
    """What a rank process is told."""

    job: Path
    """Job file."""
    group: str
    """DP group."""
    rank: int
    """Position in the group's ring."""
    interfaces: tuple[str, ...]
    """Network interfaces of the rank, the preferred one first; several are used as with active-backup bonding."""
    side_channels: tuple[str, ...]
    """Address of each shadow node of the group: ``host:port`` or ``unix:/path``."""
    epoch: int
    """Incarnation of the communicator, from 1."""
    iterations: int
    """Last step to train."""
    seed: int
    """Of weights, data order and dropout (a recovery point brings its own), ports, sequence numbers."""
    resume_from: Path | None
    """Published recovery point to continue from, None for a new start."""
    out: Path
    """Directory for results."""
    timeout: float
    """Seconds without any progress after which the rank gives up."""
    resync: bool = True
    """Whether rank 0 uploads its state when a shadow has lost a step."""
    tls: TlsOptions = field(default_factory=TlsOptions)
    """Credentials for the side channel."""


class RankDriver:
    """Trains one rank to its last step."""

    def __init__(self, options: RankOptions, reporter: Reporter, signals: StopSignals) -> None:
        """Read the job, build or restore the trainer, open the interfaces.

        Args:
            options: what to do.
            reporter: takes progress.
            signals: tells when to stop.

        Raises:
            JobError, RecoveryPointError, EmulatorError, TlsError: something is not usable; the message says what.
        """
        self.options = options
        self.job = load_job(options.job)
        self.group = _group(self.job, options.group)
        self.trainer = self._trainer()
        if self.trainer.step >= options.iterations:
            message = f"{options.iterations}, but step {self.trainer.step} is trained already"
            raise TrainerError("iterations", message)
        self._reporter = reporter
        self._signals = signals
        self._node = RankNode(self.job, self.group, options.rank)
        tls = options.tls.client(server_name(Role.SHADOW, self.job.name))
        self._channels = [GrpcSideChannel(address, options.timeout, tls) for address in options.side_channels]
        self._socket = Bond(options.interfaces)
        self._next_look = 0.0

    def run(self) -> None:
        """Connect, train every step, and close in good order.

        Raises:
            EmulatorError: a peer or the shadow failed, or nothing moved for too long.
            Stopped: a signal came.
        """
        senders: list[RecordSender] = []
        try:
            sessions = self._join()
            # One for each node: what one does not take must not hold up what the others get.
            senders += [RecordSender(session, self._reporter.thread_died) for session in sessions]
            meter = StepMeter(self._node, self.trainer)
            for step in range(self.trainer.step + 1, self.options.iterations + 1):
                self._train(step, senders, meter)
            self._node.close(time.monotonic())
            self._run_until(lambda: self._node.closed)
            for sender, session, channel in zip(senders, sessions, self._channels, strict=True):
                unsent = sender.finish(self.options.timeout)
                if unsent is not None:
                    raise SideChannelError("RecordStep", "DEADLINE_EXCEEDED", unsent, channel.address)
                self._conclude(session, channel)
        except BaseException:
            # As a kernel does for a process that dies: the peers need not wait for their timeouts.
            self._node.abort(time.monotonic())
            with contextlib.suppress(LinkError):  # the first error is the one to tell
                self._socket.send(self._node.take_frames())
            for sender in senders:
                sender.finish(min(_FLUSH_SECONDS, self.options.timeout))
            raise
        finally:
            self._socket.close()
            for channel in self._channels:
                channel.close()
        self._reporter.done(self.trainer.step, self.trainer.accuracy())

    def _trainer(self) -> DataParallelTrainer:
        options = self.options
        if options.resume_from is None:
            return DataParallelTrainer(self.job, self.group, options.rank, options.seed)
        return restore_trainer(read_recovery_point(options.resume_from), self.job, self.group, options.rank)

    def _join(self) -> list[ShadowSession]:
        """Make the shadow nodes ready for this communicator, then the connections; return what each node is told by."""
        options = self.options
        first_step = self.trainer.step + 1
        rng = random.Random(f"{run_seed(options.seed, self.group)}/{options.epoch}/{options.rank}")
        self._node.connect(options.epoch, first_step, self.trainer.layout, time.monotonic(), rng)
        sessions = [self._session(channel) for channel in self._channels]
        if options.rank == 0:
            for session in sessions:
                self._retry(lambda session=session: session.begin(self.trainer.state_safetensors))  # type: ignore[misc]
        else:
            self._await_epoch()
        for session in sessions:
            self._retry(session.announce)
        self._node.open(time.monotonic())
        self._run_until(lambda: self._node.connected or self._announce_again(sessions))
        self._reporter.ready(first_step)
        return sessions

    def _session(self, channel: GrpcSideChannel) -> ShadowSession:
        attach = self.trainer.attach_request(self.options.epoch) if self.options.rank == 0 else None
        if attach is not None:
            attach.communicator = uuid.uuid4().hex
            attach.uploads_on_demand = self.options.resync
        flows = self._node.flows_to_open()
        return ShadowSession(channel, self.group.name, self.options.epoch, flows, self._reporter.record_lost, attach)

    def _announce_again(self, sessions: Sequence[ShadowSession]) -> bool:
        """Announce the communicator again to a shadow that is started again while ranks wait for it; return False."""
        now = time.monotonic()
        if self.options.rank == 0 and now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            for session in sessions:
                if session.forgotten:
                    self._retry(lambda session=session: session.begin(self.trainer.state_safetensors))  # type: ignore[misc]
                    self._retry(session.announce)
        return False

    def _retry(self, call: Callable[[], T], timeout: float | None = None) -> T:
        """Make a call that may be repeated until the shadow is there, or the time is over."""
        deadline = time.monotonic() + (self.options.timeout if timeout is None else timeout)
        while True:
            try:
                return call()
            except SideChannelError as error:
                if error.code != "UNAVAILABLE" or time.monotonic() > deadline:
                    raise
            self._signals.wait(_POLL_SECONDS)

    def _conclude(self, session: ShadowSession, channel: GrpcSideChannel) -> None:
        """See that the shadow has the last step: no later one can show it what it lost.

        One that was started again meanwhile has lost the last records; one that could not follow needs the last state.

        Raises:
            SideChannelError: rank 0 cannot tell it. The other ranks have nothing else to give, and leave.
        """
        step, leads = self.trainer.step, self.options.rank == 0
        state = self.trainer.state_safetensors if leads and self.options.resync else None

        def tell() -> bool:
            session.rejoin_if_forgotten()
            if self._gets_replicated(step, session, channel):
                return True
            session.offer_end(step, state)
            if not session.flush():
                raise SideChannelError("RecordStep", "UNAVAILABLE", "the last step could not be told", channel.address)
            return False

        try:
            any(self._retry(tell, None if leads else _PATIENCE_SECONDS) for _ in range(LAST_ATTEMPTS))
        except SideChannelError:
            if leads:
                raise

    def _gets_replicated(self, step: int, session: ShadowSession, channel: GrpcSideChannel) -> bool:
        """Give the shadow a while to make a recovery point of `step`; tell whether it has one."""
        if self.options.rank == 0:
            return session.is_replicated(step, channel.wait_for_step(self.group.name, step, _PATIENCE_SECONDS))
        # The others look now and then: a shadow takes few calls that wait at a time, and a group has many ranks.
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not session.is_replicated(step, channel.status(self.group.name)):
            if time.monotonic() > deadline:
                return False
            self._signals.wait(_POLL_SECONDS)
        return True

    def _await_epoch(self) -> None:
        """Wait until rank 0 has announced this epoch to the shadow."""
        deadline = time.monotonic() + self.options.timeout
        while (epoch := self._known_epoch()) < self.options.epoch:
            if time.monotonic() > deadline:
                message = f"the shadow knows epoch {epoch}, waiting for rank 0 to announce {self.options.epoch}"
                raise LinkError("timeout", message)
            self._signals.wait(_POLL_SECONDS)
        if epoch > self.options.epoch:
            message = f"the shadow knows epoch {epoch} already, epoch {self.options.epoch} is over"
            raise LinkError("epoch", message)

    def _known_epoch(self) -> int:
        """Return the newest epoch that every shadow node knows."""
        return min(channel.status(self.group.name).epoch for channel in self._channels)

    def _train(self, step: int, senders: Sequence[RecordSender], meter: StepMeter) -> None:
        trainer, node = self.trainer, self._node
        change = trainer.prepare(step, self.options.epoch)
        if change is not None:
            for sender in senders if self.options.rank == 0 else ():
                sender.change(change)
            node.change_layout(trainer.layout)
        trainer.compute(step)
        node.start_all_reduce(step, trainer.buckets, time.monotonic())
        self._run_until(lambda: node.done)
        trainer.apply(step)
        applied_at = time.monotonic()
        record = trainer.step_record(step, self.options.epoch)
        for sender in senders:
            sender.send(record)
        # A copy: what is uploaded later is this step's, whatever the next one changes meanwhile.
        state = trainer.state_safetensors()
        for sender in senders:
            if sender.wants_state(step):
                sender.send_state(step, state)
        result = meter.result(state, applied_at)
        self._reporter.step(result, state if self.options.rank == 0 else None)

    def _run_until(self, condition: Callable[[], bool]) -> None:
        """Move frames and time until the condition holds."""
        node, wire = self._node, self._socket
        progress, patience_ends = node.progress, time.monotonic() + self.options.timeout
        wire.send(node.take_frames())
        while not condition():
            self._signals.check()
            if node.error is not None:
                raise node.error
            now = time.monotonic()
            if node.progress != progress:
                progress, patience_ends = node.progress, now + self.options.timeout
            if now >= patience_ends:
                message = f"nothing moved for {self.options.timeout} s; waiting for {node.waits_for()}"
                raise LinkError("timeout", message)
            timer = node.next_timer()
            if timer is not None and timer <= now:
                node.on_timer(now)
            else:
                wait = min(timer or patience_ends, patience_ends) - now
                self._wait(wait)
                for frame in wire.receive():
                    node.on_frame(frame, time.monotonic())
            wire.send(node.take_frames())

    def _wait(self, seconds: float) -> None:
        readers = [*self._socket.readers(), self._signals.fileno()]
        select.select(readers, self._socket.writers(), [], seconds)


def _group(job: Job, name: str) -> Group:
    for group in job.groups:
        if group.name == name:
            return group
    raise TrainerError("group", f"no group is called {name!r}; known: {', '.join(g.name for g in job.groups)}")
