"""Errors of the P4Runtime server: canonical codes, and the specification's messages for them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from finsy.proto import p4r, rpc_status
from google.protobuf import any_pb2

from softswitch.errors import SwitchError

ERROR_SPACE = "softswitch"
"""`space` of every p4.v1.Error and p4.v1.StreamError of this server."""

_DETAILS_BUDGET = 5000
"""Maximum bytes of details within a client's default limit of 8 kB of metadata (after base64)."""


class Code(IntEnum):
    """Canonical error codes of google.rpc.Code; equal to the codes of a gRPC status."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class P4RuntimeError(Exception):
    """A request, update, read or stream message that the server refuses.

    Attributes:
        code: the canonical code that P4Runtime prescribes for this refusal.
        message: what is wrong and what was expected.
    """

    def __init__(self, code: Code, message: str) -> None:
        """Create an error."""
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        """Return code and message."""
        return f"{self.code.name}: {self.message}"


class BatchError(P4RuntimeError):
    """Some updates of a Write (or requests of a Read) failed: one result per update, in order.

    Attributes:
        results: None if the update succeeded, otherwise its error. P4Runtime, section "Error Reporting".
    """

    def __init__(self, what: str, results: Sequence[P4RuntimeError | None]) -> None:
        """Create the error of a batch; `what` names the RPC."""
        failed = sum(result is not None for result in results)
        super().__init__(Code.UNKNOWN, f"{what} failed for {failed} of {len(results)}")
        self.results = tuple(results)

    def to_status(self) -> rpc_status.Status:
        """Return the google.rpc.Status with exactly one packed p4.v1.Error per update.

        The status is sent as HTTP/2 metadata, and clients refuse metadata above 8 kB by default. Codes matter more than
        texts, so the texts of a large batch are shortened until everything fits.
        """
        failed = sum(result is not None for result in self.results)
        overhead = 48 * len(self.results)
        room = max(0, (_DETAILS_BUDGET - overhead) // max(1, failed))
        status = rpc_status.Status(code=int(self.code), message=self.message)
        for result in self.results:
            error = p4r.Error(canonical_code=int(Code.OK))
            if result is not None:
                error = p4r.Error(
                    canonical_code=int(result.code), message=_shorten(result.message, room), space=ERROR_SPACE
                )
            packed = any_pb2.Any()
            packed.Pack(error)
            status.details.append(packed)
        return status


def invalid(message: str) -> P4RuntimeError:
    """Return an INVALID_ARGUMENT error."""
    return P4RuntimeError(Code.INVALID_ARGUMENT, message)


def unimplemented(what: str) -> P4RuntimeError:
    """Return an UNIMPLEMENTED error for a feature that this target lacks."""
    return P4RuntimeError(Code.UNIMPLEMENTED, f"{what} is not supported by this target")


def from_switch_error(error: SwitchError) -> P4RuntimeError:
    """Translate a refusal of the execution core: its kinds are named like canonical codes."""
    return P4RuntimeError(Code[error.kind.name], str(error))


def _shorten(text: str, room: int) -> str:
    data = text.encode()
    if len(data) <= room:
        return text
    return data[: max(0, room - 3)].decode(errors="ignore") + "..." if room > 3 else ""
