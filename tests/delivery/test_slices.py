"""What is due together is done in slices: no tick does more than one, and nobody notices which slice he is in."""

from __future__ import annotations

import random

import pytest

from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.delivery import upkeep
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import LeaseLost
from tests.support.accounts import assert_accounts

SLICE = 2


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch):
    monkeypatch.setattr(upkeep, "CHUNK", SLICE)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def ps(clock):
    with Penstock(BlockingSession(Session(None, clock=clock, rng=random.Random(1), background=False))) as ps:
        yield ps


def group_of(ps):
    return ps._session.session.shard.core.by_name["mail"].groups[0]


def tick(ps):
    ps._session.session.shard.look(lambda now: None)
    assert_accounts(ps._session.session.shard)


def ticks_until_none(ps, count):
    """Ticks until `count` says that nothing is left; none of them does more than a slice."""
    ticks = 0
    while before := count():
        tick(ps)
        assert 0 <= before - count() <= 2 * SLICE  # the account above ticks too
        ticks += 1
        assert ticks < 100
    return ticks


REFUSED = {
    "ack of all": lambda leased: leased.ack(),
    "nack of one": lambda leased: leased[0].nack(),
    "extend": lambda leased: leased.extend(10),
}


@pytest.mark.parametrize("what", REFUSED)
def test_leases_that_run_out_together_end_in_slices_and_all_are_over_at_once(ps, clock, what):
    queue = ps.create_queue("mail", lease_seconds=10.0, backoff_base_seconds=0.0)
    queue.push_many([b"x"] * 30)
    leases = [queue.lease(1) for _ in range(30)]
    clock.advance(11)

    refused_early = 0
    for leased in leases:
        with pytest.raises(LeaseLost):
            REFUSED[what](leased)
        refused_early += leased.nonce in group_of(ps).leases

    assert refused_early, "every lease had ended before it was used"
    ticks_until_none(ps, lambda: len(group_of(ps).leases))
    assert [delivery.attempt for delivery in queue.lease(30)] == [2] * 30


def test_one_large_lease_ends_in_slices(ps, clock):
    queue = ps.create_queue("mail", lease_seconds=10.0, backoff_base_seconds=0.0)
    queue.push_many([b"x"] * 19)
    leased = queue.lease(19)
    clock.advance(11)
    tick(ps)

    with pytest.raises(LeaseLost):
        leased.ack()
    assert ticks_until_none(ps, lambda: group_of(ps).progress[0].leased) > 1
    assert [delivery.attempt for delivery in queue.lease(19)] == [2] * 19


@pytest.mark.parametrize("together", [True, False])
def test_messages_that_expire_together_are_settled_in_slices_in_every_group(ps, clock, together):
    queue = ps.create_queue("mail", ttl_seconds=10.0, partitions=2)
    queue.create_group("other")
    if together:
        queue.push_many([b"x"] * 9)
    else:
        for _ in range(9):
            queue.push(b"x")
    held = queue.lease(1, lease_seconds=100.0)
    clock.advance(11)

    assert ticks_until_none(ps, lambda: group_of(ps).backlog - 1) > 1
    clock.advance(1)
    for _ in range(20):
        tick(ps)
    groups = queue.stats().groups
    assert (groups["default"].dropped_by, groups["other"].dropped_by) == ({"expired": 8}, {"expired": 9})
    held.ack()


@pytest.mark.parametrize("action", ["drop", "dead"])
def test_messages_that_waited_too_long_go_in_slices(ps, clock, action):
    queue = ps.create_queue("mail", max_wait_seconds=10.0, max_wait_action=action, partitions=2)
    queue.push_many([b"x"] * 9)
    clock.advance(12)

    assert ticks_until_none(ps, lambda: group_of(ps).backlog) > 1
    stats = queue.stats().groups["default"]
    assert (stats.dropped, stats.dead) == ((9, 0) if action == "drop" else (0, 9))


def test_upkeep_comes_back_at_once_while_something_is_due(ps, clock):
    queue = ps.create_queue("mail", ttl_seconds=10.0)
    queue.push_many([b"x"] * 9)
    clock.advance(11)
    shard = ps._session.session.shard

    tick(ps)

    assert group_of(ps).backlog
    assert shard.next_at(clock.now(), clock.monotonic()) <= clock.now()
