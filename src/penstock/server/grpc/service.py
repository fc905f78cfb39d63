"""The server: handlers for every method of the services, made from their descriptors; errors, health, reflection.

Requests are parsed here rather than by gRPC, so that bytes which are no message are refused as any bad request is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from penstock import limits, validation
from penstock import operations as ops
from penstock.access.tls import HANDSHAKE_SECONDS, ServerTls
from penstock.broker.access import NOBODY, Client, Principal
from penstock.broker.broker import Broker
from penstock.broker.callbacks import ignore
from penstock.broker.logins import bearer
from penstock.broker.reply_size import fit_leases, receipts_in, split
from penstock.broker.seats import Seat
from penstock.embedded.connections import Activity
from penstock.errors import BadRequest, Internal, NotAuthenticated, PenstockError, Unavailable
from penstock.model import Receipt, check_name
from penstock.replies import LeaseReply
from penstock.requests import RELEASE
from penstock.server.grpc import messages, streams, tasks
from penstock.server.grpc.calls import QUEUES, TASKS, Unary, options_of, queue_of, simple_calls, transact
from penstock.server.grpc.generated import queues_pb2 as pb
from penstock.server.grpc.generated import tasks_pb2
from penstock.server.grpc.messages import (
    RESPONSE_BYTES,
    batch_of,
    carry_trace,
    check_count,
    lease_queues_request,
    lease_request,
    lease_response,
    partition_of,
    push_response,
    some_of,
)
from penstock.server.grpc.values import convert, convert_many, durability_of, group_of, parse
from penstock.wire import trace
from penstock.wire.errors import grpc_status, to_reply

logger: Final = logging.getLogger("penstock.server.grpc")
SERVICES: Final = ("penstock.v1.Queues", "penstock.v1.Tasks")
CALLS_MAX: Final = 10_000  # at a time
KEEPALIVE_MS: Final = 20_000

T = TypeVar("T")


async def _push(broker: Broker, client: Client, request: pb.PushRequest, parent: str | None) -> pb.PushResponse:
    level = durability_of(request.durability)
    if request.on_error == pb.ON_ERROR_SKIP:
        batch, rows, failures = await convert(_read_push, request, parent, some_of)
        where = partition_of(request, batch)
        reply = await broker.pushed(client, request.queue, batch, where, level, skips=True)
        reply = reply.among(rows, len(rows) + len(failures), failures)
    else:
        batch = await convert(_read_push, request, parent, batch_of)
        reply = await broker.pushed(client, request.queue, batch, partition_of(request, batch), level)
    return await convert_many(reply.count, push_response, reply)


def _read_push(request: pb.PushRequest, parent: str | None, read: Callable[[pb.PushRequest], T]) -> T:
    check_count(request)
    if parent is not None:
        carry_trace(request, parent)
    return read(request)


async def _lease(broker: Broker, client: Client, request: pb.LeaseRequest) -> pb.LeaseResponse:
    leasing = await convert(lease_request, request)
    wait = validation.wait_seconds(request.wait_ms / 1000)
    group = check_name(group_of(request), "group")
    reply = await broker.leased(client, request.queue, group, leasing, wait)
    if request.auto_ack or not reply.count:  # what is settled already must go, all of it
        return await convert_many(reply.count, lease_response, reply)
    first, *more = split(reply, request.max_bytes or RESPONSE_BYTES)
    for part in more:
        broker.settle_each(client, receipts_in(part), RELEASE, ignore)
    return await convert_many(first.count, lease_response, first)


async def _lease_queues(broker: Broker, client: Client, request: pb.LeaseQueuesRequest) -> pb.LeaseQueuesResponse:
    choice, leasing = await convert(lease_queues_request, request)
    wait = validation.wait_seconds(request.wait_ms / 1000)
    group = check_name(group_of(request), "group")
    reply = await broker.leased_queues(client, choice, group, leasing, wait)
    leases: Sequence[LeaseReply] = reply.leases
    excess: list[Receipt] = []
    if not request.auto_ack:
        leases, excess = fit_leases(reply.leases, request.max_bytes or RESPONSE_BYTES)
    if excess:
        broker.settle_each(client, excess, RELEASE, ignore)
    return await convert_many(reply.count, lambda: pb.LeaseQueuesResponse(leases=map(lease_response, leases)))


async def _create_queue(broker: Broker, client: Client, request: pb.CreateQueueRequest) -> pb.Queue:
    name = check_name(request.queue)
    operation = ops.CreateQueue(name, await convert(options_of, request), request.exist_ok)
    await broker.execute(client, operation)
    return await _changed(broker, name)


async def _update_queue(broker: Broker, client: Client, request: pb.UpdateQueueRequest) -> pb.Queue:
    name = check_name(request.queue)
    await broker.execute(client, ops.UpdateQueue(name, await convert(options_of, request)))
    return await _changed(broker, name)


async def _changed(broker: Broker, name: str) -> pb.Queue:
    """The queue that was changed: who may do that may see its options."""
    return queue_of(name, await broker.looked(ops.GetOptions(name)))


async def _get_queue(broker: Broker, client: Client, request: Any) -> pb.Queue:
    return queue_of(request.queue, await broker.execute(client, ops.GetOptions(request.queue)))


async def _replace_letters(broker: Broker, client: Client, request: Any) -> pb.ReplaceDeadLettersResponse:
    push = pb.PushRequest(messages=request.messages)
    batch = await convert(_read_push, push, None, batch_of)
    ids = [validation.message_id(id) for id in request.ids]
    await broker.execute(client, ops.ReplaceLetters(request.queue, ids, bytes(batch.data)))
    return pb.ReplaceDeadLettersResponse()


UNARY: Final[dict[str, Unary]] = {
    "Lease": _lease,
    "LeaseQueues": _lease_queues,
    "Settle": lambda broker, client, request: messages.settle(broker, client, request.settlements),
    "Transact": transact,
    "Extend": messages.extend,
    "CreateQueue": _create_queue,
    "UpdateQueue": _update_queue,
    "GetQueue": _get_queue,
    "ReplaceDeadLetters": _replace_letters,
}
STREAMED: Final[Mapping[str, Any]] = {"Consume": streams.consume, "WatchEvents": streams.watch_events}
# Those that put the trace of the call into what they store.
TRACED: Final[Mapping[str, Any]] = {"Push": _push}


class Methods(NamedTuple):
    """What a service does."""

    messages: Any  # the module of its protocol buffers
    unary: Mapping[str, Unary]
    traced: Mapping[str, Any]
    streamed: Mapping[str, Any]


METHODS: Final = {
    "Queues": Methods(pb, UNARY | simple_calls(pb, "Queues", QUEUES), TRACED, STREAMED),
    "Tasks": Methods(tasks_pb2, tasks.UNARY | simple_calls(tasks_pb2, "Tasks", TASKS), tasks.TRACED, tasks.STREAMED),
}


class OpenStream(NamedTuple):
    """A stream over gRPC, as a connection of the broker."""

    client: Client
    context: Any

    def activity(self) -> Activity:
        """What is under way."""
        client = self.client
        return Activity("grpc", client.principal.name, client.address, client.name, streams=1)

    def end(self) -> None:
        """An operator ends the stream."""
        self.context.cancel()


class Handlers:
    """Every method of a service, between gRPC and the broker."""

    def __init__(self, broker: Broker, service: str) -> None:
        self._broker = broker
        self._service = service
        self._methods = METHODS[service]

    def all(self) -> dict[str, Any]:
        """For each method of the service its handler."""
        handlers: dict[str, Any] = {}
        messages = self._methods.messages
        for method in messages.DESCRIPTOR.services_by_name[self._service].methods:
            name = method.name
            request: Any = getattr(messages, method.input_type.name)
            if method.client_streaming:
                handlers[name] = grpc.stream_stream_rpc_method_handler(self._converse, None, _bytes)
            elif method.server_streaming:
                handlers[name] = grpc.unary_stream_rpc_method_handler(
                    partial(self._stream, name, request), None, _bytes
                )
            else:
                handlers[name] = grpc.unary_unary_rpc_method_handler(partial(self._unary, name, request), None, _bytes)
        return handlers

    async def _unary(self, name: str, kind: Any, data: bytes, context: Any) -> Any:
        try:
            client = self._client_of(context)
            request = await parse(kind, data)
            async with _ended_when_revoked(client.principal):  # it may wait
                return await self._answer(name, client, request, context)
        except Exception as error:  # noqa: BLE001 - a fault is logged, and the client gets an error
            await _abort(self._broker, context, name, error)

    async def _answer(self, name: str, client: Client, request: Any, context: Any) -> Any:
        traced = self._methods.traced.get(name)
        if traced is not None:
            return await traced(self._broker, client, request, trace.carried(_metadata(context).get("traceparent")))
        return await self._methods.unary[name](self._broker, client, request)

    async def _stream(self, name: str, kind: Any, data: bytes, context: Any) -> None:
        try:
            client = self._client_of(context)
            request = await parse(kind, data)
            async with _ended_when_revoked(client.principal), self._seated(client, context):
                await self._methods.streamed[name](self._broker, client, request, context)
        except Exception as error:  # noqa: BLE001
            await _abort(self._broker, context, name, error)

    async def _converse(self, _: Any, context: Any) -> None:
        try:
            client = self._client_of(context)
            async with _ended_when_revoked(client.principal), self._seated(client, context):
                await streams.converse(self._broker, client, context)
        except Exception as error:  # noqa: BLE001
            await _abort(self._broker, context, "Stream", error)

    @asynccontextmanager
    async def _seated(self, client: Client, context: Any) -> AsyncIterator[None]:
        """A stream counts among the connections of its namespace, and is listed among those of the broker."""
        seat = Seat(self._broker.seats)
        seat.take(client.principal)
        number = self._broker.connections.enter(OpenStream(client, context))
        try:
            yield
        finally:
            seat.leave()
            self._broker.connections.leave(number)

    def _client_of(self, context: Any) -> Client:
        """Who calls. A peer reads `ipv4:127.0.0.1:51234`, `ipv6:%5B::1%5D:51234` or `unix:`."""
        named = _metadata(context)
        address = unquote(context.peer().partition(":")[2].rpartition(":")[0]).strip("[]")
        name = named.get("penstock-client") or named.get("user-agent", "")
        logins = self._broker.logins
        client = Client(logins.stranger, name, address, "grpc")
        if client.principal is NOBODY:
            if sum(key == "authorization" for key, _ in context.invocation_metadata() or ()) > 1:
                raise BadRequest("authorization: sent more than once")
            header = named.get("authorization", "")
            certified = None if header else logins.by_certificate(_names_of(context))
            principal = certified or logins.by_token(bearer(header) if header else "", address, "grpc")
            client = Client(principal, name, address, "grpc")
            logins.succeeded(client)
        return client


def _names_of(context: Any) -> tuple[str, ...]:
    """The names in the certificate of the client, which gRPC has verified."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return tuple(name.decode("utf-8", "replace") for name in names)


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _metadata(context: Any) -> dict[str, str]:
    return {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}


