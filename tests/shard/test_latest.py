"""Compaction to the latest message of each key: against a model, over restarts, crashes and every kind of reader."""

from __future__ import annotations

import random
import sys
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from penstock import limits
from penstock.client._sync.delivery import Leased
from penstock.client._sync.queue import Queue
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField, MessageNotFound
from penstock.history import OffsetRange, open_history
from penstock.model import Message
from penstock.repair.directory import diagnose
from penstock.storage.schema import MESSAGES, SCHEMAS
from penstock.verify import verify
from tests.support.accounts import assert_accounts
from tests.support.dose import dose
from tests.support.forgetful import ForgetfulDisk, PowerCut

FOREVER = 10.0**8


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    monkeypatch.setattr(limits, "segment_row_group_rows", 16)
    monkeypatch.setattr(limits, "segment_gap_offsets_max", 3)
    monkeypatch.setattr(limits, "compaction_ranges_max", 3)
    monkeypatch.setattr(limits, "compaction_offsets_max", 20)


def opened(disk: ForgetfulDisk, clock: ManualClock, seed: int = 1) -> tuple[Session, Penstock]:
    session = Session(
        None, disk=disk, clock=clock, rng=random.Random(seed), background=False, journal_file_bytes=1 << 16
    )
    return session, Penstock(BlockingSession(session))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def disk():
    return ForgetfulDisk()


@pytest.fixture
def ps(disk, clock):
    return opened(disk, clock)[1]


def push(ps: Penstock, *pairs: tuple[str, Any]) -> None:
    ps.queue("q").push_many([Message(payload=value, key=key) for key, value in pairs])


def drain(ps: Penstock, group: str = "default", **options: Any) -> list[tuple[str | None, Any]]:
    taken = ps.queue("q").lease(max=1000, group=group, **options)
    found = [(d.key, None if d.is_tombstone else d.payload) for d in taken]
    taken.ack()
    return found


def stored(ps: Penstock) -> list[tuple[int, str | None, Any]]:
    read = ps.queue("q").read(limit=1000)
    return [(m.id.offset, m.key, None if m.is_tombstone else m.payload) for m in read if m.id is not None]


def test_only_the_latest_message_of_each_key_stays_and_offsets_do_not_change(ps):
    ps.create_queue("q", compaction="latest")
    push(ps, ("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4"), ("b", b"5"))
    drain(ps)
    ps.seal()

    freed = ps.queue("q").compact()

    assert freed.messages_removed == 2
    assert stored(ps) == [(2, "a", b"3"), (3, "c", b"4"), (4, "b", b"5")]
    assert drain(ps, "late", start="earliest") == [("a", b"3"), ("c", b"4"), ("b", b"5")]
    stats = ps.queue("q").stats()
    assert stats.messages == 3
    assert stats.groups["late"].dropped_by == {"compacted": 2}
    assert [reason.code for reason in ps.queue("q").why("q/0/0")] == ["compacted", "compacted"]


def test_what_a_group_has_not_settled_stays(ps):
    ps.create_queue("q", compaction="latest")
    push(ps, ("a", b"1"), ("a", b"2"), ("a", b"3"))
    first = ps.queue("q").lease(max=1)
    ps.seal()

    assert ps.queue("q").compact().messages_removed == 0
    first.ack()
    assert ps.queue("q").compact().messages_removed == 1

    assert drain(ps) == [("a", b"2"), ("a", b"3")]


def test_a_queue_may_drop_what_nobody_has_read_but_never_what_somebody_holds(ps):
    ps.create_queue("q", compaction="latest", compaction_drops_unread=True, backoff_base_seconds=0.0)
    push(ps, ("a", b"1"), ("b", b"1"), ("a", b"2"), ("b", b"2"), ("a", b"3"), ("b", b"3"))
    held = ps.queue("q").lease(max=1)
    ps.queue("q").lease(max=1)[0].nack(delay=0)
    ps.seal()

    assert ps.queue("q").compact().messages_removed == 3

    assert stored(ps)[0] == (0, "a", b"1")
    held.ack()
    assert drain(ps) == [("a", b"3"), ("b", b"3")]
    assert ps.queue("q").stats().groups["default"].dropped_by == {"compacted": 3}
    assert ps.queue("q").compact().messages_removed == 1


