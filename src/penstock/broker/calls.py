"""Every operation but pushing, leasing and settling: who may, on which queue, and what it does to the session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from penstock import validation
from penstock.batch import Batch
from penstock.broker.access import Action
from penstock.broker.fitting import fitting
from penstock.embedded import Session
from penstock.errors import BadReceipt, InvalidField
from penstock.model import Message, MessageId, Outcome, Receipt, check_name
from penstock.requests import Operation, PushOperation, SettleOperation, SinkCommit
from penstock.wire import calls

SETTLING: Final = (Outcome.ACKED, Outcome.RETRIED, Outcome.REJECTED, Outcome.RELEASED, Outcome.SNOOZED)


class Handler(NamedTuple):
    """An operation. `run` is called in a thread; `answers` says whether it gives (result, ticket) or only a ticket."""

    action: Action
    queue: Callable[[Any], str]  # which queue it is about
    run: Callable[[Session, Any], Any]
    answers: bool


def _done(action: Action, queue: str, run: Callable[[Session, Any], Any]) -> Handler:
    return Handler(action, lambda given: getattr(given, queue) if queue else "", run, False)


def _told(action: Action, queue: str, run: Callable[[Session, Any], Any]) -> Handler:
    return Handler(action, lambda given: getattr(given, queue) if queue else "", run, True)


def _read(session: Session, given: calls.Read) -> Any:
    return _fitting(
        session.read(
            given.queue,
            validation.partition(given.partition),
            validation.offset(given.offset),
            validation.timestamp_micros(given.timestamp),
            validation.read_limit(given.limit),
        )
    )


def _fitting(answer: tuple[list[Message], int]) -> Any:
    messages, ticket = answer
    return fitting(messages), ticket


def _peek(session: Session, given: calls.Peek) -> Any:
    return _fitting(session.peek(given.queue, validation.read_limit(given.limit)))


def _delayed(session: Session, given: calls.Delayed) -> Any:
    return _fitting(session.delayed(given.queue, validation.read_limit(given.limit)))


def _dead_letters(session: Session, given: calls.DeadLetters) -> Any:
    validation.redrive_limit(given.filter.limit)
    return _fitting(session.dead_letters(given.queue, given.filter))


def _redrive(session: Session, given: calls.Redrive) -> Any:
    validation.redrive_limit(given.filter.limit)
    return session.redrive(given.queue, given.filter, validation.per_second(given.rate))


def settling(outcome: int, delay: float | None, error: str) -> Any:
    """How a delivery is to end, as a client may ask for it."""
    if outcome not in SETTLING:
        names = ", ".join(f"{each.value} {each.name.lower()}" for each in SETTLING)
        raise InvalidField(f"outcome: {outcome} is not a way to settle", hint=f"one of {names}")
    return validation.settling(Outcome(outcome), delay, error)


def operations(steps: list[calls.PushStep | calls.SettleStep]) -> list[Operation]:
    """The steps of a transaction, checked."""
    found: list[Operation] = []
    for step in steps:
        if isinstance(step, calls.PushStep):
            batch = Batch.parse(step.batch, validate=True)
            found.append(PushOperation(check_name(step.queue), batch, step.partition))
        else:
            how = settling(step.outcome, step.delay_seconds, step.error)
            found.append(SettleOperation(Receipt.parse(step.receipt), how))
    return found


def queues_of(given: calls.Transact) -> list[tuple[Action, str]]:
    """What a transaction wants to do where."""
    wanted: dict[tuple[Action, str], None] = {}
    for step in given.operations:
        if isinstance(step, calls.PushStep):
            wanted[Action.PUSH, step.queue] = None
        else:
            wanted[Action.SETTLE, queue_of_receipt(step.receipt)] = None
    return list(wanted)


def queue_of_receipt(receipt: str) -> str:
    """The queue that a receipt's text names."""
    queue, colon, _ = receipt.partition(":")
    if not colon:
        raise BadReceipt(f"{receipt!r} is not a receipt")
    return queue


def _id_queue(given: calls.Cancel | calls.Why) -> str:
    return MessageId.parse(given.id).queue


def _filter_queue(given: calls.ListTasks | calls.BeginOperation) -> str:
    return given.filter.queue or ""


def _pin(session: Session, given: calls.Pin) -> int:
    session.files.pin(given.name, given.files)
    return 0


def _unpin(session: Session, given: calls.Unpin) -> int:
    session.files.unpin(given.name)
    return 0


def sink_commit(given: calls.CommitSink) -> SinkCommit:
    """A batch of a sink, as the session takes it."""
    return SinkCommit(
        given.queue, given.sink, given.batch, tuple(given.staged), given.origin, given.is_reset, given.is_once
    )


ADMIN, READ, LEASE, MONITOR, PUSH = Action.ADMIN, Action.READ, Action.LEASE, Action.MONITOR, Action.PUSH