@asynccontextmanager
async def _ended_when_revoked(principal: Principal) -> AsyncIterator[None]:
    """Ends the block with `NotAuthenticated` when who calls is revoked."""
    task = asyncio.current_task()
    assert task is not None
    end = task.cancel
    principal.once_revoked(end)
    try:
        yield
    except asyncio.CancelledError:
        if principal.is_revoked:
            raise NotAuthenticated("the credential of this call was revoked, or has expired") from None
        raise
    finally:
        principal.forget(end)


async def _abort(broker: Broker, context: Any, method: str, error: Exception) -> NoReturn:
    """End a call with the status of an error."""
    if isinstance(error, grpc.aio.AbortError | grpc.aio.UsageError):
        raise error  # the call is over already
    if not isinstance(error, PenstockError):
        logger.error("internal error in %s", method, exc_info=error)
        error = Internal(f"internal error in {method}")
    broker.count_rest(error)
    reply = to_reply(error)
    about = [("penstock-code", reply.code), ("penstock-hint", _ascii(reply.hint))]
    if reply.retry_after_seconds:
        about.append(("penstock-retry-after-ms", str(round(reply.retry_after_seconds * 1000))))
    if reply.address:
        about.append(("penstock-address", _ascii(reply.address)))
    status = grpc.StatusCode[grpc_status(reply.code)]
    await context.abort(status, reply.message, trailing_metadata=tuple(about))
    raise AssertionError("abort does not return")


