"""Operations as they are journaled: beginning one, looking at it, stopping and continuing it.

The filter of an operation is frozen: it means what matched at `as_of`, and never what came later.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from penstock import limits
from penstock.delivery.entries import Entry, OperationSet
from penstock.errors import InvalidField, OperationNotFound, PenstockError, QueueFull, TaskConflict
from penstock.model import DLQ_SUFFIX, to_datetime, to_micros
from penstock.model_letters import LetterFilter, MessageFilter
from penstock.model_tasks import (
    TASK_ACTIONS,
    BulkOptions,
    ItemError,
    OperationAction,
    OperationState,
    OperationView,
    TaskFilter,
)

if TYPE_CHECKING:
    from penstock.delivery.core import DeliveryState
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard

STATES: Final[dict[int, OperationState]] = {
    OperationSet.RUNNING: OperationState.RUNNING,
    OperationSet.WAITING: OperationState.WAITING,
    OperationSet.DONE: OperationState.DONE,
    OperationSet.STOPPED: OperationState.STOPPED,
    OperationSet.FAILED: OperationState.FAILED,
}
OPEN: Final = (OperationSet.RUNNING, OperationSet.WAITING)
ERRORS_KEPT: Final = 10
SAMPLES: Final = 10  # ids that a dry run returns
BYTES_MAX: Final = 4_194_304  # of payloads that are pushed in one step
SLICES_MAX: Final = 10  # that are looked at in one step when nothing in them matches
NOT_CONTINUED: Final = f"not continued within {limits.operation_waiting_seconds_max / 3600:.0f} hours of its canary"
MESSAGE_CHARS_MAX: Final = 300
_decode: Final = msgspec.json.Decoder(TaskFilter).decode


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operation on dead letters or messages does: stored in place of a filter of tasks."""

    queue: str
    letters: LetterFilter | None = None
    messages: MessageFilter | None = None
    target: str = ""
    edit: str = ""  # a JSON merge patch for payloads


_decode_plan: Final = msgspec.json.Decoder(Plan).decode


class Counted(NamedTuple):
    """What a dry run found."""

    matched: int
    samples: tuple[str, ...]
    is_exact: bool = True


class Stepped(NamedTuple):
    """What a step of an operation came to."""

    items: int  # that were dealt with
    is_over: bool  # nothing is left


class Work(Protocol):
    """How operations of a kind are worked on. A step is one frame that also says how far the operation is."""

    def count(self, operation: OperationSet, until: int | None = None) -> Counted:
        """How many match; not later than at a monotonic instant, if that is given."""

    def step(self, operation: OperationSet, room: int) -> Stepped:
        """Deal with up to `room` of the next ones."""


def is_of_tasks(operation: OperationSet) -> bool:
    """Whether it is about tasks."""
    return operation.action in TASK_ACTIONS


def task_filter_of(operation: OperationSet) -> TaskFilter:
    """The filter of an operation on tasks, as it was given."""
    return _decode(operation.filter)


def plan_of(operation: OperationSet) -> Plan:
    """What an operation on dead letters or messages does."""
    return _decode_plan(operation.filter)


def frozen_at(operation: OperationSet) -> int:
    """The moment at which its filter is meant."""
    return operation.as_of or operation.started_at


def frozen_until(operation: OperationSet, until: datetime | None, field: str) -> datetime | None:
    """The end of a filter by time: the moment at which the filter is meant, if the operation has one of its own.

    Without, it ends where its queue ended when it began.
    """
    if not operation.as_of:
        return until
    frozen = operation.as_of + 1
    return to_datetime(frozen if until is None else min(frozen, to_micros(until, field)))


def queue_of(operation: OperationSet) -> str:
    """The queue that it is confined to, "" for all of them."""
    return (task_filter_of(operation).queue or "") if is_of_tasks(operation) else plan_of(operation).queue


