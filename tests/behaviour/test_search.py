"""Search in the messages of a queue, over every way in: compared with a list of all messages that is filtered here."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from penstock import operations as ops
from penstock.errors import GroupNotFound, InvalidField, QueueNotFound, TooLarge
from penstock.model import Message, to_datetime
from penstock.model_letters import MessageFilter
from penstock.shard import search
from tests.behaviour.steps import TICK, lease_one


def everything(queue: Any, **filters: Any) -> tuple[list[Message], int]:
    """All pages of a search, and how many messages were looked at."""
    found: list[Message] = []
    page = queue.search(**filters)
    examined = 0
    while True:
        found += page.messages
        examined += page.examined
        assert page.examined or page.cursor is None
        if page.cursor is None:
            return found, examined
        page = queue.search(**filters, cursor=page.cursor)


def filled(ps: Any, clock: Any, count: int = 60, **options: Any) -> Any:
    """A queue with messages of several pushes, some of them in one instant."""
    rng = Random(7)
    queue = ps.create_queue("orders", partitions=3, **options)
    for number in range(count):
        if rng.random() < 0.5:
            clock.advance(1)
        queue.push_many(
            [
                Message(
                    payload=f'{{"n":{number},"word":"w{rng.randrange(4)}"}}'.encode(),
                    key=f"k{rng.randrange(3)}",
                    headers={"h": str(rng.randrange(2))},
                    trace=f"t{rng.randrange(5)}",
                )
            ]
            * rng.choice((1, 2))
        )
    return queue


def stored(queue: Any) -> list[Message]:
    """All messages, the newest first."""
    messages = [message for number in range(3) for message in queue.read(number, limit=1_000)]
    return sorted(messages, key=lambda m: (m.pushed_at, int(m.id.partition), m.id.offset), reverse=True)


@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_pages_have_what_matches_the_newest_first_and_nothing_twice(ps, clock, limit):
    queue = filled(ps, clock)
    messages = stored(queue)
    middle = messages[len(messages) // 2].pushed_at
    cases: list[tuple[dict[str, Any], Callable[[Any], bool]]] = [
        ({}, lambda m: True),
        ({"text": '"word":"w2"'}, lambda m: b'"word":"w2"' in m.payload),
        ({"key": "k1", "headers": {"h": "1"}}, lambda m: m.key == "k1" and m.headers["h"] == "1"),
        ({"trace": "t3"}, lambda m: m.trace == "t3"),
        ({"since": middle}, lambda m: m.pushed_at >= middle),
        ({"until": middle, "key": "k0"}, lambda m: m.pushed_at < middle and m.key == "k0"),
        ({"text": "nowhere"}, lambda m: False),
    ]
    for filters, matches in cases:
        found, _ = everything(queue, limit=limit, **filters)
        assert [m.id for m in found] == [m.id for m in messages if matches(m)], filters


@pytest.mark.parametrize("look_back", [1, 10])
def test_a_page_looks_at_no_more_than_it_may_and_its_cursor_continues(ps, clock, look_back):
    queue = filled(ps, clock)
    messages = stored(queue)

    first = queue.search(text="nowhere", look_back=look_back)

    assert (first.messages, first.examined) == ([], look_back)
    assert first.looked_back_to == messages[look_back - 1].pushed_at
    assert everything(queue, text="nowhere", look_back=look_back) == ([], len(messages))


def test_messages_that_come_later_are_not_on_later_pages(ps, clock):
    queue = filled(ps, clock)
    before = [message.id for message in stored(queue)]
    page = queue.search(limit=5)
    found = [message.id for message in page.messages]
    while page.cursor is not None:
        queue.push(b"later")
        page = queue.search(limit=5, cursor=page.cursor)
        found += [message.id for message in page.messages]
    assert found == before


def test_a_state_is_that_of_the_group(ps, clock):
    queue = ps.create_queue("orders", max_attempts=1)
    ps.queue("orders").create_group("audit", start="latest")
    queue.push_many([b"0", b"1", b"2", b"3"])
    queue.push(b"later", delay=3600)
    lease_one(queue).ack()
    lease_one(queue).reject("no")
    lease_one(queue)

    def payloads(state: str, group: str = "default") -> list[Any]:
        return [message.payload for message in everything(queue, state=state, group=group)[0]]

    assert {state: payloads(state) for state in ("settled", "dead", "leased", "ready", "delayed", "waiting")} == {
        "settled": [b"0"],
        "dead": [b"1"],
        "leased": [b"2"],
        "ready": [b"3"],
        "delayed": [b"later"],
        "waiting": [],
    }
    assert payloads("ready", "audit") == [b"3", b"2", b"1", b"0"]
    clock.advance(3600 + TICK)
    assert payloads("delayed") == []
    for state in queue.message(queue.read(0)[4].id).groups:
        assert state.state == "ready"


def test_a_message_that_waits_for_its_next_attempt_is_found_by_that(ps):
    queue = ps.create_queue("orders")
    queue.push(b"x")
    lease_one(queue).nack(delay=60)
    assert [message.payload for message in queue.search(state="waiting").messages] == [b"x"]


def test_a_full_page_ends_before_it_is_too_large_to_send(ps, monkeypatch):
    monkeypatch.setattr(search, "PAGE_BYTES", 1_000)
    queue = ps.create_queue("orders")
    queue.push_many([bytes(600)] * 5)
    assert [len(page) for page in pages(queue)] == [2, 2, 1]


def pages(queue: Any, **filters: Any) -> list[list[Message]]:
    page = queue.search(**filters)
    found = [page.messages]
    while page.cursor is not None:
        page = queue.search(**filters, cursor=page.cursor)
        found.append(page.messages)
    return [messages for messages in found if messages]


def test_an_empty_queue_and_a_window_without_messages_are_over_at_once(ps, clock):
    queue = ps.create_queue("orders")
    assert (queue.search().messages, queue.search().cursor, queue.search().looked_back_to) == ([], None, None)
    queue.push(b"x")
    at = queue.read(0)[0].pushed_at
    assert queue.search(since=at + timedelta(seconds=1)).cursor is None
    assert queue.search(until=at).examined == 0


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"cursor": "rubbish"}, "cursor"),
        ({"cursor": "0-0"}, "cursor"),
        ({"cursor": f"{1 << 70:x}-0-0"}, "cursor"),
        ({"cursor": "0-ffffffff-0"}, "cursor"),
        ({"cursor": "-1-0-0"}, "cursor"),
        ({"limit": 0}, "limit"),
        ({"limit": 10**9}, "limit"),
        ({"look_back": 0}, "look_back"),
        ({"state": "asleep"}, "state|status"),
        ({"text": "x" * 5_000}, "text"),
        ({"headers": {"h": "x" * 5_000}}, "headers"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(ps, wrong, names):
    queue = ps.create_queue("orders")
    with pytest.raises((InvalidField, TooLarge), match=names):
        queue.search(**wrong)


def test_a_cursor_of_another_queue_finds_what_it_may_and_ends(ps, clock):
    queue = filled(ps, clock)
    cursor = queue.search(limit=1).cursor
    other = ps.create_queue("mail")
    other.push(b"x")
    assert everything(other)[0] == other.search().messages
    assert other.search(cursor=cursor).cursor is None


def test_a_queue_that_is_deleted_between_two_pages_is_not_found(ps, clock):
    queue = filled(ps, clock)
    cursor = queue.search(limit=5).cursor
    ps.delete_queue("orders")
    with pytest.raises(QueueNotFound):
        queue.search(limit=5, cursor=cursor)


@pytest.mark.parametrize("partitions", [1, 3, 5])
def test_pages_of_a_queue_that_is_made_again_have_nothing_of_the_new_one_that_came_later(ps, clock, partitions):
    queue = filled(ps, clock)
    cursor = queue.search(limit=5).cursor
    ps.delete_queue("orders")
    again = ps.create_queue("orders", partitions=partitions)
    clock.advance(1)
    again.push_many([b"new"] * 20)

    page = again.search(limit=5, cursor=cursor)

    assert (page.messages, page.cursor) == ([], None)
    assert len(everything(again, limit=5)[0]) == 20


def test_a_search_in_what_is_not_there_is_refused(ps):
    with pytest.raises(QueueNotFound):
        ps.queue("nowhere").search()
    ps.create_queue("orders")
    with pytest.raises(GroupNotFound):
        ps.queue("orders").search(group="nobody")


def test_a_window_that_ends_before_it_begins_is_refused(clock):
    at = to_datetime(clock.now())
    with pytest.raises(InvalidField, match="from"):
        ops.SearchMessages("orders", MessageFilter(since=at, until=at))


@pytest.mark.parametrize("state", ["leased", "waiting", "dead"])
def test_a_search_by_a_state_that_is_indexed_looks_at_the_messages_in_it_alone(ps, clock, state):
    queue = filled(ps, clock, backoff_base_seconds=3_600)
    for delivery in queue.lease(7):
        if state == "waiting":
            delivery.nack()
        elif state == "dead":
            delivery.reject("no")
    expected = [message for message in stored(queue) if queue.message(message.id).groups[0].state == state]
    assert len(expected) == 7

    found, examined = everything(queue, state=state, limit=2)

    assert [message.id for message in found] == [message.id for message in expected]
    assert examined == 7
