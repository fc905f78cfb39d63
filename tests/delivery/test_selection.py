"""Every call that selects messages ends, and whatever is unsettled can be had.

A machine does whatever may be done to a queue of any ordering, with any limit, whose messages are settled in every way
and whose history is sealed, compacted and removed by retention. Each hold of the shard's lock ends within a bounded
number of steps, every account adds up, and in the end everything that is unsettled is delivered.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.client._sync.delivery import Leased
from penstock.client._sync.queue import Queue
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.delivery.phases import SETTLED
from penstock.delivery.recovery import mark_lost
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField, LeaseLost, MessageNotFound
from penstock.model import Message, MessageId
from penstock.telemetry.groups import Pace, group_row
from tests.support.accounts import assert_accounts
from tests.support.dose import NIGHTLY, dose
from tests.support.forgetful import ForgetfulDisk
from tests.support.operations import keep_house
from tests.support.step_counts import limit_steps

DOSE = settings(
    max_examples=dose(120, 2_000),
    stateful_step_count=dose(40, 60),
    deadline=None,
    derandomize=not NIGHTLY,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
ORDERINGS = ["none", "key", "partition"]
LIMITS: list[dict[str, Any]] = [
    {},
    {"key_max_in_flight": 1},
    {"key_max_in_flight": 2},
    {"key_lease_per_second": 1.0},
    {"lease_per_second": 5.0},
    {"client_lease_per_second": 5.0},
    {"max_in_flight": 3},
]
TIMED: list[dict[str, Any]] = [
    {},
    {},
    {"ttl_seconds": 3.0},
    {"delay_seconds": 2.0},
    {"window_seconds": 2.0},
    {"max_wait_seconds": 5.0, "max_wait_action": "drop"},
    {"max_wait_seconds": 5.0},
]
RETENTION: list[dict[str, Any]] = [
    {},
    {"retention_seconds": 0},
    {"retention_bytes": 0},
    {"retention_messages": 2},
    {"retention_bytes": 0, "retention_drops_unread": True},
    {"retention_messages": 2, "retention_drops_unread": True},
]
LENGTH: list[dict[str, Any]] = [{}, {}, {"max_length": 6, "overflow": "drop_oldest"}]
GROUPS = ["default", "other"]
UPDATES: list[dict[str, Any]] = [{"key_max_in_flight": None}, {"key_max_in_flight": 1}, {"window_seconds": 1.0}]
hows = st.sampled_from(["ack", "nack", "reject", "release"])
IN_LINE = {"in_line", "no_consumer"}
HOLD_SECONDS = 5.0


def open_on(disk: ForgetfulDisk | None, clock: ManualClock, seed: int = 1) -> Session:
    """A session whose lock is never held for long."""
    rng = random.Random(seed)
    session = Session(None, clock=clock, rng=rng, disk=disk, background=False, journal_file_bytes=1 << 16)
    limit_steps(session)
    return session


class SelectionMachine(RuleBasedStateMachine):
    """The module's docstring has the rules."""

    @initialize(
        ordering=st.sampled_from(ORDERINGS),
        partitions=st.sampled_from([1, 1, 2]),
        limit=st.sampled_from(LIMITS),
        timed=st.sampled_from(TIMED),
        retention=st.sampled_from(RETENTION),
        length=st.sampled_from(LENGTH),
        service=st.sampled_from(["strict", "weighted"]),
    )
    def begin(self, ordering: str, partitions: int, service: str, **more: dict[str, Any]) -> None:
        self.clock = ManualClock()
        self.disk = ForgetfulDisk(1)
        self.opened = 0
        self.open()
        self.ordering = ordering
        options: dict[str, Any] = {"ordering": ordering, "partitions": partitions, "service": service}
        options |= {"max_attempts": 3, "backoff_jitter": 0.0, "lease_seconds": HOLD_SECONDS}
        try:
            self.penstock.create_queue("q", **options, **{k: v for each in more.values() for k, v in each.items()})
        except InvalidField:
            # This ordering does not go with this limit.
            more.pop("limit")
            self.penstock.create_queue("q", **options, **{k: v for each in more.values() for k, v in each.items()})
        self.queue.create_group("other")
        self.leases: list[Leased] = []
        self.pushed: list[MessageId] = []

    def open(self) -> None:
        self.opened += 1
        self.session = open_on(self.disk, self.clock, self.opened)
        self.penstock = Penstock(BlockingSession(self.session))

    @property
    def queue(self) -> Queue:
        return self.penstock.queue("q")

    @rule(
        again=st.booleans(),  # most of what else may happen takes messages away
        keys=st.lists(st.sampled_from([None, "a", "a", "b"]), min_size=1, max_size=6),
        priority=st.sampled_from([128, 128, 128, 0, 200]),
        delay=st.sampled_from([0.0, 0.0, 0.0, 3.0]),
        ttl=st.sampled_from([None, None, None, 2.0]),
    )
    def push(self, again: bool, keys: list[str | None], priority: int, delay: float, ttl: float | None) -> None:
        extra: dict[str, Any] = {"priority": priority, "delay": delay} if self.ordering == "none" else {}
        result = self.queue.push_many([Message(payload=b"x", key=key, ttl=ttl, **extra) for key in keys])
        self.pushed += result.ids
        if again:
            self.push(False, keys, priority, delay, ttl)

    @rule(
        group=st.sampled_from(GROUPS),
        count=st.sampled_from([1, 1, 2, 5, 100]),
        only=st.sampled_from([None, None, None, "0"]),
        done=st.sampled_from([False, False, True]),
    )
    def lease(self, group: str, count: int, only: str | None, done: bool) -> None:
        leased = self.queue.lease(count, group=group, partitions=None if only is None else [only], auto_ack=done)
        if leased and not done:
            self.leases.append(leased)

    @rule()
    def peek_and_why_agree_with_the_next_lease(self) -> None:
        """What peek shows first is what comes, in that order; of the rest, nobody says that it is in line."""
        self.penstock.queues()
        reasons = {id: self.reason(id) for id in self.unsettled_ids()}
        shown = [str(message.id) for message in self.queue.peek(1_000)]
        came: list[str] = []
        while leased := self.queue.lease(1_000):
            self.leases.append(leased)
            came += [str(delivery.id) for delivery in leased]
            if self.is_limited():
                break
        assert sorted(shown) == sorted(reasons), f"peek showed {shown}, unsettled are {sorted(reasons)}"
        # A smaller lease shares what it takes out to partitions in smaller parts.
        is_shown = set(came) <= set(shown) if self.is_limited() else came == shown[: len(came)]
        assert is_shown, f"peek showed {shown}, a lease brought {came}"
        assert {reasons[id] for id in came} <= IN_LINE, {id: reasons[id] for id in came}
        left = {id: reason for id, reason in reasons.items() if id not in came and reason in IN_LINE}
        assert self.is_limited() or not left, f"in line, but not leased: {left}"

    def reason(self, id: str) -> str:
        return next(reason.code for reason in self.queue.why(id) if reason.group == "default")

    def unsettled_ids(self) -> list[str]:
        return [
            str(MessageId("q", progress.partition.name, offset))
            for progress in self.groups()[0].progress
            for offset in range(progress.partition.start, progress.partition.end)
            if progress.state_of(offset) != SETTLED
        ]

    def is_limited(self) -> bool:
        """Whether a lease may bring less than there is, or a message wait for others of its key that came with it."""
        options = self.session.shard.core.by_name["q"].options
        names = ("max_in_flight", "lease_per_second", "client_lease_per_second", "key_lease_per_second")
        return any(getattr(options, name) is not None for name in (*names, "key_max_in_flight"))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), how=hows)
    def settle_all(self, data: st.DataObject, how: str) -> None:
        leased = data.draw(st.sampled_from(self.leases))
        with suppress(LeaseLost):
            getattr(leased, how)()
        self.leases.remove(leased)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def settle_each(self, data: st.DataObject) -> None:
        leased = data.draw(st.sampled_from(self.leases))
        for delivery in leased:
            how = data.draw(st.one_of(st.none(), hows))
            if how is not None:
                with suppress(LeaseLost):
                    getattr(delivery, how)()

    @rule(seconds=st.sampled_from([0.002, 0.5, 2.0, 6.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.penstock.queues()

    @rule(data=st.data(), what=st.sampled_from(["purge", "cancel", "cancel", "seek", "redrive", "redrive", "update"]))
    def operate(self, data: st.DataObject, what: str) -> None:
        if what == "purge":
            self.queue.purge()
        elif what == "cancel" and self.pushed:
            with suppress(LeaseLost, MessageNotFound):
                self.queue.cancel(data.draw(st.sampled_from(self.pushed)))
        elif what == "seek":
            group = data.draw(st.sampled_from(GROUPS))
            position: Any = data.draw(st.sampled_from(["earliest", "latest", 1]))
            self.queue.seek(group, position)
        elif what == "redrive":
            with suppress(MessageNotFound):  # a seek brought the message back already
                self.queue.dlq.redrive()
        elif what == "update":
            with suppress(InvalidField):
                self.penstock.update_queue("q", **data.draw(st.sampled_from(UPDATES)))

    @rule(what=st.sampled_from(["seal", "seal", "compact", "compact", "checkpoint", "close", "kill"]))
    def keep_house(self, what: str) -> None:
        if what in ("close", "kill"):
            if what == "close":
                self.session.close()
            self.disk.kill()
            self.open()
            self.leases.clear()
        else:
            keep_house(self.session, what)

    @rule(count=st.sampled_from([1, 2, 100]), how=st.sampled_from(["ack", "ack", "nack", "release"]))
    def drain(self, count: int, how: str) -> None:
        """Whatever is unsettled is delivered sooner or later, however little a lease takes."""
        for group in GROUPS:
            # What comes back at once would come for ever.
            leased = self.queue.lease(count, group=group)
            if leased:
                getattr(leased, how)()
        for _ in range(20 + 4 * self.unsettled()):
            for group in GROUPS:
                while leased := self.queue.lease(count, group=group):
                    leased.ack()
            if not self.unsettled():
                break
            self.clock.advance(HOLD_SECONDS)
        left = {group.name: group.backlog for group in self.groups()}
        assert not any(left.values()), f"never delivered: {left}"
        self.leases.clear()

    def unsettled(self) -> int:
        return sum(group.backlog for group in self.groups())

    def groups(self) -> list[Any]:
        return list(self.session.shard.core.by_name["q"].groups.values())

    @invariant()
    def lag_counts_everything_unsettled(self) -> None:
        if not hasattr(self, "pushed"):
            return
        self.penstock.queues()
        for name, stats in self.queue.stats().groups.items():
            group = next(group for group in self.groups() if group.name == name)
            assert stats.lag == group.backlog == stats.ready + stats.leased + stats.waiting
            assert (stats.oldest_unsettled_at is None) == (stats.lag == 0)
            row = group_row(group, Pace())
            assert (row.lag, bool(row.oldest_at)) == (stats.lag, stats.lag > 0)

    @invariant()
    def every_account_adds_up(self) -> None:
        if hasattr(self, "session"):
            assert_accounts(self.session.shard)

    def teardown(self) -> None:
        if hasattr(self, "pushed"):
            if sys.exc_info()[0] is None:
                self.drain(1, "ack")
            self.session.close()


TestSelection = SelectionMachine.TestCase
TestSelection.settings = DOSE


def cancel_all(queue: Queue) -> None:
    for offset in range(3):
        queue.cancel(MessageId("q", "0", offset))


# Ways in which messages end although nobody leased them.
UNLEASED: dict[str, Callable[[Queue, ManualClock], object]] = {
    "purge": lambda queue, clock: queue.purge(),
    "cancel": lambda queue, clock: cancel_all(queue),
    "expiry": lambda queue, clock: clock.advance(100.0),
}


@pytest.mark.parametrize("how", UNLEASED)
@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_lease_ends_where_retention_removed_what_nobody_had_leased(ordering, limit, how):
    clock = ManualClock()
    session = open_on(ForgetfulDisk(1), clock)
    with Penstock(BlockingSession(session)) as ps:
        queue = ps.create_queue("q", ordering=ordering, retention_bytes=0, ttl_seconds=50.0, **limit)
        queue.push_many([Message(payload=b"x", key="k")] * 3)
        UNLEASED[how](queue, clock)
        ps.seal()
        ps.compact()

        assert not queue.lease(10)

        queue.push(b"y", key="k")
        assert [delivery.payload for delivery in queue.lease(10)] == [b"y"]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_lease_ends_where_a_repair_gave_up_the_last_messages(ordering, limit):
    session = open_on(None, ManualClock())
    with Penstock(BlockingSession(session)) as ps:
        queue = ps.create_queue("q", ordering=ordering, **limit)
        queue.push(b"x", key="k")
        mark_lost(session.shard.core.by_name["q"].partitions[0], [(1, 3)])

        assert [delivery.payload for delivery in queue.lease(10)] == [b"x"]
        assert not queue.lease(10)


def test_a_partition_that_waits_is_offered_again_although_a_column_had_to_be_loaded():
    clock = ManualClock()
    session = open_on(ForgetfulDisk(1), clock)
    with Penstock(BlockingSession(session)) as ps:
        queue = ps.create_queue("q", partitions=2, delay_seconds=10.0)
        queue.push(b"a", partition=1)
        clock.advance(8)
        queue.push(b"b", partition=1)
        ps.seal()
        assert not queue.lease(10)
        clock.advance(1)
        queue.push(b"c", partition=0)
        clock.advance(2)

        # Partition 0 is asked first, and is not due; what partition 1 has by now is in a column of its segment.
        assert [delivery.payload for delivery in queue.lease(10)] == [b"a"]

        clock.advance(10)
        assert sorted(delivery.payload for delivery in queue.lease(10)) == [b"b", b"c"]
