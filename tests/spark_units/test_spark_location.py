"""Places that a url names, and the progress that jobs note there. No Spark is needed for it."""

from __future__ import annotations

import logging
import random

import pytest

import penstock
from penstock.clock import ManualClock
from penstock.embedded.session import Session
from penstock.errors import DirectoryInUse, InvalidField, InvalidName, NotADataDirectory, Unavailable
from penstock.spark import location
from penstock.spark.location import DIRECTORY_SECONDS, Location
from tests.support.brokers import BrokerThread


@pytest.fixture
def data(tmp_path):
    """A directory with three messages that nobody holds."""
    with penstock.open(tmp_path / "data", durability="os") as ps:
        ps.create_queue("mail", partitions=2)
        ps.queue("mail").push_many([penstock.Message(payload=b"a", partition=0) for _ in range(3)])
    return str(tmp_path / "data")


@pytest.fixture
def broker(data):
    session = Session(data, durability="os", rng=random.Random(1))
    running = BrokerThread(session)
    yield running
    running.stop()
    session.close()


def lag(handle, group="spark-a"):
    return {each.partition: each.lag for each in handle.queue("mail").groups().get(group, [])}


def lag_in(data, group="spark-a"):
    with penstock.open(data) as ps:
        return lag(ps, group)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "penstock.spark"]


def test_a_broker_shows_how_far_a_job_is(broker):
    place = Location(broker.url)

    place.commit_progress("mail", "spark-a", {"0": 2})
    with place.handle() as ps:
        assert lag(ps) == {"0": 1, "1": 0}
        place.commit_progress("mail", "spark-a", {"0": 3, "1": 0})
        assert lag(ps) == {"0": 0, "1": 0}
    place.finish()
    place.finish()


def test_what_is_noted_already_is_not_noted_again(broker):
    place = Location(broker.url)
    place.commit_progress("mail", "spark-a", {"0": 2})
    before = broker.session.shard.journal.sequence

    place.commit_progress("mail", "spark-a", {"0": 2})
    place.commit_progress("mail", "spark-a", {})

    assert broker.session.shard.journal.sequence == before
    place.finish()


def test_a_group_that_was_deleted_is_made_again(broker):
    place = Location(broker.url)
    place.commit_progress("mail", "spark-a", {"0": 2})
    with place.handle() as ps:
        ps.queue("mail").delete_group("spark-a")
        place.commit_progress("mail", "spark-a", {"0": 3})
        assert lag(ps) == {"0": 0, "1": 0}
    place.finish()


def test_a_directory_is_opened_rarely_and_at_the_end(data):
    clock = ManualClock()
    place = Location(data, clock=clock)

    place.commit_progress("mail", "spark-a", {"0": 1})
    assert lag_in(data)["0"] == 2
    place.commit_progress("mail", "spark-a", {"0": 2})
    assert lag_in(data)["0"] == 2
    clock.advance(seconds=DIRECTORY_SECONDS)
    place.commit_progress("mail", "spark-a", {})
    assert lag_in(data)["0"] == 1
    place.commit_progress("mail", "spark-a", {"0": 3})
    place.finish()
    assert lag_in(data)["0"] == 0


def test_a_directory_that_somebody_holds_is_left_alone_and_that_is_said_once(data, caplog):
    clock = ManualClock()
    place = Location(data, clock=clock)
    with caplog.at_level(logging.WARNING), penstock.open(data):
        for offset in (1, 2):
            place.commit_progress("mail", "spark-a", {"0": offset})
            clock.advance(seconds=DIRECTORY_SECONDS)

    assert len(warnings(caplog)) == 1
    assert "use its url" in warnings(caplog)[0]
    place.finish()
    assert lag_in(data)["0"] == 1


def test_progress_that_cannot_be_noted_fails_nobody(broker, caplog):
    place = Location(broker.url)
    with caplog.at_level(logging.WARNING):
        place.commit_progress("none", "spark-a", {"0": 1})
        place.commit_progress("mail", "spark-a", {"7": 1})
        place.commit_progress("mail", "spark-b", {"0": 1})

    assert len(warnings(caplog)) == 2
    with place.handle() as ps:
        assert lag(ps, "spark-b")["0"] == 2
    place.finish()


def test_a_broker_that_is_away_is_reported_later(broker, caplog, monkeypatch):
    monkeypatch.setattr(location, "BROKER_SECONDS", 0.01)
    place = Location(broker.url)
    place.commit_progress("mail", "spark-a", {"0": 1})
    port = broker.server.port
    broker.stop()
    with caplog.at_level(logging.WARNING):
        place.commit_progress("mail", "spark-a", {"0": 2})
    assert "could not be committed at" in warnings(caplog)[0]

    again = BrokerThread(broker.session, port)
    try:
        monkeypatch.setattr(location, "BROKER_SECONDS", 20)
        place.finish()
        place.commit_progress("mail", "spark-a", {})
        with place.handle() as ps:
            assert lag(ps)["0"] == 1
    finally:
        place.finish()
        again.stop()


def test_a_directory_without_data_is_refused_and_not_made(tmp_path):
    with pytest.raises(NotADataDirectory, match="penstock serve"):
        Location(str(tmp_path / "none")).handle()
    with pytest.raises(NotADataDirectory):
        Location(f"file://{tmp_path}").check()

    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_says_to_give_the_url(data):
    with penstock.open(data), pytest.raises(DirectoryInUse, match="use its url"):
        Location(data).handle()


def test_what_is_no_place_is_refused(tmp_path):
    for url in ("", "  ", "kafka://localhost:9092", "s3://bucket/data"):
        with pytest.raises(InvalidField, match="url"):
            Location(url)
    with pytest.raises(InvalidName):
        Location(str(tmp_path)).commit_progress("mail", "no such/name", {"0": 1})


def test_a_broker_that_does_not_answer_is_named(broker):
    url = broker.url
    broker.stop()

    with pytest.raises(Unavailable, match="no broker answers"):
        penstock.connect(url, connect_seconds=0.01)
    assert Location(url).is_broker