def _ascii(text: str) -> str:
    """Metadata is printable ASCII: anything else in it, such as a name that somebody made up, would end the call."""
    return "".join(char if " " <= char <= "~" else " " if char == "\n" else "?" for char in text)


class GrpcServer:
    """A server that runs."""

    def __init__(self, server: Any, port: int, checks: Any) -> None:
        self.port = port
        self._server = server
        self._checks = checks
        self._closing: asyncio.Future[None] | None = None

    def stop_accepting(self) -> None:
        """Tell those who check that it ends. Calls are still answered: a broker that drains refuses most of them."""
        self._closing = asyncio.ensure_future(self._checks.enter_graceful_shutdown())

    async def close(self, grace: float = 0.0) -> None:
        """Take no more calls; those under way have `grace` seconds to end. Drain the broker first."""
        await self._checks.enter_graceful_shutdown()
        await self._server.stop(grace)


def credentials(tls: ServerTls) -> Any:
    """What the port proves itself with: the newest certificate at every handshake.

    gRPC can require certificates of clients or not ask for them: with `optional` it does not ask.
    """
    loaded = tls.loaded

    def configuration() -> Any:
        return grpc.ssl_server_certificate_configuration([(loaded.key, loaded.certificate)], loaded.client_ca)

    def fetch() -> Any:
        nonlocal loaded
        if loaded is tls.loaded:
            return None  # as before
        loaded = tls.loaded
        return configuration()

    is_required = loaded.client_ca is not None and tls.client == "required"
    return grpc.dynamic_ssl_server_credentials(configuration(), fetch, is_required)