def test_what_is_not_sealed_is_neither_removed_nor_does_it_remove(ps):
    ps.create_queue("q", compaction="latest")
    push(ps, ("a", b"1"))
    ps.seal()
    push(ps, ("a", b"2"), ("a", b"3"))
    drain(ps)

    assert ps.queue("q").compact().messages_removed == 0
    assert len(stored(ps)) == 3


def test_a_tombstone_deletes_its_key_is_seen_for_its_time_and_goes(ps, clock):
    ps.create_queue("q", compaction="latest", tombstone_seconds=60.0)
    push(ps, ("a", b"1"), ("b", b"1"), ("a", None), ("c", b"1"))
    drain(ps)
    ps.seal()

    assert ps.queue("q").compact().messages_removed == 1
    assert stored(ps) == [(1, "b", b"1"), (2, "a", None), (3, "c", b"1")]

    clock.advance(seconds=61)
    assert ps.queue("q").compact().messages_removed == 1
    assert stored(ps) == [(1, "b", b"1"), (3, "c", b"1")]


def test_null_is_a_value_where_nothing_is_compacted(ps):
    ps.queue("plain").push(None, key="a")

    (message,) = ps.queue("plain").read()

    assert message.json() is None
    assert not message.is_tombstone


def test_bytes_that_read_null_are_a_value(ps):
    ps.create_queue("q", compaction="latest")
    push(ps, ("a", b"null"), ("b", "null"), ("c", None))

    assert [message.is_tombstone for message in ps.queue("q").read()] == [False, False, True]


def test_a_tombstone_that_was_read_can_be_pushed_again_anywhere(ps):
    ps.create_queue("q", compaction="latest")
    push(ps, ("c", None))
    read = ps.queue("q").read()

    ps.queue("q").push_many(read)
    ps.queue("other").push_many(read)

    assert [message.is_tombstone for message in ps.queue("q").read()] == [True, True]
    assert [message.is_tombstone for message in ps.queue("other").read()] == [False]


def test_a_message_without_a_key_is_refused_and_nothing_is_stored(ps):
    ps.create_queue("q", compaction="latest")

    with pytest.raises(InvalidField, match="item 1: key: queue 'q' keeps the latest message of each key"):
        ps.queue("q").push_many([Message(payload=b"1", key="a"), b"2"])
    with pytest.raises(InvalidField, match="key"):
        ps.queue("q").push(b"2")

    assert stored(ps) == []


def test_a_queue_that_keeps_everything_is_not_compacted(ps):
    ps.queue("q").push(b"1")

    with pytest.raises(InvalidField, match="'q' keeps all of its messages"):
        ps.queue("q").compact()


def test_the_latest_messages_are_kept_for_ever_unless_retention_is_asked_for(ps):
    ps.create_queue("q", compaction="latest")
    ps.create_queue("short", compaction="latest", retention_seconds=60.0)
    ps.create_queue("later")
    ps.update_queue("later", compaction="latest")

    assert ps.queue("q").options().retention_seconds is None
    assert ps.queue("short").options().retention_seconds == 60.0
    assert ps.queue("later").options().retention_bytes is None


def test_upkeep_compacts_when_enough_is_superseded_and_not_before(disk, clock):
    session, ps = opened(disk, clock)
    assert session.keeper is not None
    ps.create_queue("q", compaction="latest", compaction_ratio=0.5, compaction_seconds=60.0)
    push(ps, *((f"k{n}", b"1") for n in range(10)))
    drain(ps)
    ps.seal()
    session.keeper.tick()
    push(ps, *((f"k{n}", b"2") for n in range(4)))
    drain(ps)
    ps.seal()
    clock.advance(seconds=61)
    session.keeper.tick()
    assert len(stored(ps)) == 14

    push(ps, *((f"k{n}", b"3") for n in range(8)))
    drain(ps)
    ps.seal()
    session.keeper.tick()
    assert len(stored(ps)) == 10
    push(ps, *((f"k{n}", b"4") for n in range(10)))
    drain(ps)
    ps.seal()
    session.keeper.tick()
    assert len(stored(ps)) == 20, "not before compaction_seconds have passed"
    clock.advance(seconds=61)
    session.keeper.tick()
    assert len(stored(ps)) == 10


