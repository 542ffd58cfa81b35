"""One rank as a process: the pure node and trainer on a real interface, with a real clock."""

from __future__ import annotations

import contextlib
import random
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobspec.loader import load_job
from jobspec.model import Group, Job
from jobspec.recovery_point import read_recovery_point
from nccl_emu.bond import Bond
from nccl_emu.errors import LinkError, SideChannelError, TrainerError
from nccl_emu.fan_out import FanOutSideChannel
from nccl_emu.rank_node import RankNode
from nccl_emu.record_sender import RecordSender
from nccl_emu.reporter import Reporter
from nccl_emu.restore import restore_trainer
from nccl_emu.side_channel import GrpcSideChannel
from nccl_emu.signals import StopSignals
from nccl_emu.step_meter import StepMeter
from nccl_emu.trainer import DataParallelTrainer, run_seed

_FLUSH_SECONDS = 5.0
"""Time for the queued step records after an error: the shadow can then still publish the steps before it."""
_POLL_SECONDS = 0.05
"""Time between two questions whether the shadow knows the communicator."""


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


class RankDriver:
    """Trains one rank to its last step."""

    def __init__(self, options: RankOptions, reporter: Reporter, signals: StopSignals) -> None:
        """Read the job, build or restore the trainer, open the interfaces.

        Args:
            options: what to do.
            reporter: takes progress.
            signals: tells when to stop.

        Raises:
            JobError, RecoveryPointError, EmulatorError: something is not usable; the message says what.
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
        self._channels = [GrpcSideChannel(address, options.timeout) for address in options.side_channels]
        self._shadow = FanOutSideChannel(self._channels)
        self._socket = Bond(options.interfaces)

    def run(self) -> None:
        """Connect, train every step, and close in good order.

        Raises:
            EmulatorError: a peer or the shadow failed, or nothing moved for too long.
            Stopped: a signal came.
        """
        # One for each node: what one does not take must not hold up what the others get.
        senders = [RecordSender(channel, self._reporter.record_lost) for channel in self._channels]
        try:
            self._join()
            meter = StepMeter(self._node, self.trainer)
            for step in range(self.trainer.step + 1, self.options.iterations + 1):
                self._train(step, senders, meter)
            self._node.close(time.monotonic())
            self._run_until(lambda: self._node.closed)
            for sender, channel in zip(senders, self._channels, strict=True):
                if not sender.finish(self.options.timeout):
                    message = f"step records still wait after {self.options.timeout} s"
                    raise SideChannelError("RecordStep", "DEADLINE_EXCEEDED", message, channel.address)
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

    def _join(self) -> None:
        """Make the shadow ready for this communicator, then the connections."""
        options, group = self.options, self.group.name
        first_step = self.trainer.step + 1
        if options.rank == 0:
            if self._shadow.attach(self.trainer.attach_request(options.epoch)).need_state:
                self._shadow.upload_state(group, options.epoch, self.trainer.state_safetensors())
        else:
            self._await_epoch()
        rng = random.Random(f"{run_seed(options.seed, self.group)}/{options.epoch}/{options.rank}")
        self._node.connect(options.epoch, first_step, self.trainer.layout, time.monotonic(), rng)
        for flow_id, source_port in self._node.flows_to_open():
            self._shadow.open_flow(group, options.epoch, flow_id, source_port)
        self._node.open(time.monotonic())
        self._run_until(lambda: self._node.connected)
        self._reporter.ready(first_step)

    def _await_epoch(self) -> None:
        """Wait until rank 0 has announced this epoch to the shadow."""
        deadline = time.monotonic() + self.options.timeout
        while (epoch := self._shadow.status(self.group.name).epoch) < self.options.epoch:
            if time.monotonic() > deadline:
                message = f"the shadow knows epoch {epoch}, waiting for rank 0 to announce {self.options.epoch}"
                raise LinkError("timeout", message)
            self._signals.wait(_POLL_SECONDS)
        if epoch > self.options.epoch:
            message = f"the shadow knows epoch {epoch} already, epoch {self.options.epoch} is over"
            raise LinkError("epoch", message)

    def _train(self, step: int, senders: Sequence[RecordSender], meter: StepMeter) -> None:
        trainer, node = self.trainer, self._node
        trainer.compute(step)
        node.start_all_reduce(step, trainer.buckets, time.monotonic())
        self._run_until(lambda: node.done)
        trainer.apply(step)
        applied_at = time.monotonic()
        record = trainer.step_record(step, self.options.epoch)
        for sender in senders:
            sender.send(record)
        state = trainer.state_safetensors()
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
