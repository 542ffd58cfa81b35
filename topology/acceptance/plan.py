"""What a seed makes of a scenario: when which fault happens, and how bad it is. Pure."""

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
"""Hops that are replicated: each reduced byte reaches the shadow node twice."""
COMPUTE_S = 1e-3
"""Virtual seconds that the ranks compute between two steps' packets."""
_STEP_S = 4e-4
"""Virtual seconds within which most of a step's packets are on the network."""
_OPTIMIZERS = ("AdamW", "Adam", "SGD", "RMSprop", "Adagrad")


@dataclass(frozen=True)
class Length:
    """How long a run is."""

    steps: int = 8
    """Steps during which faults happen."""
    more: int = 3
    """Steps for which the job that is restarted from the newest durable point goes on after that."""

    @property
    def total(self) -> int:
        """All steps."""
        return self.steps + self.more


@dataclass(frozen=True)
class Moment:
    """A point of time within a step, and how long what happens there lasts."""

    step: int
    """The step."""
    delay: float
    """Virtual seconds after the step's first packet; below 0 while the ranks compute it."""
    lasts: float = 0.0
    """Virtual seconds until what was killed is started again; ranks are started again at once."""
    silent: bool = False
    """Of ranks: their hosts die, rather than the processes, whose kernels send resets."""


@dataclass(frozen=True)
class SwitchDeath:
    """The end of the switch."""

    step: int
    """Step in which it dies."""
    share: float
    """Where in the step, as a share (0..1) of the frames of the step before."""
    downtime: float | None
    """Virtual seconds until it is there again; None: a standby takes over at once."""
    torn: bool
    """Whether only some copies of its last frame leave it."""


@dataclass(frozen=True)
class Congestion:
    """A time in which the link to the shadow node is too slow."""

    first: int
    """First step of it."""
    last: int
    """Last step of it."""
    rate: float
    """Bits per second."""
    queue_bytes: float
    """Bytes that may wait."""


@dataclass(frozen=True)
class SlowStorage:
    """A time in which storage is slower than training."""

    first: int
    """First step of it."""
    last: int
    """Last step of it."""
    longest: float
    """Virtual seconds that a write takes at most."""
    depth: int
    """Points that may wait in this run."""
    little_memory: bool
    """Whether the node has as little memory as it works with at all: then that is the bound."""


@dataclass(frozen=True)
class TrialPlan:
    """Everything that a seed decides."""

    scenario: str
    """Name of the scenario."""
    seed: int
    """The seed."""
    injections: frozenset[Injection]
    """What goes wrong."""
    length: Length
    """How long the run is."""
    job: Job
    """The job, with its changes of the optimizer."""
    links: LinkPlan
    """Impairments of the links."""
    orderly: bool = True
    """Whether training ends in good order; otherwise all ranks die after the last step."""
    congestion: Congestion | None = None
    """When replicas are lost in bursts."""
    side_channel_trouble: float = 0.0
    """Probability of each kind of trouble of a call."""
    shadow_restarts: tuple[Moment, ...] = ()
    """Deaths of the shadow node."""
    rank_restarts: tuple[Moment, ...] = ()
    """Deaths of all ranks."""
    switch_death: SwitchDeath | None = None
    """End of the switch."""
    full_disk: tuple[int, int, int] | None = None
    """First and last step during which the disk is full, and the bytes that are left on it."""
    storage_errors: tuple[int, int, float] | None = None
    """First and last step during which writes fail, and the probability of each."""
    slow_storage: SlowStorage | None = None
    """When writes take long."""
    torn_write: tuple[int, float, float] | None = None
    """Whole writes before the torn one, its share that is written, and virtual seconds until the shadow is back."""
    unused: dict[str, str] = field(default_factory=dict)
    """Injections that were drawn and left out, with the reason."""


