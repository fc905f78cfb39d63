"""Replays without Spark: what one leaves behind, how it is paced, and that each message goes in once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.clock import ManualClock
from penstock.errors import InvalidField
from penstock.spark.pipelines import replay
from penstock.spark.pipelines.replay import Plan
from penstock.spark.staging import Target

PLAN = Plan(id="x", url="data", to="again", queues=("orders",))


class Crash(BaseException):
    """The process is gone."""


@pytest.fixture
def folder(tmp_path):
    """A replay whose messages are in files."""
    folder = tmp_path / "replay"
    (folder / replay.MESSAGES).mkdir(parents=True)
    for number in range(3):
        rows = [{"payload": f"{10 * number + n}".encode(), "key": "k", "headers": [("a", "b")]} for n in range(10)]
        schema = pa.schema(
            [("payload", pa.binary()), ("key", pa.string()), ("headers", pa.map_(pa.string(), pa.string()))]
        )
        table = pa.Table.from_pylist(rows, schema=schema)
        pq.write_table(table, folder / replay.MESSAGES / f"part-{number:05d}-abc.parquet")
    return folder


def payloads(table):
    return [int(payload) for payload in table["payload"].to_pylist()]


def test_portions_are_in_order_and_the_same_every_time(folder):
    found = [payloads(table) for table in replay.portions(folder / replay.MESSAGES, 7)]

    assert [len(each) for each in found] == [7, 7, 7, 7, 2]
    assert [number for each in found for number in each] == list(range(30))
    assert found == [payloads(table) for table in replay.portions(folder / replay.MESSAGES, 7)]
    assert replay.prepared_count(folder) == 30


def test_portions_are_no_larger_than_memory_allows(folder):
    found = list(replay.portions(folder / replay.MESSAGES, 100, bytes_max=1))

    assert [len(table) for table in found] == [10, 10, 10]


@pytest.mark.parametrize(("per_second", "rows"), [(0.1, 1), (1, 1), (50.5, 50), (10**6, replay.PORTION_MAX)])
def test_a_portion_is_about_a_second_of_messages(per_second, rows):
    assert replay.portion_rows(per_second) == rows


def test_no_more_than_the_rate_is_sent_at_any_time():
    clock = ManualClock()
    begun, sent = clock.monotonic(), []

    def pause(seconds):
        clock.advance(seconds)

    pacer = replay.Pacer(10, clock, pause)
    for late in (0, 0, 5, 0, 0):
        clock.advance(late)
        pacer.wait()
        sent.append((clock.monotonic() - begun) / 1e6)
        pacer.sent(20)

    assert sent == [0, 2, 7, 9, 11]


@pytest.mark.parametrize("place", ["before the commit", "after the commit"])
def test_a_replay_that_dies_goes_on_and_pushes_each_message_once(tmp_path, folder, monkeypatch, place):
    target = Target(str(tmp_path / "data"), "again")
    pacer = replay.Pacer(1e9, ManualClock())
    commit = Target.commit

    def dying(target, wanted):
        if wanted.batch == 3:
            if place == "after the commit":
                commit(target, wanted)
            raise Crash
        commit(target, wanted)

    with monkeypatch.context() as patched:
        patched.setattr(Target, "commit", dying)
        with pytest.raises(Crash):
            replay.push_in_portions(folder, target, "x", 7, pacer)
    reported: list[int] = []
    assert replay.push_in_portions(folder, target, "x", 7, pacer, reported.append) == 30
    assert replay.push_in_portions(folder, target, "x", 7, pacer) == 30

    assert reported == ([21, 28, 30] if place == "before the commit" else [28, 30])
    with penstock.open(tmp_path / "data") as ps:
        assert [int(message.payload) for message in ps.queue("again").read(limit=100)] == list(range(30))


def test_the_id_follows_from_what_is_asked_for():
    assert replay.id_for(PLAN) == replay.id_for(msgspec.structs.replace(PLAN, id="y"))
    changed: list[dict[str, Any]] = [
        {"to": "b"},
        {"queues": ("a", "b")},
        {"where": "true"},
        {"since": datetime(2030, 1, 1, tzinfo=UTC)},
    ]
    assert len({replay.id_for(msgspec.structs.replace(PLAN, **each)) for each in changed} | {replay.id_for(PLAN)}) == 5


def test_a_replay_that_began_keeps_the_times_it_began_with(tmp_path):
    first = msgspec.structs.replace(PLAN, until=datetime(2030, 1, 1, tzinfo=UTC), portion=7)
    assert replay.resumed(tmp_path, first, is_named=True) == first
    replay.keep(tmp_path, first)

    again = replay.resumed(tmp_path, PLAN, is_named=True)

    assert again == first
    assert (again.is_prepared, again.is_done) == (True, False)


def test_a_replay_cannot_become_another_one(tmp_path):
    replay.keep(tmp_path, PLAN)

    with pytest.raises(InvalidField, match="to: replay 'x' began with 'again', not 'other'"):
        replay.resumed(tmp_path, msgspec.structs.replace(PLAN, to="other"), is_named=True)


def test_the_same_messages_are_not_replayed_under_a_new_id_while_the_first_has_not_ended(tmp_path):
    replay.keep(tmp_path, PLAN)
    later = msgspec.structs.replace(PLAN, id="y", since=datetime(2030, 1, 1, tzinfo=UTC))

    with pytest.raises(InvalidField, match="'x'") as refused:
        replay.resumed(tmp_path, later, is_named=False)
    assert "--id x" in refused.value.hint

    assert replay.resumed(tmp_path, later, is_named=True) == later
    replay.keep(tmp_path, msgspec.structs.replace(PLAN, messages=3))
    assert replay.resumed(tmp_path, later, is_named=False) == later


def test_the_files_of_a_replay_go_when_it_has_ended(folder):
    replay.forget(folder)
    replay.forget(folder)

    assert not (folder / replay.MESSAGES).exists()
