"""One WebSocket: deliveries within a credit, settlements, pushes and live events, all as JSON text.

docs/websocket.md lists the messages. One that is wrong is answered with an error and the socket stays open; one that is
too large closes it. What goes out waits in an outbox: while it is full, streams pause and nothing more is read, so a
peer that does not read costs what its outbox may hold, and no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, get_args

import msgspec

from penstock import validation
from penstock.access.authenticator import HINT
from penstock.broker.access import NOBODY, Client
from penstock.broker.broker import Broker
from penstock.broker.callbacks import answer_of
from penstock.broker.events import Event, Listener, TasksWanted
from penstock.broker.logins import STRANGER_SECONDS
from penstock.broker.reply_size import size_of, split
from penstock.broker.seats import Seat
from penstock.broker.streams import Stream, StreamRequest
from penstock.embedded.connections import Activity
from penstock.errors import BadRequest, Internal, InvalidField, NotAuthenticated, PenstockError, Unavailable
from penstock.model_tasks import OperationView, TaskCounts
from penstock.replies import ClusterView, LeaseReply
from penstock.server.outbox import Outbox
from penstock.server.websocket.socket import Disconnected, Socket
from penstock.wire import json_protocols as stream
from penstock.wire.json_messages import (
    PushRequest,
    batch_of,
    encode,
    error_fields,
    extension_view,
    lease_of,
    lease_reply,
    push_reply,
    receipts_of,
    settle_reply,
    settling_of,
    skipping_request,
)
from penstock.wire.json_reader import LARGE_BYTES
from penstock.wire.json_shapes import shape_of
from penstock.wire.json_tasks import SCHEDULE, WORKER, task_update


def read(received: bytes | None) -> stream.ClientMessage:
    """What the client message; None stands for a message that is not text."""
    if received is None:
        raise BadRequest("message: binary messages are not supported", hint="send JSON as text")
    return stream.client_message.read(received)


def id_of(received: bytes | None) -> Any:
    """The id of a message that was refused, if it can be made out."""
    try:
        return None if received is None else _ANY_ID.decode(received).id
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


class _AnyId(msgspec.Struct):
    id: stream.Id = None


_ANY_ID: Final = msgspec.json.Decoder(_AnyId)


def unknown(name: str) -> InvalidField:
    """The refusal of a subscription that is not there."""
    return InvalidField(f"subscription: there is no {name!r}", hint="subscribe first")


# Topics that are rows: the field that holds them, and how each is written.
ROWS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "task_counts": ("counts", shape_of(TaskCounts).write),
    "operations": ("operations", shape_of(OperationView).write),
    "dead_letters": ("dead_letters", lambda row: row),
    "schedules": ("schedules", SCHEDULE.write),
    "cluster": ("cluster", shape_of(ClusterView).write),
}


def event_json(subscription: str, event: Event) -> bytes:
    """An event as the client gets it; encoded once, whoever gets it."""
    body: bytes | None = event.forms.get("json")
    if body is None:
        fields = {"event": event.type, "at": event.at}
        for name in ("queue", "group", "counters", "missed"):
            if value := getattr(event, name):
                fields[name] = value
        body = event.forms["json"] = encode(fields | _more(event))
    return b'{"type":"event","subscription":%b,%b' % (encode(subscription), body[1:])


def _more(event: Event) -> dict[str, Any]:
    if event.type == "counters":
        return {"counters": event.counters}
    if event.type in ROWS:
        name, write = ROWS[event.type]
        return {name: [write(row) for row in event.rows]} | ({"gone": event.gone} if event.gone else {})
    if event.task is not None:
        return {"task": task_update(event.task)}
    if event.worker is not None:
        return {"worker": WORKER.write(event.worker)} | ({"is_gone": True} if event.is_gone else {})
    return {}


logger: Final = logging.getLogger("penstock.websocket")

DELIVERY_BYTES: Final = 512 * 1024  # about: many clients refuse messages over 1 MiB by default
UNDER_WAY_MAX: Final = 1000  # requests of one socket that are not answered yet
SUBSCRIPTIONS_MAX: Final = 1000
EVENT_BYTES: Final = 1024  # about
GOING_AWAY: Final = 1001
UNAUTHORISED: Final = 3000
TRY_AGAIN_LATER: Final = 1013

_OnReply = Callable[[Any], None]


class _Push(NamedTuple):
    """A push that has been read, messages and all."""

    message: stream.Push | stream.PushSome
    request: PushRequest

    @property
    def id(self) -> stream.Id:
        return self.message.id


def _read(received: bytes | None) -> stream.ClientMessage | _Push:
    """A message of the client. Of a push, its messages as a batch: of both it is this that takes long."""
    message = read(received) if received is None or b'"on_error"' not in received else _read_push(received)
    if isinstance(message, stream.PushSome):
        return _Push(message, skipping_request(message, None))
    if isinstance(message, stream.Push):
        batch = batch_of(message.messages, "messages")
        return _Push(message, PushRequest(batch, batch.partitions, message.durability))
    return message


def _read_push(received: bytes) -> stream.ClientMessage | stream.PushSome:
    """A push that skips what cannot be stored is read message by message."""
    some = answer_of(partial(stream.push_some.read, received))
    return some if isinstance(some, stream.PushSome) and some.on_error == "skip" else read(received)


class Conversation:
    """One socket."""

    def __init__(self, broker: Broker, client: Client, socket: Socket) -> None:
        self._broker = broker
        self._client = client
        self._socket = socket
        self._seat = Seat(broker.seats)
        self._streams: dict[str, Stream] = {}
        self._listeners: dict[str, Listener] = {}
        self._confirmed: set[Listener] = set()  # whose subscription was confirmed: no event goes out before
        self._news: set[str] = set()  # subscriptions to events that have a place in the outbox
        self._outbox = Outbox(self._send, self._pause, self._resume)
        self._under_way = 0
        self._has_few = asyncio.Event()
        self._has_few.set()
        self._said_goodbye = False
        self._ending: set[asyncio.Task[None]] = set()  # so that it is not collected before it has run
        self._handlers: dict[type, Callable[[Any], None]] = {
            stream.Subscribe: self._subscribe,
            stream.GiveCredit: self._credit,
            stream.Events: self._events,
            stream.Unsubscribe: self._unsubscribe,
            _Push: self._push,
            stream.Extend: self._extend,
            stream.Login: self._login,
            stream.Ping: lambda message: self._answer("pong", message.id, b""),
            **dict.fromkeys(get_args(stream.Settlement), self._settle),
        }

    async def run(self) -> None:
        """Until one side has gone; then what is unsettled is given back."""
        self._client.principal.once_revoked(self._revoked)
        self._broker.logins.succeeded(self._client)
        try:
            self._seat.take(self._client.principal)
        except Unavailable as error:
            self._end(TRY_AGAIN_LATER, error.message)
        number = self._broker.connections.enter(self)
        timer = self._broker.loop.call_later(STRANGER_SECONDS, self._check_login)
        listening = asyncio.ensure_future(self._listen())
        sending = asyncio.ensure_future(self._outbox.run())
        try:
            await asyncio.wait({listening, sending}, return_when=asyncio.FIRST_COMPLETED)
            for task in (listening, sending):
                if task.done():
                    with suppress(Disconnected):
                        task.result()
        finally:
            timer.cancel()
            self._client.principal.forget(self._revoked)
            self._seat.leave()
            self._broker.connections.leave(number)
            listening.cancel()
            sending.cancel()
            self._leave()

    def activity(self) -> Activity:
        """What is under way."""
        client, streams = self._client, len(self._streams) + len(self._listeners)
        return Activity("websocket", client.principal.name, client.address, client.name, streams, self._under_way)

    def end(self) -> None:
        """An operator ends the connection."""
        self._end(TRY_AGAIN_LATER, "an operator closed this connection")

    def goodbye(self) -> None:
        """The broker stops."""
        if not self._said_goodbye:
            self._said_goodbye = True
            self._put(b'{"type":"goodbye"}')

    async def close(self) -> None:
        """End the socket from this side."""
        await self._socket.close(GOING_AWAY, "the broker is stopping")

    def _leave(self) -> None:
        self._outbox.close()
        for subscription in self._streams.values():
            subscription.close()
        for listener in self._listeners.values():
            listener.close()
        self._streams.clear()
        self._listeners.clear()
        self._confirmed.clear()

    # in

    async def _listen(self) -> None:
        while True:
            await self._outbox.room()
            await self._has_few.wait()
            received = await self._socket.receive()
            is_large = received is not None and len(received) > LARGE_BYTES
            if is_large:  # it takes long to read, and the loop has others to serve
                self._take(received, await asyncio.to_thread(answer_of, partial(_read, received)))
            else:
                self._take(received, answer_of(partial(_read, received)))

    def _take(self, received: bytes | None, message: Any) -> None:
        if isinstance(message, PenstockError):
            self._refuse(message, id_of(received))
            return
        id = message.id
        if self._client.principal is NOBODY and not isinstance(message, stream.Login):
            self._refuse(NotAuthenticated("the first message must be auth, with a token", hint=HINT), id)
            return
        try:
            self._handlers[type(message)](message)
        except PenstockError as error:
            self._refuse(error, id)
        except Exception:  # a fault in one message must not end the others
            logger.exception("internal error in a WebSocket")
            self._refuse(Internal("internal error in the broker"), id)

    def _begin(self, on_reply: _OnReply) -> _OnReply:
        """What is under way is counted, so that nobody has more of it than is fair."""
        self._under_way += 1
        if self._under_way >= UNDER_WAY_MAX:
            self._has_few.clear()

        def done(answer: Any) -> None:
            self._under_way -= 1
            self._has_few.set()
            on_reply(answer)

        return done

    # who asks

    def _login(self, message: stream.Login) -> None:
        if bool(message.token) == bool(message.tab):
            raise InvalidField("auth: needs token or tab")
        if message.tab:
            principal = self._socket.signed_in(message.tab)
        else:
            principal = self._broker.logins.by_token(message.token, self._client.address, self._client.protocol)
        before = self._client.principal
        if before not in (NOBODY, principal):  # what was begun as somebody ends with that credential
            raise BadRequest("auth: already authenticated", hint="open another socket")
        self._seat.take(principal)
        before.forget(self._revoked)
        self._client = msgspec.structs.replace(self._client, principal=principal)
        principal.once_revoked(self._revoked)
        self._broker.logins.succeeded(self._client)
        self._socket.known()
        self._answer("ok", message.id, b',"principal":%b' % encode(principal.name))

    def _revoked(self) -> None:
        self._end(UNAUTHORISED, "the credential was revoked, or has expired")

    def _check_login(self) -> None:
        if self._client.principal is NOBODY:
            self._end(UNAUTHORISED, "no login in time")

    def _end(self, code: int, reason: str) -> None:
        task = self._broker.loop.create_task(self._socket.close(code, reason))
        self._ending.add(task)

    # subscriptions

    def _subscribe(self, message: stream.Subscribe) -> None:
        self._check_new(message.subscription)
        lease_seconds = None if message.lease_ms is None else message.lease_ms / 1000
        partitions = None if message.partitions is None else tuple(message.partitions)
        queue, choice = validation.stream_queues(message.queue, message.queues, message.order, partitions)
        about = (
            message.group,
            message.batch,
            lease_seconds,
            message.consumer,
            partitions,
            message.auto_ack,
            message.start,
        )
        request = StreamRequest(queue, *about, choice)
        name = message.subscription
        opened = self._broker.stream(self._client, request, partial(self._deliver, name), partial(self._ended, name))
        self._streams[name] = opened
        self._answer("subscribed", message.id, b',"subscription":%b' % encode(name))
        if self._outbox.is_full:
            opened.pause()
        if message.credit:
            opened.credit(message.credit)

    def _credit(self, message: stream.GiveCredit) -> None:
        subscription = self._streams.get(message.subscription)
        if subscription is None:
            raise unknown(message.subscription)
        subscription.credit(message.messages)
        if message.id is not None:
            self._answer("credited", message.id, b',"subscription":%b' % encode(message.subscription))

    def _events(self, message: stream.Events) -> None:
        self._check_new(message.subscription)
        name = message.subscription
        wake = partial(self._wake, name)
        tasks = TasksWanted(message.task_types, message.task_ids, message.workflow)
        listener = self._broker.listen(
            self._client, message.queues, message.interval_ms / 1000, wake, message.topics, tasks
        )
        listener.changed_only = message.changed_only
        self._listeners[name] = listener
        listener.when_ready(partial(self._subscribed, name, message.id, listener))

    def _subscribed(self, name: str, id: stream.Id, listener: Listener) -> None:
        if self._listeners.get(name) is listener:
            self._answer("subscribed", id, b',"subscription":%b' % encode(name))
            self._confirmed.add(listener)
            self._wake(name)  # what came before

    def _unsubscribe(self, message: stream.Unsubscribe) -> None:
        name = message.subscription
        subscription = self._streams.pop(name, None) or self._listeners.pop(name, None)
        if subscription is None:
            raise unknown(name)
        subscription.close()
        if isinstance(subscription, Listener):
            self._confirmed.discard(subscription)
        self._answer("unsubscribed", message.id, b',"subscription":%b' % encode(name))

    def _check_new(self, name: str) -> None:
        if name in self._streams or name in self._listeners:
            raise InvalidField(f"subscription: {name!r} already exists", hint="choose another name, or unsubscribe it")
        if len(self._streams) + len(self._listeners) >= SUBSCRIPTIONS_MAX:
            raise InvalidField(f"subscription: a socket has at most {SUBSCRIPTIONS_MAX}", hint="open another socket")

    def _deliver(self, name: str, reply: LeaseReply) -> None:
        self._outbox.put((name, reply), size_of(reply))

    def _ended(self, name: str, error: PenstockError | None) -> None:
        if error is None:
            self.goodbye()
        else:
            self._streams.pop(name, None)
            self._refuse(error, None, name)

    def _wake(self, name: str) -> None:
        if name not in self._news and self._listeners.get(name) in self._confirmed:
            self._news.add(name)
            self._outbox.put(name, EVENT_BYTES)

    def _pause(self) -> None:
        for subscription in self._streams.values():
            subscription.pause()

    def _resume(self) -> None:
        for subscription in [*self._streams.values()]:
            subscription.resume()

    # pushing and settling

    def _push(self, push: _Push) -> None:
        message, request = push
        on_reply = self._begin(partial(self._pushed, message.id, request))
        about = (request.batch, request.partition, request.durability, request.producer)
        self._broker.push(self._client, message.queue, *about, on_reply, skips=request.skips)

    def _pushed(self, id: stream.Id, request: PushRequest, answer: Any) -> None:
        if isinstance(answer, PenstockError):
            self._refuse(answer, id)
        else:
            self._answer("pushed", id, b"," + push_reply(request.whole(answer))[1:-1])

    def _settle(self, message: Any) -> None:
        how, nonce = settling_of(message), lease_of(message)
        if nonce is not None:
            self._broker.settle_lease(self._client, nonce, how, self._begin(partial(self._lease_settled, message)))
        else:
            receipts = receipts_of(message.receipts)
            self._broker.settle_each(self._client, receipts, how, self._begin(partial(self._settled, message)))

    def _settled(self, message: Any, answer: Any) -> None:
        self._answer("settled", message.id, b"," + settle_reply(message.receipts, answer)[1:-1])

    def _lease_settled(self, message: Any, answer: Any) -> None:
        if isinstance(answer, PenstockError):
            self._refuse(answer, message.id)
        else:
            self._answer(
                "settled", message.id, b',"results":[{"lease_id":"%b","status":"ok"}]' % message.lease_id.encode()
            )

    def _extend(self, message: stream.Extend) -> None:
        nonce = lease_of(message)
        if nonce is not None:
            names = [("lease_id", str(message.lease_id), nonce)]
        else:
            texts = message.receipts or []
            names = [("receipt", text, receipt.nonce) for text, receipt in zip(texts, receipts_of(texts), strict=True)]
        results: list[dict[str, Any]] = []
        for what, text, nonce in names:
            # Nothing is journaled, so the broker tells at once.
            self._broker.extend(
                self._client, nonce, message.lease_ms / 1000, lambda answer: results.append(extension_view(answer))
            )
            results[-1] = {what: text, **results[-1]}
        self._answer("extended", message.id, b',"results":%b' % encode(results))

    # out

    def _answer(self, kind: str, id: stream.Id, rest: bytes) -> None:
        self._put(b'{"type":"%b","id":%b%b}' % (kind.encode(), encode(id), rest))

    def _refuse(self, error: PenstockError, id: Any, subscription: str | None = None) -> None:
        self._broker.count_rest(error)
        message: dict[str, Any] = {"type": "error", "id": id, "error": error_fields(error)}
        if subscription is not None:
            message["subscription"] = subscription
        self._put(encode(message))

    def _put(self, data: bytes) -> None:
        self._outbox.put(data, len(data))

    async def _send(self, item: bytes | str | tuple[str, LeaseReply]) -> None:
        if isinstance(item, bytes):
            await self._socket.send(item)
        elif isinstance(item, str):
            self._news.discard(item)
            listener = self._listeners.get(item)
            for event in () if listener is None else listener.take():
                await self._socket.send(event_json(item, event))
        else:
            name, reply = item
            for part in split(reply, DELIVERY_BYTES):
                body = lease_reply(part)[1:]
                await self._socket.send(b'{"type":"delivery","subscription":%b,' % encode(name) + body)


CLOSE_SECONDS: Final = 1.0


class WebSockets:
    """All open sockets of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._open: set[Conversation] = set()

    async def serve(self, socket: Socket) -> None:
        """One socket, until its end."""
        client = Client(socket.principal, socket.client_name, socket.address, "websocket")
        conversation = Conversation(self._broker, client, socket)
        self._open.add(conversation)
        self._broker.meter.connected("websocket")
        try:
            if self._broker.is_draining:
                conversation.goodbye()
            await conversation.run()
        finally:
            self._broker.meter.disconnected("websocket")
            self._open.discard(conversation)

    def goodbye(self) -> None:
        """The broker stops: tell everyone. What was delivered may still be settled."""
        for conversation in self._open:
            conversation.goodbye()

    async def close(self) -> None:
        """End every socket."""
        for conversation in [*self._open]:
            with suppress(Disconnected, TimeoutError):
                await asyncio.wait_for(conversation.close(), CLOSE_SECONDS)