async def start(
    broker: Broker, host: str, port: int, request_bytes_max: int, connections_max: int, tls: ServerTls | None = None
) -> GrpcServer:
    """See `start_grpc`."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", request_bytes_max),
            # gRPC reads a message whole before it hands it over, and has no budget for all of them together.
            ("grpc.max_concurrent_streams", limits.grpc_streams_max),
            ("grpc.max_allowed_incoming_connections", connections_max),
            ("grpc.max_send_message_length", -1),  # what is sent is bounded by what was asked for
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),  # a client that vanished without a word is found out
            ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 4),
            ("grpc.so_reuseport", 0),  # two brokers on one port would share its calls at random
            ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_SECONDS * 1000)),
        ],
        maximum_concurrent_rpcs=CALLS_MAX,
    )
    for name in SERVICES:
        handlers = Handlers(broker, name.rpartition(".")[2]).all()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    for name in ("", *SERVICES):
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    if not broker.logins.is_required:  # whoever is not let in shall not learn what is here
        reflection.enable_server_reflection(names, server)
    where = f"[{host}]" if ":" in host else host
    try:
        if tls is None:
            bound = server.add_insecure_port(f"{where}:{port}")
        else:
            bound = server.add_secure_port(f"{where}:{port}", credentials(tls))
    except RuntimeError as error:
        raise Unavailable(f"gRPC cannot listen on {where}:{port}: {error}", hint="choose another grpc_port") from None
    await server.start()
    return GrpcServer(server, bound, checks)
