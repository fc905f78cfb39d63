"""Retention: history goes by age, bytes and count; what a group still needs stays (A10, A11)."""

from __future__ import annotations

import pytest

from penstock.errors import LeaseLost, MessageNotFound
from penstock.model import to_datetime
from tests.behaviour.steps import TICK, drain, lease_one, numbered, take

pytestmark = pytest.mark.parametrize("way", ["file", "sealed"], indirect=True)

FOREVER = {"retention_seconds": None, "retention_bytes": None}


def payloads(messages):
    return [message.payload for message in messages]


def push_sealed(queue, way, *payloads):
    """Each payload in a segment of its own."""
    for payload in payloads:
        queue.push(payload)
        way.seal()


def test_settled_messages_go_by_age(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=3600)
    push_sealed(queue, way, b"old")
    clock.advance(3000)
    push_sealed(queue, way, b"young")
    drain(queue)

    clock.advance(700)
    freed = ps.compact()

    assert (freed.messages_removed, freed.files_removed > 0, freed.bytes_freed > 0) == (1, True, True)
    assert payloads(queue.read()) == [b"young"]
    assert queue.stats().messages == 1


def test_settled_messages_stay_for_seven_days_by_default(ps, way, clock):
    queue = ps.queue("mail")
    push_sealed(queue, way, b"a")
    drain(queue)

    clock.advance(7 * 86_400 - 1)
    assert ps.compact().messages_removed == 0
    clock.advance(2)

    assert ps.compact().messages_removed == 1


def test_settled_messages_go_by_count(ps, way, clock):
    queue = ps.create_queue("mail", retention_messages=2, **FOREVER)
    push_sealed(queue, way, *numbered(5))
    drain(queue)

    ps.compact()

    assert payloads(queue.read()) == [b"3", b"4"]


def test_settled_messages_go_by_bytes(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=None, retention_bytes=2_500)
    push_sealed(queue, way, *(letter * 1_000 for letter in (b"a", b"b", b"c", b"d")))
    drain(queue)

    ps.compact()

    assert [payload[:1] for payload in payloads(queue.read())] == [b"c", b"d"]


def test_a_minimum_stays_whatever_its_age(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=60, retention_messages_min=2)
    push_sealed(queue, way, *numbered(4))
    drain(queue)

    clock.advance(100_000)
    ps.compact()

    assert payloads(queue.read()) == [b"2", b"3"]


def test_unsettled_messages_never_go_by_retention(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=60, retention_messages=0, retention_bytes=0)
    push_sealed(queue, way, *numbered(5))
    acked, failed, *_ = queue.lease(3)
    acked.ack()
    failed.nack(delay=10**6)

    clock.advance(100_000)
    ps.compact()

    assert payloads(queue.read()) == [b"1", b"2", b"3", b"4"]
    clock.advance(10**6)
    assert sorted(drain(queue)) == [b"1", b"2", b"3", b"4"]


def test_the_slowest_group_holds_retention(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=60)
    queue.create_group("slow")
    push_sealed(queue, way, *numbered(3))
    drain(queue)
    take(queue, 1, group="slow", auto_ack=True)

    clock.advance(100)
    ps.compact()

    assert payloads(queue.read()) == [b"1", b"2"]
    assert drain(queue, group="slow") == [b"1", b"2"]


def test_an_idle_group_holds_retention_no_longer_once_it_is_forgotten(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=60, group_expiry_seconds=3600)
    queue.create_group("idle")
    push_sealed(queue, way, b"a")
    drain(queue)

    clock.advance(3000)
    ps.compact()
    assert payloads(queue.read()) == [b"a"]
    clock.advance(1000)
    way.let_time_happen()
    ps.compact()

    assert queue.read() == []


def test_a_queue_may_let_unread_messages_go(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=60, retention_drops_unread=True)
    push_sealed(queue, way, *numbered(2))
    held = lease_one(queue, lease_seconds=1000)
    clock.advance(100)
    push_sealed(queue, way, b"2")

    ps.compact()

    assert payloads(queue.read()) == [b"2"]
    assert queue.stats().groups["default"].dropped_by == {"evicted": 2}
    assert take(queue) == [b"2"]
    with pytest.raises(LeaseLost):
        held.ack()


def test_the_leases_of_what_retention_evicts_are_closed_and_their_room_is_free(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=60, retention_drops_unread=True, max_in_flight=3)
    push_sealed(queue, way, *numbered(2))
    queue.lease(2, consumer="ann", lease_seconds=1000)
    clock.advance(100)
    push_sealed(queue, way, b"2", b"3", b"4", b"5")
    mixed = queue.lease(1, consumer="ann", lease_seconds=1000)

    ps.compact()

    assert queue.stats().groups["default"].leased == 1
    assert take(queue, consumer="ann") == [b"3", b"4"]
    mixed.ack()


def test_a_lease_keeps_what_retention_leaves_of_it(ps, way, clock):
    queue = ps.create_queue("mail", retention_messages=2, retention_drops_unread=True, max_in_flight=4, **FOREVER)
    push_sealed(queue, way, *numbered(2))
    push_sealed(queue, way, b"2", b"3")
    leased = queue.lease(4, lease_seconds=1000)
    deliveries = list(leased)

    ps.compact()

    with pytest.raises(LeaseLost):
        deliveries[0].ack()
    deliveries[2].nack(delay=0)
    leased.ack()
    stats = queue.stats().groups["default"]
    assert (stats.acked, stats.ready, stats.leased, stats.dropped_by) == (1, 1, 0, {"evicted": 2})


