"""Bad input: each raises its own error, with a code and a hint, and changes nothing."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import pytest

from penstock import Batch, Message, MessageId, limits
from penstock.errors import (
    BadBatch,
    BadReceipt,
    Closed,
    GroupNotFound,
    InvalidField,
    InvalidName,
    LeaseLost,
    QueueNotFound,
    TooLarge,
    UnknownOption,
)
from tests.behaviour.steps import lease_one, refuse

KIB = 1024
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001


@pytest.fixture
def mail(ps):
    """A queue with something in every phase."""
    queue = ps.create_queue("mail", partitions=2)
    queue.create_group("audit")
    for number in range(8):
        queue.push(str(number).encode(), partition=number % 2, delay=60 if number > 5 else 0)
    acked, failed, dead, _ = queue.lease(4)
    acked.ack()
    failed.nack(delay=60)
    dead.reject()
    return queue


@pytest.fixture
def unchanged(ps, mail):
    """What a refused call must leave as it was."""

    def picture():
        return [
            (name, ps.queue(name).stats(), ps.queue(name).groups(), ps.queue(name).options(), ps.queue(name).read())
            for name in ps.queues()
        ]

    before = picture()
    yield
    assert picture() == before


# Arguments are checked before any journal hears of them: one way shows it. Names become parts of requests.
anywhere = pytest.mark.parametrize("way", ["memory"], indirect=True)
with_every_client = pytest.mark.parametrize("way", ["memory", "tcp", "http"], indirect=True)

BAD_NAMES = [
    "",
    ".",
    "..",
    "a/groups/b",
    "a%2Fb",
    "-a",
    ".a",
    "_a",
    "a b",
    "a:b",
    "a/b",
    "ä",
    "a\n",
    "a" * 129,
    None,
    7,
    b"a",
    ["a"],
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
@with_every_client
@pytest.mark.usefixtures("unchanged")
def test_a_name_that_could_not_be_stored(ps, mail, name):
    for call in (
        lambda: ps.queue(name),
        lambda: ps.create_queue(name),
        lambda: ps.update_queue(name, max_attempts=1),
        lambda: ps.delete_queue(name),
        lambda: mail.create_group(name),
        lambda: mail.delete_group(name),
        lambda: mail.seek(name, "earliest"),
        lambda: mail.lease(group=name),
        lambda: ps.transaction().push(name, b"x"),
    ):
        refuse(InvalidName, call)


@pytest.mark.parametrize("name", [name for name in BAD_NAMES if name not in ("", None)], ids=repr)
@with_every_client
@pytest.mark.usefixtures("unchanged")
def test_a_consumer_name_that_could_not_be_stored(mail, name):
    refuse(InvalidName, lambda: mail.lease(consumer=name))


def test_a_partition_name_that_could_not_be_stored(ps):
    queue = ps.create_queue("rooms", partitions="named")

    for name in ("", "a:b", "a/b", "-", "ä", "a" * 129):
        refuse(InvalidName, partial(queue.push, b"x", partition=name))
        refuse(InvalidName, partial(queue.push_many, [Message(payload=b"x", partition=name)]))

    assert queue.stats().partitions == 0


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"priority": 256}, InvalidField, "priority"),
        ({"priority": -1}, InvalidField, "priority"),
        ({"priority": "urgent"}, InvalidField, "priority"),
        ({"priority": 1.5}, InvalidField, "priority"),
        ({"priority": True}, InvalidField, "priority"),
        ({"priority": None}, InvalidField, "priority"),
        ({"delay": -1}, InvalidField, "delay"),
        ({"delay": "soon"}, InvalidField, "delay"),
        ({"delay": float("nan")}, InvalidField, "delay"),
        ({"delay": float("inf")}, InvalidField, "delay"),
        ({"delay": 1e12}, InvalidField, "delay"),
        ({"ttl": -1}, InvalidField, "ttl"),
        ({"ttl": 0}, InvalidField, "ttl"),
        ({"ttl": "long"}, InvalidField, "ttl"),
        ({"deliver_at": "tomorrow"}, InvalidField, "deliver_at"),
        ({"deliver_at": "2030-01-01T00:00:00"}, InvalidField, "deliver_at"),
        ({"deliver_at": NAIVE}, InvalidField, "deliver_at"),
        ({"deliver_at": 12345}, InvalidField, "deliver_at"),
        ({"key": 7}, InvalidField, "key"),
        ({"key": "\ud800"}, InvalidField, "key"),
        ({"key": "k" * (64 * KIB + 1)}, TooLarge, "key"),
        ({"headers": {"a": 1}}, InvalidField, "headers"),
        ({"headers": ["a"]}, InvalidField, "headers"),
        ({"headers": {"a": "\ud800"}}, InvalidField, "headers"),
        ({"headers": {"a": "v" * 64 * KIB}}, TooLarge, "headers"),
        ({"dedup_key": b"k"}, InvalidField, "dedup_key"),
        ({"dedup_key": "k" * 2 * KIB}, TooLarge, "dedup_key"),
        ({"trace": "t" * 300}, TooLarge, "trace"),
        ({"max_attempts": 0}, InvalidField, "max_attempts"),
        ({"max_attempts": 70_000}, InvalidField, "max_attempts"),
        ({"max_attempts": "many"}, InvalidField, "max_attempts"),
        ({"partition": 9}, InvalidField, "partition"),
        ({"partition": "left"}, InvalidField, "partition"),
        ({"partition": -1}, InvalidField, "partition"),
        ({"partition": 1.0}, InvalidField, "partition"),
        ({"partition": True}, InvalidField, "partition"),
        ({"partition": [0, 1]}, InvalidField, "partition"),
    ],
    ids=lambda value: str(value)[:40],
)
@anywhere
@pytest.mark.usefixtures("unchanged")
def test_an_option_of_a_message_that_is_out_of_range(mail, options, error, word):
    refuse(error, lambda: mail.push(b"x", **options), word)
    if "partition" not in options:
        refuse(error, lambda: mail.push_many([b"fine", Message(payload=b"x", **options)]), "item 1", word)


@pytest.mark.parametrize("partition", [-1, True, 1.5, 2**31, 2**64, [0], b"0"], ids=repr)
@anywhere
@pytest.mark.usefixtures("unchanged")
def test_a_partition_that_is_neither_a_number_nor_a_name(mail, partition):
    refuse(InvalidField, lambda: mail.push(b"x", partition=partition), "partition")
    refuse(InvalidField, lambda: mail.push_many([Message(payload=b"x", partition=partition)]), "partition")


@pytest.mark.usefixtures("unchanged")
def test_a_payload_that_is_too_large(mail):
    payload = b"x" * (limits.payload_bytes_max + 1)

    refuse(TooLarge, lambda: mail.push(payload), "payload")
    refuse(TooLarge, lambda: mail.push_many([b"a", payload]), "item 1", "payload")
    refuse(TooLarge, lambda: mail.push_many([b"x" * 5_000_000] * 4), "batch")


@pytest.mark.usefixtures("unchanged")
def test_a_payload_that_cannot_be_stored(mail):
    for payload in (object(), {"a": object()}, lambda: None, "\ud800"):
        refuse(InvalidField, partial(mail.push, payload), "payload")
    for items in (b"bytes", "text", {"a": 1}, 7, None):
        refuse(InvalidField, partial(mail.push_many, items))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")], ids=repr)
@anywhere
@pytest.mark.usefixtures("unchanged")
def test_a_number_that_json_does_not_have(ps, mail, number):
    def in_a_transaction(payload):
        with ps.transaction() as tx:
            tx.push("mail", payload)

    for payload in (number, [number], {"a": number}, {"a": [None, {"b": (number,)}]}):
        refuse(InvalidField, partial(mail.push, payload), "payload")
        refuse(InvalidField, partial(mail.push_many, [b"x", payload]), "item 1", "payload")
        refuse(InvalidField, partial(mail.push_many, [{}, {"n": None}, {"a": payload}]), "item 2", "payload")
        refuse(InvalidField, partial(in_a_transaction, payload), "payload")


@pytest.mark.parametrize("durability", ["never", "", "FSYNC", 1], ids=repr)
@with_every_client
@pytest.mark.usefixtures("unchanged")
def test_a_durability_that_does_not_exist(mail, durability):
    refuse(InvalidField, lambda: mail.push(b"x", durability=durability), "durability")
    refuse(InvalidField, lambda: mail.push(b"x", key="k", durability=durability), "durability")
    refuse(InvalidField, lambda: mail.push_many([b"x"], durability=durability), "durability")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max": 0}, "max"),
        ({"max": -1}, "max"),
        ({"max": 10**9}, "max"),
        ({"max": 1.0}, "max"),
        ({"max": True}, "max"),
        ({"max": "1"}, "max"),
        ({"wait": -1}, "wait"),
        ({"wait": 61}, "wait"),
        ({"wait": "long"}, "wait"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"lease_seconds": -1}, "lease_seconds"),
        ({"lease_seconds": 10**6}, "lease_seconds"),
        ({"partitions": [7]}, "partitions"),
        ({"partitions": ["left"]}, "partitions"),
        ({"partitions": "01"}, "partitions"),
        ({"partitions": 1}, "partitions"),
    ],
    ids=str,
)
@anywhere
@pytest.mark.usefixtures("unchanged")
def test_an_option_of_a_lease_that_is_out_of_range(mail, options, word):
    mail.lease(1).release() if word == "max" else None
    refuse(InvalidField, lambda: mail.lease(**options), word)


@pytest.mark.usefixtures("unchanged")
def test_settling_with_values_out_of_range(mail):
    delivery: Any = lease_one(mail)
    for call in (
        lambda: delivery.nack(delay=-1),
        lambda: delivery.nack(delay="soon"),
        lambda: delivery.snooze(-1),
        lambda: delivery.snooze(None),
        lambda: delivery.extend(-1),
        lambda: delivery.extend(10**9),
    ):
        refuse(InvalidField, call)
    delivery.release()


NO_TIMES = ["yesterday", "", "2030-13-01T00:00:00Z", "2030-01-01T00:00:00", NAIVE, 5.5, True]


@pytest.mark.parametrize("time", NO_TIMES, ids=repr)
@anywhere
@pytest.mark.usefixtures("unchanged")
def test_a_time_that_cannot_be_read(mail, time):
    for call in (
        lambda: mail.read(timestamp=time),
        lambda: mail.seek("default", time),
        lambda: mail.create_group("new", start=time),
        lambda: mail.dlq.list(since=time),
        lambda: mail.dlq.list(until=time),
        lambda: mail.dlq.redrive(since=time),
    ):
        refuse(InvalidField, call)


@pytest.mark.usefixtures("unchanged")
def test_places_and_numbers_that_make_no_sense(mail):
    for call in (
        lambda: mail.seek("default", -1),
        lambda: mail.seek("default", {"0": -1}),
        lambda: mail.seek("default", {"9": 1}),
        lambda: mail.seek("default", "earliest", partition=9),
        lambda: mail.read(partition=9),
        lambda: mail.read(offset=-1),
        lambda: mail.read(offset="first"),
        lambda: mail.read(limit=0),
        lambda: mail.peek(limit=-1),
        lambda: mail.delayed(limit=True),
        lambda: mail.dlq.list(limit=0),
        lambda: mail.dlq.redrive(limit=0),
        lambda: mail.dlq.redrive(limit=-5),
        lambda: mail.dlq.redrive(rate=0),
        lambda: mail.dlq.redrive(rate="fast"),
        lambda: mail.cancel("nonsense"),
        lambda: mail.cancel("mail/0/x"),
        lambda: mail.cancel(7),
        lambda: mail.why("mail/0"),
        lambda: mail.why(None),
        lambda: mail.delete_group("default"),
    ):
        refuse(InvalidField, call)


@pytest.mark.usefixtures("unchanged")
def test_an_option_of_a_queue_that_does_not_exist_suggests_the_right_one(ps, mail):
    with pytest.raises(UnknownOption) as caught:
        ps.create_queue("new", lease_second=5)
    assert "'lease_seconds'" in caught.value.hint
    refuse(UnknownOption, lambda: ps.update_queue("mail", colour="red"), "colour")


@pytest.mark.parametrize(
    "options",
    [
        {"partitions": 0},
        {"partitions": 10**6},
        {"partitions": "some"},
        {"ordering": "random"},
        {"service": "best"},
        {"lease_seconds": 0},
        {"lease_seconds": -1},
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"backoff_jitter": 2},
        {"backoff_multiplier": 0.5},
        {"ttl_seconds": 0},
        {"max_length": 0},
        {"overflow": "explode"},
        {"dedup_seconds": -1},
        {"durability": "maybe"},
        {"dead_letter": "yes"},
        {"retention_seconds": -1},
        {"max_wait_action": "hide"},
        {"max_in_flight": "few"},
    ],
    ids=str,
)
@anywhere
@pytest.mark.usefixtures("unchanged")
def test_an_option_of_a_queue_that_is_out_of_range(ps, mail, options):
    refuse(InvalidField, lambda: ps.create_queue("new", **options), *options)
    refuse(InvalidField, lambda: ps.update_queue("mail", **options), *options)


@pytest.mark.usefixtures("unchanged")
def test_a_queue_that_must_exist(ps):
    nobody = ps.queue("nobody")
    for call in (
        nobody.lease,
        lambda: nobody.lease(wait=1),
        lambda: next(nobody.consume()),
        nobody.stats,
        nobody.groups,
        nobody.read,
        nobody.peek,
        nobody.delayed,
        nobody.pause,
        nobody.resume,
        nobody.purge,
        lambda: nobody.create_group("g"),
        lambda: nobody.delete_group("g"),
        lambda: nobody.seek("default", "earliest"),
        lambda: nobody.cancel(MessageId("nobody", "0", 0)),
        lambda: nobody.why(MessageId("nobody", "0", 0)),
        nobody.dlq.list,
        nobody.dlq.redrive,
        nobody.dlq.purge,
        nobody.options,
        lambda: ps.update_queue("nobody", max_attempts=1),
        lambda: ps.delete_queue("nobody"),
    ):
        refuse(QueueNotFound, call, "nobody")


@pytest.mark.usefixtures("unchanged")
def test_a_group_that_must_exist(mail):
    refuse(GroupNotFound, lambda: mail.seek("nobody", "earliest"), "nobody")
    refuse(GroupNotFound, lambda: mail.delete_group("nobody"), "nobody")


def test_stale_forged_and_repeated_receipts(ps, way, mail, clock):
    stale = lease_one(mail)
    clock.advance(31)
    done = lease_one(mail)
    done.ack()
    before = mail.stats()

    refuse(LeaseLost, stale.ack)
    refuse(LeaseLost, done.ack)
    refuse(LeaseLost, lambda: way.settle([done.receipt[:-16] + "0123456789abcdef"]))
    refuse(BadReceipt, lambda: way.settle(["not a receipt"]))

    assert mail.stats() == before


def test_a_closed_handle(ps, way, mail):
    delivery = lease_one(mail)
    leased = mail.lease(1, group="audit")
    way.session.close()

    for call in (
        lambda: mail.push(b"x"),
        lambda: mail.push(b"x", key="k"),
        lambda: mail.push_many([b"x"]),
        mail.lease,
        lambda: mail.lease(wait=1),
        mail.stats,
        mail.read,
        mail.peek,
        mail.delayed,
        mail.pause,
        mail.purge,
        mail.groups,
        mail.dlq.list,
        mail.dlq.redrive,
        lambda: mail.create_group("g"),
        lambda: mail.seek("default", "latest"),
        lambda: mail.cancel("mail/0/0"),
        lambda: mail.why("mail/0/0"),
        mail.options,
        ps.queues,
        lambda: ps.create_queue("q"),
        lambda: ps.delete_queue("mail"),
        ps.compact,
        delivery.ack,
        leased.ack,
        lambda: leased.extend(5),
    ):
        refuse(Closed, call)
    ps.close()


def test_a_transaction_on_a_closed_handle(ps, way):
    def attempt():
        with ps.transaction() as tx:
            tx.push("mail", b"x")

    way.session.close()

    refuse(Closed, attempt)


def test_a_batch_of_other_bytes():
    refuse(BadBatch, lambda: Batch.parse(b"PB" + bytes(100), validate=True))
