"""Exactly once: a query from queue to queue that is killed again and again leaves neither gaps nor duplicates.

The driver and its JVM, or one Python worker, end by kill -9 at a random moment; the query is started again on its
checkpoint. With a data directory the very process that commits is killed; with a broker its client is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.embedded import Session
from tests.support.brokers import BrokerThread
from tests.support.dose import dose
from tests.support.killing_spark import SparkProgram

# Each round is two kills: of a worker, then of everything.
ROUNDS = dose(ci=1, nightly=5)
PLACES = ("directory", "broker")[: dose(ci=1, nightly=2)]
MESSAGES = 2_000  # for each start: eight batches
LINES_MAX = 3  # that the query says between two kills: one when it starts, one for each batch
SECONDS_MAX = 1.0  # and then so long at most


@contextmanager
def served(data: Path, place: str) -> Iterator[str]:
    """A url: of the directory itself, or of a broker that has it."""
    if place == "directory":
        yield str(data)
        return
    session = Session(data)
    broker = BrokerThread(session)
    try:
        yield broker.url
    finally:
        broker.stop()
        session.close()


def opened(url: str) -> Any:
    return penstock.connect(url) if "://" in url else penstock.open(url)


def push_more(url: str, sent: Counter[bytes]) -> None:
    first = len(sent)
    payloads = [b"%d" % number for number in range(first, first + MESSAGES)]
    with opened(url) as ps:
        ps.create_queue("in", partitions=2, exist_ok=True)
        ps.queue("in").push_many([penstock.Message(payload=each, key=each.decode()) for each in payloads])
    sent.update(payloads)


def kill_twice(program: SparkProgram, rng: random.Random) -> None:
    for kill in (partial(program.kill_worker, rng), program.kill):
        assert program.heard(rng.randint(1, LINES_MAX))
        assert program.lives(rng.uniform(0, SECONDS_MAX))
        kill()


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("place", PLACES)
def test_kill_9_of_the_driver_or_of_a_worker_leaves_neither_gaps_nor_duplicates(tmp_path, place, seed):
    sent: Counter[bytes] = Counter()
    with served(tmp_path / "data", place) as url:
        push_more(url, sent)
        with SparkProgram("tests.support.spark_copy", url, str(tmp_path)) as program:
            kill_twice(program, random.Random(seed))
        push_more(url, sent)
        with SparkProgram("tests.support.spark_copy", url, str(tmp_path)) as program:
            assert program.ended() == 0

        with opened(url) as ps:
            found = Counter(message.payload for message in everything(ps.queue("out")))
    assert found == sent


def everything(queue: Any) -> Iterator[Any]:
    offset = 0
    while messages := queue.read(offset=offset, limit=1000):
        yield from messages
        offset = messages[-1].id.offset + 1
