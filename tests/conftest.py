"""Markers that every test package uses."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from topology.fabric.mininet_net import unavailable_reason

# No deadlines: a test must not fail because the machine is busy. The examples are the same in every run, so that a test
# fails because of the code and not of the day; CHECKMATE_HYPOTHESIS=explore looks for new ones.
settings.register_profile("fixed", deadline=None, print_blob=True, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("CHECKMATE_HYPOTHESIS", "fixed"))


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a parameter of bytes by its length only.

    pytest puts the bytes themselves into the test's name. Where they differ between two processes (gzip writes the
    time of day), pytest-xdist's workers collect different tests and run none. Equal names get a number each.
    """
    return f"{len(val)}_bytes" if isinstance(val, bytes) else None


def pytest_configure() -> None:
    """Heed SIGINT, and let the programs that tests start and interrupt heed it, though a shell's job ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one worker run all tests in Mininet (it begins with them); skip them where it cannot be used."""
    chosen = [item for item in items if item.get_closest_marker("mininet")]
    lacking = unavailable_reason() if chosen else None
    for item in chosen:
        item.add_marker(pytest.mark.xdist_group("mininet"))
        if lacking is not None:
            item.add_marker(pytest.mark.skip(reason=f"Mininet cannot be used here: {lacking}"))


@pytest.fixture(autouse=True)
def one_testbed_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let tests in Mininet run one after the other, in all workers: the switch's interfaces have fixed names."""
    if request.node.get_closest_marker("mininet") is None:
        yield
        return
    with (Path(tempfile.gettempdir()) / "checkmate-mininet-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
