"""Streaming readers through any history: crashes of the query and of the broker, sealing, new partitions, rivals.

Something like Spark drives them: it logs the end of a batch before it runs it, commits it afterwards, and plays again
what was logged and not committed. Whatever happens in between, an observed message is in exactly one batch, a batch
that is played again is the same, and a consumed message is done at least once.
"""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.spark import consume, stream_reader
from penstock.spark.stream_reader import stream_reader as make
from tests.support.brokers import BrokerThread
from tests.support.streams import SCHEMA

STEPS = 60
Row = tuple[str, str, int, bytes]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(stream_reader, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(consume, "PAUSE_SECONDS", 0.0)


class World:
    """A broker on a directory, some of whose messages an ordinary consumer takes."""

    def __init__(self, path, rng):
        self.path, self.rng, self.clock = path, rng, ManualClock()
        self.pushed: set[bytes] = set()
        self.taken: set[bytes] = set()  # acknowledged by the ordinary consumer
        self._open(0)

    def _open(self, port):
        self.session = Session(
            self.path, durability="os", clock=self.clock, rng=random.Random(self.rng.random()), background=False
        )
        self.ps = Penstock(BlockingSession(self.session))
        self.broker = BrokerThread(self.session, port)

    @property
    def url(self):
        return self.broker.url

    def push(self):
        names = ["mail.a", "mail.b"] if self.rng.random() < 0.5 else ["mail.a"]
        for name in names:
            payloads = [b"%d" % (len(self.pushed) + n) for n in range(self.rng.randint(1, 9))]
            self.pushed.update(payloads)
            self.ps.queue(name).push_many(payloads)

    def seal(self):
        self.ps.seal()

    def grow(self):
        name = self.rng.choice(self.ps.queues())
        if not name.endswith(".dlq"):
            self.ps.update_queue(name, partitions=self.ps.queue(name).stats().partitions + 1)

    def take(self):
        for name in self.ps.queues():
            for each in self.ps.queue(name).lease(self.rng.randint(1, 5)):
                if self.rng.random() < 0.7:
                    each.ack()
                    self.taken.add(bytes(each.payload))
                else:
                    each.release()

    def wait(self):
        self.clock.advance(seconds=100)
        self.session.timekeeper.tick()

    def restart(self):
        port = self.broker.server.port
        self.close()
        self._open(port)

    def close(self):
        self.broker.stop()
        self.session.close()


class Query:
    """What Spark does with a reader. `done` is what its sink has, batch by batch."""

    def __init__(self, world, mode):
        self._world, self._mode = world, mode
        self._reader = None
        self._logged: list[dict[str, Any]] = []
        self._ran: dict[int, list[Row]] = {}  # of batches that were not committed
        self.done: list[list[Row]] = []

    def _offset(self, number):
        return json.loads(json.dumps(self._logged[number]))

    @property
    def reader(self):
        if self._reader is None:
            options = {"url": self._world.url, "path": "mail.*", "mode": self._mode, "maxMessagesPerTrigger": "7"}
            local = self._world.rng.choice(["true", "false"])  # the broker's files as they lie, or fetched
            self._reader = make({**options, "leaseSeconds": "60", "local": local}, SCHEMA)
        return self._reader

    def crash(self):
        if self._reader is not None:
            self._reader.stop()
        self._reader = None

    def step(self, rng):
        """One micro-batch, or a part of it when the query dies on the way; whether there was one."""
        if not self._logged:
            self._logged.append(self.reader.initialOffset())
        if len(self._logged) == len(self.done) + 1:
            start = self._offset(-1)
            end = self.reader.latestOffset(start, ReadMaxRows(7))
            if json.dumps(end) == json.dumps(start):
                return False
            self._logged.append(end)
            if rng.random() < 0.2:
                self.crash()
                return True
        number = len(self._logged) - 1
        rows = self._rows(self._offset(number - 1), self._offset(number))
        assert self._ran.setdefault(number, rows) == rows, "a batch that is played again is another"
        if rng.random() < 0.2:
            self.crash()
            return True
        self.done.append(rows)
        if rng.random() < 0.5:
            self.reader.commit(self._offset(number))
        return True

    def _rows(self, start, end):
        there = pickle.loads(pickle.dumps(self.reader))
        lots = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        found = [row for lot in lots for batch in there.read(lot) for row in batch.to_pylist()]
        return sorted((row["queue"], row["partition"], row["offset"], row["payload"]) for row in found)


def live(world, query, rng, *more):
    """Any history, and then quiet until the query has caught up."""
    happenings = [world.push, world.push, world.seal, world.grow, world.restart, query.crash, *more]
    world.push()
    for _ in range(STEPS):
        if rng.random() < 0.4:
            rng.choice(happenings)()
        else:
            query.step(rng)
    world.wait()
    while query.step(rng):
        pass


@pytest.mark.parametrize("seed", range(3))
def test_an_observed_message_is_in_exactly_one_batch(tmp_path, seed):
    rng = random.Random(seed)
    world = World(tmp_path / "data", rng)
    query = Query(world, "observe")
    live(world, query, rng, world.take)
    query.crash()

    seen = Counter(payload for batch in query.done for *_, payload in batch)
    assert seen == Counter(world.pushed)
    assert max(len(batch) for batch in query.done) == 7
    for name in world.ps.queues():
        ((group, lags),) = [each for each in world.ps.queue(name).groups().items() if each[0] != "default"]
        assert group.startswith("spark-")
        assert {each.lag for each in lags} == {0}
    world.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_consumed_message_is_done_at_least_once(tmp_path, seed):
    rng = random.Random(seed)
    world = World(tmp_path / "data", rng)
    query = Query(world, "consume")
    live(world, query, rng, world.take, world.wait)

    seen = {payload for batch in query.done for *_, payload in batch}
    dead = {each.payload for name in world.ps.queues() for each in world.ps.queue(name).dlq.list()}
    assert seen | world.taken | dead == world.pushed
    for name in world.ps.queues():
        account = world.ps.queue(name).stats().groups["default"]
        assert (account.ready, account.leased) == (0, 0)
    query.crash()
    world.close()
