"""The corpus of small captures, whole and damaged: ``python -m tests.capture.make_corpus`` writes it anew.

The files are seeds for fuzzing and examples for `test_corpus`, which compares what is read from each with the table in
``corpus/README.md``. All are made here; none was captured anywhere.
"""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path

from capture.errors import CaptureError
from capture.reader import CaptureReader
from tests.capture.builders import (
    NANO,
    block,
    enhanced,
    in_pieces,
    interface,
    obsolete,
    option,
    pcap_header,
    record,
    section,
    simple,
)

CORPUS = Path(__file__).with_name("corpus")
FRAME = bytes.fromhex("020000000002 020000000001 0800") + bytes(range(46))
SHORT = FRAME[:21]
PCAP = pcap_header() + record(FRAME, 1_700_000_000, 5) + record(SHORT, 1_700_000_000, 6, original=60)
PCAPNG = section() + interface(options=option(2, b"s1-eth1")) + enhanced(FRAME, 5) + enhanced(SHORT, 6, original=60)
SECRETS = struct.pack("<II", 0x544C534B, 6) + b"SECRET"


def zipped(content: bytes) -> bytes:
    """Compress without a time stamp, so that the same bytes come out every time."""
    target = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=0) as file:
        file.write(content)
    return target.getvalue()


