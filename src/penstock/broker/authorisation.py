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
from penstock.access.masking import EVERYTHING, Mask, mask_of
from penstock.broker.access import Client
from penstock.broker.callbacks import raised
from penstock.errors import NotAuthorised
from penstock.model import DLQ_SUFFIX, Message, Reason
from penstock.model_tasks import ScheduleView, TaskFilter, TaskPage, TaskSubmission, TaskView
from penstock.operations import Action
from penstock.replies import MessageDetails, MessageEvent, MessageSearch, ServerInfo
from penstock.requests import LetterFilter
from penstock.shard.tasks.operations import queue_of_operation
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
}
MAY_BE_MASKED: Final = (TaskView, TaskPage, ScheduleView, MessageDetails, MessageSearch, list)
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
            self._require_seen(client, action, *look_up(self._shard, operation))
        self._require_unmasked(client, operation)

    def _require_seen(self, client: Client, action: Action, what: str, queue: str | None) -> None:
        """Raise the same error for what is out of sight and for what does not exist."""
        if what:
            self.require_hidden(client, action, what, BROKER if queue is None else queue)

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
        known = {view.task_id: view.queue for view in self._broker.session.tasks.task_index.views(parents)}
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
        if isinstance(reply, ScheduleView):
            return self._schedule(principal, reply)
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


def _looks_inside(filter: TaskFilter | LetterFilter | None) -> bool:
    """Whether a filter asks about what masked fields may hold."""
    return filter is not None and (filter.error_contains is not None or getattr(filter, "argument", None) is not None)


# What an operation on something with an id is about, and the queue of that: None when there is no such thing, and
# nothing is looked up where the text is empty.


def _operation(shard: Shard, operation: ops.FindOperation | ops.StopOperation) -> tuple[str, str | None]:
    return f"operation {operation.operation_id}", queue_of_operation(shard, operation.operation_id)


def _begun_before(shard: Shard, operation: ops.BeginOperation) -> tuple[str, str | None]:
    """Begun under a known id, it is that operation."""
    queue = queue_of_operation(shard, operation.operation_id)
    return "" if queue is None else f"operation {operation.operation_id}", queue


def _schedule(shard: Shard, operation: ops.DeleteSchedule) -> tuple[str, str | None]:
    return f"schedule {operation.name}", queue_of_schedule(shard, operation.name)


def _set_before(shard: Shard, operation: ops.SetSchedule) -> tuple[str, str | None]:
    """A schedule that exists is changed: it may leave another queue."""
    name = operation.schedule.name
    queue = queue_of_schedule(shard, name)
    return "" if queue is None else f"schedule {name}", queue


LOOKED_UP: Final[dict[type, Callable[[Any, Any], tuple[str, str | None]]]] = {
    ops.FindOperation: _operation,
    ops.StopOperation: _operation,
    ops.BeginOperation: _begun_before,
    ops.DeleteSchedule: _schedule,
    ops.SetSchedule: _set_before,
}