def test_dead_letters_and_their_origins_stay_until_they_are_dealt_with(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=60)
    push_sealed(queue, way, *numbered(3))
    lease_one(queue).reject()
    drain(queue)
    way.seal()

    clock.advance(100_000)
    ps.compact()
    assert queue.dlq.redrive() == 1
    clock.advance(TICK)
    assert drain(queue) == [b"0"]
    ps.compact()

    assert queue.read() == []


def test_dead_letters_that_were_thrown_away_hold_nothing(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=60)
    push_sealed(queue, way, *numbered(3))
    lease_one(queue).reject()
    drain(queue)
    queue.dlq.purge()

    clock.advance(100_000)
    ps.compact()

    assert queue.read() == []


def test_a_dead_letter_whose_origin_is_gone_is_not_mistaken_for_another(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=60, retention_drops_unread=True)
    push_sealed(queue, way, b"dead")
    lease_one(queue).reject()
    clock.advance(100)
    push_sealed(queue, way, b"young")
    ps.compact()

    with pytest.raises(MessageNotFound):
        queue.dlq.redrive()

    assert queue.dlq.redrive(edit=lambda letter: letter) == 1
    assert sorted(drain(queue)) == [b"dead", b"young"]


def test_what_was_redriven_may_go_too_where_unread_messages_do(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=60, retention_drops_unread=True)
    push_sealed(queue, way, *numbered(2))
    lease_one(queue).reject()
    drain(queue)
    queue.dlq.redrive()
    clock.advance(100)
    push_sealed(queue, way, b"young")

    ps.compact()

    assert drain(queue) == [b"young"]


def test_offsets_never_change(ps, way, clock):
    queue = ps.create_queue("mail", retention_messages=3, **FOREVER)
    push_sealed(queue, way, *numbered(10))
    drain(queue)

    ps.compact()
    id = queue.push(b"next")

    assert [(message.id.offset, message.payload) for message in queue.read()][:3] == [(7, b"7"), (8, b"8"), (9, b"9")]
    assert id.offset == 10
    assert lease_one(queue).offset == 10


def test_new_groups_and_seeks_begin_at_what_is_kept(ps, way, clock):
    queue = ps.create_queue("mail", retention_messages=2, **FOREVER)
    push_sealed(queue, way, *numbered(5))
    drain(queue)
    ps.compact()

    assert drain(queue, group="new", start="earliest") == [b"3", b"4"]
    queue.seek("default", "earliest")
    assert drain(queue) == [b"3", b"4"]
    queue.seek("default", 0)
    assert drain(queue) == [b"3", b"4"]
    queue.seek("default", to_datetime(0))
    assert drain(queue) == [b"3", b"4"]
    with pytest.raises(MessageNotFound):
        queue.why("mail/0/0")


def test_compaction_touches_nothing_that_is_needed(ps, way, clock):
    queue = ps.create_queue("mail", retention_messages=1, **FOREVER)
    other = ps.create_queue("other")
    for number in range(20):
        queue.push(f"m{number}".encode())
        other.push(f"o{number}".encode())
    way.seal()
    drain(queue)

    for _ in range(3):
        ps.compact()

    assert payloads(queue.read()) == [b"m19"]
    assert drain(other) == numbered(20, "o")


def test_retention_and_compaction_come_by_themselves(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=60)
    other = ps.create_queue("other")
    with ps.transaction() as tx:  # one segment for both
        tx.push_many("mail", [bytes([number]) * 10_000 for number in range(20)])
        tx.push("other", b"unread")
    way.seal()
    drain(queue)
    store = way.session.shard.store
    before = {extent.file for extent in store.extents if extent.queue == 2}

    clock.advance(100)
    way.keep_house()

    assert queue.read() == []
    assert {extent.file for extent in store.extents} != before  # what was left of the file is in a smaller one
    assert drain(other) == [b"unread"]


def test_what_is_not_sealed_yet_stays(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=60)
    queue.push(b"a")
    drain(queue)

    clock.advance(100)
    ps.compact()
    queue.push(b"b")

    assert drain(queue) == [b"b"]


def test_the_messages_of_a_deleted_queue_are_freed(ps, way, clock):
    queue = ps.queue("mail")
    push_sealed(queue, way, b"x" * 10_000)
    ps.delete_queue("mail")
    way.seal()

    assert ps.compact().bytes_freed > 0
    assert way.session.shard.store.extents == []


@pytest.mark.parametrize("stop", ["restart", "crash"])
def test_what_went_stays_away_over_the_end_of_the_process(ps, way, clock, stop):
    queue = ps.create_queue("mail", retention_messages=2, **FOREVER)
    push_sealed(queue, way, *numbered(5))
    take(queue, 4, auto_ack=True)
    ps.compact()

    queue = getattr(way, stop)().queue("mail")

    assert payloads(queue.read()) == [b"3", b"4"]
    assert drain(queue) == [b"4"]
    assert queue.push(b"5").offset == 5
