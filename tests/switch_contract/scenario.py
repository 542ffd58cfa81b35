"""Scenarios of the differential fuzz: states and frames, played on a switch, and what two switches make of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from controlplane.digests import FlowStart
from controlplane.entities import Key, SwitchState
from controlplane.snapshot import Count
from p4src.constants import NotReplicated
from tests.switch_contract.rig import Rig

Probe = tuple[int, bytes]
"""Port that a frame goes into, and the frame."""


@dataclass(frozen=True)
class Phase:
    """A state, and the frames that are sent while it is in force."""

    state: SwitchState
    """What the switch holds."""
    probes: tuple[Probe, ...]
    """The frames in their order."""


@dataclass(frozen=True, repr=False)
class Scenario:
    """What is done with a switch that is new in the beginning."""

    phases: tuple[Phase, ...]
    """One after the other: a later state is reached by updates, and what the switch remembers stays."""

    def __repr__(self) -> str:
        """Return what is needed to see it again."""
        lines: list[str] = []
        for number, phase in enumerate(self.phases):
            lines.append(f"phase {number} holds")
            lines += [f"  {entity!r}" for entity in sorted(phase.state.entities, key=str)]
            lines += [f"  into port {port}: {frame.hex()}" for port, frame in phase.probes]
        return "\n".join(lines)


@dataclass(frozen=True)
class Seen:
    """What one frame caused."""

    packets: dict[int, list[bytes]]
    """Port -> frames, sorted: P4 does not say in which order the copies of one packet leave a port."""
    digests: list[FlowStart]
    """Digests in their order."""


@dataclass(frozen=True)
class PhaseSeen:
    """What a phase showed."""

    frames: list[Seen]
    """For each probe."""
    reasons: dict[NotReplicated, Count]
    """The counter of reasons at the end of the phase."""
    entries: dict[Key, Count]
    """Direct counters at the end of the phase."""


def play(rig: Rig, scenario: Scenario) -> list[PhaseSeen]:
    """Play a scenario on a new switch."""
    shown: list[PhaseSeen] = []
    for number, phase in enumerate(scenario.phases):
        if number == 0:
            rig.install(phase.state)
        else:
            rig.change(phase.state)
        frames: list[Seen] = []
        for port, frame in phase.probes:
            outcome = rig.send(port, frame)
            packets = {port: sorted(copies) for port, copies in outcome.packets.items()}
            frames.append(Seen(packets, outcome.digests))
        counters = rig.counters()
        shown.append(PhaseSeen(frames, dict(counters.not_replicated), dict(counters.entries)))
    return shown


def differences(scenario: Scenario, names: tuple[str, str], left: list[PhaseSeen], right: list[PhaseSeen]) -> list[str]:
    """Return what two switches made differently of a scenario, in words; nothing is left out."""
    found: list[str] = []
    for number, (phase, ours, theirs) in enumerate(zip(scenario.phases, left, right, strict=True)):
        for index, (probe, a, b) in enumerate(zip(phase.probes, ours.frames, theirs.frames, strict=True)):
            if a != b:
                place = f"phase {number}, frame {index} into port {probe[0]}: {probe[1].hex()}"
                found += [place, *(f"  {name}: {_words(seen)}" for name, seen in zip(names, (a, b), strict=True))]
        for what, mine, other in (("reason", ours.reasons, theirs.reasons), ("entry", ours.entries, theirs.entries)):
            for key in sorted({*mine, *other}, key=str):
                counts = mine.get(key), other.get(key)
                if counts[0] != counts[1]:
                    pairs = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
                    found.append(f"phase {number}, counter of {what} {key}: {pairs}")
    return found


@dataclass
class Tally:
    """What a fuzz run has covered.

    Attributes:
        scenarios: scenarios that were played.
        frames: frames that were sent.
        packets: packets that came out.
        rewritten: of these, how many were not as they went in.
        digests: digests that arrived.
        reasons: frames by what the switch counted them for.
    """

    scenarios: int = 0
    frames: int = 0
    packets: int = 0
    digests: int = 0
    rewritten: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, scenario: Scenario, shown: list[PhaseSeen]) -> None:
        """Count a scenario that was the same on both switches."""
        self.scenarios += 1
        for phase, seen in zip(scenario.phases, shown, strict=True):
            self.frames += len(phase.probes)
            for (_, frame), outcome in zip(phase.probes, seen.frames, strict=True):
                copies = [copy for copies in outcome.packets.values() for copy in copies]
                self.packets += len(copies)
                self.rewritten += sum(copy != frame for copy in copies)
                self.digests += len(outcome.digests)
        if shown:
            self.reasons.update({reason.name.lower(): count.packets for reason, count in shown[-1].reasons.items()})


def _words(seen: Seen) -> str:
    packets = {port: [frame.hex() for frame in frames] for port, frames in seen.packets.items()}
    return f"{packets}, digests {seen.digests}"
