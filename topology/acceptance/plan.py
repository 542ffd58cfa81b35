"""Draws a run from a scenario and a seed: which faults happen, when, and how severe they are. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

from checkmate_common.recovery.state import Origin, StateRule, default_state
from jobspec.model import Job
from jobspec.store import StoreSpec
from jobspec.workload import ChangeSpec, OptimizerSpec, OptionValue
from topology.acceptance.scenarios import Injection, Scenario
from topology.simulation.links import Impairments
from topology.simulation.ring_simulation import LinkPlan

RANKS = 3
HOPS = (0, 1)
"""Replicated hops: each reduced byte reaches the shadow node twice."""
COMPUTE_S = 1e-3
"""Virtual seconds that the ranks compute before each step's packets."""
_STEP_S = 4e-4
"""Virtual seconds within which most of a step's packets are on the network."""
_OPTIMIZERS = ("AdamW", "Adam", "SGD", "RMSprop", "Adagrad")


@dataclass(frozen=True)
class RunLength:
    """Number of steps of a run."""

    steps: int = 8
    """Steps with faults."""
    steps_after_restart: int = 3
    """Further steps, trained after a restart from the newest durable recovery point."""

    @property
    def total(self) -> int:
        """All steps."""
        return self.steps + self.steps_after_restart


@dataclass(frozen=True)
class Crash:
    """The crash of a shadow node or of all ranks."""

    step: int
    """Step in which it happens."""
    delay: float
    """Virtual seconds after the step's first packet; negative while the ranks compute the step."""
    downtime: float = 0.0
    """Virtual seconds until the shadow node is restarted; ranks are restarted at once."""
    silent: bool = False
    """For ranks: whether the hosts crash, so that no kernel sends TCP resets."""


@dataclass(frozen=True)
class SwitchCrash:
    """The crash of the switch."""

    step: int
    """Step in which it happens."""
    share: float
    """When in the step: after this share (0..1) of the number of frames of the step before."""
    downtime: float | None
    """Virtual seconds until it is restarted; None: a standby takes over at once."""
    torn: bool
    """Whether only some copies of its last frame leave the switch."""


@dataclass(frozen=True)
class Congestion:
    """Steps during which the link to the shadow node is too slow."""

    first: int
    """First step."""
    last: int
    """Last step."""
    rate: float
    """Bits per second."""
    queue_bytes: float
    """Bytes that may be queued."""


@dataclass(frozen=True)
class SlowStorage:
    """Steps during which storage is slower than training."""

    first: int
    """First step."""
    last: int
    """Last step."""
    slowest_s: float
    """Longest write, in virtual seconds."""
    depth: int
    """Most points that may wait for storage."""
    low_memory: bool
    """Whether the node has only the memory that it needs to work, which then limits the points that wait."""


@dataclass(frozen=True)
class RunPlan:
    """Everything that a seed decides."""

    scenario: str
    """Name of the scenario."""
    seed: int
    """The seed."""
    injections: frozenset[Injection]
    """Faults of the run."""
    length: RunLength
    """Number of steps."""
    job: Job
    """The job, with its optimizer changes."""
    links: LinkPlan
    """Impairments of the links."""
    orderly: bool = True
    """Whether training ends in good order; otherwise all ranks are killed after the last step."""
    congestion: Congestion | None = None
    """When replicas are lost in bursts."""
    side_channel_fault_probability: float = 0.0
    """Probability of each kind of side-channel fault (`UnreliableSideChannel.fault_probability`)."""
    shadow_restarts: tuple[Crash, ...] = ()
    """Crashes of the shadow node."""
    rank_restarts: tuple[Crash, ...] = ()
    """Crashes of all ranks."""
    switch_crash: SwitchCrash | None = None
    """Crash of the switch."""
    full_disk: tuple[int, int, int] | None = None
    """First and last step during which the disk is full, and the bytes left on it."""
    storage_errors: tuple[int, int, float] | None = None
    """First and last step during which writes fail, and the probability that one does."""
    slow_storage: SlowStorage | None = None
    """When writes are slow."""
    torn_write: tuple[int, float, float] | None = None
    """Whole writes before the torn one, the share (0..1) of it that is written, and the downtime in virtual seconds."""
    unused: dict[str, str] = field(default_factory=dict)
    """Faults that were drawn but left out, with the reason."""


