"""One switch of each target for the whole suite, new for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.switch_contract.frames import STATE
from tests.switch_contract.rig import Rig, run
from tests.switch_contract.targets import TARGETS, missing


@pytest.fixture(scope="package", params=TARGETS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A switch of each target; skips, by name, those that cannot run here."""
    reason = missing(request.param)
    if reason is not None:
        pytest.skip(f"{request.param}: {reason}")
    with run(request.param, tmp_path_factory.mktemp(request.param)) as rig:
        yield rig


@pytest.fixture
def switch(running: Rig) -> Iterator[Rig]:
    """The switch, holding `STATE`; in the end every frame must have been counted for exactly one reason."""
    running.install(STATE)
    yield running
    counts = running.counters().not_replicated.values()
    assert sum(count.packets for count in counts) == running.sent
    assert sum(count.bytes for count in counts) == running.sent_bytes
