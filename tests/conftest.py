"""Markers that every test package uses."""

from __future__ import annotations

import pytest

from topology.mininet_net import why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lacking = why_not() if any(item.get_closest_marker("mininet") for item in items) else None
    for item in items:
        if item.get_closest_marker("mininet"):
            # One after the other: interfaces of the switch have fixed names.
            item.add_marker(pytest.mark.xdist_group("mininet"))
            if lacking is not None:
                item.add_marker(pytest.mark.skip(reason=f"Mininet cannot be used here: {lacking}"))
