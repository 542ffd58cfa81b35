"""One switch of each target for the whole suite, new for every test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.switch_contract.frames import STATE
from tests.switch_contract.rig import Rig, run
from tests.switch_contract.targets import BMV2, IN_PROCESS, TARGETS, missing

NETWORKED = [pytest.param(name, marks=pytest.mark.netns) for name in TARGETS if name != IN_PROCESS]


@contextmanager
def started(target: str, factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run a target; skip the test, by name, where it cannot run."""
    reason = missing(target)
    if reason is not None:
        pytest.skip(f"{target}: {reason}")
    with run(target, factory.mktemp(target)) as rig:
        yield rig


@pytest.fixture(scope="package", params=[IN_PROCESS, *NETWORKED])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The switch of a target, in whatever state."""
    with started(request.param, tmp_path_factory) as rig:
        yield rig


@pytest.fixture(params=[IN_PROCESS, pytest.param(BMV2, marks=pytest.mark.netns)])
def fresh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A switch of its own that has never had a program."""
    with started(request.param, tmp_path_factory) as rig:
        yield rig


@pytest.fixture
def switch(running: Rig) -> Iterator[Rig]:
    """The switch, holding `STATE`; in the end every frame must have been counted for exactly one reason."""
    running.install(STATE)
    yield running
    counts = running.counters().not_replicated.values()
    assert sum(count.packets for count in counts) == running.sent
    assert sum(count.bytes for count in counts) == running.sent_bytes
