"""What somebody must be allowed to do, beyond the queue that a request names, and what they see of a reply.

- An operation says itself what it needs (`Operation.needs`). Operations on something that has an id need their action
  on the queue that it is in, which is looked up here. Who lacks it gets one and the same error whether the thing exists
  or not, and does not learn which queue it is in.
- Lists show what may be seen. Who may see everything pays nothing for that.
- Queues with masked fields are shown masked to who may read but not unmask them. A search in such fields would answer
  questions about them: it is refused, or it finds nothing there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock import operations as ops
from penstock.access.grants import BROKER, Principal, hidden
from penstock.access.masking import EVERYTHING, MASK, Mask, mask_of, masked_operation
from penstock.broker.access import Client
from penstock.broker.callbacks import raised
from penstock.errors import NotAuthorised
from penstock.model import DLQ_SUFFIX, Message, Reason
from penstock.model_backlog import QueueWait
from penstock.model_letters import LetterFilter, MessageFilter, SignatureReport
from penstock.model_metrics import HistorySeries
from penstock.model_tasks import (
    OperationView,
    ScheduleTicks,
    ScheduleView,
    TaskFilter,
    TaskPage,
    TaskSubmission,
    TaskView,
    WorkflowView,
)
from penstock.operations import Action
from penstock.replies import (
    ClusterView,
    MessageDetails,
    MessageEvent,
    MessagePage,
    MessageSearch,
    ServerInfo,
    TraceView,
)
from penstock.shard.bulk.book import queue_of_operation
from penstock.shard.tasks.schedules import queue_of_schedule

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.shard.shard import Shard

# What replies say about messages of one queue, and how it is masked.
OF_MESSAGES: Final[dict[type, Callable[[Mask, Any], Any]]] = {
    Message: Mask.message,
    Reason: Mask.reason,
    MessageEvent: Mask.event,
    MessageDetails: Mask.details,
    MessageSearch: Mask.search,
    MessagePage: Mask.page,
}
MAY_BE_MASKED: Final = (
    *(SignatureReport, TaskView, TaskPage, WorkflowView, ScheduleView, TraceView),
    *(MessageDetails, MessageSearch, MessagePage, list),
)
LOOKS: Final = (Action.READ, Action.MONITOR, Action.EXPORT)  # what a broker that drains still answers


class Authorisation:
    """Checks requests of one broker, and narrows its replies."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shard = broker.shard

    # requests

    def require(self, client: Client, operation: ops.Operation[Any]) -> None:
        """Raise unless the client may do this, and the broker takes it now."""
        broker, action = self._broker, operation.spec.action
        even_draining = action in LOOKS
        for needed, queue in operation.needs():
            raised(broker.refused(client, needed, queue, even_draining=even_draining))
        if broker.elsewhere is not None:
            raise broker.elsewhere(client)
        if not even_draining:
            raised(broker.draining())
        look_up = LOOKED_UP.get(type(operation))
        if look_up is not None:
            seen = look_up(self._shard, operation)
            self._require_seen(client, action, *seen)
            if isinstance(operation, ops.RunSchedule):
                self._require_seen(client, Action.PUSH, *seen)
        if isinstance(operation, ops.QuietWorker | ops.ResumeWorker | ops.StopWorker):
            self._require_worker(client, operation)
        self._require_unmasked(client, operation)

    def _require_seen(self, client: Client, action: Action, what: str, queue: str | None) -> None:
        """Raise the same error for what is out of sight and for what does not exist."""
        if what:
            self.require_hidden(client, action, what, BROKER if queue is None else queue)

    def _require_worker(self, client: Client, operation: ops.QuietWorker | ops.ResumeWorker | ops.StopWorker) -> None:
        """Raise unless the client may manage all queues of the workers that are meant."""
        named = self._broker.session.tasks.registry.named(operation.worker_id, operation.owner)
        for queue in {queue for worker in named for queue in worker.info.queues or (BROKER,)} or {BROKER}:
            self.require_hidden(client, Action.MANAGE, f"worker {operation.worker_id}", queue)

    def require_hidden(self, client: Client, action: Action, what: str, queue: str) -> None:
        """Raise unless the client may do this with something in a queue; the error does not say in which."""
        try:
            self._broker.require(client, action, queue)
        except NotAuthorised:
            raise self._broker.count("", hidden(client.principal, action, what)) from None

    def require_parents(self, client: Client, tasks: Iterable[TaskSubmission]) -> None:
        """Raise unless the client may read the tasks that its tasks wait for: they may take their results."""
        submissions = list(tasks)
        parents = {parent for task in submissions for parent in task.depends_on}
        parents.difference_update(task.task_id for task in submissions)
        principal = client.principal
        if not parents or (principal.may_everywhere(Action.READ) and principal.may_everywhere(Action.UNMASK)):
            return
        known = self._broker.session.tasks.queues_of(parents)
        for parent in sorted(parents):
            queue = known.get(parent, BROKER)
            self.require_hidden(client, Action.READ, f"task {parent}", queue)
            if queue and self.mask(principal, queue) is not None:
                self.require_hidden(client, Action.UNMASK, f"task {parent}", queue)

    def _require_unmasked(self, client: Client, operation: ops.Operation[Any]) -> None:
        """Raise when an operation would show, or lay open, masked fields."""
        queue = getattr(operation, "queue", None)
        if isinstance(operation, ops.UpdateQueue | ops.DeleteQueue | ops.GetDataKeys):
            is_open = isinstance(operation, ops.UpdateQueue) and "masked_fields" not in operation.changes
        elif isinstance(operation, ops.ReplayMessages):
            is_open = False  # copies are whole, wherever they go
        else:
            filter = getattr(operation, "filter", None)
            is_open = not _looks_inside(filter)
            if isinstance(filter, TaskFilter):
                queue = filter.queue
                is_open = is_open or (queue is None and isinstance(operation, ops.ListTasks))  # finds nothing there
        if is_open:
            return
        for name in self._masked_queues() if queue is None else (queue,):
            if self.mask(client.principal, name) is not None and self._shard.queue_called(name) is not None:
                raised(self._broker.refused(client, Action.UNMASK, name, even_draining=True))

    # replies

    async def visible(self, client: Client, operation: ops.Operation[Any], reply: Any) -> Any:
        """The part of a reply that the client may see. Masking runs in a thread: it takes 20 ms for each MB."""
        principal = client.principal
        if isinstance(reply, ServerInfo):
            return self._info(principal, reply)
        if not principal.may_everywhere(operation.spec.action):
            reply = operation.visible(reply, partial(principal.may, operation.spec.action))
        if isinstance(reply, ClusterView) and not principal.may(Action.OPERATE, BROKER):
            return msgspec.structs.replace(reply, location="")
        if isinstance(reply, HistorySeries) and reply.marks and not principal.may(Action.OPERATE, BROKER):
            marks = [msgspec.structs.replace(mark, by="") for mark in reply.marks]  # who did what is in the audit log
            return msgspec.structs.replace(reply, marks=marks)
        if isinstance(reply, OperationView):
            return self._operation(principal, reply)
        if isinstance(operation, ops.ListOperations):
            return [self._operation(principal, view) for view in reply]
        if isinstance(reply, ScheduleTicks):
            return self._ticks(principal, operation, reply)
        if isinstance(reply, QueueWait) and not principal.may(Action.READ, reply.queue):
            return reply.without_keys()
        if principal.may_everywhere(Action.UNMASK) or not isinstance(reply, MAY_BE_MASKED):
            return reply
        return await asyncio.to_thread(self._masked, principal, operation, reply)

    def _info(self, principal: Principal, info: ServerInfo) -> ServerInfo:
        if principal.may_everywhere(Action.MONITOR):
            return info
        seen = sum(principal.may(Action.MONITOR, queue) for queue in self._queue_names())
        return msgspec.structs.replace(info, queues=seen)

    def _masked(self, principal: Principal, operation: ops.Operation[Any], reply: Any) -> Any:
        if isinstance(reply, TaskView):
            return self.task(principal, reply)
        if isinstance(reply, TaskPage):
            return msgspec.structs.replace(reply, tasks=[self.task(principal, task) for task in reply.tasks])
        if isinstance(reply, WorkflowView):
            return msgspec.structs.replace(reply, tasks=[self.task(principal, task) for task in reply.tasks or ()])
        if isinstance(reply, SignatureReport):
            masks = [(self.mask(principal, found.queue), found) for found in reply.signatures]
            shown = [found if mask is None else mask.signature(found) for mask, found in masks]
            return msgspec.structs.replace(reply, signatures=shown)
        if isinstance(reply, ScheduleView):
            return self._schedule(principal, reply)
        if isinstance(reply, TraceView):
            return self._trace(principal, reply)
        if isinstance(reply, list) and reply and isinstance(reply[0], ScheduleView):
            return [self._schedule(principal, schedule) for schedule in reply]
        return self._of_messages(principal, operation, reply)

    def _of_messages(self, principal: Principal, operation: ops.Operation[Any], reply: Any) -> Any:
        kind = type(reply[0]) if isinstance(reply, list) and reply else type(reply)
        if kind not in OF_MESSAGES:
            return reply
        mask = self.mask(principal, next(iter(operation.queues())))
        if mask is None:
            return reply
        hide = OF_MESSAGES[kind]
        return [hide(mask, item) for item in reply] if isinstance(reply, list) else hide(mask, reply)

    def task(self, principal: Principal, task: TaskView) -> TaskView:
        """A task, masked if it must be."""
        mask = self.mask(principal, task.queue)
        return task if mask is None else mask.task(task)

    def _schedule(self, principal: Principal, schedule: ScheduleView) -> ScheduleView:
        """A schedule is listed for who may monitor its queue; its arguments are for who may read it."""
        queue = schedule.spec.queue
        mask = self.mask(principal, queue) if principal.may(Action.READ, queue) else mask_of(EVERYTHING)
        return schedule if mask is None else mask.schedule(schedule)

    def _operation(self, principal: Principal, view: OperationView) -> OperationView:
        """An operation is for who may monitor its queue; what its filter looks for may stand in the messages there."""
        if view.target is not None and not principal.may(Action.MONITOR, view.target):
            view = msgspec.structs.replace(view, target=MASK, error=view.error.replace(repr(view.target), MASK))
        queues = self._masked_queues() if view.queue is None else (view.queue,)
        is_open = principal.may(Action.READ, view.queue or BROKER)
        return (
            view if is_open and all(self.mask(principal, name) is None for name in queues) else masked_operation(view)
        )

    def _ticks(self, principal: Principal, operation: Any, reply: ScheduleTicks) -> ScheduleTicks:
        """Errors of runs are for who may read the queue, and not masked."""
        queue = queue_of_schedule(self._shard, operation.name) or BROKER
        if principal.may(Action.READ, queue) and self.mask(principal, queue) is None:
            return reply
        runs = [msgspec.structs.replace(run, error="") for run in reply.runs]
        return msgspec.structs.replace(reply, runs=runs)

    def _trace(self, principal: Principal, trace: TraceView) -> TraceView:
        """A trace without the errors of queues that are masked."""
        steps = [
            step
            if (mask := self.mask(principal, step.queue)) is None
            else msgspec.structs.replace(step, runs=list(map(mask.trace_run, step.runs)))
            for step in trace.steps
        ]
        return msgspec.structs.replace(trace, steps=steps)

    def tasks_filter(self, client: Client, filter: TaskFilter) -> Callable[[str], bool] | None:
        """Which queues a search of tasks may look into; None: all of them."""
        principal = client.principal
        looks_inside = _looks_inside(filter)
        if principal.may_everywhere(Action.READ) and not (looks_inside and self._masked_queues()):
            return None
        return lambda queue: (
            principal.may(Action.READ, queue) and not (looks_inside and self.mask(principal, queue) is not None)
        )

    def queryable(self, principal: Principal) -> list[str]:
        """The queues that somebody may query: one with fields that are masked for them is left out whole."""
        names = self._queue_names()
        return [name for name in names if principal.may(Action.READ, name) and self.mask(principal, name) is None]

    # masks

    def mask(self, principal: Principal, queue: str) -> Mask | None:
        """What hides the masked fields of a queue, and of its dead letters, from somebody; None: nothing is hidden."""
        if principal.may(Action.UNMASK, queue):
            return None
        known = self._shard.queue_called(queue.removesuffix(DLQ_SUFFIX))
        if known is None:  # it was deleted, and its tasks are still shown
            return mask_of(EVERYTHING)
        fields = known.options.masked_fields
        return mask_of(fields) if fields else None

    def _masked_queues(self) -> list[str]:
        return [queue.name for queue in self._shard.queues() if queue.options.masked_fields]

    def _queue_names(self) -> list[str]:
        return [queue.name for queue in self._shard.queues()]


