"""Fixtures: every test of a real client runs against every switch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.switch_clients.rig import TARGETS, Network, control_only, wired


@pytest.fixture(params=TARGETS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """P4Runtime address of a fresh switch without ports and without a program."""
    with control_only(request.param) as found:
        yield found


@pytest.fixture(params=TARGETS)
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    """A fresh switch with a host at each of three ports."""
    with wired(request.param) as found:
        yield found


@pytest.fixture
def target(request: pytest.FixtureRequest) -> str:
    """Which switch the test of `address` or `network` runs against, to name what BMv2 does differently."""
    for name in ("address", "network"):
        if name in request.fixturenames:
            return str(request.node.callspec.params[name])
    raise LookupError("the test uses no switch")
