"""The hot routes: push, lease and settle, from the bytes of the body to the broker's callbacks and back.

No task, no coroutine, no framework: a request costs its decoding, the broker, and its encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import httptools
import msgspec

from penstock import validation
from penstock.broker.callbacks import ignore
from penstock.broker.leases import Pending
from penstock.broker.reply_size import fit_leases, receipts_in, size_of, split
from penstock.errors import PenstockError
from penstock.model import ContentType, Receipt, check_name
from penstock.replies import LeaseReplies, LeaseReply
from penstock.requests import RELEASE, LeaseRequest, QueueChoice
from penstock.server.http.exchange import Exchange
from penstock.server.http.frames import run_frames
from penstock.wire import json_models as models
from penstock.wire import trace
from penstock.wire.errors import http_status
from penstock.wire.json_messages import (
    PushRequest,
    encode,
    error_fields,
    extension_view,
    lease_of,
    lease_queues_reply,
    lease_reply,
    producer_of,
    push_one_reply,
    push_reply,
    read_plain,
    read_push,
    receipts_of,
    settle_reply,
    settling_of,
)
from penstock.wire.json_reader import LARGE_BYTES, Reader

API: Final = b"/api/v1/"
QUEUES: Final = b"/api/v1/queues/"
ROUTES_KEPT_MAX: Final = 4096
FOLDED_BYTES_MAX: Final = 4096  # a small body may hold a single message, which is pushed together with others

T = TypeVar("T")
Run = Callable[[Exchange], None]
Match = tuple[Run, str]

_lease: Final = Reader(models.Lease)


def push(exchange: Exchange) -> None:
    """POST /api/v1/queues/{queue}/messages."""
    body, traced, broker = exchange.body, trace.carried(exchange.traceparent), exchange.site.broker
    if traced is None and len(body) < FOLDED_BYTES_MAX:
        plain = read_plain(body)
        if plain is not None and len(plain.messages) == 1:
            payload, producer = bytes(plain.messages[0].payload), producer_of(plain.producer)
            placed = partial(exchange.answer, status=201, encode=partial(push_one_reply, exchange.queue))
            broker.push_one(exchange.client, exchange.queue, payload, producer, placed, ContentType.JSON)
            return
    _read_and_do(exchange, lambda: read_push(body, traced), _push)


def _push(exchange: Exchange, push: PushRequest) -> None:
    on_reply = partial(exchange.answer, status=201, encode=lambda reply: push_reply(push.whole(reply)))
    about = (push.batch, push.partition, push.durability, push.producer)
    exchange.site.broker.push(exchange.client, exchange.queue, *about, on_reply, skips=push.skips)


def _read_and_do(exchange: Exchange, read: Callable[[], T], do: Callable[[Exchange, T], None]) -> None:
    """Do what a body asks for. A large one is read in a thread: it takes long, and the loop has others to serve."""
    if len(exchange.body) <= LARGE_BYTES:
        do(exchange, read())
        return

    def done(answer: Any) -> None:
        if isinstance(answer, PenstockError):
            exchange.fail(answer)
        elif not exchange.disconnected:
            exchange.attempt(lambda: do(exchange, answer))

    exchange.site.broker.in_thread(read, done)


def lease(exchange: Exchange) -> None:
    """POST /api/v1/queues/{queue}/lease."""
    _read_and_do(exchange, lambda: _lease.read(exchange.body or b"{}"), _lease_decoded)


def _lease_decoded(exchange: Exchange, request: models.Lease) -> None:
    seconds = None if request.lease_ms is None else request.lease_ms / 1000
    about = (request.max, seconds, request.consumer, request.partitions, request.auto_ack)
    leasing = validation.lease_request(*about, start=request.start, types=request.task_types)
    if request.member:
        leasing = msgspec.structs.replace(leasing, member=request.member, generation=request.generation)
    encode = partial(_leased, exchange) if not request.auto_ack else lease_reply
    _lease_from(exchange, exchange.site.broker.lease, exchange.queue, request, leasing, encode)


_lease_several: Final = Reader(models.LeaseQueues)


def lease_queues(exchange: Exchange) -> None:
    """POST /api/v1/lease."""
    _read_and_do(exchange, lambda: _lease_several.read(exchange.body), _lease_queues_decoded)


def _lease_queues_decoded(exchange: Exchange, request: models.LeaseQueues) -> None:
    seconds = None if request.lease_ms is None else request.lease_ms / 1000
    choice = validation.queue_choice(request.queues, request.order)
    about = (request.max, seconds, request.consumer, None, request.auto_ack)
    leasing = validation.lease_request(*about, start=request.start, types=request.task_types)
    encode = partial(_leased_queues, exchange) if not request.auto_ack else lease_queues_reply
    _lease_from(exchange, exchange.site.broker.lease_queues, choice, request, leasing, encode)


def _lease_from(
    exchange: Exchange,
    lease: Callable[..., Pending],
    what: str | QueueChoice,
    request: models.Lease | models.LeaseQueues,
    leasing: LeaseRequest,
    encode: Callable[[Any], bytes],
) -> None:
    on_reply = partial(exchange.answer, status=200, encode=encode)
    group = check_name(request.group, "group")
    pending = lease(exchange.client, what, group, leasing, request.wait_ms / 1000, on_reply)
    if not pending.is_over:
        exchange.pending = pending


def _leased_queues(exchange: Exchange, reply: LeaseReplies) -> bytes:
    """As much as one response may hold, at least one message; the rest is released and comes with the next."""
    leases, excess = fit_leases(reply.leases, exchange.site.settings.request_bytes_max)
    if excess:
        exchange.site.broker.settle(exchange.client, excess, RELEASE, ignore)
    return lease_queues_reply(LeaseReplies(leases, sum(lease.count for lease in leases)))


def _leased(exchange: Exchange, reply: LeaseReply) -> bytes:
    """As much of a lease as one response may hold; the rest is released and comes with the next."""
    bytes_max = exchange.site.settings.request_bytes_max
    if size_of(reply) <= bytes_max:
        return lease_reply(reply)
    first, *rest = split(reply, bytes_max)
    if rest:
        receipts = [receipt for part in rest for receipt in receipts_in(part)]
        exchange.site.broker.settle(exchange.client, receipts, RELEASE, ignore)
    return lease_reply(first)


# settling


def _settler(model: type[models.Settle]) -> Run:
    reader = Reader(model)

    def read(exchange: Exchange) -> tuple[Any, int | None, list[Receipt]]:
        request = reader.read(exchange.body)
        nonce = lease_of(request)
        return request, nonce, receipts_of(request.receipts or ()) if nonce is None else []

    def settle(exchange: Exchange, decoded: tuple[Any, int | None, list[Receipt]]) -> None:
        request, nonce, receipts = decoded
        broker, client, how = exchange.site.broker, exchange.client, settling_of(request)
        if nonce is not None:
            broker.settle_lease(client, nonce, how, partial(_lease_settled, exchange, nonce))
        else:
            broker.settle_each(client, receipts, how, partial(_settled, exchange, request.receipts))

    return lambda exchange: _read_and_do(exchange, lambda: read(exchange), settle)


def _settled(exchange: Exchange, receipts: Sequence[str], reply: Any) -> None:
    if isinstance(reply, PenstockError):
        exchange.fail(reply)
        return
    errors = [error for error in reply if error is not None]
    status = http_status(errors[0].code) if len(errors) == len(reply) else 200
    exchange.reply_with(status, lambda: settle_reply(receipts, reply), len(receipts))


def _lease_settled(exchange: Exchange, nonce: int, reply: Any) -> None:
    if isinstance(reply, PenstockError):
        exchange.fail(reply)
    else:
        exchange.reply(200, b'{"results":[{"lease_id":"%016x","status":"ok"}]}' % nonce)


_extend: Final = Reader(models.Extend)


def extend(exchange: Exchange) -> None:
    """POST /api/v1/extend."""
    _read_and_do(exchange, lambda: _read_extend(exchange.body), _extend_decoded)


def _read_extend(body: bytes) -> tuple[models.Extend, int | None, list[int]]:
    request = _extend.read(body)
    nonce = lease_of(request)
    return request, nonce, [receipt.nonce for receipt in receipts_of(request.receipts or ())] if nonce is None else []


def _extend_decoded(exchange: Exchange, decoded: tuple[models.Extend, int | None, list[int]]) -> None:
    request, nonce, nonces = decoded
    seconds = request.lease_ms / 1000
    if nonce is not None:
        reply = _extended(exchange, nonce, seconds)
        if isinstance(reply, PenstockError):
            raise reply
        exchange.reply(200, encode({"results": [{"lease_id": request.lease_id, **extension_view(reply)}]}))
        return
    receipts = request.receipts or []
    answers = {nonce: _extended(exchange, nonce, seconds) for nonce in dict.fromkeys(nonces)}
    errors = [answer for answer in answers.values() if isinstance(answer, PenstockError)]
    is_refused = len(errors) == len(answers)

    def written() -> bytes:
        extensions = {nonce: extension_view(answer) for nonce, answer in answers.items()}
        results = [{"receipt": receipt, **extensions[nonce]} for receipt, nonce in zip(receipts, nonces, strict=True)]
        return encode({"error": error_fields(errors[0]), "results": results} if is_refused else {"results": results})

    exchange.reply_with(http_status(errors[0].code) if is_refused else 200, written, len(receipts))


def _extended(exchange: Exchange, nonce: int, seconds: float) -> Any:
    """When the lease expires now, or an error; the broker replies at once, since nothing is journaled."""
    replies: list[Any] = []
    exchange.site.broker.extend(exchange.client, nonce, seconds, replies.append)
    return replies[0]


OF_QUEUE: Final[dict[bytes, Run]] = {b"messages": push, b"lease": lease}
OF_BROKER: Final[dict[bytes, Run]] = {
    b"ack": _settler(models.Ack),
    b"nack": _settler(models.Nack),
    b"reject": _settler(models.Reject),
    b"release": _settler(models.Release),
    b"snooze": _settler(models.Snooze),
    b"extend": extend,
    b"lease": lease_queues,
    b"rpc": run_frames,
}


class Matcher:
    """Finds the hot route of a URL, and remembers it: the same few come again and again."""

    def __init__(self) -> None:
        self._known: dict[bytes, Match | None] = {}

    def match(self, url: bytes) -> Match | None:
        """What answers a POST to this URL, and the queue; None when it is none of the hot routes."""
        try:
            return self._known[url]
        except KeyError:
            if len(self._known) >= ROUTES_KEPT_MAX:
                self._known.clear()
            match = self._known[url] = _match(url)
            return match


def _match(url: bytes) -> Match | None:
    try:
        path = httptools.parse_url(url).path or b""
    except httptools.HttpParserInvalidURLError:
        return None
    if path.startswith(QUEUES):
        queue, slash, operation = path[len(QUEUES) :].partition(b"/")
        run = OF_QUEUE.get(operation) if slash and queue else None
        return None if run is None else (run, unquote(queue.decode("latin-1")))
    run = OF_BROKER.get(path[len(API) :]) if path.startswith(API) else None
    return None if run is None else (run, "")