def _looks_inside(filter: Any) -> bool:
    """Whether a filter asks about what masked fields may hold."""
    return isinstance(filter, TaskFilter | LetterFilter | MessageFilter) and filter.looks_inside


# What an operation on something with an id is about, and the queue of that: None when there is no such thing, and
# nothing is looked up where the text is empty.


def _operation(
    shard: Shard, operation: ops.FindOperation | ops.ContinueOperation | ops.StopOperation
) -> tuple[str, str | None]:
    return f"operation {operation.operation_id}", queue_of_operation(shard, operation.operation_id)


Begun = ops.BeginOperation | ops.RedriveLetters | ops.DiscardLetters | ops.ReplayMessages


def _begun_before(shard: Shard, operation: Begun) -> tuple[str, str | None]:
    """Begun under a known id, it is that operation."""
    queue = queue_of_operation(shard, operation.operation_id)
    return "" if queue is None else f"operation {operation.operation_id}", queue


def _schedule(shard: Shard, operation: ops.DeleteSchedule | ops.RunSchedule | ops.Ticks) -> tuple[str, str | None]:
    return f"schedule {operation.name}", queue_of_schedule(shard, operation.name)


def _set_before(shard: Shard, operation: ops.SetSchedule) -> tuple[str, str | None]:
    """A schedule that exists is changed: it may leave another queue."""
    name = operation.schedule.name
    queue = queue_of_schedule(shard, name)
    return "" if queue is None else f"schedule {name}", queue


LOOKED_UP: Final[dict[type, Callable[[Any, Any], tuple[str, str | None]]]] = {
    ops.FindOperation: _operation,
    ops.StopOperation: _operation,
    ops.ContinueOperation: _operation,
    **dict.fromkeys((ops.BeginOperation, ops.RedriveLetters, ops.DiscardLetters, ops.ReplayMessages), _begun_before),
    ops.DeleteSchedule: _schedule,
    ops.RunSchedule: _schedule,
    ops.Ticks: _schedule,
    ops.SetSchedule: _set_before,
}
