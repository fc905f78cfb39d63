"""Metrics of the moment and over time, over every way in."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidField, QueueNotFound


def test_metrics_count_what_happened_and_say_how_it_is(ps):
    queue = ps.create_queue("mail", max_attempts=1)
    queue.push_many([b"a", b"b", b"c"])
    queue.lease(1).ack()
    queue.lease(1)[0].reject("no")

    report = ps.metrics()
    mail = next(each for each in report.queues if each.name == "mail")

    assert (mail.pushed, mail.delivered, mail.acked, mail.died, mail.ready, mail.dead) == (3, 2, 1, 1, 1, 1)
    assert report.totals["pushed"] == 4  # the dead letter too
    assert report.since <= report.at
    assert report.health.status == "ok"
    assert report.health.problems == []
    assert report.latencies.keys() == {"push", "lease", "settle", "commit", "delivery"}


def test_metrics_of_one_queue_are_of_that_queue(ps):
    ps.queue("mail").push(b"a")
    ps.queue("other").push_many([b"a", b"b"])

    report = ps.metrics("other")

    assert [queue.name for queue in report.queues] == ["other"]
    assert report.totals["pushed"] == 2
    with pytest.raises(QueueNotFound):
        ps.metrics("none")


def test_the_history_is_columns_of_one_length(ps):
    ps.queue("mail").push(b"a")

    found = ps.queue("mail").history(["pushed", "latency_p99_ms"], step=60)

    assert found.queue == "mail"
    assert found.series.keys() == {"pushed", "latency_p99_ms"}
    assert {len(values) for values in found.series.values()} == {len(found.times)}
    assert ps.history().queue is None
    with pytest.raises(QueueNotFound):
        ps.queue("none").history()
    with pytest.raises(InvalidField, match="metric"):
        ps.history(["nonsense"])
