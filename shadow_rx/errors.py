"""The one exception type of the shadow node: a refused request, with the field that is at fault."""

from __future__ import annotations

from enum import StrEnum

from checkmate_common.sidechannel.limits import MAX_STEP


class Refusal(StrEnum):
    """Why a request is refused; the names are those of the service's gRPC status codes."""

    INVALID_ARGUMENT = "invalid_argument"
    """The request itself is wrong, whatever the state of the shadow."""
    FAILED_PRECONDITION = "failed_precondition"
    """The request does not fit the shadow's current state (an old epoch, a state in use, ...)."""
    NOT_FOUND = "not_found"
    """The group or step is not known here."""
    RESOURCE_EXHAUSTED = "resource_exhausted"
    """Serving the request would go beyond the stated bound of memory or of waiting calls."""
    UNAVAILABLE = "unavailable"
    """Not at the moment; the same request may be served later."""


class ShadowError(Exception):
    """A refused request. Nothing has changed in the shadow when it is raised."""

    def __init__(self, code: Refusal, field: str, message: str) -> None:
        """Keep the kind of refusal, the field of the request that is at fault, and what would be right."""
        self.code = code
        self.field = field
        self.message = message
        super().__init__(f"{field}: {message}")


def invalid(field: str, message: str) -> ShadowError:
    """Return the error for a request whose `field` is wrong in itself."""
    return ShadowError(Refusal.INVALID_ARGUMENT, field, message)


def check_step(field: str, step: int) -> None:
    """Refuse a number that no step has.

    Raises:
        ShadowError: it is too large; `field` is named.
    """
    if step > MAX_STEP:
        raise invalid(field, f"{step}, expected at most {MAX_STEP}")


def wrong_state(field: str, message: str) -> ShadowError:
    """Return the error for a request that does not fit the shadow's current state."""
    return ShadowError(Refusal.FAILED_PRECONDITION, field, message)
