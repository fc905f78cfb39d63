"""Files that Spark reads by itself: which they are, and that they stay."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

import pytest

from penstock import Message
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField
from penstock.history import open_history
from penstock.spark.ranges import chosen
from penstock.spark.tables import PIN_SECONDS, PinKeeper, SealedMessages, table
from tests.support.operations import run_operation


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def session(tmp_path, clock):
    with closing(Session(tmp_path / "data", background=False, durability="os", clock=clock)) as session:
        yield session


@pytest.fixture
def sealed(session, tmp_path, clock):
    """Two files an hour apart, of which retention has taken some, and something that is not sealed."""
    ps = Penstock(BlockingSession(session))
    orders = ps.create_queue("orders", partitions=2)
    for _ in range(2):
        orders.push_many([Message(payload=b"x", partition=str(n % 2)) for n in range(20)])
        run_operation(session, ops.Seal())
        clock.advance(seconds=3600)
    orders.push_many([Message(payload=b"y", partition="1")] * 4)

    def look(since: int | None = None, until: int | None = None) -> SealedMessages:
        with closing(open_history(tmp_path / "data")) as history:
            moment = history.look()
            return SealedMessages(moment, chosen(moment, ["orders"]), since, until)

    return look


def pins(folder):
    return {pin.name: pin.read_text() for pin in (folder / "data" / "segments" / "pins").glob("*.json")}


def test_files_and_the_rest_make_the_whole(sealed, clock):
    found = sealed()

    assert len(found.files) == 2
    assert found.tail() == {
        "startingOffsets": '{"orders":{"0":20,"1":20}}',
        "endingOffsets": '{"orders":{"0":20,"1":24}}',
    }
    assert found.has_tail
    assert found.outside() == ({}, {})
    assert len(sealed(since=clock.now() - 4_000_000_000).files) == 1
    assert len(sealed(until=clock.now() - 4_000_000_000).files) == 1


def test_files_that_are_held_already_are_held_for_longer_and_not_twice(session, tmp_path, clock):
    keeper = PinKeeper(clock)
    for _ in range(3):
        keeper.narrow(keeper.pin(tmp_path / "data"), ["segments/messages/a.parquet"])
        clock.advance(seconds=PIN_SECONDS / 2)
        keeper.tick()
    keeper.narrow(keeper.pin(tmp_path / "data"), [])  # of no file: nothing is held

    assert len(pins(tmp_path)) == 1
    keeper.release()


def test_files_are_held_for_hours(session, tmp_path, clock):
    run_operation(session, ops.Seal())
    keeper = PinKeeper(clock)
    hold = keeper.pin(tmp_path / "data")
    (first,) = pins(tmp_path).items()
    assert '"files":null' in first[1]

    hold.narrow(["segments/messages/a.parquet"])
    clock.advance(seconds=60)
    keeper.tick()
    (name, text), *_ = pins(tmp_path).items()
    assert name == first[0]
    assert "a.parquet" in text
    assert str(clock.now()) in text

    clock.advance(seconds=PIN_SECONDS)
    keeper.tick()
    assert pins(tmp_path) == {}
    keeper.release()


def test_files_are_let_go_at_the_end(session, tmp_path, clock):
    run_operation(session, ops.Seal())
    keeper = PinKeeper(clock)
    early, _ = keeper.pin(tmp_path / "data"), keeper.pin(tmp_path / "data")
    assert len(pins(tmp_path)) == 2
    keeper.unpin(early)
    assert len(pins(tmp_path)) == 1

    keeper.release()
    assert pins(tmp_path) == {}


def test_a_table_is_asked_for_in_words_that_exist(tmp_path):
    with pytest.raises(InvalidField, match="columns: the table messages has no column 'ofset'"):
        table(None, tmp_path, "orders", columns=["ofset"])  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match="has no time zone"):
        table(None, tmp_path, "orders", since=datetime(2030, 1, 1))  # type: ignore[arg-type] # noqa: DTZ001
    with pytest.raises(InvalidField, match="table: 'evnts' is not one of"):
        table(None, tmp_path, "orders", table="evnts", since=datetime(2030, 1, 1, tzinfo=UTC))  # type: ignore[arg-type]