def view_of(operation: OperationSet, waits_for: str = "", counted: Counted | None = None) -> OperationView:
    """An operation as it is shown."""
    is_over = operation.state not in OPEN
    about: dict[str, Any] = {"filter": task_filter_of(operation)} if is_of_tasks(operation) else {}
    if not about:
        plan = plan_of(operation)
        about = {"letters": plan.letters, "messages": plan.messages, "target": plan.target or None}
    if counted is not None:
        about |= {"samples": counted.samples, "is_exact": counted.is_exact}
    return OperationView(
        operation_id=operation.operation_id,
        action=OperationAction(operation.action),
        state=OperationState.COUNTED if counted is not None else STATES[operation.state],
        queue=queue_of(operation) or None,
        who=operation.who,
        started_at=to_datetime(operation.started_at),
        updated_at=to_datetime(operation.at),
        ended_at=to_datetime(operation.at) if is_over else None,
        as_of=to_datetime(frozen_at(operation)),
        matched=operation.matched if counted is None else counted.matched,
        done=done_of(operation),
        failed=operation.failed,
        cancelled=operation.cancelled,
        purged=operation.purged,
        rate=operation.rate or None,
        canary=operation.canary or None,
        errors=tuple(ItemError(*error) for error in operation.errors),
        error=operation.error or waits_for,
        expires_at=to_datetime(expires_at(operation)) if operation.state == OperationSet.WAITING else None,
        **about,
    )


def done_of(operation: OperationSet) -> int:
    """How many items are dealt with."""
    if operation.action == OperationAction.PURGE:
        return operation.purged
    return operation.cancelled if operation.action == OperationAction.CANCEL else operation.done


# beginning


def draft(
    action: OperationAction, filter: bytes, options: BulkOptions, who: str, now: int, name: str, queue: int
) -> OperationSet:
    """A new operation. `queue` is the number of the queue that it is confined to, 0 for none."""
    as_of = 0 if options.as_of is None else to_micros(options.as_of, "as_of")
    if as_of > now:
        raise InvalidField("as_of: in the future", hint="pass the as_of of a dry run, or omit it")
    return OperationSet(
        name,
        action.value,
        filter,
        OperationSet.RUNNING,
        now,
        now,
        queue=queue,
        who=who,
        as_of=as_of,
        rate=options.rate or 0.0,
        canary=options.canary or 0,
    )


def begin(shard: Shard, operation_id: str, make: Callable[[int, str], OperationSet]) -> tuple[str, Ticket]:
    """Note what is to be done; whoever works on operations does it. Begun again with the same id, it is the same."""
    name = operation_id or f"{shard.rng.getrandbits(48):012x}"

    def decide(now: int) -> list[Entry]:
        made = make(now, name)  # checked also when it is known: what is wrong is refused each time
        known = shard.core.tasks.operations.known.get(name)
        if known is not None:
            if known.action != made.action:
                raise TaskConflict(
                    f"operation {name} is a {known.action}, not a {made.action}", hint="choose another id"
                )
            return []
        _check_room(shard, made)
        return [made]

    return name, shard.change(decide)


def _check_room(shard: Shard, operation: OperationSet) -> None:
    """Those that wait after their canaries leave the room of running ones to others."""
    states = [known.state for known in shard.core.tasks.operations.known.values()]
    if states.count(OperationSet.RUNNING) >= limits.operations_running_max:
        hint = "wait until one is done, or stop one: 'penstock operations list'"
        raise QueueFull(f"{limits.operations_running_max} operations are already running", hint=hint)
    if operation.canary and states.count(OperationSet.WAITING) >= limits.operations_waiting_max:
        hint = "continue or stop some of them: 'penstock operations list'"
        raise QueueFull(f"{limits.operations_waiting_max} operations already wait after their canaries", hint=hint)


# looking, stopping, continuing


def operation_named(shard: Shard, operation_id: str) -> OperationSet:
    """An operation by its id. The lock is held."""
    operation = shard.core.tasks.operations.known.get(operation_id)
    if operation is None:
        raise OperationNotFound(f"there is no operation {operation_id!r}")
    return operation


def all_operations(shard: Shard) -> tuple[list[OperationSet], Ticket]:
    """Those that run and those that did lately, the newest first."""
    return shard.look(lambda now: list(reversed(shard.core.tasks.operations.known.values())))


def queue_of_operation(shard: Shard, operation_id: str) -> str | None:
    """The queue that an operation is confined to, empty when it is about all of them; None when there is none."""

    def question(now: int) -> str | None:
        known = shard.core.tasks.operations.known.get(operation_id)
        return None if known is None else queue_of(known)

    return shard.look(question)[0]


def stop(shard: Shard, operation_id: str, note: Callable[[OperationSet], None]) -> Ticket:
    """No step more; what was done stays done. One that is over stays as it is. `note` sees how far it was."""

    def decide(now: int) -> list[Entry]:
        known = operation_named(shard, operation_id)
        if known.state == OperationSet.STOPPED:
            return []
        if known.state not in OPEN:
            raise TaskConflict(f"operation {operation_id} is {STATES[known.state]} and cannot be stopped")
        note(known)
        return [msgspec.structs.replace(known, state=OperationSet.STOPPED, at=now)]

    return shard.change(decide)


