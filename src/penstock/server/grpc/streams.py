"""Streams: deliveries within a credit, settlements on the way back, live events. A slow peer pauses what feeds it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc.aio

from penstock.broker.access import Client
from penstock.broker.broker import Broker
from penstock.broker.events import INTERVAL_SECONDS_DEFAULT, Event
from penstock.broker.reply_size import size_of, split
from penstock.broker.streams import Stream
from penstock.errors import BadRequest, InvalidField, PenstockError
from penstock.model import to_micros
from penstock.replies import LeaseReply
from penstock.server.grpc.generated import queues_pb2 as pb
from penstock.server.grpc.messages import RESPONSE_BYTES, extend, lease_response, settle, stream_request
from penstock.server.grpc.transcoding import write
from penstock.server.grpc.values import convert_many, error_of, parse, timestamp
from penstock.server.outbox import Outbox

CREDIT_ENDLESS: Final = 1 << 31
SMALL: Final = 256  # about the size of an answer without payloads
ANSWERING_MAX: Final = 256  # settlements under way on one stream


class DeliveryStream:
    """One stream of deliveries into an outbox."""

    def __init__(self, broker: Broker, client: Client, context: Any, opening: pb.StreamOpen) -> None:
        self._context = context
        self.over: asyncio.Future[None] = broker.loop.create_future()  # fails when the stream does
        self.stream: Stream = broker.stream(client, stream_request(opening), self._deliver, self._ended)
        self.outbox = Outbox(self._send, self.stream.pause, self.stream.resume)

    def _deliver(self, reply: LeaseReply) -> None:
        self.outbox.put(reply, size_of(reply))

    def _ended(self, error: PenstockError | None) -> None:
        if error is None:
            self._goodbye()
        elif not self.over.done():
            self.over.set_exception(error)

    def _goodbye(self) -> None:
        """Nothing more will come."""
        if not self.over.done():
            self.over.set_result(None)

    async def _send(self, reply: Any) -> None:
        for part in split(reply, RESPONSE_BYTES):
            await self._context.write(self._response(await convert_many(part.count, lease_response, part)))

    def _response(self, leased: pb.LeaseResponse) -> Any:
        return leased


class Consumption(DeliveryStream):
    """One direction. The stream ends when its credit is used up; what was delivered may still be settled."""

    def __init__(self, broker: Broker, client: Client, context: Any, opening: pb.StreamOpen) -> None:
        super().__init__(broker, client, context, opening)
        self._left = opening.credit or None
        self.stream.credit(opening.credit or CREDIT_ENDLESS)

    def _deliver(self, reply: LeaseReply) -> None:
        super()._deliver(reply)
        if self._left is None:
            self.stream.credit(reply.count)
            return
        self._left -= reply.count
        if self._left <= 0:
            self.stream.end()


class Conversation(DeliveryStream):
    """Both directions: what the client sends is answered in the same stream, as it is done."""

    def __init__(self, broker: Broker, client: Client, context: Any, opening: pb.StreamOpen) -> None:
        super().__init__(broker, client, context, opening)
        self._broker = broker
        self._client = client
        self._answering: set[asyncio.Task[None]] = set()
        if opening.credit:
            self.stream.credit(opening.credit)

    def _goodbye(self) -> None:
        # The client may settle what it has until it, or the patience of the server, comes to an end.
        self.outbox.put(pb.StreamResponse(goodbye=pb.Goodbye()), SMALL)

    async def listen(self) -> None:
        """Take requests until the client closes its side, and see them answered."""
        while True:
            await self.outbox.room()
            data = await self._context.read()
            if data is grpc.aio.EOF:
                break
            self._take(await parse(pb.StreamRequest, data))
            if len(self._answering) >= ANSWERING_MAX:
                await asyncio.wait(self._answering, return_when=asyncio.FIRST_COMPLETED)
        if self._answering:
            await asyncio.wait(self._answering)

    def _take(self, request: pb.StreamRequest) -> None:
        try:
            match request.WhichOneof("request"):
                case "credit":
                    self.stream.credit(request.credit)
                case "settle" | "extend":
                    task = self._broker.loop.create_task(self._answer(request))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                case "open":
                    raise InvalidField("open: this stream is already open", hint="open another stream")
                case _:
                    raise BadRequest("stream: the request is empty", hint="send credit, settle or extend")
        except PenstockError as error:
            self._refuse(request.id, error)

    async def _answer(self, request: pb.StreamRequest) -> None:
        try:
            if request.WhichOneof("request") == "settle":
                settled = await settle(self._broker, self._client, [request.settle])
                answer = pb.StreamResponse(id=request.id, settled=settled)
            else:
                extended = await extend(self._broker, self._client, request.extend)
                answer = pb.StreamResponse(id=request.id, extended=extended)
            self.outbox.put(answer, SMALL + answer.ByteSize())
        except PenstockError as error:
            self._refuse(request.id, error)

    def _refuse(self, id: int, error: PenstockError) -> None:
        self._broker.count_rest(error)
        self.outbox.put(pb.StreamResponse(id=id, error=error_of(error)), SMALL)

    async def _send(self, item: Any) -> None:
        if isinstance(item, pb.StreamResponse):
            await self._context.write(item)
        else:
            await super()._send(item)

    def _response(self, leased: pb.LeaseResponse) -> pb.StreamResponse:
        return pb.StreamResponse(lease=leased)


async def converse(broker: Broker, client: Client, context: Any) -> None:
    """The Stream call."""
    data = await context.read()
    first = pb.StreamRequest() if data is grpc.aio.EOF else await parse(pb.StreamRequest, data)
    if first.WhichOneof("request") != "open":
        raise BadRequest("stream: the first request must open it", hint="send `open` with the queue")
    conversation = Conversation(broker, client, context, first.open)
    listening = asyncio.ensure_future(conversation.listen())
    sending = asyncio.ensure_future(conversation.outbox.run())
    try:
        await asyncio.wait({listening, sending, conversation.over}, return_when=asyncio.FIRST_COMPLETED)
        for done in (conversation.over, sending, listening):
            if done.done():
                done.result()
        conversation.stream.close()
        conversation.outbox.close()
        await sending
    finally:
        conversation.stream.close()
        listening.cancel()
        sending.cancel()


async def consume(broker: Broker, client: Client, opening: pb.StreamOpen, context: Any) -> None:
    """The Consume call."""
    flow = Consumption(broker, client, context, opening)
    sending = asyncio.ensure_future(flow.outbox.run())
    try:
        await asyncio.wait({sending, flow.over}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
        flow.over.result()
        flow.outbox.close()
        await sending
    finally:
        flow.stream.close()
        sending.cancel()


async def watch_events(broker: Broker, client: Client, request: pb.WatchEventsRequest, context: Any) -> None:
    """The WatchEvents call."""
    news = asyncio.Event()
    interval = request.interval_ms / 1000 or INTERVAL_SECONDS_DEFAULT
    listener = broker.listen(client, request.queues or None, interval, news.set)
    try:
        while True:
            await news.wait()
            news.clear()
            for event in listener.take():
                await context.write(_event(event))
    finally:
        listener.close()


def _event(event: Event) -> pb.Event:
    """An event as the client gets it; made once, whoever gets it."""
    made: pb.Event | None = event.forms.get("protobuf")
    if made is None:
        made = event.forms["protobuf"] = pb.Event(
            type=event.type,
            queue=event.queue,
            group=event.group,
            at=timestamp(to_micros(event.at, "at")),
            counters=[write(pb.GetStatsResponse, queue) for queue in event.counters],
            missed=event.missed,
        )
    return made
