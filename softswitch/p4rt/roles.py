"""Rights of the clients of a role: full access if unset, otherwise defined by a Stratum P4RoleConfig.

The P4Runtime specification leaves the schema of `role.config` to client and server; this server supports
`stratum.P4RoleConfig`, the only schema that public clients use.
"""

from __future__ import annotations

from dataclasses import dataclass

from finsy.proto import p4r, stratum
from google.protobuf import any_pb2

from softswitch.p4rt.errors import invalid


@dataclass(frozen=True, slots=True)
class RoleRights:
    """The rights of one role.

    Attributes:
        exclusive: P4 ids that only this role may write; None (with `shared` None) means every object.
        shared: P4 ids that this role and others may write.
        packet_ins: whether the role's primary receives packet-ins.
        packet_in_filter: (metadata id, canonical value) required in a packet-in, None for no filter.
        push_pipeline: whether the role may set the forwarding pipeline.
    """

    exclusive: frozenset[int] | None = None
    shared: frozenset[int] | None = None
    packet_ins: bool = True
    packet_in_filter: tuple[int, bytes] | None = None
    push_pipeline: bool = True

    def allows(self, p4_id: int) -> bool:
        """Return whether the role may write and read the object with this P4 id (0: an object without id)."""
        if self.exclusive is None or self.shared is None or p4_id == 0:
            return True
        return p4_id in self.exclusive or p4_id in self.shared

    def conflicts(self, other: RoleRights) -> frozenset[int]:
        """Return the ids that one of the two roles claims exclusively and the other may write too."""
        if self.exclusive is None or self.shared is None or other.exclusive is None or other.shared is None:
            return frozenset()
        mine, theirs = self.exclusive | self.shared, other.exclusive | other.shared
        return (self.exclusive & theirs) | (other.exclusive & mine)

    def receives(self, packet: p4r.PacketIn) -> bool:
        """Return whether the role's primary receives this packet-in."""
        if not self.packet_ins or self.packet_in_filter is None:
            return self.packet_ins
        wanted_id, wanted_value = self.packet_in_filter
        return any(m.metadata_id == wanted_id and m.value == wanted_value for m in packet.metadata)


FULL_ACCESS = RoleRights()


def parse_rights(config: any_pb2.Any | None) -> RoleRights:
    """Return the rights that `role.config` of an arbitration message grants (None: unset, full access).

    Raises:
        P4RuntimeError: INVALID_ARGUMENT for a message of another type or with damaged content.
    """
    if config is None:
        return FULL_ACCESS
    message = stratum.P4RoleConfig()
    try:
        understood = config.Unpack(message)
    except Exception as error:  # DecodeError of the protobuf runtime in use; its class differs by runtime
        raise invalid(f"role.config cannot be parsed: {error}") from error
    if not understood:
        raise invalid(
            f"role.config of type {config.TypeName() or '(none)'} is not supported; "
            "leave it unset (full access) or send a stratum.P4RoleConfig"
        )
    packet_filter = message.packet_in_filter
    return RoleRights(
        exclusive=frozenset(message.exclusive_p4_ids),
        shared=frozenset(message.shared_p4_ids),
        packet_ins=message.receives_packet_ins,
        packet_in_filter=(packet_filter.metadata_id, packet_filter.value) if packet_filter.metadata_id else None,
        push_pipeline=message.can_push_pipeline,
    )
