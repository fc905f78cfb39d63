"""Queues as streams, in Spark itself: checkpoints, limits, lag, leases, and brokers that come and go."""

from __future__ import annotations

import queue
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import penstock
from penstock.errors import HistoryLost, InvalidField
from penstock.spark import failures
from tests.support.brokers import BrokerThread

pytest_plugins = ("tests.support.stream_fixtures",)

SECONDS = 90


@pytest.fixture
def stream(spark, broker, tmp_path):
    """A query that is ready to be started; what it sees goes to `seen`, batch by batch."""

    def make(seen, path="mail", checkpoint="checkpoint", **options):
        frame = spark.readStream.format("penstock").option("url", broker.url).options(**options).load(path)
        return (
            frame.writeStream.foreachBatch(lambda rows, _: seen.append([bytes(row.payload) for row in rows.collect()]))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
        )

    return make


def finish(writer):
    query = writer.start()
    try:
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()


def failure(writer):
    with pytest.raises(StreamingQueryException) as caught:
        finish(writer)
    return failures.cause(caught.value)


def push(ps, *payloads, queue="mail", partition=None):
    ps.queue(queue).push_many([penstock.Message(payload=each, partition=partition) for each in payloads])


def lag(ps, group):
    return sum(each.lag for each in ps.queue("mail").groups()[group])


def test_a_query_reads_in_batches_goes_on_where_it_was_and_shows_its_lag(stream, ps):
    ps.create_queue("mail", partitions=2)
    push(ps, *[b"%d" % n for n in range(5)], partition=0)
    push(ps, b"x", partition=1)
    ps.seal()
    seen: list[list[bytes]] = []

    finish(stream(seen, group="report", maxMessagesPerTrigger="2"))
    assert [len(batch) for batch in seen] == [2, 2, 2]
    assert sorted(payload for batch in seen for payload in batch) == [b"0", b"1", b"2", b"3", b"4", b"x"]
    assert lag(ps, "report") == 0  # the last batch counts too

    seen.clear()
    ps.update_queue("mail", partitions=3)
    push(ps, b"new", partition=2)
    push(ps, b"5", partition=0)
    assert lag(ps, "report") == 2
    finish(stream(seen, group="report"))
    assert [sorted(batch) for batch in seen] == [[b"5", b"new"]]
    assert lag(ps, "report") == 0


def test_a_query_consumes_from_a_work_queue_along_with_others(stream, ps):
    push(ps, *[b"%d" % n for n in range(6)])
    (taken,) = ps.queue("mail").lease(1)
    seen: list[list[bytes]] = []

    finish(stream(seen, mode="consume", maxMessagesPerTrigger="3"))

    taken.ack()
    assert seen == [[b"1", b"2", b"3"], [b"4", b"5"]]
    account = ps.queue("mail").stats().groups["default"]
    assert (account.acked, account.leased, account.ready) == (6, 0, 0)


def test_what_is_gone_and_what_is_foreign_is_named(stream, ps):
    push(ps, b"a")
    push(ps, b"a", queue="other")
    finish(stream([]))

    foreign = failure(stream([], "other"))
    assert isinstance(foreign, InvalidField)
    assert "over queue 'mail', not read here" in str(foreign)

    ps.delete_queue("mail")
    push(ps, b"new")
    gone = failure(stream([]))
    assert isinstance(gone, HistoryLost)
    assert "deleted and created again" in str(gone)

    seen: list[list[bytes]] = []
    finish(stream(seen, failOnDataLoss="false"))
    assert seen == [[b"new"]]


def test_a_query_goes_on_when_its_broker_comes_back(stream, ps, broker, session):
    arrived: queue.Queue[bytes] = queue.Queue()

    class Arrivals(list[Any]):
        def append(self, batch):
            for payload in batch:
                arrived.put(payload)

    push(ps, b"before")
    running = stream(Arrivals(), maxMessagesPerTrigger="100").trigger(processingTime="0 seconds").start()
    port = broker.server.port
    try:
        assert arrived.get(timeout=SECONDS) == b"before"
        broker.stop()
        push(ps, b"while it was away")
        again = BrokerThread(session, port)
        try:
            assert arrived.get(timeout=SECONDS) == b"while it was away"
            assert running.exception() is None
        finally:
            running.stop()
            again.stop()
    finally:
        running.stop()
