"""What is in a capture: time and size, TCP connections and the frames of ours in them, RoCEv2 and its collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from capture.errors import CaptureError
from capture.model import Packet
from capture.reader import CaptureReader, open_capture
from jobspec.model import Job
from replay.inspect_tcp import TcpDirection, TcpTraffic
from replay.segments import Seen, look
from rocev2.decoder import Decoder
from rocev2.results import DecodedCapture, QueuePairSummary

_TELL_EVERY = 4096


@dataclass
class Totals:
    """Of all packets."""

    packets: int = 0
    """Packets."""
    captured_bytes: int = 0
    """Their bytes in the file."""
    wire_bytes: int = 0
    """Their bytes on the wire."""
    cut: int = 0
    """Packets that the snapshot length cut."""
    smallest: int | None = None
    """Bytes of the smallest packet on the wire, None without packets."""
    largest: int = 0
    """Bytes of the largest packet on the wire."""
    first_ns: int | None = None
    """Earliest time stamp, None without packets."""
    last_ns: int | None = None
    """Latest time stamp, None without packets."""
    backwards: int = 0
    """Packets whose time stamp is before that of the packet in front of them."""
    link_types: Counter[int] = field(default_factory=Counter)
    """Packets by LINKTYPE_*."""
    _previous_ns: int = 0

    def add(self, packet: Seen) -> None:
        """Take a packet into account."""
        self.packets += 1
        size = packet.wire_length
        self.captured_bytes += len(packet.data)
        self.wire_bytes += size
        self.cut += size > len(packet.data)
        self.smallest = size if self.smallest is None else min(self.smallest, size)
        self.largest = max(self.largest, size)
        self.link_types[packet.link_type] += 1
        time_ns = packet.time_ns
        self.backwards += time_ns < self._previous_ns
        self._previous_ns = time_ns
        self.first_ns = time_ns if self.first_ns is None else min(self.first_ns, time_ns)
        self.last_ns = time_ns if self.last_ns is None else max(self.last_ns, time_ns)

    @property
    def span_s(self) -> float:
        """Seconds from the earliest to the latest packet."""
        return ((self.last_ns or 0) - (self.first_ns or 0)) / 1e9


@dataclass(frozen=True)
class Inspection:
    """All that was found."""

    file: str
    """The capture."""
    format: str
    """``pcap`` or ``pcapng``."""
    size: int | None
    """Bytes of the file, None for pipes."""
    totals: Totals
    """Of all packets."""
    tcp: tuple[TcpDirection, ...]
    """Each direction of each TCP connection over IPv4, in the order of their first packets."""
    tcp_unlisted: int
    """Packets of connections that are too many to be listed."""
    rocev2: DecodedCapture
    """RoCEv2: queue pairs, messages, collectives."""
    other: dict[str, int]
    """Everything else, by name."""
    oddities: dict[str, int]
    """What was odd about packets without making them useless, and how many they were."""
    damage: CaptureError | None
    """Why the file could not be read to its end, None where it could."""
    queue_pair_roles: dict[tuple[str, str, int], str]
    """Source, destination and number of a queue pair of the job -> its name."""

    def role(self, pair: QueuePairSummary) -> str | None:
        """Return what a queue pair is in the job, None where it is none of its own."""
        return self.queue_pair_roles.get((pair.source, pair.destination, pair.dest_qp))

    def as_dict(self) -> dict[str, Any]:
        """Return it for programs; JSON types only."""
        totals, found = self.totals, self.rocev2
        return {
            "file": self.file,
            "format": self.format,
            "size": self.size,
            "packets": totals.packets,
            "captured_bytes": totals.captured_bytes,
            "wire_bytes": totals.wire_bytes,
            "cut_packets": totals.cut,
            "smallest": totals.smallest,
            "largest": totals.largest,
            "first_time": written(totals.first_ns),
            "last_time": written(totals.last_ns),
            "seconds": totals.span_s,
            "backward_times": totals.backwards,
            "link_types": {str(kind): count for kind, count in sorted(totals.link_types.items())},
            "tcp": [direction.as_dict() for direction in self.tcp],
            "tcp_unlisted_packets": self.tcp_unlisted,
            "rocev2_packets": found.rocev2_packets,
            "queue_pairs": [_queue_pair(pair, self.role(pair)) for pair in found.queue_pairs],
            "messages": [
                {"dest_qp": item.dest_qp, "kind": item.kind, "count": item.count, "bytes": item.bytes}
                for item in found.messages
            ],
            "all_reduces": [
                {
                    "index": item.index,
                    "ranks": item.ranks,
                    "channels": item.channels,
                    "protocol": item.protocol,
                    "elements": item.elements,
                    "covered": int(item.covered.sum()),
                    "complete": item.complete,
                    "sha256": item.sha256,
                    "first_packet": item.first_packet,
                    "last_packet": item.last_packet,
                }
                for item in found.all_reduces
            ],
            "p2p": [
                {"dest_qp": item.dest_qp, "bytes": item.bytes, "outcome": item.outcome, "all_reduce": item.all_reduce}
                for item in found.p2p
            ],
            "unresolved_messages": found.unresolved,
            "marks": dict(found.marks),
            "notes": list(found.notes),
            "other": self.other,
            "oddities": self.oddities,
            "error": None
            if self.damage is None
            else {"offset": self.damage.offset, "problem": self.damage.problem, "fix": self.damage.fix},
        }


class Inspector:
    """Takes packets one by one; memory is bounded by what it lists, and by RoCEv2 messages (`rocev2.decoder`)."""

    def __init__(self, job: Job | None = None) -> None:
        """Begin with nothing; `job` gives its flows and queue pairs their names."""
        self.totals = Totals()
        """Of the packets so far."""
        self._tcp = TcpTraffic(job)
        self._decoder = Decoder(use_p2p=True, dtype=None)
        self._roles = {
            (str(pair.source_address), str(pair.target_address), pair.number): (
                f"{pair.source.name}->{pair.target.name}, replicated to {', '.join(s.name for s in pair.shadows)}"
            )
            for pair in (job.queue_pairs if job is not None else ())
        }

    def add(self, seen: Seen) -> None:
        """Take the next packet of the capture."""
        self.totals.add(seen)
        if seen.tcp:
            self._tcp.add(seen)
        else:
            data = bytes(seen.data)
            self._decoder.add(Packet(seen.number, seen.time_ns, data, seen.wire_length, 0, seen.link_type, 0))

    def finish(self, file: str, capture: CaptureReader, damage: CaptureError | None = None) -> Inspection:
        """Return all that was found in `capture`, which ended, or ended with `damage`."""
        found = self._decoder.finish(file)
        return Inspection(
            file=file,
            format=capture.format,
            size=capture.size,
            totals=self.totals,
            tcp=tuple(self._tcp.directions),
            tcp_unlisted=self._tcp.unlisted,
            rocev2=found,
            other=dict(sorted(found.other.items())),
            oddities=capture.oddities,
            damage=damage,
            queue_pair_roles=self._roles,
        )


def inspect_capture(
    path: Path, job: Job | None = None, progress: Callable[[int, int | None], None] | None = None
) -> Inspection:
    """Look through the capture at `path`.

    Args:
        path: a file, or ``-``.
        job: gives its flows and queue pairs their names.
        progress: is called now and then with the bytes read and the file's size (None for pipes).

    Returns:
        What was found; where the file is damaged, what was found before the damage, and the damage.

    Raises:
        CaptureError: the file is no capture, or empty.
        OSError: it cannot be opened or read.
    """
    inspector = Inspector(job)
    damage = None
    with open_capture(path) as capture:
        try:
            for seen in look(capture.batches()):
                inspector.add(seen)
                if progress is not None and seen.number % _TELL_EVERY == 0:
                    progress(capture.bytes_read, capture.size)
        except CaptureError as error:
            damage = error
        return inspector.finish(str(path), capture, damage)


def written(time_ns: int | None) -> str | None:
    """Return a time in UTC with nanoseconds (ISO 8601), None for None; far off the calendar, seconds."""
    if time_ns is None:
        return None
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{seconds}.{nanoseconds:09} s"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"


def _queue_pair(pair: QueuePairSummary, role: str | None) -> dict[str, Any]:
    return {
        "source": pair.source,
        "destination": pair.destination,
        "udp_source": pair.udp_source,
        "dest_qp": pair.dest_qp,
        "job_role": role,
        "role": pair.role,
        "rank": pair.rank,
        "channel": pair.channel,
        "packets": pair.packets,
        "payload_bytes": pair.payload_bytes,
        "opcodes": dict(pair.opcodes),
        "lost_psn": [{"first": first, "last": last} for first, last in pair.lost],
        "duplicates": pair.duplicates,
        "conflicting": pair.conflicting,
        "reordered": pair.reordered,
    }
