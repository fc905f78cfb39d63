"""Fixtures for the streaming readers without Spark: a broker on a directory, and readers that end with the test."""

from __future__ import annotations

import random

import pytest

from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.spark import consume, stream_reader
from tests.support.brokers import BrokerThread
from tests.support.streams import SCHEMA


@pytest.fixture
def no_pause(monkeypatch):
    monkeypatch.setattr(stream_reader, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(consume, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def session(tmp_path):
    opened = Session(tmp_path / "data", durability="os", rng=random.Random(1))
    yield opened
    opened.close()


@pytest.fixture
def ps(session):
    return Penstock(BlockingSession(session))


@pytest.fixture
def broker(session):
    running = BrokerThread(session)
    yield running
    running.stop()


@pytest.fixture
def reader(broker):
    made = []

    def make_one(path="mail", **options):
        made.append(stream_reader.stream_reader({"url": broker.url, "path": path, **options}, SCHEMA))
        return made[-1]

    yield make_one
    for each in made:
        each.stop()
