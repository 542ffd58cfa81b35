"""Simulated training: the ranks of one group, each a `RankNode` and a trainer, step by step in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from checkmate_common.sidechannel.side_channel_pb2 import Status
from jobspec.model import Group, Job
from nccl_emu.errors import SideChannelError
from nccl_emu.ring.rank_node import RankNode
from nccl_emu.shadow_client.sender_core import SenderCore, Turn
from nccl_emu.shadow_client.shadow_session import LAST_ATTEMPTS, ShadowSession
from nccl_emu.shadow_client.side_channel import SideChannel
from nccl_emu.tcp import TcpConfig
from nccl_emu.training.trainer import DataParallelTrainer
from shadow_rx.node import ShadowNode
from shadow_rx.peers.connections import Peer
from shadow_rx.peers.repair import ask_peers
from topology.errors import TestbedError
from topology.fabric.participants import switch_port
from topology.simulation.event_loop import ReceiveOnlyNode, Simulation, Stalled
from topology.simulation.links import Impairments, Link

T = TypeVar("T")

_RETRIES = 10
"""Attempts, a virtual second apart, to reach a shadow node at the end of training."""


@dataclass(frozen=True)
class LinkPlan:
    """Impairments by kind of link."""

    uplink: Impairments = field(default_factory=Impairments)
    """From a rank to the switch: before replication."""
    downlink: Impairments = field(default_factory=Impairments)
    """From the switch to a rank: after replication."""
    replica: Impairments = field(default_factory=Impairments)
    """From the switch to a shadow node."""


class ShadowHost(ReceiveOnlyNode):
    """A shadow node as a host of the simulation."""

    def __init__(self, node: ShadowNode, peers: Mapping[str, Peer] | None = None) -> None:
        """Deliver frames to `node`; it requests lost bytes from `peers`, by name, which may be added later."""
        self.node = node
        self._peers = {} if peers is None else peers

    def on_frame(self, frame: bytes, now: float) -> None:
        """Process a replica; the node reads the simulation's clock itself."""
        self.node.on_frames([frame])
        self.ask_peers()

    def ask_peers(self) -> None:
        """Request lost bytes from the peers, which answer at once."""
        if self._peers:
            ask_peers(self.node, self._peers)


class Sender(Protocol):
    """Sends a rank's records to a shadow node."""

    session: ShadowSession
    core: SenderCore

    def wake(self) -> None:
        """Start to send the records that wait."""
        ...


class DirectSender:
    """Sends records at once, in no virtual time."""

    def __init__(self, session: ShadowSession) -> None:
        """Send the records of `session`."""
        self.session, self.core = session, SenderCore(session)

    def wake(self) -> None:
        """Send the records that wait; if the shadow node is down, the next call tries again."""
        self.core.retry()
        while self.core.turn is Turn.SEND:
            self.core.send()


