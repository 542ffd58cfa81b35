"""All differences between switches.

Measured against BMv2's `simple_switch_grpc` (P4Runtime 1.3, PI frontend) and the embedded switch:

* A read of a digest that is not configured is NOT_FOUND, and BMv2 does not support reading all digests at once.
* Without a pipeline BMv2 answers every read with FAILED_PRECONDITION, and GetForwardingPipelineConfig either
  with that or, like the embedded switch, with an empty message.
* BMv2 lets a client arbitrate for any device id, and fails with "assign device" when the pipeline is pushed.
* BMv2 refuses an update without a reason: code UNKNOWN, "Error when adding match entry to target".
* BMv2 accepts a JSON without a program and fails later, when its tables are read; after a device config that is
  not JSON it must be restarted.
* BMv2 has no multicast group from 32768 up (PI reserves those for clone sessions).
* BMv2 neither reads nor writes registers; the control plane does not use them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import grpc
from finsy import P4Schema
from finsy.p4client import P4RpcStatus
from finsy.proto import p4i, p4r

_NO_PIPELINE = re.compile(r"no .*\b(?:forwarding )?pipeline", re.IGNORECASE)
_ASSIGN_DEVICE = re.compile(r"assign device", re.IGNORECASE)
_DETAILS = "grpc-status-details-bin"


@dataclass(frozen=True)
class RpcFailure:
    """A failed RPC: gRPC's status and, for a batch, the refused updates."""

    code: grpc.StatusCode
    """Status of the RPC."""
    message: str
    """Message of the switch or of gRPC."""
    refused: dict[int, tuple[str, str]]
    """Index in the batch -> (canonical code, message) of each refused update; empty if the switch does not list
    them."""

    @property
    def means_no_pipeline(self) -> bool:
        """Whether the switch says that it runs no program."""
        return self.code is grpc.StatusCode.FAILED_PRECONDITION and bool(_NO_PIPELINE.search(self.message))

    @property
    def means_wrong_device(self) -> bool:
        """Whether the switch says that it is another device."""
        if self.code is grpc.StatusCode.UNKNOWN:
            return bool(_ASSIGN_DEVICE.search(self.message))
        return self.code is grpc.StatusCode.NOT_FOUND and "device" in self.message

    @property
    def means_absent(self) -> bool:
        """Whether the switch says that the requested entity does not exist."""
        codes = {code for code, _ in self.refused.values()}
        return self.code is grpc.StatusCode.NOT_FOUND or codes == {"NOT_FOUND"}


def failure_of(error: grpc.RpcError) -> RpcFailure:
    """Unpack an error of a unary call, a read or a stream."""
    assert isinstance(error, grpc.Call)
    code, message = error.code(), error.details() or ""
    refused: dict[int, tuple[str, str]] = {}
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS:
            try:
                status = P4RpcStatus.from_bytes(value if isinstance(value, bytes) else value.encode())
            except ValueError:  # details of a type that is not P4Runtime's
                continue
            refused = {i: (detail.canonical_code.name, detail.message) for i, detail in status.details.items()}
            message = status.message or message
    return RpcFailure(code, message, refused)


def state_requests(info: p4i.P4Info, *, counters: bool) -> list[list[p4r.Entity]]:
    """Return the reads that together cover the whole state of a switch that runs `info`, one RPC each.

    A read of one digest may fail with NOT_FOUND: that digest is then not configured.

    Args:
        info: the program's P4Info.
        counters: also read the direct counters of table entries.
    """
    tables: list[p4r.Entity] = []
    direct = {counter.preamble.id for counter in info.direct_counters}
    for table in info.tables:
        entry = p4r.TableEntry(table_id=table.preamble.id)
        if counters and direct & set(table.direct_resource_ids):
            entry.counter_data.SetInParent()
        tables.append(p4r.Entity(table_entry=entry))
    requests = [tables, group_request()] if tables else []
    for digest in info.digests:
        requests.append([p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=digest.preamble.id))])
    return requests


def group_request() -> list[p4r.Entity]:
    """Return the read of all multicast groups."""
    return [_engine(multicast_group_entry=p4r.MulticastGroupEntry())]


def clone_session_request() -> list[p4r.Entity]:
    """Return the read of all clone sessions."""
    return [_engine(clone_session_entry=p4r.CloneSessionEntry())]


def counter_request(schema: P4Schema, name: str) -> list[p4r.Entity]:
    """Return the read of a whole indirect counter."""
    return [p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=schema.counters[name].id))]


def _engine(
    multicast_group_entry: p4r.MulticastGroupEntry | None = None,
    clone_session_entry: p4r.CloneSessionEntry | None = None,
) -> p4r.Entity:
    engine = p4r.PacketReplicationEngineEntry(
        multicast_group_entry=multicast_group_entry, clone_session_entry=clone_session_entry
    )
    return p4r.Entity(packet_replication_engine_entry=engine)
