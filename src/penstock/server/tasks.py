"""Tasks as HTTP, the JSON frames of TCP and gRPC handle them, where that is more than one operation.

Claiming is a lease over several queues. They are asked in their order; when none has anything, all of them are waited
for, and the first to have something wins. What another one had at the same moment is released. A message that is no
task is rejected: it would be delivered again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from msgspec import UNSET, Raw

from penstock import limits, validation
from penstock import operations as ops
from penstock.batch.layout import HEADERS, KEY, PRIORITY, TRACE
from penstock.broker.access import Client
from penstock.broker.broker import Broker
from penstock.broker.callbacks import awaited_answer_of, ignore, raised
from penstock.broker.reply_size import receipts_in, split
from penstock.envelopes import new_task_id, parse_envelope
from penstock.errors import (
    InputError,
    InvalidField,
    PenstockError,
    QueueNotFound,
    ResultLost,
    TaskCancelled,
    TaskDied,
    TaskUnfinished,
)
from penstock.model import DEFAULT_GROUP, Outcome, Receipt, check_name, owned, to_datetime
from penstock.model_tasks import Envelope, OperationView, Submitted, TaskFilter, TaskState, TaskSubmission, TaskView
from penstock.operations import Action
from penstock.replies import LeaseReply, Piece
from penstock.requests import RELEASE, LeaseRequest
from penstock.wire import json_tasks as json
from penstock.wire.json_protocols import CLAIMED_MAX, Claim, Claimed, ClaimedTask, Parent
from penstock.wire.json_shapes import milliseconds
from penstock.wire.json_shapes import seconds as seconds_of

QUIET_SECONDS: Final = 5.0  # that a claim waits of a worker that shall take no tasks
PURGE_SECONDS: Final = 10.0  # how long a purge is waited for


async def submit(broker: Broker, client: Client, body: Any, trace: str | None = None) -> Any:
    """Submit one task or many. `trace` is for those that bring none of their own."""
    if isinstance(body, json.NEW_TASKS):
        tasks = [
            json.submission_of(task, new_task_id(broker.clock.now()), f"tasks[{index}].", trace)
            for index, task in enumerate(body.tasks)
        ]
        return json.submitted_view(await broker.execute(client, ops.SubmitTasks(tasks)))
    task = json.submission_of(body, new_task_id(broker.clock.now()), "", trace)
    return json.submitted_view(await submit_one(broker, client, task))


async def submit_one(broker: Broker, client: Client, task: TaskSubmission) -> list[Submitted]:
    """A single task; errors do not call it the first of several."""
    try:
        return await broker.execute(client, ops.SubmitTasks([task]))
    except InputError as error:
        message = error.message.removeprefix("item 0: ").removeprefix("tasks[0].")
        single = type(error)(message, hint=error.hint)
        single.is_counted = error.is_counted
        raise single from None


async def task(broker: Broker, client: Client, task_id: str, wait_ms: float = 0.0) -> TaskView:
    """A task as it is, or once it is final when that comes within `wait_ms`."""
    if wait_ms:
        await broker.execute(client, ops.WaitTask(task_id, wait_ms / 1000))
    return await broker.execute(client, ops.FindTask(task_id))  # with its runs


async def purge(broker: Broker, client: Client, filter: TaskFilter) -> OperationView:
    """Begin to purge, and wait a while: most of it is over soon. Who began more asks for the operation later."""
    view = await broker.execute(client, ops.BeginOperation("purge", filter))
    left = PURGE_SECONDS
    for pause in validation.pauses():
        if view.is_over or left <= 0:
            break
        await asyncio.sleep(pause)
        left -= pause
        view = await broker.looked(ops.FindOperation(view.operation_id))
    return validation.succeeded(view)


def result(task: TaskView) -> Raw | bytes:
    """What a task came to, byte for byte: JSON, or bytes; an error when it has no result."""
    if task.result_error:
        raise ResultLost(f"task {task.task_id} is completed, but its result could not be stored: {task.result_error}")
    if task.state is TaskState.COMPLETED:
        returned = task.result_bytes
        return Raw(task.result or b"null") if returned is None else returned
    if task.state is TaskState.DEAD:
        raise TaskDied(f"task {task.task_id} died: {task.error}")
    if task.state is TaskState.CANCELLED:
        raise TaskCancelled(f"task {task.task_id} was cancelled: {task.error}".removesuffix(": "))
    raise TaskUnfinished(f"task {task.task_id} is {task.state}", hint="wait longer, with wait_ms")


async def finish(broker: Broker, client: Client, body: Any) -> tuple[json.FinishResults, PenstockError | None]:
    """The result of each finish, of one or of many; and the first error when none was accepted."""
    if isinstance(body, json.FINISHED_RUNS):
        runs = [json.finish_of(run, f"finishes[{index}].") for index, run in enumerate(body.finishes)]
        is_again = body.is_again
    else:
        runs, is_again = [json.finish_of(body)], False
    errors = await broker.execute(client, ops.FinishTasks(runs, is_again))
    view = json.finish_results([run.task_id for run in runs], errors)
    return view, errors[0] if all(errors) else None


ANSWER_BYTES: Final = limits.frame_bytes_max // 2


async def claim(broker: Broker, client: Client, request: Claim) -> Claimed:
    """Tasks for a worker, or none when the time is over."""
    worker_id = check_name(request.worker_id, "worker_id")
    if request.max > CLAIMED_MAX:
        raise InvalidField(f"max: {request.max:,} is over the limit of {CLAIMED_MAX:,}")
    queues = [check_name(queue, f"queues[{index}]") for index, queue in enumerate(dict.fromkeys(request.queues))]
    lease_seconds, types = seconds_of(request.lease_ms), request.task_types
    lease_request = validation.lease_request(request.max, lease_seconds, worker_id, None, False, types=types)
    if not queues:
        raise InvalidField("queues: not given", hint="name the queues to claim from")
    for queue in queues:  # all of them at first: what somebody may do does not depend on which has something
        raised(broker.refused(client, Action.CONSUME, queue))
    wait_seconds = validation.wait_seconds(request.wait_ms / 1000)
    if broker.session.tasks.registry.requested(owned(client.owner, worker_id)):
        await asyncio.sleep(min(wait_seconds, QUIET_SECONDS))  # it claims again at once, and shall not do so in a loop
        return Claimed([])
    reply = await _first(broker, client, queues, lease_request, wait_seconds)
    if reply is None:
        return Claimed([])
    reply, *rest = split(reply, ANSWER_BYTES)
    for part in rest:
        broker.settle_each(client, receipts_in(part), RELEASE, ignore)
    return Claimed([await _with_parents(broker, task) for task in _claimed_tasks(broker, client, reply)])


async def _first(
    broker: Broker, client: Client, queues: list[str], request: LeaseRequest, wait: float
) -> LeaseReply | None:
    there, missing = [], None
    for queue in queues:
        try:
            reply = await broker.leased(client, queue, DEFAULT_GROUP, request)
        except QueueNotFound as error:
            missing = error  # the first task will make it
            continue
        if reply.count:
            return reply
        there.append(queue)
    if missing is not None and not there:
        raise missing
    if not wait:
        return None
    waiting = {asyncio.ensure_future(broker.leased(client, queue, DEFAULT_GROUP, request, wait)) for queue in there}
    try:
        return await _won(broker, client, waiting)
    finally:
        for lease in waiting:
            lease.cancel()


async def _won(broker: Broker, client: Client, waiting: set[asyncio.Task[LeaseReply]]) -> LeaseReply | None:
    """The first lease that holds something; None when all of them end without."""
    left = waiting
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        answers = [await awaited_answer_of(lease) for lease in done]
        first, *rest = [reply for reply in answers if not isinstance(reply, PenstockError) and reply.count] or [None]
        for reply in rest:
            broker.settle_each(client, receipts_in(reply), RELEASE, ignore)
        if isinstance(first, LeaseReply):
            return first
        for error in answers:
            raised(error)
    return None


def _claimed_tasks(broker: Broker, client: Client, reply: LeaseReply) -> Iterator[tuple[ClaimedTask, Envelope]]:
    for piece in reply.pieces:
        for index, payload in enumerate(piece.payloads()):
            receipt = Receipt(
                reply.queue, piece.partition(index), piece.offsets[index], piece.attempt(index), reply.nonce
            )
            try:
                envelope = parse_envelope(payload)
            except InvalidField as error:
                how = validation.settling(Outcome.REJECTED, error=error.message)
                broker.settle_each(client, (receipt,), how, ignore)
            else:
                yield _claimed_task(reply, piece, index, envelope, receipt), envelope


def _claimed_task(reply: LeaseReply, piece: Piece, index: int, envelope: Envelope, receipt: Receipt) -> ClaimedTask:
    batch, row = piece.batch, piece.row(index)
    return ClaimedTask(
        task_id=envelope.task_id,
        task_type=envelope.task_type,
        queue=reply.queue,
        args=Raw(bytes(envelope.args)),
        kwargs=Raw(bytes(envelope.kwargs)),
        payload_base64=UNSET if envelope.payload is None else envelope.payload,
        attempt=receipt.attempt,
        priority=int(batch.priority[row]) if batch.flags & PRIORITY else limits.priority_default,
        key=batch.key(row) if batch.flags & KEY else None,
        headers=(batch.headers(row) or {}) if batch.flags & HEADERS else {},
        timeout_ms=milliseconds(envelope.timeout_seconds),
        takes=envelope.takes,
        depends_on=envelope.depends_on,
        workflow=envelope.workflow,
        schedule=envelope.schedule,
        scheduled_at=envelope.scheduled_at,
        trace=batch.trace(row) if batch.flags & TRACE else None,
        submitted_at=to_datetime(int(piece.pushed(index))),
        receipt=str(receipt),
        expires_at=to_datetime(reply.expires_at),
    )


async def _with_parents(broker: Broker, claimed: tuple[ClaimedTask, Envelope]) -> ClaimedTask:
    """The results that the task takes, so that its worker need not ask. Who submitted it was allowed to read them."""
    task, envelope = claimed
    if envelope.takes != "none":
        task.parents = [await _parent(broker, parent) for parent in envelope.depends_on]
    return task


async def _parent(broker: Broker, task_id: str) -> Parent:
    parent = await asyncio.to_thread(broker.session.tasks.task, task_id)
    if parent.result is None or parent.result_error:
        return Parent(task_id, parent.state)
    returned = parent.result_bytes
    if returned is not None:
        return Parent(task_id, parent.state, result_base64=returned)
    return Parent(task_id, parent.state, Raw(parent.result))


async def hold(broker: Broker, client: Client, receipt: str, lease_ms: float) -> Any:
    """Until when a receipt's lease is held now, or the error."""
    try:
        seconds = validation.extension(lease_ms / 1000)
        return to_datetime(await broker.extended(client, Receipt.parse(receipt).nonce, seconds))
    except PenstockError as error:
        return error