def go_on(shard: Shard, operation_id: str) -> Ticket:
    """The canary was fine: deal with the rest."""

    def decide(now: int) -> list[Entry]:
        known = operation_named(shard, operation_id)
        if known.state == OperationSet.RUNNING and known.has_continued:
            return []  # asked twice
        if known.state != OperationSet.WAITING:
            raise TaskConflict(f"operation {operation_id} is {STATES[known.state]} and is not waiting to be continued")
        return [msgspec.structs.replace(known, state=OperationSet.RUNNING, has_continued=True, at=now)]

    return shard.change(decide)


# what a change of a queue does to its operations


def decide_end_deleted(core: DeliveryState, queue: str, now: int) -> list[OperationSet]:
    """Operations that end with a queue, theirs or the one that copies go to. Tasks of a deleted one can be purged."""
    gone = (queue, queue + DLQ_SUFFIX)
    ended: list[OperationSet] = []
    for operation in core.tasks.operations.known.values():
        if operation.state in OPEN and (name := _lost(operation, gone)):
            error = f"queue {name!r} was deleted"
            ended.append(msgspec.structs.replace(operation, state=OperationSet.FAILED, at=now, error=error))
    return ended


def _lost(operation: OperationSet, gone: tuple[str, str]) -> str:
    """Which of the queues that are deleted an operation needs; "" for none."""
    if is_of_tasks(operation):
        needs: tuple[str, ...] = () if operation.action == OperationAction.PURGE else (queue_of(operation),)
    else:
        plan = plan_of(operation)
        needs = (plan.queue, plan.target) if plan.letters is None else (plan.queue, plan.queue + DLQ_SUFFIX)
    return next((name for name in needs if name in gone), "")


def decide_encrypt_operations(core: DeliveryState, queue: int) -> list[OperationSet]:
    """The operations of a queue that is encrypted from now on, written again: encrypted."""
    return [operation for operation in core.tasks.operations.known.values() if operation.queue == queue]


# progress


def running(shard: Shard) -> list[OperationSet]:
    """Operations that are to be worked on."""
    with shard.locked():
        return shard.core.tasks.operations.running()


def waiting(shard: Shard) -> list[OperationSet]:
    """Operations that wait to be continued."""
    with shard.locked():
        return shard.core.tasks.operations.waiting()


def expires_at(operation: OperationSet) -> int:
    """When an operation is stopped that waits since its last step."""
    return operation.at + round(limits.operation_waiting_seconds_max * 1_000_000)


def expire(shard: Shard, operation_id: str) -> Ticket:
    """Stop an operation that nobody has continued in time."""

    def decide(now: int) -> list[Entry]:
        known = shard.core.tasks.operations.known.get(operation_id)
        if known is None or known.state != OperationSet.WAITING or expires_at(known) > now:
            return []  # somebody was quicker
        return [msgspec.structs.replace(known, state=OperationSet.STOPPED, at=now, error=NOT_CONTINUED)]

    return shard.change(decide)


def running_named(shard: Shard, operation_id: str) -> OperationSet | None:
    """An operation by its id, if it is running. The lock is held."""
    known = shard.core.tasks.operations.known.get(operation_id)
    return known if known is not None and known.state == OperationSet.RUNNING else None


def advance(shard: Shard, operation_id: str, **changes: object) -> None:
    """Note that an operation is further, or over, if it is still running."""

    def decide(now: int) -> list[Entry]:
        known = running_named(shard, operation_id)
        return [] if known is None else [msgspec.structs.replace(known, at=now, **changes)]

    shard.change(decide)


def progressed(
    operation: OperationSet, now: int, done: int, failures: list[tuple[str, PenstockError]], cursor: tuple[int, int]
) -> OperationSet:
    """An operation after a step: what it did, and how far it is."""
    errors = [*operation.errors, *(error_row(id, error) for id, error in failures)]
    return msgspec.structs.replace(
        operation,
        at=now,
        cursor=cursor,
        done=operation.done + done,
        failed=operation.failed + len(failures),
        errors=tuple(errors[-ERRORS_KEPT:]),
    )


def error_row(id: str, error: PenstockError) -> tuple[str, str, str]:
    """An error as it is journaled."""
    return id, error.code, error.message[:MESSAGE_CHARS_MAX]