def test_a_reader_that_planned_before_the_files_were_rewritten_gets_the_messages_that_are_left(disk, clock):
    session, ps = opened(disk, clock)
    assert session.shard.store is not None
    ps.create_queue("q", compaction="latest")
    push(ps, *((f"k{n % 5}", b"%d" % n) for n in range(40)))
    drain(ps)
    ps.seal()
    extents = session.shard.store.of_partition(1, 0)
    ps.queue("q").compact()

    for extent in extents:
        inside = [n for n in range(35, 40) if extent.first_offset <= n < extent.end_offset]
        if inside:
            batch = session.shard.store.load(extent)
            hashes = session.shard.store.column(extent, "key_hash")
            assert [batch.payload(extent.row_of(n)) for n in inside] == [b"%d" % n for n in inside]
            assert [batch.key(extent.row_of(n)) for n in inside] == [f"k{n % 5}" for n in inside]
            assert all(hashes[n - extent.first_offset] for n in inside)


def test_a_file_that_keeps_all_of_its_messages_between_two_that_are_joined_stays_where_it_is(disk, clock):
    session, ps = opened(disk, clock)
    ps.create_queue("q", compaction="latest")
    for pairs in ([("a", b"0"), ("x", b"1")], [("b", b"2")], [("c", b"3"), ("c", b"4"), ("a", b"5")]):
        push(ps, *pairs)
        drain(ps)
        ps.seal()

    ps.queue("q").compact()

    assert_accounts(session.shard)
    assert stored(ps) == [(1, "x", b"1"), (2, "b", b"2"), (4, "c", b"4"), (5, "a", b"5")]


def test_messages_with_priorities_delays_and_lives_are_compacted_like_others(disk, clock):
    session, ps = opened(disk, clock)
    ps.create_queue("q", compaction="latest", compaction_drops_unread=True)
    rows = [
        Message(payload=b"%d" % n, key=f"k{n % 3}", priority=n % 4 * 60, delay=30.0 if n % 2 else 0.0, ttl=100.0)
        for n in range(30)
    ]
    ps.queue("q").push_many(rows)
    ps.seal()

    assert ps.queue("q").compact().messages_removed == 27

    clock.advance(seconds=31)
    session.timekeeper.tick()
    assert sorted(payload for _, payload in drain(ps)) == [b"27", b"28", b"29"]
    ps.queue("q").push_many([Message(payload=b"%d" % n, key="k0", ttl=50.0) for n in range(5)])
    ps.seal()
    ps.queue("q").compact()
    clock.advance(seconds=51)
    session.timekeeper.tick()
    assert ps.queue("q").stats().groups["default"].dropped_by == {"compacted": 31, "expired": 1}
    assert_accounts(session.shard)


def test_a_dead_letter_whose_message_was_compacted_cannot_be_brought_back_and_says_so(ps):
    ps.create_queue("q", compaction="latest", compaction_drops_unread=True, max_attempts=1)
    push(ps, ("a", b"1"), ("a", b"2"), ("a", b"3"))
    ps.queue("q").lease(max=1)[0].reject("bad")
    ps.seal()
    assert ps.queue("q").compact().messages_removed == 2

    with pytest.raises(MessageNotFound, match="q/0/0 is no longer kept"):
        ps.queue("q").dlq.redrive()

    assert len(ps.queue("q").dlq.list()) == 1
    assert drain(ps) == [("a", b"3")]


