"""Consuming from a queue as Spark would, with everything but Spark: leases, acknowledgements, batches played again."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock.errors import HistoryLost, InvalidField
from penstock.spark.stream_reader import stream_reader as make
from tests.support.streams import ALL, SCHEMA, as_spark, batch, push, rows

pytest_plugins = ("tests.support.stream_fixtures",)
pytestmark = pytest.mark.usefixtures("no_pause")


def test_consumed_messages_are_leased_read_and_acknowledged_with_the_next_batch(reader, ps):
    push(ps, b"a", b"b", b"c")
    stream = reader(mode="consume")
    start = as_spark(stream.initialOffset())

    end, seen = batch(stream, start, ReadMaxRows(2))
    assert seen == [b"a", b"b"]
    assert ps.queue("mail").stats().groups["default"].leased == 2
    end, seen = batch(stream, end, ReadMaxRows(2))
    assert seen == [b"c"]
    assert ps.queue("mail").stats().groups["default"].acked == 2
    assert stream.latestOffset(end, ALL) == end
    assert ps.queue("mail").stats().groups["default"].acked == 3


def test_a_query_shares_a_work_queue_with_ordinary_consumers(reader, ps):
    push(ps, *[b"%d" % n for n in range(6)])
    (first,) = ps.queue("mail").lease(1)
    stream = reader(mode="consume", maxMessagesPerTrigger="3")
    end, seen = batch(stream, as_spark(stream.initialOffset()), stream.getDefaultReadLimit())
    others = ps.queue("mail").lease(10)

    assert [first.payload, *seen, *[each.payload for each in others]] == [b"%d" % n for n in range(6)]
    first.nack(delay=0)
    for each in others:
        each.ack()
    assert batch(stream, end)[1] == [b"0"]


def test_a_batch_played_again_after_a_restart_has_the_same_messages(reader, ps):
    push(ps, *[b"%d" % n for n in range(5)])
    ps.queue("mail").lease(1)[0].ack()
    stream = reader(mode="consume")
    start = as_spark(stream.initialOffset())
    end, seen = batch(stream, start, ReadMaxRows(3))
    ps.seal()
    push(ps, b"new")

    again = reader(mode="consume")
    assert rows(again, start, end) == seen == [b"1", b"2", b"3"]
    again.latestOffset(end, ALL)
    assert ps.queue("mail").stats().groups["default"].acked == 4


def test_a_batch_is_not_played_again_from_another_queue_of_the_same_name(reader, ps):
    push(ps, b"a")
    stream = reader(mode="consume")
    start = as_spark(stream.initialOffset())
    end, _ = batch(stream, start)
    ps.delete_queue("mail")
    push(ps, b"new")

    with pytest.raises(HistoryLost, match="deleted while this query held messages"):
        rows(reader(mode="consume"), start, end)
    patient = reader(mode="consume", failOnDataLoss="false")
    assert rows(patient, start, end) == []
    assert batch(patient, end)[1] == [b"new"]


def test_messages_with_gaps_between_them_come_without_what_is_in_between(reader, ps):
    push(ps, *[b"%d" % n for n in range(8)])
    leased = list(ps.queue("mail").lease(8))
    for each in leased:
        each.ack() if int(each.payload) % 3 else each.nack(delay=0)
    stream = reader(mode="consume")

    assert batch(stream, as_spark(stream.initialOffset()))[1] == [b"0", b"3", b"6"]


def test_asked_twice_for_the_same_batch_nothing_is_leased_again(reader, ps):
    push(ps, b"a", b"b")
    stream = reader(mode="consume")
    start = as_spark(stream.initialOffset())

    assert stream.latestOffset(start, ReadMaxRows(1)) == stream.latestOffset(start, ReadMaxRows(1))
    assert ps.queue("mail").stats().groups["default"].leased == 1


def test_leases_are_extended_while_a_batch_runs_and_one_that_is_lost_is_let_go_of(reader, ps, session, caplog):
    push(ps, b"a")
    stream = reader(mode="consume", leaseSeconds="30")
    start = as_spark(stream.initialOffset())
    end, _ = batch(stream, start)
    (lease,) = session.shard.core.leases.values()
    before = lease.deadline

    assert stream.keeper.tick() == 1
    assert lease.deadline > before
    ps.queue("mail").purge()
    assert stream.keeper.tick() == 0
    assert "expired before its batch was done" in caplog.text
    stream.latestOffset(end, ALL)
    assert "finished too late" in caplog.text


def test_available_now_consumes_as_many_as_were_ready(reader, ps):
    push(ps, b"a", b"b", b"c")
    stream = reader(mode="consume")
    offset = as_spark(stream.initialOffset())
    stream.prepareForTriggerAvailableNow()
    push(ps, b"later")

    seen: list[Any] = []
    while True:
        end, some = batch(stream, offset, ReadMaxRows(2))
        if end == offset:
            break
        offset, seen = end, seen + some

    assert seen == [b"a", b"b", b"c"]


def test_several_queues_are_consumed_together(reader, ps):
    push(ps, b"a", queue="mail.eu")
    push(ps, b"b", queue="mail.us")
    stream = reader("mail.*", mode="consume")

    assert batch(stream, as_spark(stream.initialOffset()))[1] == [b"a", b"b"]


def test_only_a_broker_can_be_consumed_from(tmp_path):
    with pytest.raises(InvalidField, match="mode=observe"):
        make({"url": str(tmp_path), "path": "mail", "mode": "consume"}, SCHEMA)
    with pytest.raises(InvalidField, match="leaseSeconds"):
        make({"url": "penstock://localhost:1", "path": "mail", "mode": "consume", "leaseSeconds": "0"}, SCHEMA)
