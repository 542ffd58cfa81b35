"""Client arbitration: which client of each role is the primary. Pure state; the caller delivers the messages.

P4Runtime specification, section "Client Arbitration and Controller Replication". In particular, when the primary
disconnects, no backup is promoted automatically: backups are notified (NOT_FOUND), and the first that sends an election
id at least as high as the highest ever seen becomes the primary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from finsy.proto import U128, p4r, rpc_status

from softswitch.p4rt.errors import Code, P4RuntimeError, invalid
from softswitch.p4rt.roles import FULL_ACCESS, RoleRights, parse_rights


@dataclass(eq=False, slots=True)
class Client:
    """One stream of a client; identity is the object.

    Attributes:
        role: key of its role, None before its first arbitration message.
        election_id: its current election id, None if the field was unset.
    """

    role: str | None = None
    election_id: int | None = None


@dataclass(slots=True)
class _Role:
    """State of one role, kept while the server runs, because election ids must not decrease."""

    message: p4r.Role | None
    rights: RoleRights = FULL_ACCESS
    highest: int | None = None
    primary: Client | None = None
    clients: list[Client] = field(default_factory=list)


Notification = tuple[Client, p4r.StreamMessageResponse]
"""A message and the client that it is for."""


def role_key(name: str, numeric_id: int = 0) -> str:
    """Return the key of a role: its name, or its number for clients before P4Runtime 1.4; "" if none."""
    return name or (f"#{numeric_id}" if numeric_id else "")


class Arbiter:
    """Arbitration state of one device.

    Args:
        device_id: id that arbitration messages must carry.
    """

    def __init__(self, device_id: int) -> None:
        """Start with the default role and no clients."""
        self._device_id = device_id
        self._roles: dict[str, _Role] = {"": _Role(message=None)}

    def update(self, client: Client, message: p4r.MasterArbitrationUpdate) -> list[Notification]:
        """Handle an arbitration message of `client` and return the notifications to send, in order.

        Raises:
            P4RuntimeError: the stream must be ended with this error (NOT_FOUND for another device,
                INVALID_ARGUMENT for an election id in use or a role config that is not understood,
                FAILED_PRECONDITION when a live client changes its device or role). The state is unchanged.
        """
        if message.device_id != self._device_id:
            code = Code.NOT_FOUND if client.role is None else Code.FAILED_PRECONDITION
            raise P4RuntimeError(
                code, f"device_id {message.device_id} is unknown; this server has device {self._device_id}"
            )
        key = role_key(message.role.name, message.role.id) if message.HasField("role") else ""
        if client.role is not None and client.role != key:
            raise P4RuntimeError(
                Code.FAILED_PRECONDITION,
                f"the role of a stream cannot change from {client.role!r} to {key!r}; open another stream",
            )
        election_id = U128.decode(message.election_id) if message.HasField("election_id") else None
        role = self._roles.get(key)
        others = [other for other in role.clients if other is not client] if role else []
        if election_id is not None and any(other.election_id == election_id for other in others):
            raise invalid(f"Election id {election_id} is already used by another client of role {key!r}")
        has_config = message.HasField("role") and message.role.HasField("config")
        rights = parse_rights(message.role.config if has_config else None)
        self._check_exclusive(key, rights)

        if role is None:
            role = self._roles[key] = _Role(message=None)
        if client.role is None:
            client.role = key
            role.clients.append(client)
        client.election_id = election_id
        was_primary = role.primary is client
        if election_id is not None and (role.highest is None or election_id >= role.highest):
            role.highest, role.primary, role.rights = election_id, client, rights
            role.message = p4r.Role.FromString(message.role.SerializeToString()) if key else None
            return self._notify(role, [*others, client])
        if role.message is None and key:
            role.message = p4r.Role(name=message.role.name, id=message.role.id)
        if was_primary:
            role.primary = None
            return self._notify(role, role.clients)
        return self._notify(role, [client])

    def leave(self, client: Client) -> list[Notification]:
        """Forget a client whose stream has ended and return the notifications to send."""
        if client.role is None:
            return []
        role = self._roles[client.role]
        role.clients.remove(client)
        client.role = None
        if role.primary is not client:
            return []
        role.primary = None
        return self._notify(role, role.clients)

    def authorize(self, key: str, election_id: int | None) -> RoleRights:
        """Return the rights of the primary of role `key`, for a Write or a pipeline change.

        Raises:
            P4RuntimeError: NOT_FOUND for a role that no client ever had, PERMISSION_DENIED if `election_id`
                is not that of the role's current primary.
        """
        rights = self.rights(key)
        primary = self._roles[key].primary
        if primary is None or election_id is None or primary.election_id != election_id:
            sent = "unset" if election_id is None else str(election_id)
            state = "there is no primary" if primary is None else f"the primary has {primary.election_id}"
            raise P4RuntimeError(Code.PERMISSION_DENIED, f"Not primary: election id is {sent}, {state}")
        return rights

    def rights(self, key: str) -> RoleRights:
        """Return the rights of role `key`.

        Raises:
            P4RuntimeError: NOT_FOUND for a role that no client ever had.
        """
        if key not in self._roles:
            raise P4RuntimeError(Code.NOT_FOUND, f"role {key!r} is unknown; arbitrate for it first")
        return self._roles[key].rights

    def is_primary(self, client: Client) -> bool:
        """Return whether `client` is the primary of its role."""
        return client.role is not None and self._roles[client.role].primary is client

    def primaries(self) -> Iterator[tuple[Client, RoleRights]]:
        """Yield the primary of every role that has one, with its rights."""
        for role in self._roles.values():
            if role.primary is not None:
                yield role.primary, role.rights

    def _check_exclusive(self, key: str, rights: RoleRights) -> None:
        for other_key, other in self._roles.items():
            if other_key == key or not other.clients:
                continue
            shared = rights.conflicts(other.rights)
            if shared:
                raise invalid(
                    f"role.config of {key!r} and of {other_key!r} claim the same P4 ids exclusively: "
                    + ", ".join(map(str, sorted(shared)))
                )

    def _notify(self, role: _Role, clients: Sequence[Client]) -> list[Notification]:
        result: list[Notification] = []
        for client in clients:
            update = p4r.MasterArbitrationUpdate(device_id=self._device_id)
            if role.message is not None:
                update.role.CopyFrom(role.message)
            if role.highest is not None:
                update.election_id.CopyFrom(U128.encode(role.highest))
            if role.primary is client:
                status = rpc_status.Status(code=int(Code.OK), message="Is primary")
            elif role.primary is not None:
                status = rpc_status.Status(code=int(Code.ALREADY_EXISTS), message="Is backup")
            else:
                status = rpc_status.Status(code=int(Code.NOT_FOUND), message="There is no primary")
            update.status.CopyFrom(status)
            result.append((client, p4r.StreamMessageResponse(arbitration=update)))
        return result
