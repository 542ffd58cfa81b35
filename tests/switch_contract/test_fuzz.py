"""The short form of the differential fuzz: the same seeds every time, and a comparison that sees every difference.

The long form is `python -m tests.switch_contract.fuzz`; with the seed of a failure it finds the smallest scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.snapshot import Count
from p4src.constants import NotReplicated
from tests.switch_contract.frames import S1, STATE, A, B, segment, syn
from tests.switch_contract.fuzz import Different, compare, fuzz_round
from tests.switch_contract.rig import Rig, run
from tests.switch_contract.scenario import Phase, PhaseSeen, Scenario, Tally, differences, play
from tests.switch_contract.targets import BMV2, IN_PROCESS, SOFTSWITCH, missing

SEEDS = (1, 2)
"""A few hundred frames each. A seed that found a difference is added here, with the difference as a test of its own."""

SCENARIO = Scenario(
    (
        Phase(STATE, ((A.port, syn(1)), (A.port, segment(2, b"data")), (S1.port, segment(3)))),
        Phase(STATE, ((A.port, segment(6, b"more")),)),
    )
)


@pytest.fixture(scope="module")
def switches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, Rig]]:
    """The embedded switch and BMv2, both as programs with interfaces."""
    with ExitStack() as stack:
        rigs: list[Rig] = []
        for name in (SOFTSWITCH, BMV2):
            reason = missing(name)
            if reason is not None:
                pytest.skip(f"{name}: {reason}")
            rigs.append(stack.enter_context(run(name, tmp_path_factory.mktemp(name))))
        yield rigs[0], rigs[1]


@pytest.mark.netns
@pytest.mark.parametrize("seed", SEEDS)
def test_random_states_and_frames_have_equal_outcomes(switches: tuple[Rig, Rig], seed: int) -> None:
    tally = Tally()
    fuzz_round(*switches, seed, tally, shrink=False)
    # What is compared is worth it: much comes out, some of it rewritten, for most of the reasons.
    assert tally.frames > 200
    assert tally.packets > tally.frames / 4
    assert min(tally.rewritten, tally.digests) > 10
    assert len(+tally.reasons) >= 6


class Faulty:
    """The cables of a switch that does not do with frames what it should."""

    def __init__(self, rig: Rig, fault: Callable[[int, bytes], list[bytes]]) -> None:
        self._cables = rig.cables
        self._fault = fault
        self._waiting: dict[int, list[bytes]] = {}

    def send(self, port: int, frame: bytes) -> None:
        self._cables.send(port, frame)

    def receive(self, port: int) -> bytes:
        waiting = self._waiting.setdefault(port, [])
        while not waiting:
            waiting += self._fault(port, self._cables.receive(port))
        return waiting.pop(0)

    def carries(self, frame: bytes) -> bool:
        return self._cables.carries(frame)


def flipped(port: int, frame: bytes) -> list[bytes]:
    return [frame[:-1] + bytes([frame[-1] ^ 1])] if frame.endswith(b"more") else [frame]


def lost(port: int, frame: bytes) -> list[bytes]:
    return [] if port == B.port and frame.endswith(b"data") else [frame]


def doubled(port: int, frame: bytes) -> list[bytes]:
    return [frame, frame] if frame.endswith(b"data") else [frame]


@pytest.mark.parametrize("fault", [flipped, lost, doubled])
def test_a_frame_that_differs_is_found_and_shown(tmp_path: Path, fault: Callable[[int, bytes], list[bytes]]) -> None:
    with run(IN_PROCESS, tmp_path) as left, run(IN_PROCESS, tmp_path) as right:
        tally = Tally()
        compare(left, right, SCENARIO, tally)
        assert (tally.scenarios, tally.frames, tally.packets) == (1, 4, 9)
        right.cables = Faulty(right, fault)
        with pytest.raises(Different) as caught:
            compare(left, right, SCENARIO, tally)
        frame = segment(6, b"more") if fault is flipped else segment(2, b"data")
        assert f"into port {A.port}: {frame.hex()}\n  {IN_PROCESS}: " in str(caught.value)
        assert tally.scenarios == 1


@pytest.fixture
def shown(tmp_path: Path) -> list[PhaseSeen]:
    with run(IN_PROCESS, tmp_path) as rig:
        return play(rig, SCENARIO)


def test_every_kind_of_difference_is_seen(shown: list[PhaseSeen]) -> None:
    def found(**changes: object) -> list[str]:
        other = [shown[0], replace(shown[1], **changes)]  # type: ignore[arg-type]
        return differences(SCENARIO, ("left", "right"), shown, other)

    assert found() == []
    [frame], [digest] = shown[1].frames, shown[0].frames[0].digests
    for changed in (
        replace(frame, digests=[digest]),
        replace(frame, packets={**frame.packets, 7: [b"x"]}),
        replace(frame, packets={port + 1: frames for port, frames in frame.packets.items()}),
    ):
        assert len(found(frames=[changed])) == 3
    for reason in NotReplicated:
        count = shown[1].reasons[reason]
        for wrong in (Count(count.packets + 1, count.bytes), Count(count.packets, count.bytes + 1)):
            assert len(found(reasons={**shown[1].reasons, reason: wrong})) == 1
    for key in shown[1].entries:
        assert len(found(entries={**shown[1].entries, key: Count(99, 99)})) == 1
        assert len(found(entries={other: count for other, count in shown[1].entries.items() if other != key})) == 1


def test_a_digest_that_comes_twice_differs_from_one_that_comes_once(shown: list[PhaseSeen]) -> None:
    first = shown[0].frames[0]
    twice = replace(first, digests=first.digests * 2)
    other = [replace(shown[0], frames=[twice, *shown[0].frames[1:]]), shown[1]]
    assert len(differences(SCENARIO, ("left", "right"), shown, other)) == 3
