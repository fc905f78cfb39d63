"""History: what a reader from outside sees is what is there, whoever writes, seals and removes meanwhile."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import Message
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import Damaged, HistoryLost, NotADataDirectory, QueueNotFound
from penstock.history import History, Limits, Moment, OffsetRange, lost, open_history, pack
from penstock.history import change_rows as history_events
from penstock.storage.schema import MESSAGES, SCHEMAS
from tests.support.dose import dose
from tests.support.operations import run_operation

COLUMNS = SCHEMAS[MESSAGES].names
ROW = ["partition", "offset", "payload", "key", "priority", "dedup_key", "trace_id", "content_type", "max_attempts"]


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def clock():
    return ManualClock(1_750_000_000_000_000)


@pytest.fixture
def session(data, clock):
    with closing(Session(data, background=False, durability="os", clock=clock)) as session:
        yield session


@pytest.fixture
def ps(session):
    return Penstock(BlockingSession(session))


def rows_of(history: History, moment: Moment, queue: str, limits: Limits | None = None) -> pa.Table:
    slices = history.plan(moment, moment.everything(queue), limits or Limits())
    batches = list(history.read(slices, COLUMNS))
    return pa.Table.from_batches(batches, SCHEMAS[MESSAGES])


def as_read(ps: Penstock, name: str, partitions: list[str]) -> list[tuple[Any, ...]]:
    """The rows as the queue itself reads them."""
    rows = []
    for partition in partitions:
        for message in ps.queue(name).read(partition, limit=100_000):
            assert message.id is not None
            kind = {0: "application/octet-stream", 1: "application/json", 2: "text/plain"}[
                int(message.content_type or 0)
            ]
            times = (message.dedup_key, message.trace, kind, message.max_attempts)
            rows.append((partition, message.id.offset, message.payload, message.key, message.priority, *times))
    return sorted(rows)


def as_seen(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(table[name].to_pylist() for name in ROW), strict=True))


def some_messages(rng: random.Random, count: int) -> list[Message]:
    return [
        Message(
            payload=rng.choice([rng.randbytes(rng.randrange(40)), {"n": n}, "text"]),
            key=rng.choice([None, f"k{n % 5}"]),
            priority=rng.choice([128, 128, 7, 250]),
            trace=rng.choice([None, "t"]),
            max_attempts=rng.choice([None, 3]),
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("seed", range(dose(3, 200)))
def test_a_reader_sees_what_the_queue_holds_at_every_moment(session, ps, data, clock, seed):
    """One reader that follows, and a new one each time, both agree with the queue, over seals and retention."""
    rng = random.Random(seed)
    ps.create_queue("orders", partitions=3, retention_seconds=100)
    ps.create_queue("named", partitions="named")
    following = open_history(data)
    for _ in range(30):
        act = rng.randrange(7)
        if act < 2:
            ps.queue("orders").push_many(some_messages(rng, rng.randrange(1, 40)))
        elif act == 2:
            ps.queue("named").push(b"one", partition=f"p{rng.randrange(4)}")
        elif act == 3:
            for _ in range(rng.randrange(20)):
                ps.queue("orders").push(rng.randbytes(8))
        elif act == 4:
            ps.queue("orders").lease(rng.randrange(1, 60)).ack()
        elif act == 5:
            rng.choice([lambda: run_operation(session, ops.Seal()), session.checkpoint])()
        else:
            clock.advance(rng.randrange(120))
            run_operation(session, ops.Compact())
        for history in (following, open_history(data)):
            moment = history.look()
            for queue in ("orders", "named"):
                partitions = moment.queue(queue).partitions
                table = rows_of(history, moment, queue)
                assert table.schema.equals(SCHEMAS[MESSAGES])
                assert as_seen(table) == as_read(ps, queue, list(partitions))
                assert {p.name: p.end - p.start for p in partitions.values()} == {
                    name: table["partition"].to_pylist().count(name) for name in partitions
                }


def test_every_column_comes_from_the_journal_as_it_comes_from_a_segment(session, ps, data):
    ps.queue("orders").push_many(
        [
            Message(payload={"n": 1}, key="k", headers={"a": "1", "b": "2"}, delay=5, ttl=60, dedup_key="d", trace="t"),
            Message(payload=b"plain", priority=9, max_attempts=4),
        ]
    )
    history = open_history(data)
    unsealed = rows_of(history, history.look(), "orders")
    run_operation(session, ops.Seal())
    sealed = rows_of(history, history.look(), "orders")

    assert unsealed.equals(sealed)
    assert history.opened == {"journal/00000000000000000001.log", "segments/messages/00000000000000000001-0.parquet"}


def test_a_moment_does_not_change_though_its_files_go(session, ps, data):
    queue = ps.create_queue("orders", partitions=2)
    queue.push_many([b"%d" % n for n in range(100)])
    history = open_history(data)
    moment = history.look()
    slices = history.plan(moment, moment.everything("orders"))
    queue.push_many([b"later"] * 50)
    run_operation(session, ops.Seal())
    queue.push(b"latest")
    run_operation(session, ops.Seal())

    assert not (data / slices[0].file).exists(), "the journal file was sealed and removed"
    assert sum(batch.num_rows for batch in history.read(slices, ["offset"])) == 100
    assert sum(view.end for view in history.look().queue("orders").partitions.values()) == 151


def test_offsets_and_times_bound_what_is_read(session, ps, data, clock):
    queue = ps.queue("orders")
    for hour in range(6):
        queue.push_many([b"%d" % hour] * 10)
        if hour == 2:
            run_operation(session, ops.Seal())
        clock.advance(3600)
    history = open_history(data)
    moment = history.look()

    def payloads(wanted: list[OffsetRange], limits: Limits) -> list[bytes]:
        slices = history.plan(moment, wanted, limits)
        return [each for batch in history.read(slices, ["payload"]) for each in batch["payload"].to_pylist()]

    begun = 1_750_000_000_000_000
    some = [OffsetRange("orders", "0", 15, 45)]
    assert payloads(some, Limits()) == [b"1"] * 5 + [b"2"] * 10 + [b"3"] * 10 + [b"4"] * 5
    hours = Limits(since=begun + 2 * 3_600_000_000, until=begun + 4 * 3_600_000_000)
    assert payloads(some, hours) == [b"2"] * 10 + [b"3"] * 10
    assert payloads(moment.everything("orders"), Limits(since=begun + 9 * 3_600_000_000)) == []


def test_priorities_that_nobody_has_are_not_read(session, ps, data):
    ps.queue("orders").push_many([b"normal"] * 10)
    run_operation(session, ops.Seal())
    ps.queue("orders").push_many([Message(payload=b"high", priority=200)] * 10)
    run_operation(session, ops.Seal())
    ps.queue("orders").push_many([Message(payload=b"higher", priority=250)] * 5)
    history = open_history(data)
    moment = history.look()

    slices = history.plan(moment, moment.everything("orders"), Limits(priority_min=190))
    found = [each for batch in history.read(slices, ["payload", "priority"]) for each in batch["payload"].to_pylist()]
    assert found == [b"high"] * 10 + [b"higher"] * 5
    assert [each.rows for each in slices] == [10, 5], "the first file holds nothing but normal ones"
    slices = history.plan(moment, moment.everything("orders"), Limits(priority_max=3))
    assert list(history.read(slices[:1], ["payload"])) == [], "the statistics of its row group say so"


def test_what_retention_removes_after_planning_is_an_error_or_is_listed(session, ps, data, clock):
    queue = ps.create_queue("orders", retention_seconds=1)
    queue.push_many([b"old"] * 20)
    run_operation(session, ops.Seal())
    history = open_history(data)
    moment = history.look()
    slices = history.plan(moment, moment.everything("orders"))
    queue.lease(20).ack()
    clock.advance(60)
    run_operation(session, ops.Compact())

    with pytest.raises(HistoryLost, match=r"offsets 0 to 19 of queue 'orders', partition '0' were removed"):
        list(history.read(slices, ["offset"]))
    assert lost(history.look(), [OffsetRange("orders", "0", 0, 20)]) == [OffsetRange("orders", "0", 0, 20)]
    history.skips_lost = True
    assert list(history.read(slices, ["offset"])) == []
    assert history.lost == [OffsetRange("orders", "0", 0, 20)]


def test_a_queue_that_is_deleted_and_made_again_is_another_queue(session, ps, data):
    ps.queue("orders").push_many([b"old"] * 3)
    history = open_history(data)
    moment = history.look()
    slices = history.plan(moment, moment.everything("orders"))
    ps.delete_queue("orders")
    ps.queue("orders").push(b"new")
    run_operation(session, ops.Seal())

    assert as_seen(rows_of(history, history.look(), "orders"))[0][2] == b"new"
    with pytest.raises(HistoryLost, match="deleted"):
        list(history.read(slices, ["offset"]))


def test_events_with_their_waits(session, ps, data, clock):
    queue = ps.queue("orders")
    queue.push_many([b"a"] * 4)
    clock.advance(2)
    leased = queue.lease(4, consumer="c1")
    clock.advance(3)
    leased[0].reject("broken")
    leased.ack()
    history = open_history(data)

    def events() -> list[dict[str, Any]]:
        slices = history.plan_changes(history.look(), "events", ["orders"])
        names = history_events.EVENTS_SCHEMA.names
        found: list[dict[str, Any]] = pa.Table.from_batches(
            list(history.read(slices, names)), history_events.EVENTS_SCHEMA
        ).to_pylist()
        return found

    unsealed = events()
    run_operation(session, ops.Seal())
    assert events() == unsealed
    reported = [
        (row["outcome"], row["first_offset"], row["count"], row["wait_ms"], row["processing_ms"]) for row in unsealed
    ]
    assert reported == [("rejected", 0, 1, 2000.0, 3000.0), ("acked", 1, 3, 2000.0, 3000.0)]
    assert {row["error"] for row in unsealed} == {"broken", None}


def test_a_torn_frame_at_the_end_is_waited_for_and_damage_is_reported(session, ps, data):
    ps.queue("orders").push(b"first")
    history = open_history(data)
    assert history.look().queue("orders").partitions["0"].end == 1
    journal = data / "journal" / "00000000000000000001.log"
    before = journal.read_bytes()
    ps.queue("orders").push(b"second")
    whole = journal.read_bytes()
    torn = bytearray(whole)
    changed = next(place for place, (old, new) in enumerate(zip(before, whole, strict=True)) if old != new)
    torn[changed + 30] ^= 0xFF
    journal.write_bytes(torn)
    assert history.look().queue("orders").partitions["0"].end == 1, "somebody may be writing it"
    journal.write_bytes(whole)
    assert history.look().queue("orders").partitions["0"].end == 2
    slices = history.plan(history.recent(), history.recent().everything("orders"))
    journal.write_bytes(torn)
    with pytest.raises(Damaged, match="is damaged"):
        list(history.read(slices, ["payload"]))
    journal.write_bytes(whole)


def test_wrong_places_and_names_are_reported(data, tmp_path, session):
    with pytest.raises(NotADataDirectory, match="contains no Penstock data"):
        open_history(tmp_path / "nothing")
    history = open_history(data)
    with pytest.raises(QueueNotFound, match="no queue 'ordres'"):
        history.look().queue("ordres")


def test_a_closed_directory_is_read_too(data: Path):
    with penstock.open(data) as ps:
        ps.queue("orders").push_many([b"a", b"b"])
    history = open_history(f"file://{data}")
    assert rows_of(history, history.look(), "orders")["payload"].to_pylist() == [b"a", b"b"]


def test_lots_are_about_as_large_as_asked_for(session, ps, data):
    for _ in range(10):
        ps.queue("orders").push_many([bytes(1000)] * 1000)
        run_operation(session, ops.Seal())
    history = open_history(data)
    slices = history.plan(history.look(), history.recent().everything("orders"))
    assert [len(lot) for lot in pack(slices, 5_000_000)] == [5, 5]
    assert [len(lot) for lot in pack(slices, 1)] == [1] * 10
    assert len(pack(slices, 1, count_max=3)) == 3
    assert pack([]) == []


def test_the_journal_falls_into_shares_for_several_tasks(ps, data):
    for _ in range(6):
        ps.queue("orders").push_many([bytes(100_000)] * 20)
    history = open_history(data)
    moment = history.look()

    slices = history.plan(moment, moment.everything("orders"))

    halves = [sum(each.rows for each in lot) for lot in pack(slices, sum(each.bytes for each in slices) // 2)]
    assert halves == [60, 60]
    assert [each.num_rows for each in history.read(slices, ["offset"])] == [each.rows for each in slices]


def test_messages_of_a_file_that_was_compacted_are_all_found_again(session, ps, data, clock):
    """Many partitions and row groups in one file, of which most goes, so that what stays is written anew."""
    queue = ps.create_queue("orders", partitions=4, retention_seconds=100)
    ps.create_queue("old", retention_seconds=100)
    ps.queue("old").push_many([bytes(50)] * 60_000)
    queue.push_many([bytes(20)] * 20_000)
    run_operation(session, ops.Seal())
    history = open_history(data)
    moment = history.look()
    slices = history.plan(moment, moment.everything("orders"))
    files = {each.file for each in slices}
    ps.queue("old").lease(60_000).ack()
    clock.advance(3600)
    run_operation(session, ops.Compact())

    assert not any((data / file).exists() for file in files), "compaction has rewritten it"
    offsets = [
        (partition, offset)
        for batch in history.read(slices, ["partition", "offset"])
        for partition, offset in zip(batch[0].to_pylist(), batch[1].to_pylist(), strict=True)
    ]
    assert len(offsets) == len(set(offsets)) == 20_000


@pytest.mark.parametrize("kept", [1, 3])
def test_events_of_a_file_that_was_sealed_meanwhile_come_once(session, ps, data, clock, monkeypatch, kept):
    monkeypatch.setattr("penstock.history.plan.SLICE_BYTES", kept)  # many slices
    queue = ps.queue("orders")
    queue.push_many([b"a"] * 40)

    def settle(count: int) -> None:
        for _ in range(count):
            clock.advance(0.001)
            queue.lease(1).ack()

    settle(20)
    history = open_history(data)
    slices = history.plan_changes(history.look(), "events", ["orders"])
    settle(10)
    run_operation(session, ops.Seal())
    queue.push(b"b")
    run_operation(session, ops.Seal())

    assert not (data / slices[0].file).exists()
    firsts = [first for batch in history.read(slices, ["first_offset"]) for first in batch[0].to_pylist()]
    assert firsts == list(range(20))


def test_several_ranges_of_a_partition_are_read_once_each(session, ps, data):
    ps.queue("orders").push_many([b"%d" % n for n in range(100)])
    run_operation(session, ops.Seal())
    ps.queue("orders").push_many([b"%d" % n for n in range(100, 200)])
    history = open_history(data)
    ranges = [(150, 160), (5, 10), (8, 12), (90, 110), (12, 14)]
    wanted = [OffsetRange("orders", "0", first, end) for first, end in ranges]
    found = [
        offset
        for batch in history.read(history.plan(history.look(), wanted), ["offset"])
        for offset in batch[0].to_pylist()
    ]
    assert sorted(found) == [*range(5, 14), *range(90, 110), *range(150, 160)]