def draw_plan(scenario: Scenario, seed: int, length: RunLength) -> RunPlan:
    """Draw the run of `scenario` with `seed`; equal arguments give equal plans."""
    rng = random.Random(f"acceptance/{scenario.name}/{seed}")
    chosen = set(rng.sample(scenario.injections, scenario.pick) if scenario.pick else scenario.injections)
    unused: dict[str, str] = {}
    if {Injection.SWITCH_RESTART, Injection.SWITCH_FAILOVER} <= chosen:
        # There is only one standby.
        chosen.remove(Injection.SWITCH_RESTART)
        unused[Injection.SWITCH_RESTART] = "the switch fails over in this run"
    changes = _changes(rng, length) if Injection.OPTIMIZER_CHANGE in chosen else []
    mixed = len(scenario.injections) > 1
    job = make_job(
        changes,
        channels=rng.choice([1, 2]) if mixed else 1,
        mtu=rng.choice([1500, 9000]) if mixed else 1500,
        store=StoreSpec(every=rng.choice([1, 1, 2]) if mixed else 1, base_every=rng.randint(2, 5)),
    )
    links, orderly = _links(rng, chosen), rng.random() < 0.5
    plan = RunPlan(scenario.name, seed, frozenset(chosen), length, job, links, orderly, unused=unused)
    if Injection.CONGESTION in chosen:
        first = rng.randint(2, length.steps - 2)
        last = rng.randint(first, length.steps - 1)
        congestion = Congestion(first, last, 10 ** rng.uniform(7.5, 8.5), rng.uniform(3000, 6000))
        plan = replace(plan, congestion=congestion)
    if Injection.SIDE_CHANNEL in chosen:
        plan = replace(plan, side_channel_fault_probability=rng.choice([0.1, 0.3]))
    if Injection.SHADOW_RESTART in chosen:
        crashes = tuple(_crash(rng, length, _downtime(rng)) for _ in range(rng.choice([1, 1, 2])))
        plan = replace(plan, shadow_restarts=crashes)
    if Injection.RANK_RESTART in chosen:
        rank_crash = replace(_crash(rng, length), silent=rng.random() < 0.5)
        plan = replace(plan, rank_restarts=(rank_crash,))
    if chosen & {Injection.SWITCH_RESTART, Injection.SWITCH_FAILOVER}:
        downtime = None if Injection.SWITCH_FAILOVER in chosen else 10 ** rng.uniform(-3, 0)
        switch_crash = SwitchCrash(
            rng.randint(2, length.steps - 1), rng.uniform(0.05, 0.95), downtime, rng.random() < 0.5
        )
        plan = replace(plan, switch_crash=switch_crash)
    if Injection.FULL_DISK in chosen:
        first = rng.randint(2, length.steps - 3)
        last = rng.randint(first, length.steps - 1)
        plan = replace(plan, full_disk=(first, last, rng.randint(0, 2000)))
    if Injection.TORN_WRITE in chosen:
        # The store's description and the first base take three writes; later steps take one or three.
        plan = replace(plan, torn_write=(rng.randint(3, length.steps), rng.random(), _downtime(rng)))
    if Injection.STORAGE_ERRORS in chosen:
        first = rng.randint(2, length.steps - 3)
        last = rng.randint(first + 1, length.steps - 1)
        plan = replace(plan, storage_errors=(first, last, rng.choice([0.5, 0.9])))
    if Injection.SLOW_STORAGE in chosen:
        first, last = rng.randint(2, max(2, length.steps - 5)), length.steps - rng.randint(1, 2)
        low_memory = rng.random() < 0.4
        slow = SlowStorage(
            first, last, rng.uniform(6, 12) * COMPUTE_S, 64 if low_memory else rng.randint(1, 2), low_memory
        )
        plan = replace(plan, slow_storage=slow)
    return plan


