"""Exceptions of the emulated rank: one base type, one subclass a part, with fields that name the place."""

from __future__ import annotations


class EmulatorError(Exception):
    """Base of everything that an emulated rank raises on purpose."""


class RingError(EmulatorError):
    """A stream of the ring does not hold what the schedule says: this communicator cannot go on."""

    def __init__(
        self, field: str, message: str, *, step: int, flow: int | None = None, frame: int | None = None
    ) -> None:
        """Keep where it happened.

        Args:
            field: header field or property that is wrong.
            message: what was found and what was expected.
            step: training step.
            flow: id of the incoming flow, None where no flow is concerned.
            frame: index of the frame within the step's stream, None where no frame is concerned.
        """
        self.field = field
        self.detail = message
        self.step = step
        self.flow = flow
        self.frame = frame
        where = "" if flow is None else f"flow {flow}, "
        at = "" if frame is None else f", frame {frame}"
        super().__init__(f"{where}step {step}{at}: {field}: {message}")


class LinkError(EmulatorError):
    """A ring connection was refused, reset, closed early or made no progress."""

    def __init__(self, reason: str, message: str, *, flow: int | None = None, peer: str | None = None) -> None:
        """Keep where it happened.

        Args:
            reason: short name: a value of `TcpErrorKind`, or ``closed_early``, ``timeout``, ``not_connected``,
                ``epoch``, ``ports``, ``interface``.
            message: what happened.
            flow: id of the flow, None where all are concerned.
            peer: host at the other end.
        """
        self.reason = reason
        self.detail = message
        self.flow = flow
        self.peer = peer
        where = "" if flow is None else f"flow {flow} with {peer}: "
        super().__init__(f"{where}{message}")


class TrainerError(EmulatorError):
    """The trainer cannot be built, restored or used that way."""

    def __init__(self, field: str, message: str) -> None:
        """Keep the job field, state object or call that is wrong."""
        self.field = field
        self.detail = message
        super().__init__(f"{field}: {message}")


class SideChannelError(EmulatorError):
    """A call to the shadow node failed."""

    def __init__(self, call: str, code: str, message: str, address: str | None = None) -> None:
        """Keep the failed call.

        Args:
            call: name of the RPC.
            code: gRPC status code name, e.g. ``UNAVAILABLE``.
            message: the server's or the library's explanation.
            address: address of the shadow node.
        """
        self.call = call
        self.code = code
        self.detail = message
        self.address = address
        to = f" to {address}" if address else ""
        super().__init__(f"{call}{to} failed with {code}: {message}")
