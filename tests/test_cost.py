"""What the hot paths cost, counted in Python calls per 1,000 messages.

Calls of Python functions and of C functions are counted with a profile hook, in one thread, without background roles
and with time standing still: the same numbers on every machine, so a path that grows slower fails the build where a
timing could not. A ceiling is a little above what is measured; lower it when a path gets cheaper.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Message
from penstock.client._sync.queue import Queue
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.requests import Producer
from penstock.shard.shard import Shard
from tests.support.embedded_session import session_of

# Calls per 1,000 messages: (in memory, in a file with durability os).
CEILINGS: dict[str, tuple[int, int]] = {
    "push_many(1000)": (145, 168),
    "push() × 1000": (36_000, 45_500),
    "push() × 1000 with a time to live": (51_000, 60_000),
    "push() to 1000 groups, the oldest dropped": (25_000, 25_000),
    "push_folded(1000)": (145, 168),
    "push_folded(1000) of ten producers": (5_200, 5_225),
    "lease(1000), touch, ack": (2_220, 2_250),
    "lease(1000), touch, ack of single pushes": (23_800, 23_900),
    "lease(1), ack × 1000": (128_500, 147_500),
    "five priorities: lease(1000), touch, ack": (2_932, 2_960),
}

PAYLOADS = [b"%0100d" % number for number in range(1_000)]
NOBODIES: list[Producer | None] = [None] * len(PAYLOADS)
PRIORITIES = ("critical", "high", "normal", "low", "background")
WARM_UP = 3


def push_many(queue: Queue) -> None:
    queue.push_many(PAYLOADS)


def push_singly(queue: Queue) -> None:
    for payload in PAYLOADS:
        queue.push(payload)


def push_one(queue: Queue) -> None:
    queue.push(PAYLOADS[0])


def fill_for_a_thousand(queue: Queue) -> None:
    """Readers that are far behind: the queue is as full as it may be for each of them."""
    if shard_of(queue).core.by_name["mail"].group_id_next == 1:
        for number in range(999):
            queue.create_group(f"g{number}")
        queue.push_many(PAYLOADS[:10])


def push_folded(queue: Queue) -> None:
    shard_of(queue).push_folded("mail", PAYLOADS, NOBODIES)


def push_folded_by_ten(queue: Queue) -> None:
    shard = shard_of(queue)
    known = shard.core.producers.known.get(1)
    first = 0 if known is None else known.last + 1
    shard.push_folded("mail", PAYLOADS, [(1 + number % 10, 0, first + number // 10) for number in range(1_000)])


def shard_of(queue: Queue) -> Shard:
    """What a broker uses; no face does."""
    shard: Shard = session_of(queue).shard
    return shard


def lease_many(queue: Queue) -> None:
    leased = queue.lease(1_000)
    for delivery in leased:
        delivery.payload  # noqa: B018 - touching it is the point
    leased.ack()


def lease_singly(queue: Queue) -> None:
    for _ in range(1_000):
        queue.lease(1).ack()


def push_prioritised(queue: Queue) -> None:
    rng = random.Random(1)
    queue.push_many([Message(payload=payload, priority=rng.choice(PRIORITIES)) for payload in PAYLOADS])


# What is counted, and what makes 1,000 messages for it, outside the count.
PATHS: dict[str, tuple[Callable[[Queue], None], Callable[[Queue], None] | None]] = {
    "push_many(1000)": (push_many, None),
    "push() × 1000": (push_singly, None),
    "push() × 1000 with a time to live": (push_singly, None),
    "push() to 1000 groups, the oldest dropped": (push_one, fill_for_a_thousand),
    "push_folded(1000)": (push_folded, None),
    "push_folded(1000) of ten producers": (push_folded_by_ten, None),
    "lease(1000), touch, ack": (lease_many, push_many),
    "lease(1000), touch, ack of single pushes": (lease_many, push_singly),
    "lease(1), ack × 1000": (lease_singly, push_many),
    "five priorities: lease(1000), touch, ack": (lease_many, push_prioritised),
}


# Of the queue, where it is not an ordinary one.
OPTIONS: dict[str, dict[str, Any]] = {
    "push() × 1000 with a time to live": {"ttl_seconds": 3_600.0},
    "push() to 1000 groups, the oldest dropped": {"max_length": 10, "overflow": "drop_oldest"},
}


def calls(work: Callable[[Queue], None], queue: Queue) -> int:
    """How many functions `work` calls, itself not counted."""
    count = 0

    def hook(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    # The collector runs when it likes, and so would the finalizers that it calls.
    gc.collect()
    gc.disable()
    sys.setprofile(hook)
    try:
        work(queue)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count - 2  # the work itself, and the call that ends the count


def cost(path: str, session: Session) -> int:
    """Calls of one round after a few others, when everything that is made once has been made."""
    work, prepare = PATHS[path]
    prepare = prepare or (lambda _: None)
    with Penstock(BlockingSession(session)) as ps:
        queue = ps.create_queue("mail", **OPTIONS.get(path, {}))
        for _ in range(WARM_UP):
            prepare(queue)
            work(queue)
        prepare(queue)
        return calls(work, queue)


def session(path: Any) -> Session:
    return Session(path, durability="os", clock=ManualClock(), rng=random.Random(1), background=False)


@pytest.mark.parametrize("path", PATHS)
def test_a_hot_path_in_memory_makes_no_more_calls_than_its_ceiling(path):
    assert cost(path, session(None)) <= CEILINGS[path][0]


@pytest.mark.parametrize("path", PATHS)
def test_a_hot_path_in_a_file_makes_no_more_calls_than_its_ceiling(path, tmp_path):
    assert cost(path, session(tmp_path)) <= CEILINGS[path][1]


@pytest.mark.parametrize("path", PATHS)
def test_counting_again_gives_the_same_number(path, tmp_path):
    assert cost(path, session(tmp_path / "a")) == cost(path, session(tmp_path / "b"))
