"""Pushes that skip what cannot be stored, and say of each item what became of it."""

from __future__ import annotations

import pytest

from penstock import Message, limits
from penstock.batch import Batch
from penstock.errors import InvalidField, QueueFull, RateLimited
from tests.behaviour.steps import refuse, take

HUGE = bytes(limits.payload_bytes_max + 1)


def statuses(result) -> list[str]:
    return [item.status for item in result.items]


def test_good_items_are_stored_and_each_bad_one_has_its_error(ps):
    queue = ps.create_queue("mail", partitions=2)
    result = queue.push_many(
        [
            b"good",
            HUGE,
            Message(payload=b"x", partition=7),
            Message(payload=b"x", dedup_key="k"),
            Message(payload=b"y", dedup_key="k"),
            {"json": 1},
        ],
        on_error="skip",
    )

    assert result.statuses == ["queued", "failed", "failed", "queued", "duplicate", "queued"]
    assert statuses(result) == result.statuses
    assert [type(error).code for error in result.failures.values()] == ["too_large", "invalid_field"]
    assert result.items[4].id == result.items[3].id
    assert result.items[1].id is None
    assert len(result.ids) == 4
    assert "partition" in result.failures[2].message
    assert "item" not in result.failures[1].message
    assert sorted(take(queue)) == [b"good", b"x", b'{"json":1}']


def test_nothing_is_stored_by_default_when_one_item_is_wrong(ps):
    queue = ps.create_queue("mail", partitions=2)

    refuse(InvalidField, lambda: queue.push_many([b"good", Message(payload=b"x", partition=7)]), "partition")
    refuse(InvalidField, lambda: queue.push_many([b"good"], on_error="ignore"), "on_error")
    assert take(queue) == []


def test_priority_and_delay_fail_on_an_ordered_queue_and_the_rest_is_stored_in_order(ps):
    queue = ps.create_queue("mail", ordering="partition")
    result = queue.push_many(
        [b"1", Message(payload=b"2", priority=200), b"3", Message(payload=b"4", delay=5), b"5"], on_error="skip"
    )

    assert result.statuses == ["queued", "failed", "queued", "failed", "queued"]
    assert take(queue) == [b"1", b"3", b"5"]
    assert [id.offset for id in result.ids] == [0, 1, 2]


def test_a_queue_with_some_room_takes_as_many_as_fit(ps):
    queue = ps.create_queue("mail", max_length=3)
    queue.push(Message(payload=b"0", dedup_key="known").payload, dedup_key="known")
    items = [Message(payload=b"dup", dedup_key="known"), b"1", b"2", b"3", b"4"]

    result = queue.push_many(items, on_error="skip")

    assert result.statuses == ["duplicate", "queued", "queued", "failed", "failed"]
    assert isinstance(result.failures[3], QueueFull)
    assert queue.push_many([b"5"], on_error="skip").statuses == ["failed"]
    assert take(queue) == [b"0", b"1", b"2"]


def test_a_repeated_key_whose_first_item_failed_is_stored_by_the_second(ps):
    queue = ps.create_queue("mail", partitions=2)
    items = [Message(payload=b"1", dedup_key="k", partition=9), Message(payload=b"2", dedup_key="k", partition=1)]

    result = queue.push_many(items, on_error="skip")

    assert result.statuses == ["failed", "queued"]
    assert take(queue) == [b"2"]


def test_all_of_them_may_fail_and_the_queue_is_not_created_for_that(ps):
    result = ps.queue("nowhere").push_many([Message(payload=b"x", partition=3)], on_error="skip")

    assert result.statuses == ["failed"]
    assert result.ids == []
    assert ps.queues() == []


def test_bad_fields_of_any_kind_fail_by_themselves(ps):
    wrong = [
        Message(payload=b"x", key="k" * (limits.key_bytes_max + 1)),
        Message(payload=b"x", headers={"n": "v" * (limits.headers_bytes_max + 1)}),
        Message(payload=b"x", priority=300),
        Message(payload=b"x", delay=-1),
        object(),
    ]

    result = ps.queue("mail").push_many([*wrong, b"good"], on_error="skip")

    assert result.statuses == ["failed"] * len(wrong) + ["queued"]
    assert all(error.message for error in result.failures.values())


def test_a_batch_and_a_table_have_results_too(ps):
    import pyarrow as pa

    queue = ps.create_queue("mail", ordering="partition")
    batch = Batch.build([Message(payload=b"1"), Message(payload=b"2", priority=9)])
    table = pa.table({"payload": [b"3", HUGE, b"4"]})

    assert queue.push_many(batch, on_error="skip").statuses == ["queued", "failed"]
    assert queue.push_many(table, on_error="skip").statuses == ["queued", "failed", "queued"]
    assert take(queue) == [b"1", b"3", b"4"]


def test_what_is_wrong_with_the_push_as_a_whole_is_raised(ps):
    queue = ps.create_queue("mail", push_per_second=1, push_burst=1)
    queue.push_many([b"x"], on_error="skip")

    with pytest.raises(RateLimited):
        queue.push_many([b"y"], on_error="skip")
