"""A Hypothesis machine that drives a queue and the model of it side by side.

Every rule does one thing to both; after every step all numbers of all groups, the dead letters and the accounts inside
the shard must agree. No hold of the shard's lock takes more than a bounded number of steps. Subclasses choose the
ordering, and whether the queue lives on a disk that is sealed, checkpointed and reopened in between.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.client._sync.delivery import Delivery, Leased
from penstock.client._sync.queue import Queue
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import LeaseLost, MessageNotFound
from penstock.model import Message, MessageId, Outcome
from penstock.model_letters import DEAD_GROUP, DEAD_ORIGIN
from penstock.requests import Settling
from tests.support.accounts import assert_accounts
from tests.support.model import TICK, Logged, Model, Place
from tests.support.step_counts import limit_steps

SECOND = 1.024  # a thousand ticks of the timer wheel
DEDUP_SECONDS = 20 * SECOND
MAX_ATTEMPTS = 3

seconds = st.sampled_from([0.0, 1.0, 3.0, 10.0, 40.0]).map(lambda n: n * SECOND)
groups = st.sampled_from(["default", "other"])
keys = st.sampled_from([None, "a", "b", "c"])
dedup_keys = st.sampled_from([None, None, None, "x", "y"])
hows = st.sampled_from(["acked", "acked", "retried", "rejected", "released", "snoozed"])


class QueueMachine(RuleBasedStateMachine):
    """See the module's rules."""

    ordering = "none"

    def open_session(self) -> Session:
        """A session on the same storage as the last one, if there is any."""
        return Session(None, clock=self.clock, rng=random.Random(1), background=False)

    @initialize(
        partitions=st.sampled_from([1, 1, 2]),
        service=st.sampled_from(["strict", "strict", "weighted"]),
        gate=st.sampled_from([0.0, 0.0, 0.0, 3.0]),
    )
    def begin(self, partitions: int, service: str, gate: float) -> None:
        self.strict = service == "strict"
        self.clock = ManualClock()
        self.session = self.open_session()
        limit_steps(self.session)
        options: dict[str, Any] = {"partitions": partitions, "ordering": self.ordering, "max_attempts": MAX_ATTEMPTS}
        backoff: dict[str, Any] = {"backoff_base_seconds": SECOND, "backoff_max_seconds": 1000.0, "backoff_jitter": 0.0}
        self.penstock = Penstock(BlockingSession(self.session))
        options |= {"service": service, "delay_seconds": gate * SECOND}
        self.penstock.create_queue("q", dedup_seconds=DEDUP_SECONDS, starvation_seconds=0, **options, **backoff)
        names = [str(number) for number in range(partitions)]
        self.model = Model(
            names, max_attempts=MAX_ATTEMPTS, dedup_us=round(DEDUP_SECONDS * 1e6), ordering=self.ordering
        )
        self.model.now = self.clock.now()
        self.model.gate_us = round(gate * SECOND * 1e6)
        self.queue.create_group("other")
        self.model.add_group("other")
        self.leases: list[Leased] = []
        self.receipts: list[Delivery] = []  # every delivery there ever was
        self.count = 0

    @property
    def queue(self) -> Queue:
        return self.penstock.queue("q")

    # pushing

    def make(self, key: str | None, priority: int, delay: float, ttl: float, dedup: str | None, tries: int) -> Message:
        self.count += 1
        extra: dict[str, Any] = {} if self.ordering != "none" else {"priority": priority, "delay": delay}
        return Message(
            payload=b"message %d" % self.count,
            key=key,
            ttl=ttl or None,
            dedup_key=dedup,
            max_attempts=tries or None,
            **extra,
        )

    def note(self, message: Message, id: MessageId) -> None:
        """Tell the model where a pushed message went, or that it was a duplicate."""
        known = self.model.known(message.dedup_key)
        if known is not None:
            assert (id.partition, id.offset) == known, f"{message.dedup_key!r} went to {known}, the reply says {id}"
            return
        assert isinstance(message.payload, bytes)
        now = self.clock.now()
        logged = Logged(
            message.payload,
            now,
            int(message.priority),
            now + round(message.delay * 1e6) if message.delay else 0,
            now + round(message.ttl * 1e6) if message.ttl else 0,
            message.key,
            message.max_attempts or 0,
        )
        self.model.pushed((id.partition, id.offset), logged, message.dedup_key)

    @rule(
        items=st.lists(
            st.tuples(
                keys,
                st.sampled_from([128, 128, 0, 200]),
                seconds,
                st.sampled_from([0.0, 0.0, 0.0, 2.0, 15.0]).map(lambda n: n * SECOND),
                dedup_keys,
                st.sampled_from([0, 0, 0, 1, 5]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def push_with_options(self, items: list[Any]) -> None:
        messages = [self.make(*item) for item in items]
        result = self.queue.push_many(messages)
        for message, id in zip(messages, result.ids, strict=True):
            self.note(message, id)

    @rule(count=st.integers(1, 6))
    def push_plain(self, count: int) -> None:
        messages = [self.make(None, 128, 0.0, 0.0, None, 0) for _ in range(count)]
        for message, id in zip(messages, self.queue.push_many([m.payload for m in messages]).ids, strict=True):
            self.note(message, id)

    # leasing and settling

    @rule(
        group=groups,
        count=st.sampled_from([1, 1, 2, 5, 20]),
        hold=st.sampled_from([2.0, 5.0, 100.0]),
        only=st.sampled_from([None, None, None, "0"]),
        done=st.sampled_from([False, False, False, True]),
    )
    def lease(self, group: str, count: int, hold: float, only: str | None, done: bool) -> None:
        wanted = len(self.model.deliverable(group, only))
        came = self.lease_once(group, count, hold, only, done)
        while 0 < came < min(count, wanted) and self.ordering != "partition":
            # A lease that would have to read a file stops with what it has; the next one goes on.
            more = self.lease_once(group, count - came, hold, only, done)
            assert more, f"{came} of {wanted} deliverable messages came"
            came += more
        # One that acknowledges at once frees keys for the next.
        enough = came >= min(count, wanted) if done else came == min(count, wanted)
        assert enough or (came and self.ordering == "partition"), f"{came} of {wanted} came"

    def lease_once(self, group: str, count: int, hold: float, only: str | None, done: bool) -> int:
        partitions = None if only is None else [only]
        leased = self.queue.lease(
            max=count, group=group, lease_seconds=hold * SECOND, partitions=partitions, auto_ack=done
        )
        deliveries = [((d.partition, d.offset), d.attempt, d.payload, d.key, d.priority) for d in leased]
        assert [d.proof[:3] for d in leased] == [("q", d.partition, d.offset) for d in leased]
        places = [place for place, *_ in deliveries]
        self.check_priorities(group, places, only)
        self.model.leased(group, leased.nonce, self.clock.now() + round(hold * SECOND * 1e6), deliveries)
        if deliveries:
            self.receipts += leased
            self.leases += [] if done else [leased]
        if done and deliveries:
            self.model.settle(leased.nonce, places, "acked")
        return len(deliveries)

    def check_priorities(self, group: str, places: list[Place], only: str | None) -> None:
        left = set(self.model.deliverable(group, only)) - set(places)
        if self.strict and self.ordering == "none" and places and left:
            lowest = min(self.model.message(place).priority for place in places)
            best = max(self.model.message(place).priority for place in left)
            assert lowest >= best, f"priority {lowest} was delivered, {best} is left"

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), how=hows, delay=st.one_of(st.none(), seconds))
    def settle_some(self, data: st.DataObject, how: str, delay: float | None) -> None:
        leased = data.draw(st.sampled_from(self.leases))
        held = self.model.held(leased.nonce)
        chosen = [d for d in leased if (d.partition, d.offset) in held and data.draw(st.booleans())]
        for delivery in chosen:
            self.settle_one(delivery, how, delay)
            micros = None if delay is None else round(delay * 1e6)
            if how == "snoozed":
                micros = round((delay or SECOND) * 1e6)
            self.model.settle(leased.nonce, [(delivery.partition, delivery.offset)], how, micros)
        self.forget_ended()

    def settle_one(self, delivery: Delivery, how: str, delay: float | None) -> None:
        if how == "acked":
            delivery.ack()
        elif how == "retried":
            delivery.nack(delay=delay, error="no luck")
        elif how == "rejected":
            delivery.reject("hopeless")
        elif how == "released":
            delivery.release()
        else:
            delivery.snooze(delay or SECOND)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), how=st.sampled_from(["ack", "nack", "reject", "release"]))
    def settle_all(self, data: st.DataObject, how: str) -> None:
        leased = data.draw(st.sampled_from(self.leases))
        outcome = {"ack": "acked", "nack": "retried", "reject": "rejected", "release": "released"}[how]
        held = self.model.held(leased.nonce)
        if self.was_cut(leased):
            with pytest.raises(LeaseLost):
                getattr(leased, how)()
        else:
            getattr(leased, how)()
            self.model.settle(leased.nonce, held, outcome)
        self.forget_ended()

    def was_cut(self, leased: Leased) -> bool:
        """Whether a purge ended deliveries of this lease under its holder's hands."""
        states = self.model.groups[leased.group].states
        return any(states[d.partition, d.offset].phase == "purged" for d in leased if (d.partition, d.offset) in states)

    def forget_ended(self) -> None:
        """What comes back after its time to live is gone at once, and leases that hold nothing are over."""
        self.model.tick(self.clock.now())
        self.leases = [leased for leased in self.leases if self.model.held(leased.nonce)]

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def a_stale_receipt_is_refused(self, data: st.DataObject) -> None:
        delivery = data.draw(st.sampled_from(self.receipts))
        if (delivery.partition, delivery.offset) not in self.model.held(delivery.proof.nonce):
            with pytest.raises(LeaseLost):
                # With the receipt alone: the delivery may have been handed out by a process that is gone.
                self.session.settle((delivery.proof,), Settling(Outcome.ACKED))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), hold=st.sampled_from([1.0, 30.0]))
    def extend(self, data: st.DataObject, hold: float) -> None:
        leased = data.draw(st.sampled_from(self.leases))
        leased.extend(hold * SECOND)
        self.model.leases[leased.nonce] = (leased.group, self.clock.now() + round(hold * SECOND * 1e6))

    # time and operators

    @rule(ticks=st.sampled_from([1, 2, 1000, 3000, 10_000, 60_000]))
    def wait(self, ticks: int) -> None:
        self.clock.advance(ticks * TICK / 1e6)
        self.penstock.queues()
        self.forget_ended()

    @rule(stays=st.sampled_from([False, False, False, True]), group=groups)
    def pause(self, stays: bool, group: str) -> None:
        self.queue.pause()
        assert not self.queue.lease(max=5, group=group)
        self.model.paused = stays
        if not stays:
            self.queue.resume()

    @precondition(lambda self: self.model.paused)
    @rule()
    def resume(self) -> None:
        self.queue.resume()
        self.model.paused = False

    @rule()
    def purge(self) -> None:
        self.queue.purge()
        for name, group in self.model.groups.items():
            for place, state in group.states.items():
                if state.phase in ("fresh", "ready", "leased", "waiting"):
                    self.model.drop(name, place, "purged")
        self.forget_ended()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        places = [(name, offset) for name, log in self.model.log.items() for offset in range(len(log))]
        if not places:
            return
        place = data.draw(st.sampled_from(places))
        states = {name: group.states[place].phase for name, group in self.model.groups.items() if place in group.states}
        live = [name for name, phase in states.items() if phase in ("fresh", "ready", "waiting")]
        id = MessageId("q", *place)
        if "leased" in states.values():
            with pytest.raises(LeaseLost):
                self.queue.cancel(id)
        elif not live:
            with pytest.raises(MessageNotFound):
                self.queue.cancel(id)
        else:
            self.queue.cancel(id)
            for name in live:
                self.model.drop(name, place, "cancelled")

    @rule(data=st.data(), group=groups)
    def seek(self, data: st.DataObject, group: str) -> None:
        ends = {name: len(log) for name, log in self.model.log.items()}
        to = data.draw(st.one_of(st.sampled_from(["earliest", "latest"]), st.integers(0, max(ends.values()))))
        only = data.draw(st.sampled_from([None, *ends]))
        self.queue.seek(group, to, partition=only)
        chosen = ends if only is None else {only: ends[only]}
        starts = {"earliest": dict.fromkeys(chosen, 0), "latest": chosen}
        offset = {name: min(int(to), end) for name, end in chosen.items()} if isinstance(to, int) else {}
        self.model.seek(group, starts.get(str(to), offset))
        self.forget_ended()

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(self.model.log)))
        offset = data.draw(st.integers(0, len(self.model.log[partition])))
        for message in [*self.queue.read(partition=partition, offset=offset, limit=20), *self.queue.peek(limit=20)]:
            assert message.id is not None
            sent = self.model.message((message.id.partition, message.id.offset))
            came = (message.payload, message.key, message.priority)
            assert came == (sent.payload, sent.key, sent.priority), f"{message.id} is not what was pushed"

    # dead letters

    def letters(self) -> list[tuple[Message, tuple[str, Place]]]:
        found = []
        for letter in self.queue.dlq.list(limit=1000):
            assert letter.headers is not None
            origin = MessageId.parse(letter.headers[DEAD_ORIGIN])
            assert letter.payload == self.model.message((origin.partition, origin.offset)).payload
            found.append((letter, (letter.headers[DEAD_GROUP], (origin.partition, origin.offset))))
        return found

    @precondition(lambda self: self.model.letters)
    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        possible = self.model.redrivable()
        letters = [(letter, place) for letter, place in self.letters() if place in possible]
        chosen = [pair for pair in letters if data.draw(st.booleans())]
        count = self.queue.dlq.redrive(ids=[letter.id for letter, _ in chosen if letter.id is not None])
        assert count == len(chosen)
        self.model.redrive([place for _, place in chosen])
        self.model.tick(self.clock.now())

    @precondition(lambda self: self.model.letters)
    @rule()
    def purge_dead_letters(self) -> None:
        self.queue.dlq.purge()
        self.model.letters.clear()

    # what must always hold

    @invariant()
    def every_account_agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        stats = self.queue.stats()
        for name, group in stats.groups.items():
            real = Counter({word: getattr(group, word) for word in ("ready", "leased", "waiting", "acked", "dead")})
            real.update(group.dropped_by)
            assert +real == self.model.stats(name), f"group {name}: {+real} is not {self.model.stats(name)}"
        assert_accounts(self.session.shard)

    @invariant()
    def the_dead_letters_agree(self) -> None:
        if hasattr(self, "model"):
            assert Counter(place for _, place in self.letters()) == Counter(self.model.letters)

    def teardown(self) -> None:
        if hasattr(self, "session"):
            self.session.close()