def make_job(changes: list[ChangeSpec], *, channels: int, mtu: int, store: StoreSpec) -> Job:
    """Return the job of all rows: three ranks with own buffers, both hops replicated, digests, log and bases."""
    state = {name: rule.model_dump(mode="json") for name, rule in default_state().items()}
    frozen = ["0.*"] if any(change.train for change in changes) else []
    if frozen:
        state["model.0.*"] = StateRule(origin=Origin.CONSTANT).model_dump(mode="json")
    ports = RANKS + 1
    return Job.model_validate({
        "version": 1, "name": "acceptance", "id": 21,
        "switch": {"name": "s1", "device_id": 1, "ports": ports},
        "network": {"mtu": mtu},
        "dscp": {"primary": 3, "redundant": 7},
        "redundancy": {"hops": list(HOPS)},
        "hosts": [
            {"name": f"r{rank}", "port": rank + 1, "mac": f"02:00:00:00:01:{rank:02x}",
             "ip": str(IPv4Address("10.0.0.10") + rank)} for rank in range(RANKS)
        ],
        "shadows": [{"name": "sh0", "port": ports, "mac": "02:00:00:00:02:00", "ip": "10.0.1.100",
                     "base_port": 20000, "rid": 1}],
        "groups": [{"name": "dp0", "id": 0, "ring": [f"r{rank}" for rank in range(RANKS)], "channels": channels,
                    "tcp_port": 4000, "shadows": ["sh0"]}],
        "framing": {"payload_bytes": 4096},
        "digests": True,
        "state": state,
        "store": store.model_dump(mode="json"),
        "workload": {
            "kind": "digits-mlp", "hidden": [16, 8], "dropout": 0.1, "batch_size": 24, "bucket_bytes": 1600,
            "batch_norm": True, "clip_norm": 1.0, "frozen": frozen,
            "optimizer": {"name": "AdamW", "options": {"lr": 0.003, "weight_decay": 0.01}},
            "schedule": {"warmup_steps": 3, "total_steps": 40, "floor": 0.1},
            "changes": [change.model_dump(mode="json") for change in changes],
        },
    })  # fmt: skip


def _links(rng: random.Random, chosen: set[Injection]) -> LinkPlan:
    def amount(injection: Injection, least: float, most: float) -> float:
        return rng.uniform(least, most) if injection in chosen else 0.0

    def any_link() -> Impairments:
        return Impairments(
            duplicate=amount(Injection.DUPLICATE, 0.02, 0.1),
            reorder=amount(Injection.REORDER, 0.05, 0.2),
            corrupt=amount(Injection.CORRUPT, 0.01, 0.03),
            jitter=rng.uniform(1e-5, 2e-4),
            delay=rng.uniform(1e-6, 5e-5),
        )

    uplink = replace(any_link(), loss=amount(Injection.LOSS_BEFORE, 0.01, 0.05))
    downlink = replace(any_link(), loss=amount(Injection.LOSS_BEFORE, 0.01, 0.05))
    # Two flips in one segment can pass TCP's checksum, and a rank that then finds a wrong frame CRC stops the job. So a
    # segment between ranks is damaged on one of its two links only.
    if rng.random() < 0.5:
        uplink = replace(uplink, corrupt=0.0)
    else:
        downlink = replace(downlink, corrupt=0.0)
    # Replicas may have several flips: the frame CRC finds them.
    replica = replace(any_link(), loss=amount(Injection.LOSS_AFTER, 0.02, 0.06), corrupt_bits=3)
    return LinkPlan(uplink, downlink, replica)


def _downtime(rng: random.Random) -> float:
    return rng.choice([0.0, rng.uniform(0, 4 * (COMPUTE_S + _STEP_S))])


def _crash(rng: random.Random, length: RunLength, downtime: float = 0.0) -> Crash:
    step = rng.randint(3, length.steps - 1)
    return Crash(step, rng.choice([rng.uniform(0, _STEP_S), rng.uniform(-COMPUTE_S, 0)]), downtime)


def _changes(rng: random.Random, length: RunLength) -> list[ChangeSpec]:
    """Draw one to three changes: new options, another optimizer class, parameters that start to be trained."""
    steps = sorted(rng.sample(range(2, length.total), rng.randint(1, 3)))
    if steps[0] >= length.steps:
        steps[0] = rng.randint(2, length.steps - 1)
    joins = rng.choice([*steps, None])
    changes = []
    for step in steps:
        name = rng.choice(_OPTIMIZERS)
        options: dict[str, OptionValue] = {"lr": rng.choice([0.001, 0.01]), "weight_decay": rng.choice([0.0, 0.1])}
        if name == "SGD":
            options["momentum"] = 0.9
        optimizer = OptimizerSpec.model_validate({"name": name, "options": options})
        joining: dict[str, OptionValue] = {"lr": 0.002} if step == joins else {}
        train = ["0.*"] if step == joins else []
        changes.append(ChangeSpec(step=step, optimizer=optimizer, train=train, options=joining))
    return changes
