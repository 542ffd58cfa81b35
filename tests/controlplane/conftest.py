"""Fixtures: a fresh switch of every kind, and a count of what is written to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from finsy.proto import p4r

from controlplane.session import Session
from tests.controlplane.rig import switch


@pytest.fixture(params=["softswitch", "bmv2"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Address of a fresh switch with device id 1."""
    with switch(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[list[p4r.Update]]:
    """Every Write request that is sent from now on, as its updates."""
    requests: list[list[p4r.Update]] = []
    send = Session.write

    def write(self: Session, updates: Sequence[p4r.Update]) -> dict[int, tuple[str, str]]:
        requests.append(list(updates))
        return send(self, updates)

    monkeypatch.setattr(Session, "write", write)
    return requests
