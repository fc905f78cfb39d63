"""Every request that is refused moves a counter, once, whichever way it took."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import operations as ops
from penstock import validation
from penstock.batch import Batch, encode_one_with
from penstock.broker import Broker
from penstock.errors import PenstockError
from penstock.model import Outcome, Receipt
from penstock.requests import LeaseRequest
from tests.support.serving import SOMEONE, broker_on, on_uvloop, until

ACK = validation.settling(Outcome.ACKED)
STALE = Receipt("full", "0", 0, 1, 77)
Ask = Callable[[Broker], Awaitable[Any]]


async def prepare(broker: Broker) -> None:
    """A queue that takes no more."""
    await broker.execute(SOMEONE, ops.CreateQueue("full", {"max_length": 1}))
    await broker.pushed(SOMEONE, "full", Batch.build([b"only"]))


async def fold(broker: Broker, count: int) -> None:
    """Single pushes of one turn of the loop, which are folded; raises what all of them were told."""
    answers: list[Any] = []
    for number in range(count):
        broker.push_one(SOMEONE, "full", b"%d" % number, None, answers.append)
    await until(lambda: len(answers) == count)
    assert len({type(answer) for answer in answers}) == 1
    raise answers[0]


def transact(*steps: Any) -> Ask:
    return lambda broker: broker.execute(SOMEONE, ops.Transact(list(steps)))


def push_step(queue: str = "full") -> ops.PushStep:
    return ops.PushStep(queue, encode_one_with(b"x"))


# name: (how to ask, queue, code, how many refusals it is)
REFUSED: dict[str, tuple[Ask, str, str, int]] = {
    "push": (lambda broker: broker.pushed(SOMEONE, "full", Batch.build([b"x"])), "full", "queue_full", 1),
    "one folded push": (lambda broker: fold(broker, 1), "full", "queue_full", 1),
    "many folded pushes": (lambda broker: fold(broker, 5), "full", "queue_full", 5),
    "transaction: push": (transact(push_step()), "full", "queue_full", 1),
    "transaction: settle": (transact(ops.SettleStep(str(STALE), 1)), "full", "lease_lost", 1),
    "transaction: name": (transact(push_step("a/b")), "a/b", "invalid_name", 1),
    "transaction: batch": (transact(ops.PushStep("full", b"junk")), "full", "bad_batch", 1),
    "transaction: receipt": (transact(ops.SettleStep("junk", 1)), "", "bad_receipt", 1),
    "lease": (lambda broker: broker.leased(SOMEONE, "none", "default", LeaseRequest(1)), "none", "queue_not_found", 1),
    "settle": (lambda broker: broker.settled(SOMEONE, [STALE], ACK), "full", "lease_lost", 1),
    "settle a lease": (lambda broker: broker.settled_lease(SOMEONE, 77, ACK), "", "lease_lost", 1),
    "extend": (lambda broker: broker.extended(SOMEONE, 77, 5.0), "", "lease_lost", 1),
    "call": (lambda broker: broker.execute(SOMEONE, ops.Stats("none")), "none", "queue_not_found", 1),
    "call: name": (lambda broker: broker.execute(SOMEONE, ops.Stats("a/b")), "", "invalid_name", 1),
    "sink": (
        lambda broker: broker.execute(SOMEONE, ops.CommitSink("full", "s", 0, ["nowhere"])),
        *("full", "", 1),
    ),
}


@pytest.mark.parametrize("way", REFUSED)
def test_a_refusal_is_counted(way):
    ask, queue, code, times = REFUSED[way]

    @on_uvloop
    async def run() -> None:
        async with broker_on() as broker:
            await prepare(broker)
            before = sum(counts[0] for counts in broker.meter.refusals.values())
            with pytest.raises(PenstockError) as caught:
                await ask(broker)
            after = sum(counts[0] for counts in broker.meter.refusals.values())

            assert caught.value.code == (code or caught.value.code)
            assert broker.meter.refusals[queue, caught.value.code] == [times]
            assert after - before == times

    run()
