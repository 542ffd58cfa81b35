"""What kind of traffic a capture holds, and what of its run lies beside it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from capture.errors import CaptureError
from capture.reader import open_capture
from gloo.scan import TLS_HANDSHAKE
from gloo.wire import SEQUENCE_BYTES, is_collective, parse_header, parse_sequence
from packets.batch import PacketBatch
from packets.decode import decode
from packets.headers import Kind as PacketKind
from replay.errors import ReplayError
from replay.scan import TAIL, headers_in
from replay.segments import Seen, look

JOB_FILE = "job.yaml"
"""Name of the job file in a run's folder."""
LOG_PATTERN = "side-channel*.bin*"
"""Names of the side-channel logs in a run's folder."""
_CONNECTIONS = 1024
"""Connections that are looked at at a time for frame headers that lie in two segments."""


class Kind(StrEnum):
    """Traffic that gradients are found in."""

    TCP = "tcp"
    """Our own: framed streams between ranks, or replicas of them."""
    ROCEV2 = "rocev2"
    """NCCL over RoCEv2."""
    GLOO = "gloo"
    """PyTorch's gloo backend."""


def kind_of(path: Path) -> Kind | None:
    """Return the kind of the first gradient traffic in a capture, None where it has none of it.

    Raises:
        ReplayError: the file cannot be opened, or is no capture.
    """
    try:
        with open_capture(path) as reader:
            tails: dict[bytes, tuple[int, bytes]] = {}
            begun: set[bytes] = set()
            for seen in look(reader.batches()):
                if seen.name == "rocev2":
                    return Kind.ROCEV2
                if _is_gloo(seen.key, seen.payload or _payload(seen), begun):
                    return Kind.GLOO
                if seen.payload:
                    following, tail = tails.pop(seen.key, (0, b""))
                    text = tail + seen.payload if seen.seq == following else seen.payload
                    if next(headers_in(text), None) is not None:
                        return Kind.TCP
                    if len(tails) >= _CONNECTIONS:
                        tails.clear()
                    tails[seen.key] = (seen.seq + len(seen.payload)) % (1 << 32), text[-TAIL:]
    except CaptureError as error:
        if error.offset == 0:
            raise ReplayError(error.path, error.problem, error.fix) from error
    except OSError as error:
        raise ReplayError(str(path), f"cannot be read: {error.strerror}", "check the name") from error
    return None


def _is_gloo(key: bytes, payload: bytes, begun: set[bytes]) -> bool:
    """Tell whether a segment begins with a message of gloo, or its connection with a rank and a TLS handshake.

    Args:
        key: the direction, empty where it is not known.
        payload: of the segment.
        begun: directions that began with a rank, which is added to.
    """
    at = SEQUENCE_BYTES if parse_sequence(payload) is not None else 0
    header = parse_header(payload) or parse_header(payload, at)
    if header is not None:
        return is_collective(header.slot)
    hello = payload[at : at + 2] == TLS_HANDSHAKE
    if hello and (at or key in begun):
        return True
    if at and len(payload) == at and key and len(begun) < _CONNECTIONS:
        begun.add(key)
    return False


def _payload(seen: Seen) -> bytes:
    """Return the payload of a TCP segment over IPv6, which `look` leaves out."""
    if seen.kind != PacketKind.TCP or seen.tcp:
        return b""
    data = bytes(seen.data)
    (header,) = decode(PacketBatch.of([data], seen.link_type), verify=False)
    start = int(header["payload"])
    return data[start : start + int(header["payload_length"])]


def job_beside(captures: Sequence[Path]) -> Path | None:
    """Return the job file of the run whose folder the first capture is in, None without one."""
    found = captures[0].parent / JOB_FILE
    return found if found.is_file() else None


def records_beside(captures: Sequence[Path]) -> tuple[Path, ...]:
    """Return the side-channel logs of the run whose folder the first capture is in."""
    return tuple(sorted(captures[0].parent.glob(LOG_PATTERN)))
