"""Rules of the queue pairs under `rdma`, within a job and between jobs that share a switch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

from jobspec.model import FIRST_QUEUE_PAIR_GROUP, Host, Job, QueuePairSpec
from p4src.constants import FLOOD_GROUP, MAX_RDMA_FLOWS

Found = Iterator[tuple[str, str]]
"""(field path, message) pairs."""
MAX_QUEUE_PAIRS = 2 * MAX_RDMA_FLOWS
"""Number of queue pairs that a switch supports, IPv4 and IPv6 together."""
_Key = tuple[IPv4Address | IPv6Address, IPv4Address | IPv6Address, int]


def queue_pairs(job: Job) -> Found:
    """Yield the problems of one job's queue pairs."""
    owners = {address: host for host in job.hosts for _, address in host.addresses}
    shadows = {shadow.name for shadow in job.shadows}
    seen: dict[_Key, int] = {}
    for i, spec in enumerate(job.rdma):
        field = f"rdma[{i}]"
        yield from _ends(spec, field, owners)
        for s, name in enumerate(spec.shadows):
            if name not in shadows:
                expected = ", ".join(sorted(shadows))
                yield f"{field}.shadows[{s}]", f"there is no shadow {name!r}; expected one of {expected}"
            elif name in spec.shadows[:s]:
                yield f"{field}.shadows[{s}]", f"shadow {name} is listed twice; expected once"
        first = seen.setdefault(_key(spec), i)
        if first != i:
            yield f"{field}.queue_pair", f"{_text(spec)} is already rdma[{first}]; remove one of them"
    yield from _numbers(job, owners)


def queue_pair_collisions(a: Job, b: Job) -> Found:
    """Yield the queue pairs, or their numbers, of job `b` that collide with job `a`, with paths in `b`."""
    theirs = {_key(spec) for spec in a.rdma}
    for i, spec in enumerate(b.rdma):
        if _key(spec) in theirs:
            yield f"rdma[{i}].queue_pair", f"{_text(spec)} belongs to job {a.name!r}; remove it from one of them"
    first_a, first_b = a.first_queue_pair_id, b.first_queue_pair_id
    last_a, last_b = first_a + len(a.rdma) - 1, first_b + len(b.rdma) - 1
    if first_a <= last_b and first_b <= last_a and a.rdma and b.rdma:
        yield ("first_queue_pair_id",
               f"queue pairs {first_b}..{last_b} overlap those of job {a.name!r}, {first_a}..{last_a}; "
               f"expected {last_a + 1} or more")  # fmt: skip


def too_many(counts: Counter[int]) -> str | None:
    """Return the error for `counts` (IP version -> queue pairs on one switch), None if they fit."""
    for version, count in sorted(counts.items()):
        if count > MAX_RDMA_FLOWS:
            return f"{count} queue pairs over IPv{version} on one switch, which can replicate {MAX_RDMA_FLOWS}"
    return None


def _ends(spec: QueuePairSpec, field: str, owners: dict[IPv4Address | IPv6Address, Host]) -> Found:
    for name, address in (("source", spec.source), ("target", spec.target)):
        if address not in owners:
            what = "ip" if address.version == 4 else "ipv6"
            yield f"{field}.{name}", f"no host has the address {address}; add it as {what} of a host"
    if spec.source.version != spec.target.version:
        yield (
            f"{field}.target",
            f"{spec.target} and the source {spec.source} are of different families; expected the same",
        )
    elif spec.source == spec.target:
        yield f"{field}.target", f"{spec.target} is also the source; expected another host's address"


def _numbers(job: Job, owners: dict[IPv4Address | IPv6Address, Host]) -> Found:
    last = job.first_queue_pair_id + len(job.rdma) - 1
    if job.rdma and last >= MAX_QUEUE_PAIRS:
        yield ("first_queue_pair_id",
               f"queue pairs {job.first_queue_pair_id}..{last} exceed {MAX_QUEUE_PAIRS - 1}, the highest that a "
               "switch supports")  # fmt: skip
    counts: dict[str | None, Counter[int]] = {}
    for spec in job.rdma:
        if spec.source in owners:
            counts.setdefault(owners[spec.source].switch, Counter())[spec.source.version] += 1
    for count in counts.values():
        complaint = too_many(count)
        if complaint:
            yield "rdma", complaint


def _key(spec: QueuePairSpec) -> _Key:
    return spec.source, spec.target, spec.queue_pair


def _text(spec: QueuePairSpec) -> str:
    return f"queue pair {spec.queue_pair} from {spec.source} to {spec.target}"


assert FIRST_QUEUE_PAIR_GROUP + MAX_QUEUE_PAIRS <= FLOOD_GROUP, "groups of queue pairs must stay below the flood group"
