"""Exactly once: a query from queue to queue that is killed again and again leaves neither gaps nor duplicates.

The driver and its JVM, or one Python worker, end by kill -9 at a random moment; the query is started again on its
checkpoint. With a data directory the very process that commits is killed; with a broker its client is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.embedded import Session
from tests.support.brokers import BrokerThread
from tests.support.dose import dose
from tests.support.killing_spark import SparkProgram

KILLS = dose(ci=2, nightly=10)
PLACES = ("directory", "broker")[: dose(ci=1, nightly=2)]
MESSAGES = 2_000  # more for every start
LINES_MAX = 6  # that it says before it is killed: one when it starts, one for each batch
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


def kill_once(program: SparkProgram, rng: random.Random, *, worker: bool) -> None:
    if not (program.heard(rng.randint(1, LINES_MAX)) and program.lives(rng.uniform(0, SECONDS_MAX))):
        return
    if worker and program.kill_worker(rng) and program.heard(1):
        # It went on with another worker; now for all of it.
        program.lives(rng.uniform(0, SECONDS_MAX))
    program.kill()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("place", PLACES)
def test_kill_9_of_the_driver_or_of_a_worker_leaves_neither_gaps_nor_duplicates(tmp_path, place):
    rng = random.Random(11)
    sent: Counter[bytes] = Counter()
    with served(tmp_path / "data", place) as url:
        for number in range(KILLS):
            push_more(url, sent)
            kill_once(SparkProgram("tests.support.spark_copy", url, str(tmp_path)), rng, worker=number % 2 == 1)
        push_more(url, sent)
        last = SparkProgram("tests.support.spark_copy", url, str(tmp_path))
        while last.heard(1):
            pass
        assert last.ended() == 0

        with opened(url) as ps:
            found = Counter(message.payload for message in everything(ps.queue("out")))
    assert found == sent


def everything(queue: Any) -> Iterator[Any]:
    offset = 0
    while messages := queue.read(offset=offset, limit=1000):
        yield from messages
        offset = messages[-1].id.offset + 1
