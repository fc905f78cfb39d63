"""Every request that is refused moves a counter, once, whichever way it took."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from penstock import operations as ops
from penstock import validation
from penstock.batch import Batch, encode_one_with
from penstock.broker.broker import Broker
from penstock.errors import PenstockError
from penstock.model import Outcome, Receipt
from penstock.requests import LeaseRequest, PushOperation, SettleOperation
from penstock.server.tcp.listener import start_tcp
from penstock.wire import requests
from penstock.wire.errors import ErrorReply, to_error
from penstock.wire.frames import Type
from tests.support.broker_loop import SOMEONE, broker_on, on_uvloop, until
from tests.support.broker_process import Caller

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


def transact(*steps: PushOperation | SettleOperation) -> Ask:
    return lambda broker: broker.transact(SOMEONE, steps)


def framed(name: str, arguments: Any) -> Ask:
    """A call over TCP: what cannot be decoded never reaches the broker."""

    async def ask(broker: Broker) -> None:
        server = await start_tcp(broker, "127.0.0.1", 0)
        body = requests.encode(requests.Call(name, msgspec.Raw(requests.encode(arguments))))
        kind, answer = await asyncio.to_thread(_answer, server.port, body)
        await server.close()
        assert kind == Type.ERROR
        raise to_error(requests.decode(answer, ErrorReply))

    return ask


def _answer(port: int, body: bytes) -> tuple[int, bytes]:
    with Caller(port) as caller:
        return caller.answer(caller.send(Type.CALL, body))


def transact_framed(step: requests.PushStep | requests.SettleStep) -> Ask:
    return framed("transact", requests.Transact([step]))


# name: (how to ask, queue, code, how many refusals it is)
REFUSED: dict[str, tuple[Ask, str, str, int]] = {
    "push": (lambda broker: broker.pushed(SOMEONE, "full", Batch.build([b"x"])), "full", "queue_full", 1),
    "one folded push": (lambda broker: fold(broker, 1), "full", "queue_full", 1),
    "many folded pushes": (lambda broker: fold(broker, 5), "full", "queue_full", 5),
    "transaction: push": (transact(PushOperation("full", Batch.build([b"x"]))), "full", "queue_full", 1),
    "transaction: settle": (transact(SettleOperation(STALE, ACK)), "full", "lease_lost", 1),
    "transaction: name": (transact_framed(requests.PushStep("a/b", encode_one_with(b"x"))), "a/b", "invalid_name", 1),
    "transaction: batch": (transact_framed(requests.PushStep("full", b"junk")), "full", "bad_batch", 1),
    "transaction: receipt": (transact_framed(requests.SettleStep("junk", 1)), "", "bad_receipt", 1),
    "lease": (lambda broker: broker.leased(SOMEONE, "none", "default", LeaseRequest(1)), "none", "queue_not_found", 1),
    "settle": (lambda broker: broker.settled(SOMEONE, [STALE], ACK), "full", "lease_lost", 1),
    "settle a lease": (lambda broker: broker.settled_lease(SOMEONE, 77, ACK), "", "lease_lost", 1),
    "extend": (lambda broker: broker.extended(SOMEONE, 77, 5.0), "", "lease_lost", 1),
    "call": (lambda broker: broker.execute(SOMEONE, ops.Stats("none")), "none", "queue_not_found", 1),
    "call: name": (framed("stats", {"queue": "a/b"}), "", "invalid_name", 1),
    "sink": (
        lambda broker: broker.execute(SOMEONE, ops.CommitSink("full", "s", 0, ("nowhere",))),
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
