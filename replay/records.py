"""What the ranks told on the side channel, found again in the logs of shadow nodes when a step needs it.

Memory: an offset for each record, not its contents, so that a long run's log is read piece by piece.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel.log import SideChannelLogError, read_entry, read_log
from replay.errors import ReplayError


@dataclass
class EpochRecords:
    """What is known of one incarnation of a group."""

    attach: pb.AttachRequest
    """Layout, optimizer and first step."""
    ports: dict[int, int] = field(default_factory=dict)
    """Source port by flow id."""
    last_step: int = 0
    """Newest step with a record, 0 without."""
    state: array[int] = field(default_factory=lambda: array("Q"))
    """File number and offset of each piece of the uploaded state, alternating."""
    steps: dict[int, array[int]] = field(default_factory=dict)
    """File number and offset of each record, alternating, by step."""
    changes: dict[int, pb.ChangeRequest] = field(default_factory=dict)
    """Announced changes of layout or optimizer by the first step that they are in force; an epoch has few."""

    def layouts(self) -> list[tuple[int, str]]:
        """Return the layouts as JSON by the first step that they are in force, rising."""
        told = [(step, change.layout_json) for step, change in sorted(self.changes.items()) if change.layout_json]
        return [(self.attach.first_step, self.attach.layout_json), *told]


@dataclass
class _Upload:
    """The first state of an epoch, as one file has it."""

    session: int
    """Session of the shadow node that wrote it."""
    wanted: bool
    """Whether no other file had it before."""
    nbytes: int = 0
    """Bytes that were found."""

    def add(self, records: EpochRecords, number: int, offset: int, session: int, message: pb.StateChunk) -> None:
        """Keep where a piece is, but for those of a state that is there already."""
        size = message.header.state_bytes  # 0 in logs of before uploads told it
        if session != self.session and self.wanted and self.nbytes < size:
            # The session before ended in the middle of it.
            del records.state[:]
            self.session, self.nbytes = session, 0
        if self.wanted and session == self.session and (not size or self.nbytes < size):
            self.nbytes += len(message.data)
            records.state.extend((number, offset))


class Records:
    """The logs of all shadow nodes that were found."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Read the logs at `paths` once, and keep where what is.

        Raises:
            ReplayError: a file is no side-channel log.
        """
        self.paths = tuple(paths)
        """The files."""
        self.problems: list[str] = []
        """What is damaged in them."""
        self.jobs: set[str] = set()
        """Names of the jobs that attached."""
        self._epochs: dict[tuple[str, int], EpochRecords] = {}
        for number, path in enumerate(self.paths):
            try:
                self._index(number, path)
            except SideChannelLogError as error:
                if error.offset == 0:
                    raise ReplayError(str(path), error.problem, "give the file that the run wrote, or none") from error
                self.problems.append(str(error))
            except OSError as error:
                raise ReplayError(str(path), f"cannot be read: {error.strerror}", "check --records") from error

    def _index(self, number: int, path: Path) -> None:
        uploads: dict[tuple[str, int], _Upload] = {}
        for entry in read_log(path):
            message = entry.message
            if isinstance(message, pb.AttachRequest):
                self.jobs.add(message.job)
                known = self._epochs.setdefault((message.group, message.epoch), EpochRecords(message))
                # A shadow that was started again is told of the same epoch with what was reached since.
                for change in message.changes:
                    known.changes.setdefault(change.effective_step, change)
                if known.attach != message and not message.rejoin:
                    problem = f"{path}: another attach of group {message.group} epoch {message.epoch} than before"
                    self.problems.append(problem)
                continue
            group = message.header.group if isinstance(message, pb.StateChunk) else message.group
            epoch = message.header.epoch if isinstance(message, pb.StateChunk) else message.epoch
            records = self._epochs.get((group, epoch))
            if records is None:
                self.problems.append(f"{path}: group {group} epoch {epoch} never attached")
            elif isinstance(message, pb.StateChunk):
                # Every shadow node of the group is given the same state: one copy is enough. A later state is one
                # that a shadow asked for after a loss.
                if message.header.step < records.attach.first_step:
                    upload = uploads.setdefault((group, epoch), _Upload(entry.session, not records.state))
                    upload.add(records, number, entry.offset, entry.session, message)
            elif isinstance(message, pb.ChangeRequest):
                records.changes.setdefault(message.effective_step, message)
            elif isinstance(message, pb.OpenFlowRequest):
                records.ports[message.flow_id] = message.source_port
            else:
                records.last_step = max(records.last_step, message.step)
                records.steps.setdefault(message.step, array("Q")).extend((number, entry.offset))

    def epoch(self, group: str, epoch: int) -> EpochRecords | None:
        """Return what is known of an epoch, None for one that never attached."""
        return self._epochs.get((group, epoch))

    def epochs(self) -> Iterator[tuple[str, int]]:
        """Yield group and number of each epoch."""
        yield from self._epochs

    def of_step(self, group: str, epoch: int, step: int) -> list[pb.StepRecord]:
        """Return the records of a step; ranks that told several shadow nodes are there several times.

        Raises:
            SideChannelLogError, OSError: the file has changed since it was opened.
        """
        known = self._epochs.get((group, epoch))
        messages = self._read(known.steps.get(step, array("Q"))) if known is not None else iter(())
        return [message for message in messages if isinstance(message, pb.StepRecord)]

    def state(self, group: str, epoch: int) -> bytes | None:
        """Return the state (a safetensors file) that was uploaded before the epoch's first step, None without.

        Raises:
            SideChannelLogError, OSError: the file has changed since it was opened.
        """
        known = self._epochs.get((group, epoch))
        if known is None or not known.state:
            return None
        return b"".join(message.data for message in self._read(known.state) if isinstance(message, pb.StateChunk))

    def _read(self, places: array[int]) -> Iterator[object]:
        for number, offset in zip(places[::2], places[1::2], strict=True):
            yield read_entry(self.paths[number], offset)
