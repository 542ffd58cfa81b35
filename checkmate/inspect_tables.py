"""Tables of `checkmate inspect`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.table import Table

from replay.inspect import Inspection, written
from replay.inspect_tcp import TcpDirection

MOST_ROWS = 40
"""Most rows of a table; ``--json`` has all."""
_MOST_STRANGERS = 10
"""Most TCP connections without our frames that are listed, largest first."""

_ENDS = "from, to"

_Column = tuple[str, Sequence[str]]
"""Title (prefix ``>``: right-aligned; prefix ``?``: omitted if every cell is empty or 0) and cells."""


def tables(found: Inspection) -> Iterator[Table | str]:
    """Yield the tables and lines to print, in order."""
    yield _summary(found)
    if found.tcp:
        yield _tcp(found)
    if found.rocev2.queue_pairs:
        yield _queue_pairs(found)
    if found.rocev2.messages:
        yield _messages(found)
    if found.rocev2.all_reduces:
        yield _all_reduces(found)
    others = dict(found.other)
    if found.tcp_unlisted:
        others["tcp of further connections"] = found.tcp_unlisted
    for title, counts in (("Other traffic", others), ("Oddities", found.oddities), ("Marks", found.rocev2.marks)):
        if any(counts.values()):
            yield _table(title, len(counts), [("what", list(counts)), (">packets", list(map(str, counts.values())))])
    yield from found.rocev2.notes


def _table(title: str, rows: int, columns: Sequence[_Column]) -> Table:
    shown = min(rows, MOST_ROWS)
    more = f", {shown} of {rows} (--json has all)" if shown < rows else ""
    table = Table(title=f"{title}{more}", title_justify="left")
    kept = [column for column in columns if column[0][0] != "?" or any(cell not in ("", "0") for cell in column[1])]
    for name, _ in kept:
        # Addresses are not wrapped on a narrow terminal.
        justify: Literal["left", "right"] = "right" if ">" in name[:2] else "left"
        table.add_column(name.lstrip("?>"), justify=justify, overflow="fold", no_wrap=name == _ENDS)
    for row in list(zip(*(cells for _, cells in kept), strict=True))[:MOST_ROWS]:
        table.add_row(*row)
    return table


def _summary(found: Inspection) -> Table:
    totals = found.totals
    table = Table(title=found.file, title_justify="left", show_header=False)
    size = "" if found.size is None else f", {found.size} bytes"
    table.add_row("file", f"{found.format}{size}")
    kinds = (f"{kind} ({count} packets)" for kind, count in sorted(totals.link_types.items()))
    table.add_row("link types", ", ".join(kinds))
    cut = f", {totals.cut} of them cut short" if totals.cut else ""
    table.add_row("packets", f"{totals.packets}{cut}")
    table.add_row("bytes", f"{totals.wire_bytes} on the wire, {totals.captured_bytes} captured")
    if totals.packets:
        table.add_row("packet sizes", f"{totals.smallest} to {totals.largest} bytes")
        back = (
            f"; {totals.backwards} packets have a timestamp before that of the previous packet"
            if totals.backwards
            else ""
        )
        table.add_row("time", f"{written(totals.first_ns)}, {totals.span_s:.6f} s{back}")
    if totals.span_s:
        rate = 8e-6 * totals.wire_bytes / totals.span_s
        table.add_row("mean rate", f"{rate:,.3f} Mbit/s, {totals.packets / totals.span_s:,.0f} packets/s")
    table.add_row("RoCEv2 packets", str(found.rocev2.rocev2_packets))
    return table


def _tcp(found: Inspection) -> Table:
    ours = [each for each in found.tcp if each.frames.count or each.role]
    strangers = sorted((each for each in found.tcp if not (each.frames.count or each.role)), key=_size, reverse=True)
    listed = (ours + strangers[:_MOST_STRANGERS])[:MOST_ROWS]
    left = len(found.tcp) - len(listed)
    more = f"; {left} smaller ones omitted (--json has all)" if left else ""
    return _table(
        f"TCP, each direction of a connection{more}",
        len(listed),
        [
            (_ENDS, [f"{each.source}\n{each.destination}" for each in listed]),
            (">packets", [str(each.packets) for each in listed]),
            (">bytes", [str(each.payload_bytes) for each in listed]),
            ("?flags", [_flags(each) for each in listed]),
            (">missing", [str(each.missing_bytes) for each in listed]),
            ("?>repeated", [str(each.repeated_bytes) for each in listed]),
            ("?>frames", [str(each.frames.count) for each in listed]),
            ("?steps", ["{}-{}".format(*each.frames.steps) if each.frames.steps else "" for each in listed]),
            ("?what", [each.role or _told_by_frames(each) for each in listed]),
        ],
    )


def _size(direction: TcpDirection) -> int:
    return direction.payload_bytes


def _flags(direction: TcpDirection) -> str:
    flags = ((direction.syn, "SYN"), (direction.fin, "FIN"), (direction.rst, "RST"))
    return " ".join(name if count == 1 else f"{count}x{name}" for count, name in flags if count)


def _told_by_frames(direction: TcpDirection) -> str:
    members = sorted(direction.frames.members)
    return "; ".join("job {} group {} channel {} rank {}".format(*member) for member in members[:3])


def _queue_pairs(found: Inspection) -> Table:
    pairs = found.rocev2.queue_pairs
    known = [{"rank": pair.rank, "channel": pair.channel} for pair in pairs]
    ranks = [" ".join(f"{name} {value}" for name, value in each.items() if value is not None) for each in known]
    return _table(
        "RoCEv2 queue pairs",
        len(pairs),
        [
            (_ENDS, [f"{pair.source}\n{pair.destination}" for pair in pairs]),
            (">number", [str(pair.dest_qp) for pair in pairs]),
            (">packets", [str(pair.packets) for pair in pairs]),
            (">bytes", [str(pair.payload_bytes) for pair in pairs]),
            ("carries", [f"{pair.role}\n{rank}".strip() for pair, rank in zip(pairs, ranks, strict=True)]),
            ("lost PSNs", [_ranges(pair.lost) for pair in pairs]),
            ("?>repeated", [str(pair.duplicates) for pair in pairs]),
            ("?what", [found.role(pair) or "" for pair in pairs]),
        ],
    )


def _ranges(spans: Sequence[tuple[int, int]]) -> str:
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in spans[:8]]
    return ", ".join(shown + [f"and {len(spans) - 8} more"] * (len(spans) > 8))


def _messages(found: Inspection) -> Table:
    items = found.rocev2.messages
    return _table(
        "RoCEv2 messages",
        len(items),
        [
            (">queue pair", [str(item.dest_qp) for item in items]),
            ("kind", [item.kind for item in items]),
            (">count", [str(item.count) for item in items]),
            (">bytes", [str(item.bytes) for item in items]),
            (">mean size", [f"{item.bytes / item.count:.0f}" if item.count else "" for item in items]),
        ],
    )


def _all_reduces(found: Inspection) -> Table:
    items = found.rocev2.all_reduces
    return _table(
        "All-reduces",
        len(items),
        [
            (">index", [str(item.index) for item in items]),
            (">ranks", [str(item.ranks) for item in items]),
            (">channels", [str(item.channels) for item in items]),
            ("protocol", [item.protocol for item in items]),
            (">elements", [str(item.elements) for item in items]),
            (">proven", [str(int(item.covered.sum())) for item in items]),
            ("complete", ["yes" if item.complete else "no" for item in items]),
            ("packets", [f"{item.first_packet}-{item.last_packet}" for item in items]),
        ],
    )
