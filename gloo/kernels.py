"""Compiled functions; see `gloo.copy`."""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

from packets.compiled import jit


@jit
def gather(data, starts, lengths, out):
    """Copy payloads one behind the other: see `gloo.copy`."""
    at = 0
    for number in range(len(starts)):
        start, length = starts[number], lengths[number]
        if start < 0 or length < 0 or start + length > len(data) or at + length > len(out):
            break
        out[at : at + length] = data[start : start + length]
        at += length
    return at