def draw(scenario: Scenario, seed: int, length: Length) -> TrialPlan:
    """Return what `seed` makes of `scenario`; equal arguments give equal plans."""
    rng = random.Random(f"acceptance/{scenario.name}/{seed}")
    chosen = set(rng.sample(scenario.injections, scenario.pick) if scenario.pick else scenario.injections)
    unused: dict[str, str] = {}
    if {Injection.SWITCH_RESTART, Injection.SWITCH_FAILOVER} <= chosen:
        # There is one standby: a switch that has been replaced has none.
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
    plan = TrialPlan(scenario.name, seed, frozenset(chosen), length, job, links, orderly, unused=unused)
    if Injection.CONGESTION in chosen:
        first = rng.randint(2, length.steps - 2)
        last = rng.randint(first, length.steps - 1)
        congestion = Congestion(first, last, 10 ** rng.uniform(7.5, 8.5), rng.uniform(3000, 6000))
        plan = replace(plan, congestion=congestion)
    if Injection.SIDE_CHANNEL in chosen:
        plan = replace(plan, side_channel_trouble=rng.choice([0.1, 0.3]))
    if Injection.SHADOW_RESTART in chosen:
        moments = tuple(_moment(rng, length, _downtime(rng)) for _ in range(rng.choice([1, 1, 2])))
        plan = replace(plan, shadow_restarts=moments)
    if Injection.RANK_RESTART in chosen:
        moment = replace(_moment(rng, length), silent=rng.random() < 0.5)
        plan = replace(plan, rank_restarts=(moment,))
    if chosen & {Injection.SWITCH_RESTART, Injection.SWITCH_FAILOVER}:
        downtime = None if Injection.SWITCH_FAILOVER in chosen else 10 ** rng.uniform(-3, 0)
        death = SwitchDeath(rng.randint(2, length.steps - 1), rng.uniform(0.05, 0.95), downtime, rng.random() < 0.5)
        plan = replace(plan, switch_death=death)
    if Injection.FULL_DISK in chosen:
        first = rng.randint(2, length.steps - 3)
        last = rng.randint(first, length.steps - 1)
        plan = replace(plan, full_disk=(first, last, rng.randint(0, 2000)))
    if Injection.TORN_WRITE in chosen:
        # The store's description and the first base are three writes; later steps have one or three.
        plan = replace(plan, torn_write=(rng.randint(3, length.steps), rng.random(), _downtime(rng)))
    if Injection.STORAGE_ERRORS in chosen:
        first = rng.randint(2, length.steps - 3)
        last = rng.randint(first + 1, length.steps - 1)
        plan = replace(plan, storage_errors=(first, last, rng.choice([0.5, 0.9])))
    if Injection.SLOW_STORAGE in chosen:
        first, last = rng.randint(2, max(2, length.steps - 5)), length.steps - rng.randint(1, 2)
        little = rng.random() < 0.4
        slow = SlowStorage(first, last, rng.uniform(6, 12) * COMPUTE_S, 64 if little else rng.randint(1, 2), little)
        plan = replace(plan, slow_storage=slow)
    return plan


def make_job(changes: list[ChangeSpec], *, channels: int, mtu: int, store: StoreSpec) -> Job:
    """Return the job of all rows: three ranks, both hops replicated, digests, log and bases, each rank with buffers."""
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
    # Two flips in one segment can pass TCP's checksum, and a rank that then finds a wrong frame CRC stops the job. So
    # segments to a rank are damaged on one of their two links.
    if rng.random() < 0.5:
        uplink = replace(uplink, corrupt=0.0)
    else:
        downlink = replace(downlink, corrupt=0.0)
    # Behind the switch only the frames' CRC finds several flips.
    replica = replace(any_link(), loss=amount(Injection.LOSS_AFTER, 0.02, 0.06), corrupt_bits=3)
    return LinkPlan(uplink, downlink, replica)


def _downtime(rng: random.Random) -> float:
    return rng.choice([0.0, rng.uniform(0, 4 * (COMPUTE_S + _STEP_S))])


def _moment(rng: random.Random, length: Length, lasts: float = 0.0) -> Moment:
    step = rng.randint(3, length.steps - 1)
    return Moment(step, rng.choice([rng.uniform(0, _STEP_S), rng.uniform(-COMPUTE_S, 0)]), lasts)


def _changes(rng: random.Random, length: Length) -> list[ChangeSpec]:
    """Draw one to three changes: new options, another class, parameters that become trained."""
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
