"""Markers that every test package uses."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from topology.mininet_net import why_not

# No deadlines: a test must not fail because the machine is busy. In CI the examples are the same in every run.
settings.register_profile("checkmate", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("checkmate")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests in Mininet where it cannot be used.

    They also carry `xdist_group("mininet")`, in the test itself: xdist looks for it before this hook. They run one
    after the other, because the interfaces of a testbed's switch have fixed names.
    """
    chosen = [item for item in items if item.get_closest_marker("mininet")]
    lacking = why_not() if chosen else None
    for item in chosen if lacking is not None else ():
        item.add_marker(pytest.mark.skip(reason=f"Mininet cannot be used here: {lacking}"))
