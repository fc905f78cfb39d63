"""What a session does about operations on many things: beginning, counting, looking, stopping and continuing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock import limits
from penstock.delivery import admin
from penstock.delivery.entries import Entry, OperationSet
from penstock.errors import InvalidField
from penstock.model import DLQ_SUFFIX
from penstock.model_letters import LetterFilter, MessageFilter
from penstock.model_tasks import TASK_ACTIONS, BulkOptions, OperationAction, OperationView, TaskFilter
from penstock.shard.bulk import book
from penstock.shard.bulk.book import Plan, Work
from penstock.shard.bulk.letters import LetterWork
from penstock.shard.bulk.replay import ReplayWork, check_replay
from penstock.shard.bulk.runner import OperationRunner
from penstock.shard.tasks.operations import TaskWork, check_filter

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard
    from penstock.shard.tasks.service import TaskService

WAIT_SECONDS: Final = 0.3  # for an operation that has just begun: most are over by then
COUNT_SECONDS: Final = 5.0  # after which a dry run says that there are at least so many
IDS_MAX: Final = 10_000  # dead letters that are named one by one
PLAIN: Final = BulkOptions()
Answer = tuple[OperationView, "Ticket"]


class Bulk:
    """The operations of one shard."""

    def __init__(self, shard: Shard, tasks: TaskService, *, background: bool) -> None:
        self._shard = shard
        letters = LetterWork(shard)
        self._works: dict[str, Work] = {
            **dict.fromkeys(TASK_ACTIONS, TaskWork(shard, tasks)),
            OperationAction.REDRIVE: letters,
            OperationAction.DISCARD: letters,
            OperationAction.REPLAY: ReplayWork(shard),
        }
        self.runner = OperationRunner(shard, self._works, background=background)
        self.before_first: Callable[[], None] = lambda: None  # before one that older versions do not know

    def begin_tasks(
        self, action: OperationAction, filter: TaskFilter, operation_id: str, options: BulkOptions, who: str
    ) -> Answer:
        """Purge, cancel or retry all tasks that match."""
        chosen = msgspec.json.encode(msgspec.structs.replace(filter, cursor=None, limit=limits.task_page_max))

        def make(now: int, name: str) -> OperationSet:
            check_filter(self._shard, filter)
            queue = self._shard.number_of(filter.queue or "") or 0
            return book.draft(action, chosen, options, who, now, name, queue)

        is_known = action is not OperationAction.RETRY and options == PLAIN and filter.task_ids is None
        return self._begin(make, operation_id, options, is_known=is_known)

    def begin_letters(
        self,
        action: OperationAction,
        queue: str,
        filter: LetterFilter,
        edit: bytes,
        operation_id: str,
        options: BulkOptions,
        who: str,
    ) -> Answer:
        """Send back, or throw away, all dead letters that match."""
        if filter.ids is not None and len(filter.ids) > IDS_MAX:
            raise InvalidField(f"ids: {len(filter.ids):,} are over the limit of {IDS_MAX:,}", hint="use a filter")
        plan = msgspec.json.encode(Plan(queue, letters=filter, edit=edit.decode()))
        core = self._shard.core

        def make(now: int, name: str) -> OperationSet:
            known = admin.check_changeable(admin.queue_named(core, queue))
            dlq = core.by_name.get(queue + DLQ_SUFFIX)
            ends = (0 if dlq is None else dlq.partitions[0].end,)
            return msgspec.structs.replace(book.draft(action, plan, options, who, now, name, known.id), ends=ends)

        return self._begin(make, operation_id, options)

    def begin_replay(
        self, queue: str, filter: MessageFilter, target: str, operation_id: str, options: BulkOptions, who: str
    ) -> Answer:
        """Push copies of all messages that match to a queue."""
        plan = msgspec.json.encode(Plan(queue, messages=filter, target=target))
        core = self._shard.core

        def make(now: int, name: str) -> OperationSet:
            ends = check_replay(self._shard, queue, target)
            number = core.by_name[queue].id
            operation = book.draft(OperationAction.REPLAY, plan, options, who, now, name, number)
            return msgspec.structs.replace(operation, ends=ends)

        return self._begin(make, operation_id, options)

    def _begin(
        self,
        make: Callable[[int, str], OperationSet],
        operation_id: str,
        options: BulkOptions,
        *,
        is_known: bool = False,
    ) -> Answer:
        if options.dry_run:
            return self._counted(make)
        if not is_known:
            self.before_first()
        self.runner.nudge()
        name, ticket = book.begin(self._shard, operation_id, make)
        return self._worked_on(name, ticket)

    def _worked_on(self, operation_id: str, ticket: Ticket) -> Answer:
        self.runner.work()
        self.runner.wait(operation_id, WAIT_SECONDS)
        view, read = self.find(operation_id)
        return view, max(ticket, read)

    def _counted(self, make: Callable[[int, str], OperationSet]) -> Answer:
        """A dry run: how many match."""
        operation, ticket = self._shard.look(lambda now: make(now, ""))
        until = self._shard.clock.monotonic() + round(COUNT_SECONDS * 1_000_000)
        counted = self._works[operation.action].count(operation, until)
        return book.view_of(operation, counted=counted), ticket

    def find(self, operation_id: str) -> Answer:
        """How far an operation is."""
        self.runner.nudge()
        operation, ticket = self._shard.look(lambda now: book.operation_named(self._shard, operation_id))
        return self._view(operation), ticket

    def all(self) -> tuple[list[OperationView], Ticket]:
        """Those that run and those that did lately, the newest first."""
        self.runner.nudge()
        operations, ticket = book.all_operations(self._shard)
        return [self._view(operation) for operation in operations], ticket

    def _view(self, operation: OperationSet) -> OperationView:
        return book.view_of(operation, self.runner.waits_for(operation.operation_id))

    def stop(self, operation_id: str, note: Callable[[OperationSet], None]) -> Answer:
        """No step more; what was done stays done. `note` sees how far it was."""
        ticket = book.stop(self._shard, operation_id, note)
        self.runner.notice()
        view, read = self.find(operation_id)
        return view, max(ticket, read)

    def go_on(self, operation_id: str) -> Answer:
        """Deal with the rest, after the canary."""
        return self._worked_on(operation_id, book.go_on(self._shard, operation_id))

    def delete_queue(self, queue: str, note: Callable[[list[str]], None]) -> Ticket:
        """Delete a queue, and end the operations that need it in the same frame. `note` receives their ids."""
        core = self._shard.core

        def decide(now: int) -> list[Entry]:
            entries = admin.decide_delete_queue(core, admin.queue_named(core, queue))
            ended = book.decide_end_deleted(core, queue, now)
            if ended:
                note([operation.operation_id for operation in ended])
            return [*entries, *ended]

        ticket = self._shard.change(decide)
        self.runner.notice()
        return ticket
