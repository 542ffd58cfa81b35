"""Who takes part in a run: the hosts of all ranks, the shadow nodes, and their switch ports. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from jobspec.model import Host, Job, ShadowNode
from topology.simulation.event_loop import SwitchPort

Track = tuple[str, str]
"""(group, shadow node): recovery points belong to a track."""


def switch_port(job: Job, end: Host | ShadowNode) -> SwitchPort:
    """Return the switch port that `end` is attached to."""
    return SwitchPort(job.switch_of(end).name, end.port)


@dataclass(frozen=True)
class Participants:
    """The hosts and shadow nodes of a job that its groups use."""

    job: Job
    """The job."""

    @property
    def hosts(self) -> list[Host]:
        """Hosts of all ranks, group by group."""
        return [self.job.host(name) for group in self.job.groups for name in group.ring]

    @property
    def shadows(self) -> list[ShadowNode]:
        """Shadow nodes that a group uses, in the job's order."""
        used = {name for group in self.job.groups for name in group.shadows}
        return [shadow for shadow in self.job.shadows if shadow.name in used]

    @property
    def tracks(self) -> list[Track]:
        """Every group with each of its shadow nodes."""
        return [(group.name, shadow) for group in self.job.groups for shadow in group.shadows]

    @property
    def switch_ports(self) -> list[SwitchPort]:
        """Switch ports that hosts, shadow nodes and trunks use."""
        ends: list[Host | ShadowNode] = [*self.hosts, *self.shadows]
        trunks = [SwitchPort(*end) for trunk in self.job.trunks for end in trunk.ends]
        return [*(switch_port(self.job, end) for end in ends), *trunks]
