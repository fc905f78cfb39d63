"""Clients of a simulated shard: producers, consumers and operators, all drawing from the world's seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import operations as ops
from penstock.batch import Batch
from penstock.client._sync.delivery import Leased
from penstock.embedded.session import Session
from penstock.model import Message, MessageId, Outcome, Receipt
from penstock.model_letters import DEAD_GROUP, DEAD_ORIGIN, LetterFilter
from penstock.requests import LeaseRequest, PushOperation, SettleOperation, Settling
from tests.simulation.history import OK, Got, Place, Row, Sent, Settle
from tests.simulation.world import World
from tests.support.operations import run_operation

QUEUES: dict[str, dict[str, Any]] = {
    "plain": {"retention_messages": 20},
    "mixed": {"partitions": 2, "max_attempts": 3, "dedup_seconds": 30.0, "starvation_seconds": 0},
    "ordered": {"partitions": 2, "ordering": "partition", "max_attempts": 3},
    "keyed": {"partitions": 2, "ordering": "key", "max_attempts": 3},
    "named": {"partitions": "named", "max_attempts": 2},
    "limited": {"key_max_in_flight": 1, "retention_bytes": 0, "max_attempts": 3},
    "short": {"ordering": "key", "retention_bytes": 0, "max_attempts": 3},
    "leaky": {
        "partitions": 2,
        "retention_messages": 8,
        "retention_drops_unread": True,
        "max_length": 15,
        "overflow": "drop_oldest",
        "max_wait_seconds": 60.0,
        "max_wait_action": "drop",
    },
}
KEYED = ("keyed", "limited", "short")
GROUPS = ["default", "other"]
OUTCOMES = {
    "ack": Outcome.ACKED,
    "nack": Outcome.RETRIED,
    "reject": Outcome.REJECTED,
    "release": Outcome.RELEASED,
    "snooze": Outcome.SNOOZED,
}


class Clients:
    """What many clients do, one thing at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.count = 0
        self.held: list[Settle] = []  # deliveries that a client was told of and has not ended
        self.ended: list[Settle] = []
        self.deaths = 0
        self.leases: list[Row] = []

    def act(self) -> None:
        """One thing that some client does."""
        self._learn_of_deliveries()
        choices = self._choices()
        self.rng.choices([what for what, _ in choices], [weight for _, weight in choices])[0]()

    def _choices(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.push, 25),
            (self.lease, 25),
            (self.settle, 25),
            (self.settle_stale, 3),
            (self.transact, 6),
            (self.seek, 2),
            (self.cancel, 3),
            (self.redrive, 4),
            (self.purge, 1),
            (self.pause, 1),
            (self.push_badly, 2),
            (self.extra_group, 1),
            (self.visit, 4),
        ]

    # pushing

    def push(self) -> None:
        queue = self.rng.choice(list(QUEUES))
        sent = [self._message(queue) for _ in range(self.rng.choice([1, 1, 1, 2, 3, 8]))]
        partitions = self._partitions(queue, len(sent))
        batch = Batch.build([_as_message(message) for message in sent])

        def act(session: Session) -> tuple[Any, int]:
            reply, ticket = session.push(queue, batch, partitions, None)
            return [_places(reply.ids())], ticket

        self.world.do("producer", "push", act, pushes=[(queue, sent)])

    def push_badly(self) -> None:
        """A push that is refused, to a queue that does not exist: nothing of it may stay."""
        batch = Batch.build([b"never"])
        name = f"ghost-{self.rng.randrange(3)}"
        sent = [Sent(b"never")]
        self.world.do(
            "producer", "push", lambda session: session.push(name, batch, "nowhere", None), pushes=[(name, sent)]
        )

    def _message(self, queue: str) -> Sent:
        self.count += 1
        payload = b"%d-%d-" % (self.world.seed, self.count) + self.rng.randbytes(self.rng.choice([0, 10, 300, 2000]))
        key = self.rng.choice([None, "a", "b", "c"]) if queue in KEYED or self.rng.random() < 0.2 else None
        if queue == "short":
            return Sent(payload, key, ttl_us=5_000_000)
        if queue != "mixed":
            return Sent(payload, key)
        return Sent(
            payload,
            key,
            self.rng.choice([128, 128, 0, 255]),
            self.rng.choice([0, 0, 1_000_000, 7_000_000, 300_000_000]),
            self.rng.choice([0, 0, 0, 5_000_000, 60_000_000]),
            self.rng.choice([None, None, "x", "y", "z"]),
            self.rng.choice([None, None, 1, 5]),
        )

    def _partitions(self, queue: str, count: int) -> list[int | str | None] | None:
        if queue == "named":
            return [self.rng.choice(["north", "south", "east", None]) for _ in range(count)]
        return None

    # leasing

    def lease(self) -> None:
        queue, group = self.rng.choice(list(QUEUES)), self.rng.choice(GROUPS)
        seconds = self.rng.choice([1.0, 5.0, 60.0])
        count = self.rng.choice([1, 1, 2, 5, 20])
        self.leases.append(lease(self.world, queue, group, count, seconds, auto_ack=self.rng.random() < 0.1))

    def _learn_of_deliveries(self) -> None:
        """What leases brought, once their clients were told; a death ends them all."""
        if self.deaths != self.world.deaths:
            self.deaths = self.world.deaths
            self.ended += self.held
            self.held = []
            self.leases = [row for row in self.leases if row.number > self.world.history.deaths()[-1].number]
        for row in [row for row in self.leases if row.outcome == OK]:
            self.leases.remove(row)
            if not row.args["auto_ack"]:
                self.held += [Settle(got, row.args["group"], "") for got in row.result]

    # settling

    def settle(self) -> None:
        if not self.held:
            return
        first = self.rng.choice(self.held)
        together = [each for each in self.held if each.got.nonce == first.got.nonce and self.rng.random() < 0.7]
        how = self.rng.choice(["ack", "ack", "ack", "nack", "nack", "reject", "release", "snooze"])
        delay = self.rng.choice([None, 0, 2_000_000]) if how == "nack" else 3_000_000 if how == "snooze" else None
        chosen = [each._replace(how=how, delay_us=delay) for each in together or [first]]
        self.end(chosen)
        for each in together or [first]:
            self.held.remove(each)

    def settle_stale(self) -> None:
        if self.ended:
            self.end([self.rng.choice(self.ended[-50:])._replace(how="ack", delay_us=None)])

    def end(self, chosen: list[Settle]) -> None:
        """Settle some deliveries in one way."""
        how = chosen[0]
        seconds = None if how.delay_us is None else how.delay_us / 1e6
        settling = Settling(OUTCOMES[how.how], seconds, "said the simulation")
        receipts = [receipt_of(each.got) for each in chosen]
        self.world.do("consumer", "settle", lambda session: (None, session.settle(receipts, settling)), settles=chosen)
        self.ended += chosen

    def transact(self) -> None:
        """Settle something and push something, together."""
        from_held = [self.rng.choice(self.held)] if self.held and self.rng.random() < 0.8 else []
        stale = [self.rng.choice(self.ended)] if self.ended and self.rng.random() < 0.2 else []
        settles = [each._replace(how="ack", delay_us=None) for each in from_held + stale]
        targets = self.rng.sample(["plain", "ordered", "keyed", "mixed"], self.rng.randint(1, 2))
        pushes = [(queue, [self._message(queue)]) for queue in targets]
        operations: list[Any] = [SettleOperation(receipt_of(each.got), Settling(Outcome.ACKED)) for each in settles]
        operations += [PushOperation(queue, Batch.build([_as_message(m) for m in sent])) for queue, sent in pushes]

        def act(session: Session) -> tuple[Any, int]:
            ids, ticket = session.transact(operations)
            return [_places(each) for each in ids], ticket

        row = self.world.do("worker", "transact", act, settles=settles, pushes=pushes)
        if row.outcome != "failed":
            self.held = [each for each in self.held if each not in from_held]
            self.ended += from_held

    # operators

    def seek(self) -> None:
        queue = self.rng.choice(list(QUEUES))
        to: Any = self.rng.choice(["earliest", "latest", self.rng.randrange(30)])
        self.world.do(
            "operator",
            "seek",
            lambda session: (None, run_operation(session, ops.Seek(queue, "other", to, None))),
            queue=queue,
            group="other",
            to=to,
        )

    def cancel(self) -> None:
        queue = self.rng.choice(list(QUEUES))
        partition = "0" if queue != "named" else "north"
        place = Place(queue, partition, self.rng.randrange(40))
        self.world.do(
            "operator",
            "cancel",
            lambda session: (None, run_operation(session, ops.Cancel(MessageId(*place)))),
            place=place,
        )

    def redrive(self) -> None:
        queue, group = self.rng.choice(list(QUEUES)), self.rng.choice(GROUPS)
        wanted = LetterFilter(group=group, limit=self.rng.choice([1, 5, 100]))
        self.world.do(
            "operator",
            "redrive",
            lambda session: run_operation(session, ops.Redrive(queue, wanted, None)),
            queue=queue,
            group=group,
        )

    def purge(self) -> None:
        queue = self.rng.choice(list(QUEUES))
        if self.rng.random() < 0.5:
            self.world.do(
                "operator", "purge", lambda session: (None, run_operation(session, ops.Purge(queue))), queue=queue
            )
        else:
            self.world.do(
                "operator",
                "purge_dlq",
                lambda session: (None, run_operation(session, ops.PurgeDeadLetters(queue))),
                queue=queue,
            )

    def pause(self) -> None:
        queue = self.rng.choice(list(QUEUES))
        pause(self.world, queue, True)
        pause(self.world, queue, False)

    def extra_group(self) -> None:
        """A group that comes and goes under one name."""
        queue = self.rng.choice(list(QUEUES))
        self.world.do(
            "operator",
            "create_group",
            lambda session: (None, run_operation(session, ops.CreateGroup(queue, "extra", "earliest"))),
        )
        if self.rng.random() < 0.7:
            self.world.do(
                "operator",
                "delete_group",
                lambda session: (None, run_operation(session, ops.DeleteGroup(queue, "extra"))),
            )

    def visit(self) -> None:
        """A queue that comes and goes; what one incarnation held must never show in the next."""
        self.count += 1
        payload = b"visit %d" % self.count
        batch = Batch.build([payload] * 3)
        what = self.rng.choice(["push", "push", "lease", "delete"])
        if what == "push":
            self.world.do("visitor", "visit_push", lambda s: s.push("visited", batch, None, None), payload=payload)
        elif what == "delete":
            self.world.do("visitor", "visit_delete", lambda s: (None, run_operation(s, ops.DeleteQueue("visited"))))
        else:
            self.world.do("visitor", "visit_lease", self._payloads)

    def _payloads(self, session: Session) -> tuple[Any, int]:
        reply, ticket = session.lease("visited", "default", LeaseRequest(2, 1.0))
        return [delivery.payload for delivery in Leased(session, reply)], ticket


