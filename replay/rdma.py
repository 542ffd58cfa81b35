"""RoCEv2 captures: decoded by `rocev2`, through the switch program where asked, and written as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from capture.errors import CaptureError
from capture.model import Packet
from capture.reader import CaptureReader, open_capture
from jobspec.model import Job
from packets.batch import PacketBatch
from replay.errors import ReplayError
from replay.output import prepare, save_array
from replay.switch import SwitchProgram
from rocev2.errors import RoceError
from rocev2.report import DecodedCapture, decode

Progress = Callable[[str, int, int | None], None]
"""Called as progress(what is done, bytes read, bytes in all or None)."""
_TICK = 512


@dataclass(frozen=True)
class RdmaReport:
    """What one RoCEv2 capture holds."""

    decoded: DecodedCapture
    """All-reduces and everything else."""
    problem: str | None
    """Why the file ended early, None where it did not."""

    @property
    def complete(self) -> bool:
        """Whether there is an all-reduce, each is complete, none is open, and the file is whole."""
        found = self.decoded.all_reduces
        return bool(found) and all(item.complete for item in found) and not self.decoded.open and self.problem is None


def replay_rdma(path: Path, *, use_p2p: bool, dtype: str | None, job: Job | None, progress: Progress) -> RdmaReport:
    """Decode the all-reduces in a capture.

    Args:
        path: the capture.
        use_p2p: let p2p messages supply what the all-gather does not show.
        dtype: element type, which is not on the wire; None when not known.
        job: send each frame through this job's switch program first; None: decode the capture as it is.
        progress: told how far it is.

    Raises:
        ReplayError: the file or `dtype` cannot be used.
    """
    damage: list[str] = []

    def batches(reader: CaptureReader) -> Iterator[PacketBatch]:
        try:
            for batch in reader.batches():
                progress("decoding RoCEv2", reader.bytes_read, reader.size)
                yield batch
        except CaptureError as error:
            damage.append(str(error))

    def switched(reader: CaptureReader, switch: SwitchProgram) -> Iterator[Packet]:
        try:
            for number, packet in enumerate(reader):
                if number % _TICK == 0:
                    progress("decoding RoCEv2", reader.bytes_read, reader.size)
                for data in switch.forward(packet.data, packet.time_ns):
                    yield Packet(packet.number, packet.time_ns, data, len(data), 0, 1, packet.offset)
        except CaptureError as error:
            damage.append(str(error))

    with ExitStack() as stack:
        try:
            reader = stack.enter_context(open_capture(path))
            switch = stack.enter_context(SwitchProgram(job)) if job is not None else None
            packets = batches(reader) if switch is None else switched(reader, switch)
            decoded = decode(packets, use_p2p=use_p2p, dtype=dtype, file=str(path))
        except CaptureError as error:
            raise ReplayError(error.path, f"at byte {error.offset}: {error.problem}", error.fix) from error
        except OSError as error:
            raise ReplayError(str(path), f"cannot be read: {error.strerror}", "check the name") from error
        except RoceError as error:
            raise ReplayError("--dtype", str(error), "name the element type of the tensors") from error
    if switch is not None and not switch.replicas:
        damage.append("no frame came out of the switch program at a shadow node's port: check the job's rdma section")
    return RdmaReport(decoded, damage[0] if damage else None)


def write_tensors(folder: Path, report: RdmaReport) -> None:
    """Write each complete tensor as ``all-reduce-%04d.npy`` to `folder`, which must be new or empty.

    Raises:
        ReplayError: the folder holds something, or cannot be written.
    """
    prepare(folder)
    for item in report.decoded.all_reduces:
        if not item.complete:
            continue
        try:
            save_array(folder / f"all-reduce-{item.index:04d}.npy", item.to_numpy())
        except OSError as error:
            problem = f"{folder} cannot be written: {error.strerror}"
            raise ReplayError("--out", problem, "free space, or choose another folder") from error
