"""Live events: what is told of queues and groups, to whom, and what happens to a listener that is slow."""

from __future__ import annotations

import asyncio

import pytest

from penstock import operations as ops
from penstock.batch import Batch
from penstock.broker.events import CHANGES, CHANGES_MAX, Event
from penstock.errors import InvalidField, QueueFull
from penstock.model import to_datetime
from penstock.server.outbox import Outbox
from penstock.server.websocket import conversation
from penstock.wire.json_messages import encode
from tests.support.broker_loop import SOMEONE, broker_on, on_uvloop, until


class Ear:
    """A listener of everything."""

    def __init__(self, broker, queues=None, interval_seconds=3600.0):
        self.news = asyncio.Event()
        self.listener = broker.listen(SOMEONE, queues, interval_seconds, self.news.set)
        self.heard = []

    async def until(self, type, queue):
        while not any((event.type, event.queue) == (type, queue) for event in self.heard):
            await self.news.wait()
            self.news.clear()
            self.heard += self.listener.take()

    def changes(self):
        return [(event.type, event.queue, event.group) for event in self.heard if event.type != "counters"]


async def call(broker, name, *given):
    return await broker.execute(SOMEONE, ops.named(name)(*given))


@pytest.mark.parametrize("where", ["memory", "disk"])
@on_uvloop
async def test_every_change_is_reported_once_and_in_order(where, tmp_path):
    async with broker_on(tmp_path / "data" if where == "disk" else None) as broker:
        ear = Ear(broker)
        await broker.pushed(SOMEONE, "q", Batch.build([b"a"]))
        await call(broker, "update_queue", "q", {"max_attempts": 3})
        await call(broker, "pause", "q")
        await call(broker, "resume", "q")
        await call(broker, "create_group", "q", "g")
        await call(broker, "seek", "q", "g", "latest")
        await call(broker, "purge", "q")
        await call(broker, "delete_group", "q", "g")
        await call(broker, "delete_queue", "q")
        await ear.until("deleted", "q")

        assert ear.changes() == [
            ("created", "q", ""),
            ("updated", "q", ""),
            ("paused", "q", ""),
            ("resumed", "q", ""),
            ("group_created", "q", "g"),
            ("group_moved", "q", "g"),
            ("purged", "q", ""),
            ("group_deleted", "q", "g"),
            ("deleted", "q", ""),
        ]
        assert {type for type, _, _ in ear.changes()} == set(CHANGES)


@on_uvloop
async def test_a_queue_made_for_a_push_that_is_refused_was_never_there():
    async with broker_on() as broker:
        ear = Ear(broker)
        await call(broker, "create_queue", "full", {"max_length": 1})
        with pytest.raises(QueueFull):
            await broker.pushed(SOMEONE, "full", Batch.build([b"a", b"b"]))
        with pytest.raises(InvalidField):
            await broker.pushed(SOMEONE, "new", Batch.build([b"a"]), "7")
        await call(broker, "create_queue", "last")
        await ear.until("created", "last")

        assert ear.changes() == [("created", "full", ""), ("created", "last", "")]


@on_uvloop
async def test_a_listener_hears_only_of_its_queues_and_nothing_after_it_left():
    async with broker_on() as broker:
        some, everything = Ear(broker, ["a"]), Ear(broker)
        await call(broker, "create_queue", "b")
        await call(broker, "create_queue", "a")
        await some.until("created", "a")
        some.listener.close()
        await call(broker, "delete_queue", "a")
        await everything.until("deleted", "a")

        assert some.changes() == [("created", "a", "")]
        assert [event.type for event in some.listener.take()] == []


@on_uvloop
async def test_nothing_is_watched_while_nobody_listens():
    async with broker_on() as broker:
        core = broker.shard.core
        before = dict(core._appliers)
        ear = Ear(broker)
        while_heard = dict(core._appliers)
        ear.listener.close()

        assert while_heard != before
        assert core._appliers == before


