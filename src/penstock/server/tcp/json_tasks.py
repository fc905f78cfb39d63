"""The JSON protocol of tasks on one TCP connection: types 1 to 9, without a correlation.

Requests are executed one after the other and answered in their order, with ACK or NACK. What waits is bounded as all
requests of a connection are; while the client does not read its replies, no more are made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from penstock import operations as ops
from penstock.broker.access import Client
from penstock.broker.broker import Broker
from penstock.broker.callbacks import awaited_answer_of
from penstock.errors import BadRequest, PenstockError
from penstock.server import tasks
from penstock.wire import json_protocols
from penstock.wire import json_tasks as json
from penstock.wire.frames import JsonType
from penstock.wire.json_messages import encode, error_body, error_fields
from penstock.wire.json_models import ErrorFields
from penstock.wire.json_reader import LARGE_BYTES
from penstock.wire.json_shapes import milliseconds

T_co = TypeVar("T_co", covariant=True)


class Readable(Protocol[T_co]):
    """What decodes a body."""

    def read(self, body: bytes) -> T_co:
        """The value, or an `InputError`."""
        ...


SendReply = Callable[[int, bytes, int], None]  # (type, body, bytes of the request)
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class JsonTaskProtocol:
    """Requests of a connection, answered in order. `reply` sends; `spawn` runs a coroutine for the connection."""

    def __init__(self, broker: Broker, client: Client, reply: SendReply, spawn: Spawn) -> None:
        self._broker = broker
        self._client = client
        self._reply = reply
        self._spawn = spawn
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()

    def take(self, kind: int, body: bytes) -> None:
        """A request."""
        if kind not in _HANDLERS:
            raise BadRequest(f"type {kind} is no request", hint="see docs/formats/tcp.md; tasks have types 1 to 9")
        self._waiting.append((kind, body))
        if self._running is None:
            self._running = self._spawn(self._run())

    def pause(self) -> None:
        """The client does not read."""
        self._has_room.clear()

    def resume(self) -> None:
        """It does again."""
        self._has_room.set()

    def close(self) -> None:
        """The client has gone."""
        self._waiting.clear()
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._has_room.wait()
                kind, body = self._waiting.popleft()
                reply = await awaited_answer_of(_HANDLERS[kind](self._broker, self._client, body))
                if isinstance(reply, PenstockError):
                    self._broker.count_rest(reply)
                    self._reply(JsonType.NACK, error_body(reply), len(body))
                else:
                    self._reply(reply[0], reply[1], len(body))
        finally:
            self._running = None


Reply = tuple[int, bytes]  # its type and its body


def _ack(view: Any) -> Reply:
    return JsonType.ACK, encode(view)


async def _read(reader: Readable[T_co], body: bytes) -> T_co:
    """The value of a body. A large one takes long to read, and the loop has others to serve."""
    return await asyncio.to_thread(reader.read, body) if len(body) > LARGE_BYTES else reader.read(body)


async def _submit(broker: Broker, client: Client, body: bytes) -> Reply:
    return _ack(await tasks.submit(broker, client, await _read(json.submission, body)))


async def _claim(broker: Broker, client: Client, body: bytes) -> Reply:
    return _ack(await tasks.claim(broker, client, await _read(json_protocols.claim, body)))


async def _result(broker: Broker, client: Client, body: bytes) -> Reply:
    view, error = await tasks.finish(broker, client, await _read(json.finished, body))
    if error is None:
        return _ack(view)
    return JsonType.NACK, error_body(error)[:-1] + b"," + encode(view)[1:]


async def _heartbeat(broker: Broker, client: Client, body: bytes) -> Reply:
    heartbeat = await _read(json_protocols.heartbeat, body)
    held = [
        _held(receipt, await tasks.hold(broker, client, receipt, heartbeat.lease_ms)) for receipt in heartbeat.receipts
    ]
    noted = [await awaited_answer_of(_progress(broker, client, progress)) for progress in heartbeat.progress]
    results = json.finish_results([progress.task_id for progress in heartbeat.progress], noted).results
    if heartbeat.is_leaving:
        await broker.execute(client, ops.ForgetWorker(heartbeat.worker_id))
        return _ack(json_protocols.HeartbeatAnswer([], held, results))
    news = await broker.execute(client, ops.HeartbeatWorker(json_protocols.HEARTBEAT.read(heartbeat)))
    grace = milliseconds(news.grace_seconds)
    return _ack(json_protocols.HeartbeatAnswer(list(news.cancelled), held, results, news.requested, grace))


async def _progress(broker: Broker, client: Client, progress: Any) -> None:
    await broker.execute(client, json_protocols.PROGRESS.read({}, progress))


def _held(receipt: str, answer: Any) -> json_protocols.Held:
    if isinstance(answer, PenstockError):
        return json_protocols.Held(receipt, "error", error=ErrorFields(**error_fields(answer)))
    return json_protocols.Held(receipt, "ok", answer)


async def _query(broker: Broker, client: Client, body: bytes) -> Reply:
    query = await _read(json_protocols.query, body)
    return _ack(json.task_view(await tasks.task(broker, client, query.task_id, query.wait_ms)))


async def _cancel(broker: Broker, client: Client, body: bytes) -> Reply:
    task_id = (await _read(json_protocols.cancel, body)).task_id
    return _ack(json.task_view(await broker.execute(client, ops.CancelTask(task_id))))


async def _list(broker: Broker, client: Client, body: bytes) -> Reply:
    search = json.TASK_SEARCH.read(await _read(json_protocols.search, body or b"{}"))
    return _ack(json.tasks_view(await broker.execute(client, ops.ListTasks(search))))


_HANDLERS: Final[dict[int, Callable[[Broker, Client, bytes], Awaitable[Reply]]]] = {
    JsonType.SUBMIT_TASK: _submit,
    JsonType.CLAIM_TASK: _claim,
    JsonType.TASK_RESULT: _result,
    JsonType.HEARTBEAT: _heartbeat,
    JsonType.QUERY_STATUS: _query,
    JsonType.CANCEL_TASK: _cancel,
    JsonType.LIST_TASKS: _list,
}