class RingSimulation:
    """One group's ranks on a simulated network, over all epochs of the group."""

    def __init__(
        self,
        job: Job,
        group: Group,
        simulation: Simulation,
        side_channels: Sequence[SideChannel],
        seed: int | str,
        links: LinkPlan | None = None,
        tcp: TcpConfig | None = None,
        step_timeout: float = 600.0,
        resync: bool = True,
        channels_of: Callable[[str], Sequence[SideChannel]] | None = None,
        on_lost: Callable[[int, str], None] | None = None,
        make_sender: Callable[[ShadowSession], Sender] = DirectSender,
    ) -> None:
        """Put the ranks' hosts on the network; nothing is sent yet.

        Args:
            job: the job.
            group: its group to simulate.
            simulation: the network, with the switch.
            side_channels: to each of the group's shadow nodes.
            seed: of link impairments, ISNs and source ports.
            links: impairments of the ranks' links.
            tcp: parameters of the ranks' connections.
            step_timeout: virtual seconds that a step may take.
            resync: whether rank 0 uploads its state when a shadow node asks for it.
            channels_of: returns the side channels of a host; by default all hosts share `side_channels`.
            on_lost: called with step and reason if a record cannot reach a shadow node; by default that is an error.
            make_sender: makes the sender of a session's records.
        """
        plan = links or LinkPlan()
        self.job = job
        self.group = group
        self.simulation = simulation
        self.nodes = [RankNode(job, group, rank, tcp) for rank in range(len(group.ring))]
        self.trainers: list[DataParallelTrainer] = []
        self.epoch = 0
        # One session for each shadow node, as in a rank: a node that is down must not delay the others.
        self._channels = tuple(side_channels)
        self._channels_of = channels_of or (lambda _: self._channels)
        self._on_lost = on_lost or self._raise_lost
        self._make_sender = make_sender
        self._senders: list[list[Sender]] = []
        self._resync = resync
        self._seed = seed
        self._step_timeout = step_timeout
        self._rngs = [random.Random(f"rank/{seed}/{group.name}/{rank}") for rank in range(len(group.ring))]
        for node in self.nodes:
            links_rng = random.Random(f"links/{seed}/{node.host.name}")
            simulation.attach(
                switch_port(job, node.host), node, Link(plan.uplink, links_rng), Link(plan.downlink, links_rng)
            )

    def begin(self, trainers: Sequence[DataParallelTrainer], epoch: int) -> None:
        """Begin an epoch with `trainers` (one a rank, all after the same step): attach, announce the flows, connect.

        Raises:
            TestbedError: the connections are not established.
            SideChannelError: the shadow node refuses.
        """
        self.trainers = list(trainers)
        self.epoch = epoch
        first_step = trainers[0].step + 1
        now = self.simulation.now
        for node, rng in zip(self.nodes, self._rngs, strict=True):
            node.connect(epoch, first_step, trainers[0].layout, now, rng)
        self._senders = [
            [self._make_sender(self._session(node, channel)) for channel in self._channels_of(node.host.name)]
            for node in self.nodes
        ]
        for sender in self._senders[0]:
            self._retry(partial(sender.session.begin, trainers[0].state_safetensors), "the new epoch")
        for sender in self.senders:
            self._retry(sender.session.announce, "the new epoch's connections")
        for node in self.nodes:
            node.open(now)
            self.simulation.poll(switch_port(self.job, node.host))
        self._run_until(lambda: all(node.connected for node in self.nodes), "the connections")

    def compute(self, step: int) -> None:
        """Let every rank compute its gradient of `step` and begin the all-reduce."""
        self._change(step)
        for trainer in self.trainers:
            trainer.compute(step)
        for node, trainer in zip(self.nodes, self.trainers, strict=True):
            node.start_all_reduce(step, trainer.buckets, self.simulation.now)
            self.simulation.poll(switch_port(self.job, node.host))

    def _change(self, step: int) -> None:
        """Apply the workload's change of `step`, if any; rank 0 announces it before any rank begins the step."""
        requests = [trainer.prepare(step, self.epoch) for trainer in self.trainers]
        if requests[0] is None:
            return
        for sender in self._senders[0]:
            sender.session.change(requests[0])
        for node, trainer in zip(self.nodes, self.trainers, strict=True):
            node.change_layout(trainer.layout)

    def finish(self, step: int) -> None:
        """Complete the all-reduce of `step`; let every rank apply it and send its record.

        Raises:
            TestbedError: the all-reduce does not complete.
        """
        self._run_until(lambda: all(node.done for node in self.nodes), f"step {step}")
        for trainer in self.trainers:
            trainer.apply(step)
        for trainer, senders in zip(self.trainers, self._senders, strict=True):
            record = trainer.step_record(step, self.epoch)
            for sender in senders:
                sender.core.offer(record)
        self._send_records()
        for sender in self._senders[0]:
            if sender.session.wants_state(step):
                sender.core.offer_state(step, self.trainers[0].state_safetensors())
        self._send_records()

    def _session(self, node: RankNode, channel: SideChannel) -> ShadowSession:
        attach = self.trainers[0].attach_request(self.epoch) if node.rank == 0 else None
        if attach is not None:
            attach.communicator = f"{self._seed}/{self.group.name}/{self.epoch}"
            attach.uploads_on_demand = self._resync
        return ShadowSession(channel, self.group.name, self.epoch, node.flows_to_open(), self._on_lost, attach)

    def _raise_lost(self, step: int, reason: str) -> None:
        raise TestbedError(f"the record of step {step}", reason)

    @property
    def senders(self) -> list[Sender]:
        """The senders of all ranks: by rank, then shadow node."""
        return [sender for of_rank in self._senders for sender in of_rank]

    def _send_records(self) -> bool:
        """Send the records that wait; return whether none is left."""
        for sender in self.senders:
            sender.wake()
        return not any(sender.session.waiting for sender in self.senders)

    def end(self) -> None:
        """Close the connections, let frames in flight arrive, and send all records."""
        for node in self.nodes:
            node.close(self.simulation.now)
            self.simulation.poll(switch_port(self.job, node.host))
        self._run_until(lambda: all(node.closed or node.error is not None for node in self.nodes), "the close")
        self.simulation.run_for(1.0)
        self._retry(self._send_last_records, "the ranks' records")
        self._confirm_last_step()

    def _send_last_records(self) -> None:
        """As `_send_records`; while records are left, rank 0 also announces the communicator again where needed.

        Raises:
            SideChannelError: records are left.
        """
        if not self._send_records():
            for sender in self._senders[0]:
                sender.session.rejoin_if_forgotten()
            raise SideChannelError("RecordStep", "UNAVAILABLE", "records are left")

    def _confirm_last_step(self) -> None:
        """Repeat the last step's records until all shadow nodes have the step, as ranks do (`nccl_emu.driver`)."""
        step = self.trainers[0].step
        state = self.trainers[0].state_safetensors if self._resync else None
        for number, leader in enumerate(self._senders[0]):
            for _ in range(LAST_ATTEMPTS):
                if leader.session.is_replicated(step, self._final_status(number)):
                    break
                for rank, senders in enumerate(self._senders):
                    senders[number].session.offer_end(step, state if rank == 0 else None)
                self._retry(self._send_last_records, "the last step")

    def _final_status(self, number: int) -> Status:
        """Return the status of the shadow node at index `number`, which rank 0 first checks on."""

        def ask() -> Status:
            self._senders[0][number].session.rejoin_if_forgotten()
            return self._channels[number].status(self.group.name)

        return self._retry(ask, "the shadow node's status")

    def _retry(self, call: Callable[[], T], what: str) -> T:
        """Repeat a call while a shadow node is down, as ranks do (`nccl_emu.driver`); return its result."""
        for _ in range(_RETRIES):
            try:
                return call()
            except SideChannelError as error:
                if error.code != "UNAVAILABLE":
                    raise
            self.simulation.run_for(1.0)
        raise TestbedError(what, f"the shadow node did not answer within {_RETRIES} virtual seconds")

    def crash(self, *, silent: bool = False) -> None:
        """Drop all connections as crashed processes do, or if `silent` crashed hosts; records not sent are lost."""
        for sender in self.senders:
            sender.core.abandon()
        for node in self.nodes:
            node.abort(self.simulation.now, silent=silent)
            self.simulation.poll(switch_port(self.job, node.host))

    def _run_until(self, condition: Callable[[], bool], what: str) -> None:
        def over() -> bool:
            return condition() or any(node.error is not None for node in self.nodes)

        try:
            self.simulation.run_until(over, self._step_timeout)
        except Stalled as stalled:
            waiting = "; ".join(f"rank {node.rank} waits for {node.waits_for()}" for node in self.nodes)
            raise TestbedError(what, f"{stalled}; {waiting}") from stalled
        if not condition():
            errors = [f"rank {node.rank}: {node.error}" for node in self.nodes if node.error is not None]
            raise TestbedError(what, "; ".join(errors))
