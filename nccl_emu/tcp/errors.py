"""The one exception type of the TCP endpoint."""

from __future__ import annotations

from enum import Enum


class TcpErrorKind(Enum):
    """What went wrong with a connection, or with a call on its endpoint."""

    RESET = "reset"
    """The peer sent a valid RST on a synchronized connection."""
    REFUSED = "refused"
    """The peer answered our SYN with a RST: nobody listens there."""
    RETRANSMISSION_LIMIT = "retransmission_limit"
    """The same data was retransmitted too often without any answer."""
    BUFFER_FULL = "buffer_full"
    """`write` was called while `writable` was false."""
    INVALID_STATE = "invalid_state"
    """The call is not allowed in the connection's state."""
    INVALID_VALUE = "invalid_value"
    """A configuration field or an argument has a value that is not allowed."""


class TcpError(Exception):
    """A failed connection or a wrong call; `kind` says which, the other fields say where."""

    def __init__(
        self,
        kind: TcpErrorKind,
        detail: str,
        *,
        field: str | None = None,
        local_port: int | None = None,
        remote_port: int | None = None,
        state: str | None = None,
    ) -> None:
        """Keep what is known; the message is made of it."""
        self.kind = kind
        self.detail = detail
        self.field = field
        self.local_port = local_port
        self.remote_port = remote_port
        self.state = state
        where = "" if local_port is None else f" (connection {local_port}->{remote_port}, {state})"
        name = "" if field is None else f"{field}: "
        super().__init__(f"{name}{detail}{where}")


def invalid_value(field: str, detail: str) -> TcpError:
    """Return the error for a configuration field or an argument with a value that is not allowed."""
    return TcpError(TcpErrorKind.INVALID_VALUE, detail, field=field)
