"""Fixtures of the behavioural suite: `ps` is an open system, `clock` its time, `way` how it is reached."""

from __future__ import annotations

import pytest

from penstock.clock import ManualClock
from tests.behaviour.ways import WAYS, PostgresWay

EVERYWHERE = ["memory", "file", "sealed", "tcp", "http", "postgres"]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=EVERYWHERE)
def way(request, tmp_path, clock):
    found = WAYS[request.param](tmp_path / "data", clock)
    if isinstance(found, PostgresWay):
        found.url = request.getfixturevalue("postgres").new_database()
    yield found
    if found.opened:
        found.stop()


@pytest.fixture
def ps(way):
    return way.start()