class Life:
    """A compacted queue under random use, beside a plain account of what was pushed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng, self.clock, self.disk = random.Random(seed), ManualClock(), ForgetfulDisk(seed)
        self.session, self.ps = opened(self.disk, self.clock, seed)
        self.log: list[tuple[str, int | None]] = []  # by offset
        self.groups = ["default"]
        self.number = 0
        self.drops = self.rng.random() < 0.4
        self.ps.create_queue(
            "q",
            compaction="latest",
            tombstone_seconds=30.0,
            compaction_ratio=0.2,
            compaction_seconds=0.0,
            compaction_drops_unread=self.drops,
            ordering=self.rng.choice(["none", "none", "key", "partition"]),
            backoff_base_seconds=0.0,
            max_attempts=1000,
        )
        self.ps.queue("other").push_many([b"x"] * 5)

    @property
    def queue(self) -> Queue:
        return self.ps.queue("q")

    def push(self) -> None:
        for _ in range(self.rng.randint(1, 12)):
            self.number += 1
            value = None if self.rng.random() < 0.15 else self.number
            self.log.append((f"k{int(self.rng.expovariate(0.3))}", value))
            push(self.ps, (self.log[-1][0], None if value is None else b"%d" % value))

    def taken(self) -> Leased:
        taken = self.queue.lease(max=self.rng.randint(1, 20), group=self.rng.choice(self.groups))
        for delivery in taken:
            assert (delivery.key, delivery.json()) == self.log[delivery.offset]
        return taken

    def read(self) -> None:
        if taken := self.taken():
            taken.ack()

    def fail(self) -> None:
        for delivery in self.taken():
            delivery.nack(delay=0)

    def seal(self) -> None:
        self.ps.seal()

    def lags(self) -> dict[str, int]:
        return {group: stats.lag for group, stats in self.queue.stats().groups.items()}

    def compact(self) -> None:
        before = self.lags()
        self.queue.compact()
        assert self.drops or self.lags() == before, "what nobody has read is gone"

    def tick(self) -> None:
        assert self.session.keeper is not None
        self.session.keeper.tick()

    def restart(self) -> None:
        if self.rng.random() < 0.5:
            self.session.checkpoint()
        if self.rng.random() < 0.3:
            self.session.close()
        self.disk.kill()
        self.session, self.ps = opened(self.disk, self.clock, self.seed)

    def new_group(self) -> None:
        self.groups.append(f"g{len(self.groups)}")
        self.queue.create_group(self.groups[-1], start="earliest")

    def wait(self) -> None:
        self.clock.advance(seconds=self.rng.randint(1, 40))

    def check(self) -> None:
        assert_accounts(self.session.shard)
        found = stored(self.ps)
        for offset, key, value in found:
            assert self.log[offset] == (key, None if value is None else int(value)), "offsets never change"
        kept = {offset for offset, _, _ in found}
        latest = {key: (offset, value) for offset, (key, value) in enumerate(self.log)}
        for key, (offset, value) in latest.items():
            assert offset in kept or value is None, f"the latest message of {key} is gone"
            is_back = offset not in kept and any(known == key for _, known, _ in found)
            assert not is_back, f"a deleted value of {key} came back"

    def finish(self) -> None:
        for group in self.groups:
            seen: list[int] = []
            while taken := self.queue.lease(max=100, group=group):
                seen += [delivery.offset for delivery in taken]
                taken.ack()
            assert len(set(seen)) == len(seen)
        self.session.checkpoint()
        self.session.close()
        assert verify(self.disk.kill(), self.clock.now()).problems == []
        assert diagnose(self.disk.kill(), self.clock.now()).is_sound


STEPS = (*["push"] * 3, "read", "fail", *["seal"] * 2, "compact", "tick", "restart", "new_group", "wait")


@pytest.mark.parametrize("seed", range(dose(30, 1500)))
def test_any_history_keeps_the_latest_messages_and_whatever_is_unread(seed):
    life = Life(seed)
    for _ in range(40):
        getattr(life, life.rng.choice(STEPS))()
        life.check()
    life.finish()


def work(session: Session, ps: Penstock, clock: ManualClock) -> None:
    ps.create_queue("q", exist_ok=True, compaction="latest", tombstone_seconds=10.0)
    push(ps, *((f"k{n % 4}", b"%d" % n) for n in range(12)))
    drain(ps)
    ps.seal()
    push(ps, ("k0", None), ("k1", b"20"), ("k9", b"21"))
    drain(ps)
    ps.seal()
    clock.advance(seconds=11)
    ps.queue("q").compact()
    session.checkpoint()
    push(ps, ("k1", b"30"))
    drain(ps)
    ps.seal()
    ps.queue("q").compact()


def latest_of(ps: Penstock) -> dict[str | None, Any]:
    return {key: value for _, key, value in stored(ps) if value is not None}


def test_a_power_cut_at_any_operation_loses_no_latest_message_and_brings_none_back():
    disk, clock = ForgetfulDisk(), ManualClock()
    session, ps = opened(disk, clock)
    before = disk.operations
    work(session, ps, clock)
    operations = disk.operations - before
    expected = {"k1": b"30", "k2": b"10", "k3": b"11", "k9": b"21"}
    assert stored(ps) == [(10, "k2", b"10"), (11, "k3", b"11"), (14, "k9", b"21"), (15, "k1", b"30")]

    for operation in range(1, operations + 1):
        disk, clock = ForgetfulDisk(operation), ManualClock()
        session, ps = opened(disk, clock)
        disk.crash_at(operation)
        with pytest.raises(PowerCut):
            work(session, ps, clock)
        disk = disk.crash()
        session, ps = opened(disk, clock, 2)
        assert_accounts(session.shard)
        work(session, ps, clock)
        assert latest_of(ps) == expected, f"operation {operation}"
        assert_accounts(session.shard)
        disk.kill()
        session, ps = opened(disk, clock, 3)
        assert latest_of(ps) == expected, f"operation {operation}, opened again"
        assert_accounts(session.shard)
        disk.kill()
        assert verify(disk, clock.now()).problems == [], f"operation {operation}"


def test_readers_from_outside_see_what_is_left_in_any_range(tmp_path):
    with closing(Session(tmp_path, background=False)) as session:
        ps = Penstock(BlockingSession(session))
        ps.create_queue("q", compaction="latest")
        push(ps, *((f"k{n % 7 if n % 3 else n}", b"%d" % n) for n in range(50)))
        drain(ps)
        ps.seal()
        ps.queue("q").compact()
        push(ps, ("k0", b"x"))
        kept = [(offset, key, payload) for offset, key, payload in stored(ps)]
        history = open_history(str(tmp_path))
        moment = history.look()
        for first, end in [(0, 51), (10, 30), (13, 14), (47, 51)]:
            slices = history.plan(moment, [OffsetRange("q", "0", first, end)])
            for columns in (["offset", "key", "payload"], ["key"], ["queue", "partition"]):
                schema = pa.schema([SCHEMAS[MESSAGES].field(name) for name in columns])
                rows = pa.Table.from_batches(list(history.read(slices, columns)), schema).to_pylist()
                found = [
                    dict(zip(("offset", "key", "payload"), row, strict=True)) for row in kept if first <= row[0] < end
                ]
                expected = [{"queue": "q", "partition": "0", **row} for row in found]
                assert rows == [{name: row[name] for name in columns} for row in expected]


def test_compaction_goes_on_while_a_profiler_keeps_its_frames(ps):
    """A frame that is kept keeps its locals, too: none of them may forbid what comes next."""
    queue = ps.create_queue("settings", compaction="latest", compaction_drops_unread=True)
    queue.push_many([Message(payload=number, key="bc"[number % 2] if number else "a") for number in range(200)])
    ps.seal()
    frames: list[Any] = []

    sys.setprofile(lambda frame, event, argument: frames.append(frame))
    try:
        freed = queue.compact()
    finally:
        sys.setprofile(None)

    assert freed.messages_removed == 197
    assert len(frames) > 1000
    assert [delivery.json() for delivery in queue.lease(10)] == [0, 198, 199]
