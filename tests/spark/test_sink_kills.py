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
from penstock.embedded.session import Session
from tests.support.brokers import BrokerThread
from tests.support.dose import dose
from tests.support.spark_kills import SparkProgram

ROUNDS = dose(ci=1, nightly=5)  # each with its own queue, on a directory and on a broker in turn
WORKER_KILLS = dose(ci=1, nightly=3)  # in each round, before everything is killed
LINES_MAX = 3  # that the query says between two kills: one when it starts, one for each batch
SECONDS_MAX = 1.0  # and then so long at most
MESSAGES_PER_BATCH = 250
MESSAGES = MESSAGES_PER_BATCH * (LINES_MAX + 4) * (WORKER_KILLS + 1)  # so that it is never done before


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


def push(url: str, sent: Counter[bytes], count: int) -> None:
    first = len(sent)
    payloads = [b"%d" % number for number in range(first, first + count)]
    with opened(url) as ps:
        ps.create_queue("in", partitions=2, exist_ok=True)
        ps.queue("in").push_many([penstock.Message(payload=each, key=each.decode()) for each in payloads])
    sent.update(payloads)


def kill(program: SparkProgram, rng: random.Random) -> None:
    """Some workers, then all of it, each after a while."""
    for how in [partial(program.kill_worker, rng)] * WORKER_KILLS + [program.kill]:
        assert program.heard(rng.randint(1, LINES_MAX))
        assert program.lives(rng.uniform(0, SECONDS_MAX))
        how()


def copying(url: str, folder: Path, batch: int) -> SparkProgram:
    return SparkProgram("tests.support.spark_copy", url, str(folder), str(batch))


@pytest.mark.timeout(dose(ci=360, nightly=7200))
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_kill_9_of_the_driver_or_of_a_worker_leaves_neither_gaps_nor_duplicates(tmp_path, seed):
    sent: Counter[bytes] = Counter()
    with served(tmp_path / "data", ("directory", "broker")[seed % 2]) as url:
        push(url, sent, MESSAGES)
        with copying(url, tmp_path, MESSAGES_PER_BATCH) as program:
            kill(program, random.Random(seed))
        push(url, sent, MESSAGES_PER_BATCH)
        with copying(url, tmp_path, MESSAGES) as program:  # the batch that was begun, then all that is left
            assert program.ended() == 0

        with opened(url) as ps:
            found = Counter(message.payload for message in everything(ps.queue("out")))
    assert found == sent


def everything(queue: Any) -> Iterator[Any]:
    offset = 0
    while messages := queue.read(offset=offset, limit=1000):
        yield from messages
        offset = messages[-1].id.offset + 1
