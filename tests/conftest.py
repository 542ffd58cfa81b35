"""Markers that every test package uses."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from topology.mininet_net import why_not

# No deadlines: a test must not fail because the machine is busy. In CI the examples are the same in every run.
settings.register_profile("checkmate", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("checkmate")


@pytest.hookimpl(tryfirst=True)  # before xdist looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacking = why_not() if any(item.get_closest_marker("mininet") for item in items) else None
    for item in items:
        if item.get_closest_marker("mininet"):
            # One after the other: interfaces of the switch have fixed names.
            item.add_marker(pytest.mark.xdist_group("mininet"))
            if lacking is not None:
                item.add_marker(pytest.mark.skip(reason=f"Mininet cannot be used here: {lacking}"))