HANDLERS: Final[Mapping[str, Handler]] = {
    "queues": _told(MONITOR, "", lambda session, given: session.queues()),
    "create_queue": _done(
        ADMIN, "name", lambda session, given: session.create_queue(given.name, given.options, exist_ok=given.exist_ok)
    ),
    "update_queue": _done(ADMIN, "name", lambda session, given: session.update_queue(given.name, given.changes)),
    "delete_queue": _done(ADMIN, "name", lambda session, given: session.delete_queue(given.name)),
    "options": _told(MONITOR, "name", lambda session, given: session.options(given.name)),
    "stats": _told(MONITOR, "queue", lambda session, given: session.stats(given.queue)),
    "pause": _done(ADMIN, "name", lambda session, given: session.pause(given.name, given.paused)),
    "purge": _done(ADMIN, "name", lambda session, given: session.purge(given.name)),
    "read": _told(READ, "queue", _read),
    "peek": _told(READ, "queue", _peek),
    "delayed": _told(READ, "queue", _delayed),
    "cancel": Handler(ADMIN, _id_queue, lambda session, given: session.cancel(MessageId.parse(given.id)), False),
    "why": Handler(READ, _id_queue, lambda session, given: session.why(MessageId.parse(given.id)), True),
    "create_group": _done(
        ADMIN,
        "queue",
        lambda session, given: session.create_group(
            given.queue, check_name(given.group, "group"), given.start, observes=given.observes
        ),
    ),
    "delete_group": _done(ADMIN, "queue", lambda session, given: session.delete_group(given.queue, given.group)),
    "seek": _done(
        ADMIN, "queue", lambda session, given: session.seek(given.queue, given.group, given.to, given.partition)
    ),
    "groups": _told(MONITOR, "queue", lambda session, given: session.groups(given.queue)),
    "join": _told(
        LEASE,
        "queue",
        lambda session, given: session.join(given.queue, given.group, given.member, given.session_seconds, given.start),
    ),
    "heartbeat": _told(
        LEASE,
        "queue",
        lambda session, given: session.heartbeat(given.queue, given.group, given.member, given.generation, given.held),
    ),
    "leave": _done(
        LEASE, "queue", lambda session, given: session.leave(given.queue, given.group, given.member, given.generation)
    ),
    "members": _told(MONITOR, "queue", lambda session, given: session.members(given.queue, given.group)),
    "dead_letters": _told(READ, "queue", _dead_letters),
    "redrive": _told(ADMIN, "queue", _redrive),
    "replace_letters": _done(
        ADMIN,
        "queue",
        lambda session, given: session.replace_letters(
            given.queue, [MessageId.parse(id) for id in given.ids], Batch.parse(given.batch, validate=True)
        ),
    ),
    "purge_dead_letters": _done(ADMIN, "queue", lambda session, given: session.purge_dead_letters(given.queue)),
    "seal": _told(ADMIN, "", lambda session, given: (session.seal(), 0)),
    "compact": _told(ADMIN, "", lambda session, given: (session.compact(), 0)),
    "init_producer": _told(PUSH, "", lambda session, given: session.init_producer(check_name(given.name, "producer"))),
    "history": _told(READ, "", lambda session, given: (session.files.history(), 0)),
    "list_files": _told(READ, "", lambda session, given: (session.files.list(given.directory), 0)),
    "fetch": _told(READ, "", lambda session, given: (session.files.fetch(given.name, given.position, given.length), 0)),
    "pin": _done(READ, "", _pin),
    "unpin": _done(READ, "", _unpin),
    "stage": _done(
        PUSH, "queue", lambda session, given: session.stage(given.queue, given.name, given.position, given.data)
    ),
    "discard_staged": _done(PUSH, "queue", lambda session, given: session.discard_staged(given.queue, given.names)),
    "sink_state": _told(PUSH, "queue", lambda session, given: session.sink_state(given.queue, given.sink)),
    # What is not here of tasks is in tasks.py.
    "tasks": Handler(READ, _filter_queue, lambda session, given: session.tasks(given.filter), True),
    "begin_operation": Handler(
        ADMIN,
        _filter_queue,
        lambda session, given: session.begin_operation(given.action, given.filter, given.operation_id),
        True,
    ),
    "operation": _told(MONITOR, "", lambda session, given: session.operation(given.operation_id)),
    "operations": _told(MONITOR, "", lambda session, given: session.operations()),
    "stop_operation": _told(ADMIN, "", lambda session, given: session.stop_operation(given.operation_id)),
    "forget_worker": _done(LEASE, "", lambda session, given: session.forget_worker(given.worker_id)),
    "workers": _told(MONITOR, "", lambda session, given: session.workers()),
    "set_schedule": Handler(
        ADMIN, lambda given: given.spec.queue, lambda session, given: session.set_schedule(given.spec), True
    ),
    "delete_schedule": _done(ADMIN, "", lambda session, given: session.delete_schedule(given.name)),
    "schedules": _told(MONITOR, "", lambda session, given: session.schedules()),
}