def lease(world: World, queue: str, group: str, count: int, seconds: float, *, auto_ack: bool = False) -> Row:
    """One lease, whoever asks for it."""
    request = LeaseRequest(count, seconds, "someone", None, auto_ack)

    def act(session: Session) -> tuple[Any, int]:
        reply, ticket = session.lease(queue, group, request)
        expires_at = world.clock.now() + round(seconds * 1e6)
        return [_got(queue, delivery, expires_at) for delivery in Leased(session, reply)], ticket

    return world.do("consumer", "lease", act, queue=queue, group=group, count=count, auto_ack=auto_ack)


def pause(world: World, queue: str, paused: bool) -> None:
    """Hold a queue back, or let it flow."""
    wanted = ops.Pause(queue) if paused else ops.Resume(queue)
    world.do("operator", "pause", lambda session: (None, run_operation(session, wanted)), queue=queue, to=paused)


def letters(world: World, queue: str) -> Row:
    """The dead letters of a queue: (their place, origin, group, payload, headers)."""

    def act(session: Session) -> tuple[Any, int]:
        found, ticket = run_operation(session, ops.DeadLetters(queue, LetterFilter()))
        return [_letter(letter) for letter in found], ticket

    return world.do("operator", "letters", act, queue=queue)


def _letter(letter: Message) -> tuple[Place, Place, str, Any, dict[str, str]]:
    assert letter.id is not None
    headers = dict(letter.headers or {})
    return (
        Place(*letter.id),
        Place(*MessageId.parse(headers[DEAD_ORIGIN])),
        headers[DEAD_GROUP],
        letter.payload,
        headers,
    )


def receipt_of(got: Got) -> Receipt:
    return Receipt(*got.place, got.attempt, got.nonce)


def _got(queue: str, delivery: Any, expires_at: int) -> Got:
    place = Place(queue, delivery.partition, delivery.offset)
    return Got(place, delivery.attempt, delivery.payload, delivery.proof.nonce, expires_at, delivery.key)


def _places(ids: list[MessageId]) -> list[Place]:
    return [Place(*id) for id in ids]


def _as_message(sent: Sent) -> Message:
    return Message(
        payload=sent.payload,
        key=sent.key,
        priority=sent.priority,
        delay=sent.delay_us / 1e6,
        ttl=sent.ttl_us / 1e6 or None,
        dedup_key=sent.dedup_key,
        max_attempts=sent.max_attempts,
    )