@on_uvloop
async def test_counters_come_at_once_and_then_at_the_interval_one_count_for_all(monkeypatch):
    async with broker_on() as broker:
        counted: list[object] = []
        count = broker.events._count

        def counting(wanted):
            counted.append(wanted)
            return count(wanted)

        monkeypatch.setattr(broker.events, "_count", counting)
        await broker.pushed(SOMEONE, "q", Batch.build([b"a", b"b"]))
        first, second = Ear(broker, ["q"], 0.1), Ear(broker, None, 0.1)
        await asyncio.gather(first.until("counters", ""), second.until("counters", ""))
        at_once = len(counted)
        first.heard.clear()
        await broker.pushed(SOMEONE, "q", Batch.build([b"c"]))
        while not any(event.counters and event.counters[0].ready == 3 for event in first.heard):
            first.heard.clear()
            await first.until("counters", "")

        assert at_once <= 2
        with pytest.raises(InvalidField):
            Ear(broker, None, 0.01)


@on_uvloop
async def test_a_slow_listener_finds_the_latest_counters_and_the_last_changes():
    async with broker_on() as broker:
        ear = Ear(broker)
        await until(ear.news.is_set)
        ear.listener.take()
        for number in range(CHANGES_MAX + 5):
            ear.listener.offer(Event("updated", to_datetime(number), f"q{number}"))
            ear.listener.offer(Event("counters", to_datetime(number)))
        taken = ear.listener.take()

        assert len(taken) == CHANGES_MAX + 1
        assert (taken[0].queue, taken[0].missed) == ("q5", 5)
        assert taken[-1].at == to_datetime(CHANGES_MAX + 4)
        assert ear.listener.take() == []


@on_uvloop
async def test_an_outbox_tells_when_it_is_full_and_when_it_has_room_again():
    reported, sent, gate = [], [], asyncio.Event()

    async def write(item):
        await gate.wait()
        sent.append(item)

    outbox = Outbox(write, lambda: reported.append("full"), lambda: reported.append("drained"), bytes_max=10)
    sending = asyncio.ensure_future(outbox.run())
    for item in "abcd":
        outbox.put(item, 5)
    waiting = asyncio.ensure_future(outbox.room())
    await asyncio.sleep(0)

    assert (reported, waiting.done(), outbox.is_full) == (["full"], False, True)

    gate.set()
    await waiting
    outbox.close()
    outbox.put("late", 1)
    await sending

    assert (reported, sent) == (["full", "drained"], ["a", "b", "c", "d"])


@on_uvloop
async def test_counters_are_made_and_encoded_once_for_equal_listeners_and_only_what_changed(monkeypatch):
    crowd, queues = 50, 20
    encoded: list[object] = []

    def noting(value):
        encoded.append(value)
        return encode(value)

    monkeypatch.setattr(conversation, "encode", noting)
    async with broker_on() as broker:
        for number in range(queues):
            await broker.pushed(SOMEONE, f"q{number:02}", Batch.build([b"a"]))
        listeners = [broker.listen(SOMEONE, None, 3600.0, lambda: None) for _ in range(crowd)]
        (other,) = [broker.listen(SOMEONE, ["q07"], 3600.0, lambda: None)]
        hub = broker.events

        async def counted():
            """Every listener's next event, and how many were encoded for all of them."""
            await hub._sample([*listeners, other])
            taken = [listener.take() for listener in (*listeners, other)]
            encoded.clear()
            for events in taken:
                for event in events:
                    conversation.event_json("s", event)
            bodies = [value for value in encoded if value != "s"]
            return [[[stats.name for stats in event.counters] for event in events] for events in taken], len(bodies)

        everything = [f"q{number:02}" for number in range(queues)]
        await until(lambda: all(listener.is_counted for listener in (*listeners, other)))
        reported, bodies = await counted()
        assert (reported, bodies) == ([[everything]] * crowd + [[["q07"]]], 2)
        reported, bodies = await counted()
        assert (reported, bodies) == ([[]] * (crowd + 1), 0)
        await broker.pushed(SOMEONE, "q03", Batch.build([b"b"]))
        reported, bodies = await counted()
        assert (reported, bodies) == ([[["q03"]]] * crowd + [[]], 1)

        await broker.pushed(SOMEONE, "q04", Batch.build([b"b"]))
        await hub._sample(listeners)
        listeners[0].take()
        await broker.pushed(SOMEONE, "q05", Batch.build([b"b"]))
        reported, bodies = await counted()  # who has not taken the counters before gets everything
        assert (reported, bodies) == ([[["q05"]]] + [[everything]] * (crowd - 1) + [[]], 2)
