"""Where the files of a run are. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobspec.model import Group
from topology.fabric.participants import Participants


@dataclass(frozen=True)
class RunFiles:
    """Paths of a run's files; names tell groups and shadow nodes apart only if there are several."""

    out: Path
    """The run's folder."""
    participants: Participants
    """Who takes part."""

    def checkpoints(self, shadow: str) -> Path:
        """Return the folder of a shadow node's recovery points."""
        folder = self.out / "checkpoints"
        return folder / shadow if len(self.participants.shadows) > 1 else folder

    def restored(self, group: Group) -> Path:
        """Return the folder for the recovery point that a group is restarted from."""
        return self.out / "restored" / group.name

    def events(self, shadow: str) -> Path:
        """Return the event log of a shadow node."""
        return self.out / (f"events-{shadow}.jsonl" if len(self.participants.shadows) > 1 else "events.jsonl")

    def side_channel_log(self, shadow: str, after: int | None = None) -> Path:
        """Return the side-channel log of a shadow node, which replaying a capture needs.

        A node that was restarted `after` a step has a log of its own.
        """
        name = f"side-channel-{shadow}" if len(self.participants.shadows) > 1 else "side-channel"
        return self.out / (f"{name}.bin" if after is None else f"{name}-after-{after:08d}.bin")

    def access_log(self, shadow: str) -> Path:
        """Return the access log of a shadow node."""
        return self.out / (f"access-{shadow}.jsonl" if len(self.participants.shadows) > 1 else "access.jsonl")

    def rank_logs(self, logs: Path, group: Group) -> Path:
        """Return the folder of a group's rank logs and states, below the epoch's folder `logs`."""
        return logs / group.name if len(self.participants.job.groups) > 1 else logs