def contents() -> dict[str, tuple[bytes, str]]:
    """Return content and description by file name."""
    big = pcap_header(">", NANO) + record(FRAME, 1, 999_999_999, ">") + record(b"", 2, 0, ">", original=60)
    every = (
        interface(snaplen=30) + simple(FRAME[:30], 60) + obsolete(FRAME, 7) + block(4, bytes(4)) + block(5, bytes(12))
    )
    sections = PCAPNG + section(">") + interface(">", 113) + enhanced(FRAME, 1, 0, ">") + PCAPNG
    clocks = b"".join(
        interface(options=option(9, bytes([power])) + option(14, struct.pack("<q", offset)))
        for power, offset in ((0, 0), (9, 1_700_000_000), (0x80 | 20, -1), (127, 0))
    )
    return {
        "whole-micro-little.pcap": (PCAP, "microseconds, little-endian; the second packet cut by the snaplen"),
        "whole-nano-big.pcap": (big, "nanoseconds, big-endian; the second packet of no bytes"),
        "whole-no-packets.pcap": (pcap_header(), "a file header only"),
        "whole-fcs-declared.pcap": (pcap_header(link=0x44000001) + record(FRAME), "link type field with FCS length"),
        "whole.pcap.gz": (zipped(PCAP), "gzip"),
        "whole-two-members.pcap.gz": (zipped(PCAP[:50]) + zipped(PCAP[50:]) + bytes(99), "gzip, two members, zeros"),
        "whole.pcapng": (PCAPNG, "one interface with a name"),
        "whole-big.pcapng": (section(">") + interface(">") + enhanced(FRAME, order=">"), "big-endian"),
        "whole-every-block.pcapng": (section() + every, "simple and obsolete packet blocks; names, statistics"),
        "whole-three-sections.pcapng": (sections, "little-, big-, little-endian, interfaces of their own"),
        "whole-clocks.pcapng": (
            section() + clocks + b"".join(enhanced(SHORT, 1 << 40, index) for index in range(4)),
            "if_tsresol of powers of 10 and 2, if_tsoffset",
        ),
        "whole-secrets.pcapng": (PCAPNG + block(10, SECRETS) + enhanced(FRAME), "a Decryption Secrets Block, skipped"),
        "cut-in-data.pcap": (PCAP[:-5], "cut inside the last packet"),
        "cut-in-record-header.pcap": (PCAP[: 24 + 76 + 7], "cut inside a record header"),
        "cut-in-file-header.pcap": (PCAP[:20], "cut inside the file header"),
        "cut-in-block.pcapng": (PCAPNG[:-7], "cut inside the last block"),
        "cut-in-block-header.pcapng": (PCAPNG + enhanced(FRAME)[:5], "cut inside a block header"),
        "cut.pcap.gz": (zipped(PCAP)[:-12], "cut inside the compressed data"),
        "bad-checksum.pcap.gz": (zipped(PCAP)[:-8] + bytes(8), "gzip checksum of zeros"),
        "hole.pcap": (PCAP + bytes(100), "zeros after the last packet"),
        "hole.pcapng": (PCAPNG + bytes(100), "zeros after the last block"),
        "captured-more-than-original.pcap": (PCAP + record(FRAME, original=59), "60 captured of 59"),
        "captured-absurd.pcap": (PCAP + record(FRAME, captured=0xFFFFFFFF), "4 GB captured"),
        "captured-16-mib.pcap": (PCAP + record(FRAME, captured=1 << 24), "16 MiB captured, 60 bytes there"),
        "fraction-above-a-second.pcap": (PCAP + record(FRAME, units=1_000_000), "1000000 microseconds"),
        "version-2.3.pcap": (pcap_header(minor=3) + record(FRAME), "version with the lengths swapped"),
        "captured-more-than-original.pcapng": (PCAPNG + enhanced(FRAME, original=59), "60 captured of 59"),
        "captured-more-than-block.pcapng": (PCAPNG + enhanced(FRAME, captured=61, original=61), "61 of 60 there"),
        "lengths-disagree.pcapng": (PCAPNG + block(6, bytes(20), repeated=36), "36 at the end of 32"),
        "length-zero.pcapng": (PCAPNG + block(6, bytes(20), length=0), "block length 0"),
        "length-odd.pcapng": (PCAPNG + block(6, bytes(20), length=33), "block length 33"),
        "length-absurd.pcapng": (PCAPNG + block(99, b"", length=0xFFFFFFFC), "block length 4 GB"),
        "unknown-interface.pcapng": (PCAPNG + enhanced(FRAME, index=1), "interface 1 of 1"),
        "no-interface.pcapng": (section() + simple(FRAME, 60), "a simple packet before any interface"),
        "option-too-long.pcapng": (
            section() + interface(options=option(2, b"eth0", length=400)),
            "option of 400 bytes",
        ),
        "option-of-wrong-size.pcapng": (section() + interface(options=option(9, b"\x06\x06")), "if_tsresol of 2 bytes"),
        "byte-order-magic.pcapng": (section()[:8] + b"\x1a\x2b\x3c\x4e" + section()[12:], "no known byte order"),
        "version-2.pcapng": (section(major=2), "version 2.0"),
        "modified-little.pcap": (b"\x34\xcd\xb2\xa1" + PCAP[4:], "magic of Kuznetzov's modified pcap"),
        "twice.pcap.gz": (zipped(zipped(PCAP)), "gzip twice"),
        "twice-damaged.pcap.gz": (
            zipped(zipped(PCAP))[:-8] + bytes(8),
            "found by fuzzing: its error depended on the size of pieces",
        ),
        "empty.pcap": (b"", "no bytes"),
        "html.pcap": (b"<html>", "a web page"),
    }


def outcome(content: bytes) -> tuple[int, str]:
    """Return the number of packets in `content`, and what ends them."""
    count = 0
    try:
        for _ in CaptureReader(in_pieces(content, [1 << 16]), "corpus"):
            count += 1
    except CaptureError as error:
        return count, f"{error.offset}: {error.problem}"
    return count, "end"


def main() -> None:
    """Write all files and the table."""
    rows = ["| file | packets | then | what it is |", "|---|---|---|---|"]
    for name, (content, description) in sorted(contents().items()):
        (CORPUS / name).write_bytes(content)
        count, then = outcome(content)
        rows.append(f"| {name} | {count} | {then} | {description} |")
    text = (CORPUS / "README.md").read_text()
    (CORPUS / "README.md").write_text(text[: text.index("|")] + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
