"""Limits hold exactly (promise 13 of the reliability page): whatever is pushed, leased and settled, by whom and when.

A tiny model keeps, for every bucket, the exact level, and for every key what is in flight. Nothing may be delivered
beyond them, and nothing that they allow may be held back.
"""

from __future__ import annotations

import random
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Batch, Message
from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.embedded.session import Session
from penstock.errors import RateLimited
from penstock.model import Outcome
from penstock.requests import LeaseRequest, Settling
from tests.support.operations import run_operation

QUEUE = "mail"
OPTIONS = {
    "lease_per_second": 4,
    "lease_burst": 8,
    "client_lease_per_second": 5,
    "key_lease_per_second": 1,
    "key_lease_burst": 3,
    "key_max_in_flight": 2,
    "push_per_second": 20,
    "client_push_per_second": 10,
    "key_push_per_second": 8,
}


class Level:
    """One bucket, in fractions."""

    def __init__(self, per_second: int, burst: int) -> None:
        self.rate, self.burst = Fraction(per_second, 1_000_000), burst
        self.level, self.at = Fraction(burst), 0

    def now(self, now: int) -> Fraction:
        self.level = min(Fraction(self.burst), self.level + (now - self.at) * self.rate)
        self.at = now
        return self.level


class Model:
    """What the limits allow."""

    def __init__(self) -> None:
        self.levels: dict[tuple[str, str], Level] = {}
        self.ready: dict[str, int] = {}
        self.flying: dict[str, int] = {}

    def level(self, kind: str, who: str, now: int) -> Level:
        rate = OPTIONS[f"{kind}_per_second"]
        found = self.levels.setdefault((kind, who), Level(rate, OPTIONS.get(f"{kind}_burst", rate)))
        found.now(now)
        return found

    def pushed(self, client: str, keys: list[str], now: int) -> int:
        """µs until a push passes; 0: it has happened."""
        costs = [(self.level("push", "", now), len(keys)), (self.level("client_push", client, now), len(keys))]
        costs += [(self.level("key_push", key, now), keys.count(key)) for key in set(keys) - {""}]
        wait = max(max(0, ceil((count - level.level) / level.rate)) for level, count in costs)
        if wait:
            return wait
        for level, count in costs:
            level.level -= count
        for key in keys:
            self.ready[key] = self.ready.get(key, 0) + 1
        return 0

    def may_have(self, client: str, count_max: int, now: int) -> int:
        of_all, of_client = self.level("lease", "", now), self.level("client_lease", client, now)
        room = min(count_max, int(of_all.level), int(of_client.level))
        return min(room, sum(self.of_key(key, now) for key in self.ready))

    def of_key(self, key: str, now: int) -> int:
        ready = self.ready.get(key, 0)
        if not key:
            return ready
        room = OPTIONS["key_max_in_flight"] - self.flying.get(key, 0)
        return min(ready, int(self.level("key_lease", key, now).level), room)

    def leased(self, client: str, keys: list[str], now: int) -> None:
        self.level("lease", "", now).level -= len(keys)
        self.level("client_lease", client, now).level -= len(keys)
        for key in keys:
            self.ready[key] -= 1
            self.flying[key] = self.flying.get(key, 0) + 1
            if key:
                level = self.level("key_lease", key, now)
                level.level -= 1
                assert level.level >= 0
                assert self.flying[key] <= OPTIONS["key_max_in_flight"]


KEYS = st.sampled_from(["", "a", "b"])
CLIENTS = st.sampled_from(["ann", "bob"])
STEP = st.one_of(
    st.tuples(st.just("push"), CLIENTS, st.lists(KEYS, min_size=1, max_size=6)),
    st.tuples(st.just("lease"), CLIENTS, st.integers(1, 8)),
    st.tuples(st.just("settle"), st.sampled_from([Outcome.ACKED, Outcome.RELEASED]), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.just(""), st.integers(1, 1_500_000)),
)


@pytest.mark.parametrize("partitions", [1, 3])
@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEP, min_size=20, max_size=60))
def test_limits_hold_exactly(partitions, steps):
    clock = ManualClock()
    session = Session(None, durability="os", clock=clock, rng=random.Random(1), background=False)
    run_operation(session, ops.CreateQueue(QUEUE, {**OPTIONS, "partitions": partitions}, exist_ok=False))
    model = Model()
    held: list[tuple[int, list[str]]] = []
    for step, who, what in steps:
        now = clock.now()
        if step == "wait":
            clock.advance(what / 1e6)
        elif step == "push":
            _push(session, model, who, what, now)
        elif step == "lease":
            _lease(session, model, held, who, what, now)
        elif held:
            nonce, keys = held.pop(what % len(held))
            session.settle_lease(nonce, Settling(who))
            for key in keys:
                model.flying[key] -= 1
                model.ready[key] += who is Outcome.RELEASED
    session.close()


def _push(session, model, client, keys, now):
    batch = Batch.build([Message(payload=key.encode() or b"-", key=key or None) for key in keys])
    wait = model.pushed(client, keys, now)
    if not wait:
        session.shard.push(QUEUE, batch, client=client)
    else:
        with pytest.raises(RateLimited) as refused:
            session.shard.push(QUEUE, batch, client=client)
        assert refused.value.retry_after_seconds == wait / 1_000_000


def _lease(session, model, held, client, count_max, now):
    expected = model.may_have(client, count_max, now)
    reply, _ = session.lease(QUEUE, "default", LeaseRequest(count_max, client=client))
    keys = [payload.decode().strip("-") for piece in reply.pieces for payload in piece.payloads()]
    assert len(keys) == expected
    model.leased(client, keys, now)
    if keys:
        held.append((reply.nonce, keys))
