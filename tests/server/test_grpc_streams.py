"""gRPC streams: credit, settlements on the way back, slow readers, the end, live events."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock.server.grpc.generated import queues_pb2
from tests.server.test_grpc import serving
from tests.support.broker_loop import on_uvloop, until

pb: Any = queues_pb2


def opened(queue="q", **fields):
    return pb.StreamRequest(open=pb.StreamOpen(queue=queue, **fields))


async def next_of(call, kind):
    """The next response of a kind; what is in between is passed over."""
    while True:
        response = await call.read()
        assert response is not grpc.aio.EOF
        if response.WhichOneof("response") == kind:
            return response


@on_uvloop
async def test_a_stream_delivers_within_its_credit_and_takes_settlements():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"%d" % n for n in range(5)]))
        call = stub.Stream()
        await call.write(opened(credit=2, lease_ms=60_000))
        first = (await next_of(call, "lease")).lease
        receipts = [delivery.receipt for delivery in first.deliveries]
        await call.write(pb.StreamRequest(id=1, settle=pb.Settlement(receipts=receipts[:1], ack=pb.Ack())))
        settled = await call.read()
        await call.write(pb.StreamRequest(id=2, extend=pb.ExtendRequest(receipts=receipts[1:], lease_ms=90_000)))
        extended = await call.read()
        await call.write(pb.StreamRequest(id=3, settle=pb.Settlement(lease_id=first.lease_id, ack=pb.Ack())))
        rest = await call.read()
        await call.write(pb.StreamRequest(credit=10))
        second = (await next_of(call, "lease")).lease

        assert [delivery.payload for delivery in first.deliveries] == [b"0", b"1"]
        assert (settled.id, settled.settled.results[0].receipt) == (1, receipts[0])
        assert (extended.id, extended.extended.results[0].error.code) == (2, "")
        assert (rest.id, rest.settled.results[0].error.code) == (3, "")
        assert len(second.deliveries) == 3

        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        again = await stub.Lease(pb.LeaseRequest(queue="q", max=9))
        assert [delivery.attempt for delivery in again.deliveries] == [1, 1, 1]  # given back, not counted


@on_uvloop
async def test_a_stream_that_is_cancelled_gives_back_what_it_holds():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a"]))
        call = stub.Stream()
        await call.write(opened(credit=1))
        await next_of(call, "lease")
        call.cancel()
        again = await stub.Lease(pb.LeaseRequest(queue="q", wait_ms=20_000))

        assert again.deliveries[0].attempt == 1
        assert not stub.broker.streams


@on_uvloop
async def test_wrong_requests_on_a_stream_are_answered_and_it_goes_on():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a"]))
        call = stub.Stream()
        await call.write(opened())
        codes = []
        for request in (
            pb.StreamRequest(id=1),
            pb.StreamRequest(id=2, credit=0),
            pb.StreamRequest(id=3, open=pb.StreamOpen(queue="q")),
            pb.StreamRequest(id=4, settle=pb.Settlement(receipts=["a"])),
        ):
            await call.write(request)
            answer = await next_of(call, "error")
            codes.append((answer.id, answer.error.code))
        await call.write(pb.StreamRequest(credit=1))

        assert codes == [(1, "bad_request"), (2, "invalid_field"), (3, "invalid_field"), (4, "invalid_field")]
        assert (await next_of(call, "lease")).lease.deliveries[0].payload == b"a"
        call.cancel()


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (pb.StreamRequest(credit=1), "bad_request"),
        (opened("none", credit=1), "queue_not_found"),
        (opened("no name", credit=1), "invalid_name"),
        (opened(batch=2**31), "invalid_field"),
    ],
)
@on_uvloop
async def test_a_stream_that_cannot_be_opened_ends_with_the_error(first, code):
    async with serving() as stub:
        call = stub.Stream()
        await call.write(first)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()

        assert dict(caught.value.trailing_metadata())["penstock-code"] == code


@on_uvloop
async def test_a_reader_that_does_not_read_is_given_no_more_than_fits():
    async with serving() as stub:
        noise = random.Random(7).randbytes(10_000)
        await stub.Push(pb.PushRequest(queue="q", payloads=[noise] * 1500))
        call = stub.Consume(pb.StreamOpen(queue="q", credit=1500, batch=10, lease_ms=600_000))
        await until(lambda: any(stream._is_paused for stream in stub.broker.streams))
        leased = sum(lease.count for lease in stub.broker.shard.core.leases.values())
        seen = 0
        while (response := await call.read()) is not grpc.aio.EOF:
            seen += len(response.deliveries)

        assert leased < 1400
        assert seen == 1500  # and when it reads at last, everything comes


@on_uvloop
async def test_consume_goes_on_without_end_and_its_deliveries_are_settled_apart():
    async with serving() as stub:
        await stub.CreateQueue(pb.CreateQueueRequest(queue="q"))
        call = stub.Consume(pb.StreamOpen(queue="q"))
        for payload in (b"a", b"b"):
            await stub.Push(pb.PushRequest(queue="q", payloads=[payload]))
            response = await call.read()
            how = pb.Settlement(lease_id=response.lease_id, ack=pb.Ack())
            settled = await stub.Settle(pb.SettleRequest(settlements=[how]))

            assert [delivery.payload for delivery in response.deliveries] == [payload]
            assert not settled.results[0].HasField("error")
        call.cancel()


@on_uvloop
async def test_what_consume_delivered_before_its_credit_ran_out_may_be_settled():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a", b"b", b"c"]))
        responses = [response async for response in stub.Consume(pb.StreamOpen(queue="q", credit=2))]
        settled = await stub.Settle(
            pb.SettleRequest(settlements=[pb.Settlement(lease_id=responses[0].lease_id, ack=pb.Ack())])
        )

        assert [delivery.payload for response in responses for delivery in response.deliveries] == [b"a", b"b"]
        assert not settled.results[0].HasField("error")


@on_uvloop
async def test_large_deliveries_come_in_parts_that_a_client_takes_by_default():
    async with serving() as stub:
        for number in range(4):
            await stub.Push(pb.PushRequest(queue="q", payloads=[bytes([number]) * 2_000_000]))
        responses = [response async for response in stub.Consume(pb.StreamOpen(queue="q", credit=4))]

        assert [response.deliveries[0].payload[0] for response in responses] == [0, 1, 2, 3]


@on_uvloop
async def test_a_broker_that_stops_says_goodbye_and_still_takes_settlements():
    async with serving() as stub:
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a"]))
        call = stub.Stream()
        await call.write(opened(credit=5))
        lease = (await next_of(call, "lease")).lease
        await stub.broker.drain()
        await next_of(call, "goodbye")
        await call.write(pb.StreamRequest(id=9, settle=pb.Settlement(lease_id=lease.lease_id, ack=pb.Ack())))
        settled = await next_of(call, "settled")

        assert settled.id == 9
        assert not settled.settled.results[0].HasField("error")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Push(pb.PushRequest(queue="q", payloads=[b"b"]))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


@on_uvloop
async def test_closing_ends_calls_that_are_left():
    async with serving() as stub:
        call = stub.WatchEvents(pb.WatchEventsRequest())
        events = aiter(call)
        await anext(events)
        await asyncio.wait_for(stub.server.close(0.05), 100)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(event async for event in events if not event.type)

        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


@on_uvloop
async def test_live_events_tell_of_changes_and_counters():
    async with serving() as stub:
        call = stub.WatchEvents(pb.WatchEventsRequest(interval_ms=100))
        first = await call.read()
        await stub.Push(pb.PushRequest(queue="q", payloads=[b"a"]))
        heard: list[Any] = []
        while len({event.type for event in heard}) < 2 or not any(event.counters for event in heard):
            heard.append(await call.read())
        counters = next(event.counters for event in heard if event.counters)

        assert (first.type, list(first.counters)) == ("counters", [])
        assert {event.queue for event in heard if event.type == "created"} == {"q"}
        assert (counters[0].queue, counters[0].groups[0].ready) == ("q", 1)
        call.cancel()
        await until(lambda: not stub.broker.events._listeners)


@on_uvloop
async def test_several_queues_are_leased_and_streamed_from():
    async with serving() as stub:
        for queue in ("shop.a", "shop.b"):
            await stub.Push(pb.PushRequest(queue=queue, payloads=[b"1", b"2"]))
        leased = await stub.LeaseQueues(pb.LeaseQueuesRequest(queues=["shop.b", "shop.*"], order=1, max=3))
        call = stub.Consume(pb.StreamOpen(queues=["shop.*"], credit=1))
        delivered = await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.LeaseQueues(pb.LeaseQueuesRequest(queues=["shop.*"], order=7))
        both = stub.Consume(pb.StreamOpen(queue="shop.a", queues=["shop.*"]))
        with pytest.raises(grpc.aio.AioRpcError) as unclear:
            await both.read()

        ids = [delivery.id for lease in leased.leases for delivery in lease.deliveries]
        assert ids == ["shop.b/0/0", "shop.b/0/1", "shop.a/0/0"]
        assert [delivery.id for delivery in delivered.deliveries] == ["shop.a/0/1"]
        assert "order" in refused.value.details()
        assert "queue" in unclear.value.details()


@on_uvloop
async def test_a_push_that_skips_says_of_each_message_what_became_of_it():
    async with serving() as stub:
        messages = [pb.NewMessage(payload=b"1"), pb.NewMessage(payload=b"2", priority=999), pb.NewMessage(payload=b"3")]
        pushed = await stub.Push(pb.PushRequest(queue="q", messages=messages, on_error=pb.ON_ERROR_SKIP))
        plain = await stub.Push(pb.PushRequest(queue="q", payloads=[b"4"], on_error=pb.ON_ERROR_SKIP))

        assert list(pushed.ids) == ["q/0/0", "", "q/0/1"]
        assert [(failure.place, failure.error.code) for failure in pushed.failures] == [(1, "invalid_field")]
        assert list(plain.ids) == ["q/0/2"]
