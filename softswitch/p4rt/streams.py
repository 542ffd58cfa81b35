"""A client's stream as the device sees it, and the answers to refused messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from finsy.proto import p4r

from softswitch.p4rt.arbitration import Client
from softswitch.p4rt.errors import ERROR_SPACE, P4RuntimeError

Deliver = Callable[[p4r.StreamMessageResponse], bool]
"""Puts a message on a client's stream without blocking; returns False if it was dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """The open stream of one client."""

    client: Client
    deliver: Deliver


def stream_error(message: p4r.StreamMessageRequest, error: P4RuntimeError) -> p4r.StreamMessageResponse:
    """Return the StreamError for a refused message, which includes the message."""
    answer = p4r.StreamError(canonical_code=int(error.code), message=error.message, space=ERROR_SPACE)
    form = message.WhichOneof("update")
    if form == "packet":
        answer.packet_out.packet_out.CopyFrom(message.packet)
    elif form == "digest_ack":
        answer.digest_list_ack.digest_list_ack.CopyFrom(message.digest_ack)
    elif form == "other":
        answer.other.other.CopyFrom(message.other)
    return p4r.StreamMessageResponse(error=answer)
