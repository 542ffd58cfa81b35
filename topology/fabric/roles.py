"""Who takes part in a run: the groups' ranks, the shadow nodes, and where each group's files lie. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobspec.model import Group, Host, Job, ShadowNode
from topology.simulation.event_loop import Place

Track = tuple[str, str]
"""A group and one of its shadow nodes: what a recovery point is of."""


def place_of(job: Job, end: Host | ShadowNode) -> Place:
    """Return where `end` is attached."""
    return Place(job.switch_of(end).name, end.port)


@dataclass(frozen=True)
class Roles:
    """The part of a job that a run uses."""

    job: Job
    """The job."""

    @property
    def hosts(self) -> list[Host]:
        """Hosts of all ranks, group by group."""
        return [self.job.host(name) for group in self.job.groups for name in group.ring]

    @property
    def shadows(self) -> list[ShadowNode]:
        """Shadow nodes that some group has, in the job's order."""
        used = {name for group in self.job.groups for name in group.shadows}
        return [shadow for shadow in self.job.shadows if shadow.name in used]

    @property
    def tracks(self) -> list[Track]:
        """Every group with each of its shadow nodes."""
        return [(group.name, shadow) for group in self.job.groups for shadow in group.shadows]

    @property
    def places(self) -> list[Place]:
        """Switch ports that hosts, shadow nodes and trunks use."""
        ends: list[Host | ShadowNode] = [*self.hosts, *self.shadows]
        trunks = [Place(*end) for trunk in self.job.trunks for end in trunk.ends]
        return [*(place_of(self.job, end) for end in ends), *trunks]


@dataclass(frozen=True)
class RunFiles:
    """Where a run's files lie; a job with one group and one shadow node has no folder for each."""

    out: Path
    """The run's folder."""
    roles: Roles
    """Who takes part."""

    def checkpoints(self, shadow: str) -> Path:
        """Return the folder of a shadow node's recovery points."""
        folder = self.out / "checkpoints"
        return folder / shadow if len(self.roles.shadows) > 1 else folder

    def restored(self, group: Group) -> Path:
        """Return the folder of the recovery point that a group is restarted from."""
        return self.out / "restored" / group.name

    def events(self, shadow: str) -> Path:
        """Return the file of a shadow node's events."""
        return self.out / (f"events-{shadow}.jsonl" if len(self.roles.shadows) > 1 else "events.jsonl")

    def side_channel_log(self, shadow: str, after: int | None = None) -> Path:
        """Return the file of what a shadow node was told, which replaying a capture needs.

        A node that was started again `after` a step has a file of its own.
        """
        name = f"side-channel-{shadow}" if len(self.roles.shadows) > 1 else "side-channel"
        return self.out / (f"{name}.bin" if after is None else f"{name}-after-{after:08d}.bin")

    def access_log(self, shadow: str) -> Path:
        """Return the file that says who asked a shadow node for what."""
        return self.out / (f"access-{shadow}.jsonl" if len(self.roles.shadows) > 1 else "access.jsonl")

    def rank_logs(self, logs: Path, group: Group) -> Path:
        """Return the folder of a group's rank logs and states, within the folder of the training run."""
        return logs / group.name if len(self.roles.job.groups) > 1 else logs
