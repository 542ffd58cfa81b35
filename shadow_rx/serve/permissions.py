"""Who may ask a shadow node for what: from the identity in a certificate, with nothing else. Pure.

| who | what |
|---|---|
| a rank's host, of this job | records of its own ranks, ports of its own flows; status, recovery points of its groups |
| the host of a group's rank 0 | also what is announced once for the group: communicator, state, changes |
| another shadow node of the same group | frames to fill holes with, status, recovery points to start again from |
| an operator, of all or of this job | status, recovery points, metrics |
| everybody else | nothing |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from checkmate_common.tls.identity import Identity, Role
from jobspec.model import Group, Job


@dataclass(frozen=True)
class _Ask:
    """A call about a group that exists; each method returns why it is not allowed, None where it is."""

    job: Job
    group: Group
    who: Identity
    message: Any

    def anyone(self) -> str | None:
        return None

    def member(self) -> str | None:
        members = self.group.shadows if self.who.role is Role.SHADOW else self.group.ring
        return None if self.who.name in members else f"{self.who} has no part in group {self.group.name}"

    def first(self) -> str | None:
        first = self.group.ring[0]
        if first == self.who.name:
            return None
        return f"{self.who} is not the host of rank 0 of group {self.group.name}, {first}"

    def own_rank(self) -> str | None:
        rank, ring = self.message.rank, self.group.ring
        if rank < len(ring) and ring[rank] == self.who.name:
            return None
        return f"{self.who} does not run rank {rank} of group {self.group.name}"

    def own_flow(self) -> str | None:
        flows = (flow for flow in self.job.flows if flow.group.name == self.group.name)
        if any(flow.id == self.message.flow_id and flow.source.name == self.who.name for flow in flows):
            return None
        return f"{self.who} does not send flow {self.message.flow_id} of group {self.group.name}"


_Rule = Callable[[_Ask], str | None]
_LOOK: dict[Role, _Rule] = {Role.RANK: _Ask.member, Role.SHADOW: _Ask.member, Role.OPERATOR: _Ask.anyone}
_RULES: dict[str, dict[Role, _Rule]] = {
    "Attach": {Role.RANK: _Ask.first},
    "UploadState": {Role.RANK: _Ask.first},
    "Change": {Role.RANK: _Ask.first},
    "OpenFlow": {Role.RANK: _Ask.own_flow},
    "RecordStep": {Role.RANK: _Ask.own_rank},
    "GetStatus": _LOOK,
    "GetNodeStatus": {Role.OPERATOR: _Ask.anyone},
    "WaitForStep": _LOOK,
    "GetRecoveryPoint": _LOOK,
    "GetFrames": {Role.SHADOW: _Ask.member},
}
KNOWN_CALLS = frozenset(_RULES)
"""RPCs that somebody may call; any other is refused to everybody."""


def why_not(job: Job, identity: Identity | None, call: str, message: Any) -> str | None:
    """Return why `identity` may not make a call to a shadow node of `job`, None when it may.

    Args:
        job: the job that is served.
        identity: whom the client's certificate names, None for nobody.
        call: name of the RPC.
        message: its request; of a stream the first one.
    """
    if identity is None:
        return (
            f"the certificate names nobody that job {job.name} knows; expected one URI such as spiffe://.../rank/HOST"
        )
    if identity.job not in (None, job.name):
        return f"{identity} may not speak to a shadow node of job {job.name}"
    rule = _RULES.get(call, {}).get(identity.role)
    if rule is None:
        return f"{identity} may not call {call}"
    name = message.header.group if call == "UploadState" else message.group
    group = next((group for group in job.groups if group.name == name), None)
    # Of a group that does not exist the shadow node itself tells, and nothing more.
    return rule(_Ask(job, group, identity, message)) if group is not None else None
