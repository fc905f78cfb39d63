"""The streaming readers as Spark calls them, with everything but Spark: a real directory, a real broker."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import penstock
from penstock.errors import HistoryLost, InvalidField, NotADataDirectory, QueueNotFound
from penstock.spark.stream_reader import stream_reader as make
from penstock.storage import pins
from tests.support.brokers import BrokerThread
from tests.support.streams import ALL, SCHEMA, as_spark, batch, lag, push, rows

pytest_plugins = ("tests.support.stream_fixtures",)
pytestmark = pytest.mark.usefixtures("no_pause")


def test_a_stream_reads_what_is_there_and_then_what_comes(reader, ps):
    push(ps, b"a", b"b")
    stream = reader()

    start = as_spark(stream.initialOffset())
    end, seen = batch(stream, start)
    assert seen == [b"a", b"b"]
    assert stream.latestOffset(end, ALL) == end
    push(ps, b"c")
    assert batch(stream, end)[1] == [b"c"]


def test_a_limit_makes_batches_of_that_many_in_all_partitions_alike(reader, ps):
    ps.create_queue("mail", partitions=2)
    push(ps, *[b"%d" % n for n in range(6)], partition=0)
    push(ps, b"x", partition=1)
    stream = reader(maxMessagesPerTrigger="3")
    limit = stream.getDefaultReadLimit()

    sizes: list[int] = []
    offset = as_spark(stream.initialOffset())
    while True:
        end, seen = batch(stream, offset, limit)
        if end == offset:
            break
        offset, sizes = end, [*sizes, len(seen)]

    assert limit == ReadMaxRows(3)
    assert sizes == [3, 3, 1]


def test_a_stream_may_begin_at_the_end_at_offsets_or_at_a_time(reader, ps):
    push(ps, b"a")
    push(ps, b"b")
    at = ps.queue("mail").read(0, offset=1)[0].pushed_at.isoformat()
    ps.seal()
    push(ps, b"c")

    def first(**options):
        stream = reader(**options)
        return batch(stream, as_spark(stream.initialOffset()))[1]

    assert first(startingOffsets="latest") == []
    assert first(startingOffsets='{"0": 2}') == [b"c"]
    assert first(startingOffsets='{"mail": {"0": 1}}') == [b"b", b"c"]
    assert first(startingTime=at) == [b"b", b"c"]
    assert first(startingTime="+1h") == []
    assert first(startingTime="-1h") == [b"a", b"b", b"c"]


def test_partitions_and_queues_that_are_new_are_read_from_their_beginning(reader, ps):
    push(ps, b"a", queue="mail.eu")
    stream = reader("mail.*")
    end, seen = batch(stream, as_spark(stream.initialOffset()))
    assert seen == [b"a"]

    ps.update_queue("mail.eu", partitions=3)
    push(ps, b"b", queue="mail.eu", partition=2)
    push(ps, b"c", queue="mail.us")
    push(ps, b"no", queue="other")
    assert batch(stream, end)[1] == [b"b", b"c"]


def test_available_now_reads_up_to_where_the_queue_ended_at_the_start(reader, ps):
    push(ps, b"a", b"b", b"c")
    stream = reader()
    start = as_spark(stream.initialOffset())
    stream.prepareForTriggerAvailableNow()
    push(ps, b"later")
    push(ps, b"later", queue="other")

    end, seen = batch(stream, start, ReadMaxRows(2))
    assert seen == [b"a", b"b"]
    end, seen = batch(stream, end, ReadMaxRows(2))
    assert seen == [b"c"]
    assert stream.latestOffset(end, ALL) == end


def test_progress_is_a_group_whose_lag_shows_and_which_holds_retention(reader, ps):
    ps.create_queue("mail", retention_messages=0)
    for payload in (b"a", b"b", b"c"):
        push(ps, payload)
        ps.seal()
    stream = reader(group="report")
    start = as_spark(stream.initialOffset())
    end = as_spark(stream.latestOffset(start, ReadMaxRows(2)))
    assert lag(ps, "report") == 3

    ps.queue("mail").lease(3).ack()
    assert ps.compact().messages_removed == 0
    stream.latestOffset(end, ALL)
    assert lag(ps, "report") == 1
    assert ps.compact().messages_removed == 2
    stream.commit(as_spark(stream.latestOffset(end, ALL)))
    assert lag(ps, "report") == 0


def test_without_a_name_the_group_is_called_after_the_query(reader, ps):
    push(ps, b"a")
    stream = reader()
    start = as_spark(stream.initialOffset())
    end, _ = batch(stream, start)
    assert f"spark-{start['query']}" in ps.queue("mail").groups()

    again = reader()
    again.latestOffset(end, ALL)

    assert start["query"] == end["query"]
    assert len(ps.queue("mail").groups()) == 2  # and the default one


def test_the_default_group_is_not_for_those_who_only_look(reader):
    with pytest.raises(InvalidField, match="mode=consume"):
        reader(group="default")


def test_a_batch_is_the_same_when_it_is_read_again_after_sealing(reader, ps):
    push(ps, b"a", b"b")
    stream = reader()
    start = as_spark(stream.initialOffset())
    end, seen = batch(stream, start)
    push(ps, b"c")
    ps.seal()

    assert rows(reader(), start, end) == seen == [b"a", b"b"]


@pytest.mark.parametrize("mode", ["observe", "consume"])
def test_the_files_of_a_batch_are_held_until_it_is_done(reader, ps, session, mode):
    push(ps, b"a")
    ps.seal()
    stream = reader(mode=mode)
    start = as_spark(stream.initialOffset())
    end = as_spark(stream.latestOffset(start, ALL))
    stream.partitions(start, end)

    assert len(pins.held(session._disk, session.shard.clock.now()).files) == 1
    stream.latestOffset(end, ALL)
    assert pins.held(session._disk, session.shard.clock.now()) == pins.Held()


def test_retention_that_took_what_a_query_needs_fails_it_unless_it_can_do_without(reader, ps, caplog):
    push(ps, b"a", b"b")
    stream = reader()
    start = as_spark(stream.initialOffset())
    ps.seal()
    push(ps, b"c")
    ps.seal()
    trim(ps, 2)

    with pytest.raises(HistoryLost, match="offsets 0 to 1 were removed"):
        reader().latestOffset(start, ALL)
    patient = reader(failOnDataLoss="false")
    assert batch(patient, start)[1] == [b"c"]
    assert patient.lost_count == 2
    assert "offsets 0 to 1 were removed by retention; skipped, 2 messages so far" in caplog.text


def trim(ps, start):
    """What retention does, now."""
    from penstock.delivery import admin

    shard = ps._session.session.shard
    queue = shard.core.by_name["mail"]
    shard.confirm(shard.change(lambda now: admin.decide_trim(queue, {0: start}, now)))


def test_the_checkpoint_of_another_query_is_refused(reader, ps, tmp_path):
    push(ps, b"a")
    push(ps, b"a", queue="other")
    start = as_spark(reader().initialOffset())
    with pytest.raises(InvalidField, match="over queue 'mail'"):
        reader("other").latestOffset(start, ALL)
    assert list(ps.queue("mail").groups()) == ["default"]  # nor is anything noted for it
    with pytest.raises(InvalidField, match="does not belong to a query that consumes"):
        reader(mode="consume").latestOffset(start, ALL)

    with penstock.open(tmp_path / "elsewhere") as elsewhere:
        push(elsewhere, b"a")
    foreign = make({"url": str(tmp_path / "elsewhere"), "path": "mail"}, SCHEMA)
    with pytest.raises(InvalidField, match="over another directory or broker"):
        foreign.latestOffset(start, ALL)
    foreign.stop()


def test_a_queue_that_was_deleted_and_made_again_is_not_taken_for_the_old_one(reader, ps):
    push(ps, b"a")
    stream = reader()
    end, _ = batch(stream, as_spark(stream.initialOffset()))
    ps.delete_queue("mail")
    with pytest.raises(HistoryLost, match="was deleted since"):
        stream.latestOffset(end, ALL)
    push(ps, b"new")
    with pytest.raises(HistoryLost, match="deleted and created again"):
        stream.latestOffset(end, ALL)
    assert batch(reader(failOnDataLoss="false"), end)[1] == [b"new"]


def test_what_a_stream_cannot_do_is_said(reader, ps, tmp_path):
    push(ps, b"a")
    for options, text in (
        ({"table": "events"}, "table"),
        ({"endingOffsets": '{"0": 1}'}, "endingOffsets"),
        ({"endingTime": "-1h"}, "endingTime"),
        ({"part": "tail"}, "part"),
    ):
        with pytest.raises(InvalidField, match=text):
            reader(**options)
    with pytest.raises(QueueNotFound, match="mail"):
        reader("mial").initialOffset()
    with pytest.raises(InvalidField, match="ends at 1, before 7"):
        reader(startingOffsets='{"0": 7}').initialOffset()
    with pytest.raises(NotADataDirectory):
        make({"url": str(tmp_path), "path": "mail"}, SCHEMA).initialOffset()


def test_a_directory_is_read_and_its_progress_noted_at_the_end(tmp_path):
    with penstock.open(tmp_path / "data", durability="os") as ps:
        push(ps, b"a", b"b")
    stream: Any = make({"url": str(tmp_path / "data"), "path": "mail", "group": "report"}, SCHEMA)
    start = as_spark(stream.initialOffset())
    stream.prepareForTriggerAvailableNow()
    end, seen = batch(stream, start)
    stream.latestOffset(end, ALL)
    stream.stop()

    assert seen == [b"a", b"b"]
    with penstock.open(tmp_path / "data") as ps:
        assert lag(ps, "report") == 0


def test_a_directory_that_a_broker_holds_is_read_without_it(session, ps, tmp_path, caplog):
    push(ps, b"a")
    stream = make({"url": str(tmp_path / "data"), "path": "mail"}, SCHEMA)

    assert batch(stream, as_spark(stream.initialOffset()))[1] == [b"a"]
    assert "use its url" in caplog.text
    stream.stop()


def test_older_versions_of_spark_do_not_say_where_to_go_on_from(reader, ps):
    push(ps, b"a")
    stream = reader()
    start = as_spark(stream.initialOffset())
    end = as_spark(stream.latestOffset())
    assert rows(stream, start, end) == [b"a"]
    assert as_spark(stream.latestOffset()) == end
    push(ps, b"b")
    assert rows(stream, end, as_spark(stream.latestOffset())) == [b"b"]


def test_a_broker_that_goes_away_is_waited_for(reader, ps, broker, session):
    push(ps, b"a")
    stream = reader()
    start = as_spark(stream.initialOffset())
    port = broker.server.port
    broker.stop()
    answers = []
    asking = threading.Thread(target=lambda: answers.append(stream.latestOffset(start, ALL)))
    asking.start()
    again = BrokerThread(session, port)
    try:
        asking.join(20)
        assert answers[0]["queues"]["mail"]["next"] == {"0": 1}
    finally:
        stream.stop()
        again.stop()


def test_the_latest_offset_is_reported(reader, ps):
    push(ps, b"a", b"b")
    stream = reader()
    start = as_spark(stream.initialOffset())
    stream.latestOffset(start, ReadMaxRows(1))

    assert stream.reportLatestOffset()["queues"]["mail"]["next"] == {"0": 2}
