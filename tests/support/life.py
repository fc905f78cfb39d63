"""A day in the life of a shard, step by step: every kind of state that a restart must bring back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client._sync.delivery import Delivery
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.errors import LeaseLost
from penstock.model import Message

Step = Callable[[Penstock, ManualClock], None]
TICK = 0.003


def take(ps: Penstock, name: str, count: int, **options: Any) -> list[Delivery]:
    """So many deliveries: a lease that would have to read a file stops with what it has, and the next one goes on."""
    taken: list[Delivery] = []
    while len(taken) < count and (leased := ps.queue(name).lease(max=count - len(taken), **options)):
        taken += leased
    return taken


def ack(deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        delivery.ack()


def make_queues(ps: Penstock, clock: ManualClock) -> None:
    steady: dict[str, Any] = {"backoff_base_seconds": 1.0, "backoff_jitter": 0.0}
    ps.create_queue("mail", max_attempts=3, dedup_seconds=600, **steady)
    ps.create_queue("orders", ordering="key", partitions=2, max_attempts=2, **steady)
    ps.create_queue("line", ordering="partition", **steady)
    ps.create_queue("places", partitions="named", retention_messages=2, **steady)
    ps.create_queue("passing", lease_seconds=7)


def push_plain(ps: Penstock, clock: ManualClock) -> None:
    for name in ("mail", "line"):
        ps.queue(name).push_many([b"%s %d" % (name.encode(), number) for number in range(8)])


def push_options(ps: Penstock, clock: ManualClock) -> None:
    mail = ps.queue("mail")
    mail.push(b"urgent", priority="critical", headers={"a": "b"}, key="k")
    mail.push(b"later", delay=500, max_attempts=9)
    mail.push(b"cancelled", delay=600)
    mail.push(b"short-lived", ttl=50)
    mail.push(b"once", dedup_key="d")
    ps.queue("orders").push_many([Message(payload=b"%d" % n, key="abc"[n % 3]) for n in range(9)])


def make_groups(ps: Penstock, clock: ManualClock) -> None:
    ps.queue("mail").create_group("billing")
    ps.queue("mail").create_group("late", start="latest")
    ps.queue("mail").create_group("gone")


def settle_in_every_way(ps: Penstock, clock: ManualClock) -> None:
    urgent, first, second, third, fourth = take(ps, "mail", 5)
    urgent.ack()
    first.nack(error="no luck")
    second.reject("hopeless")
    third.release()
    fourth.snooze(20)


def wait_a_little(ps: Penstock, clock: ManualClock) -> None:
    clock.advance(2)
    ps.queues()


def ack_out_of_order(ps: Penstock, clock: ManualClock) -> None:
    leased = take(ps, "mail", 3)
    leased[2].ack()
    leased[0].nack(delay=30)
    leased[1].ack()


def move_groups(ps: Penstock, clock: ManualClock) -> None:
    mail = ps.queue("mail")
    ack(take(ps, "mail", 4, group="billing"))
    mail.seek("billing", 2)
    mail.delete_group("gone")


def change_queues(ps: Penstock, clock: ManualClock) -> None:
    ps.queue("line").pause()
    ps.update_queue("mail", lease_seconds=11)
    ps.delete_queue("passing")
    ps.create_queue("passing", lease_seconds=8)
    ps.queue("passing").push(b"of another incarnation")


def use_named_partitions(ps: Penstock, clock: ManualClock) -> None:
    for number in range(6):
        ps.queue("places").push(b"%d" % number, partition="north" if number % 2 else "south")
    ack(take(ps, "places", 5))


def purge(ps: Penstock, clock: ManualClock) -> None:
    ps.queue("passing").purge()
    ps.queue("passing").push(b"after the purge")


def cancel(ps: Penstock, clock: ManualClock) -> None:
    mail = ps.queue("mail")
    found = [message for message in mail.delayed() if message.payload == b"cancelled"]
    assert found[0].id is not None
    mail.cancel(found[0].id)


def lose_a_lease(ps: Penstock, clock: ManualClock) -> None:
    leased = take(ps, "orders", 2, lease_seconds=1)
    clock.advance(1 + TICK)
    try:
        ack(leased)
    except LeaseLost:
        return
    raise AssertionError("the lease was over")


def push_a_duplicate(ps: Penstock, clock: ManualClock) -> None:
    assert ps.queue("mail").push_many([Message(payload=b"again", dedup_key="d")]).duplicates == [0]


def transact(ps: Penstock, clock: ManualClock) -> None:
    (delivery,) = ps.queue("mail").lease(group="billing")
    with ps.transaction() as tx:
        tx.ack(delivery)
        tx.push("passing", b"by transaction")
        tx.push("made-on-the-way", b"the first")


def redrive_under_the_mark(ps: Penstock, clock: ManualClock) -> None:
    """Everything around a dead message is done, so that it comes back from under the low-water mark."""
    passing = ps.queue("passing")
    passing.push_many([b"1", b"2", b"3", b"4"])
    for delivery in take(ps, "passing", 10):
        if delivery.payload in (b"2", b"3"):
            delivery.reject()
        else:
            delivery.ack()
    assert passing.dlq.redrive(limit=1) == 1


def use_dead_letters(ps: Penstock, clock: ManualClock) -> None:
    ps.queue("mail").lease(max=1).reject("too late")
    clock.advance(TICK)
    assert ps.queue("mail").dlq.redrive(limit=1) == 1


def acknowledge_in_advance(ps: Penstock, clock: ManualClock) -> None:
    ps.queue("made-on-the-way").lease(auto_ack=True)
    ack(take(ps, "orders", 3))


def let_messages_expire(ps: Penstock, clock: ManualClock) -> None:
    clock.advance(60)
    ps.queues()


LIFE: tuple[Step, ...] = (
    make_queues,
    push_plain,
    push_options,
    make_groups,
    settle_in_every_way,
    wait_a_little,
    ack_out_of_order,
    move_groups,
    change_queues,
    use_named_partitions,
    purge,
    cancel,
    lose_a_lease,
    push_a_duplicate,
    transact,
    redrive_under_the_mark,
    use_dead_letters,
    acknowledge_in_advance,
    let_messages_expire,
)
