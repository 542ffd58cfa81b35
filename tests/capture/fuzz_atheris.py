"""Coverage-guided fuzzing of the readers by atheris (libFuzzer), which is not among the project's dependencies.

    pip install atheris
    python -m tests.capture.fuzz_atheris -max_total_time=600 found/ tests/capture/corpus

Options are libFuzzer's; new inputs go to the first folder, which must exist. Anything but packets and a `CaptureError`
is a finding, and so are results that depend on how the input arrives, and packets that are not in it.
"""

from __future__ import annotations

import io
import sys

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["capture"]):
    from capture.errors import CaptureError
    from capture.reader import CaptureReader

from tests.capture.builders import in_pieces


def read_all(reader: CaptureReader, content: bytes, plain: bool) -> list[tuple[int, int, int]]:
    """Return what tells packets apart, and check them against the input."""
    found = []
    for packet in reader:
        if plain and packet.data not in content[packet.offset :]:
            raise AssertionError(f"packet {packet.number} is not in the input")
        found.append((packet.offset, packet.time_ns, hash(packet)))
    return found


def one_input(content: bytes) -> None:
    """Read `content` in one piece and in small ones."""
    outcomes = []
    for stream in (io.BytesIO(content), in_pieces(content, [1, 13, 5])):
        packets: list[tuple[int, int, int]] = []
        error = None
        try:
            packets = read_all(CaptureReader(stream, "fuzz"), content, not content.startswith(b"\x1f\x8b"))
        except CaptureError as caught:
            error = str(caught)
        outcomes.append((packets, error))
    if outcomes[0] != outcomes[1]:
        raise AssertionError(f"in one piece {outcomes[0]}, in several {outcomes[1]}")


def main() -> None:
    """Fuzz until libFuzzer's options say that it is enough."""
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
