"""Steps of operations on many tasks: cancel those that match a filter, retry them, or have the task index forget them.

A step is one frame: the new states of some tasks, and how far the operation is with them. The caller looked the tasks
up; where they are by now, and whether they are final, is decided with the lock held.

A retry is a frame for each task, since its children come back with it; how far the operation is follows in a frame
behind some of them. Tasks that were retried before a crash are not retried again: they do not match any more, or have
ended later than the operation began. A child is refused until its parents are back, and these may come after it. So
what is refused is tried once more at the end, the oldest first; only then it counts as failed.

The task index follows from step to step, so that whoever looks when an operation is over sees what it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock.delivery import settle as settle_rules
from penstock.delivery.entries import Entry, OperationSet, Settled, Span, TasksPurged
from penstock.delivery.group import Group
from penstock.delivery.phases import LEASED, SETTLED
from penstock.delivery.progress import Progress, span_of
from penstock.delivery.settle import Chosen
from penstock.delivery.task_pushes import cancelled
from penstock.delivery.tasks import GROUP
from penstock.errors import InvalidField, MessageNotFound, PenstockError, QueueNotFound, TaskConflict, TaskNotFound
from penstock.model import Outcome, to_datetime, to_micros
from penstock.model_tasks import FINAL, OperationAction, TaskFilter, TaskState, TaskView, id_text
from penstock.requests import Settling, Target
from penstock.shard.bulk.book import (
    SAMPLES,
    Counted,
    Stepped,
    advance,
    frozen_at,
    progressed,
    running_named,
    task_filter_of,
)
from penstock.shard.tasks.changes import RETRIED
from penstock.shard.tasks.frames import CANCELLED_ERROR, commit

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard
    from penstock.shard.tasks.service import TaskService


CHUNK: Final = 1_000  # tasks in one frame, and while the shard is held
RETRIES: Final = 100  # tasks that are retried before the operation notes how far it is
WAITING: Final = (TaskState.SCHEDULED, TaskState.PENDING, TaskState.BLOCKED, TaskState.FAILED)
REFUSALS: Final = (TaskConflict, TaskNotFound, MessageNotFound, QueueNotFound)  # of one task
_WAITS: Final = -1  # the phase of a task that waits for its parents
_CANCELLED: Final = Settling(Outcome.CANCELLED, error=CANCELLED_ERROR)


class Phase(NamedTuple):
    """A part of an operation: which of the tasks, and how they end."""

    states: tuple[TaskState, ...]
    cancels: bool
    purges: bool


class Step(NamedTuple):
    """What a step did."""

    cancelled: list[Target]
    purged: int
    workers: list[tuple[str, bytes]]  # who ran which of the cancelled ones


def phases_of(operation: OperationSet) -> list[Phase]:
    """Purging ends those that wait before it forgets final ones: unfinished children keep their parents."""
    states = filter_of(operation).states or tuple(TaskState)
    final = tuple(state for state in states if state in FINAL)
    if operation.action == OperationAction.RETRY:
        retried = tuple(state for state in states if state in RETRIED)
        phases = 2 * [
            Phase(retried, cancels=False, purges=False)
        ]  # the second is for what the first did not bring back
    elif operation.action == OperationAction.CANCEL:
        opened = tuple(state for state in states if state not in FINAL)
        phases = [Phase(opened, cancels=True, purges=False)]
    else:
        waiting = tuple(state for state in states if state in WAITING)
        phases = [Phase(waiting, cancels=True, purges=True), Phase(final, cancels=False, purges=True)]
    return [phase for phase in phases if phase.states]


def filter_of(operation: OperationSet) -> TaskFilter:
    """Which tasks it is about: none that were submitted after the moment at which its filter is meant."""
    filter = task_filter_of(operation)
    frozen = to_datetime(frozen_at(operation) + 1)
    until = filter.submitted_until
    return msgspec.structs.replace(filter, submitted_until=frozen if until is None else min(until, frozen))


def check_filter(shard: Shard, filter: TaskFilter) -> None:
    """Refuse to look inside tasks of a queue that is not there: it may have been encrypted, and so must the filter."""
    if filter.looks_inside and filter.queue and shard.core.encrypted and shard.number_of(filter.queue) is None:
        name = "argument" if filter.argument is not None else "error_contains"
        hint = "choose its tasks by state, type, time, worker, workflow or schedule"
        because = "if it was encrypted, this would be stored in clear"
        raise InvalidField(f"{name}: there is no queue {filter.queue!r}, and {because}", hint=hint)


# steps


def take_step(shard: Shard, operation_id: str, phase: Phase, targets: Sequence[Target]) -> tuple[Step, Ticket] | None:
    """Deal with some tasks, in one frame; None when the operation is not running any more."""
    return shard.run_now(lambda now: _Taking(shard, phase).run(targets, operation_id, now))


class _Places:
    """Offsets by queue and partition."""

    def __init__(self) -> None:
        self._offsets: dict[int, dict[int, list[int]]] = {}

    def add(self, target: Target) -> None:
        assert target.partition is not None
        assert target.position is not None
        self._offsets.setdefault(target.queue, {}).setdefault(target.partition, []).append(target.position)

    def spans(self) -> dict[int, list[Span]]:
        return {
            queue: [span_of(number, sorted(offsets)) for number, offsets in by_partition.items()]
            for queue, by_partition in self._offsets.items()
        }


class _Taking:
    """One step, with the lock held."""

    def __init__(self, shard: Shard, phase: Phase) -> None:
        self._shard = shard
        self._core = shard.core
        self._phase = phase
        self._settled = _Places()
        self._purged = _Places()
        self._purged_ids: dict[int, list[bytes]] = {}
        self._purged_count = 0
        self._cancelled: list[Target] = []
        self._freed: list[Entry] = []
        self._chosen: list[Chosen] = []
        self._workers: list[tuple[str, bytes]] = []
        self._deliveries: dict[Group, dict[tuple[int, int], Chosen]] = {}

    def run(self, targets: Sequence[Target], operation_id: str, now: int) -> tuple[Step, Ticket] | None:
        shard = self._shard
        known = running_named(shard, operation_id)
        if known is None:
            return None
        for target in targets:
            self._take(target, now)
        last = targets[-1]
        entries = self._entries(now)
        entries.append(
            msgspec.structs.replace(
                known,
                at=now,
                cursor=(last.submitted_at, last.number),
                cancelled=known.cancelled + len(self._cancelled),
                purged=known.purged + self._purged_count,
            )
        )
        ticket = commit(shard, entries, now, shard.durability, self._chosen)
        shard.on_unreported()
        return Step(self._cancelled, self._purged_count, self._workers), ticket

    def _entries(self, now: int) -> list[Entry]:
        entries: list[Entry] = [
            Settled(queue, GROUP, int(Outcome.CANCELLED), now, 0, "", CANCELLED_ERROR, spans)
            for queue, spans in self._settled.spans().items()
        ]
        if self._chosen:
            entries += settle_rules.decide_settle(self._core, self._chosen, _CANCELLED, now, self._shard.rng)
        entries += self._freed
        spans = self._purged.spans()
        for queue in {**spans, **self._purged_ids}:
            ids = b"".join(self._purged_ids.get(queue, ()))
            entries.append(TasksPurged(queue, now, spans.get(queue, []), ids))
        return entries

    def _take(self, target: Target, now: int) -> None:
        at = self._phase_of(target)
        if at != SETTLED:
            if not self._phase.cancels or not self._end(target, at, now):
                return  # a worker was quicker, or it was brought back
            self._cancelled.append(target)
        elif self._phase.cancels:
            return  # it has come to an end by itself
        if self._phase.purges and not target.has_open_child:
            self._purged_count += 1
            if target.position is None:
                self._purged_ids.setdefault(target.queue, []).append(target.task_id)
            else:
                self._purged.add(target)

    def _end(self, target: Target, at: int, now: int) -> bool:
        """Whether it is cancelled: one that runs only where running ones are meant."""
        if at == _WAITS:
            self._freed.append(cancelled(target.queue, target.task_id, CANCELLED_ERROR, now))
        elif at != LEASED:
            self._settled.add(target)
        elif TaskState.RUNNING not in self._phase.states:
            return False
        else:
            return self._break_off(target)
        return True

    def _break_off(self, target: Target) -> bool:
        progress = self._progress_of(target)
        assert progress is not None
        assert target.position is not None
        group = progress.group
        if group not in self._deliveries:
            self._deliveries[group] = dict(_deliveries_of(group))
        chosen = self._deliveries[group].get((progress.partition.id, target.position))
        if chosen is None:
            return False
        self._chosen.append(chosen)
        self._workers.append((chosen.lease.holder, target.task_id))
        return True

    def _phase_of(self, target: Target) -> int:
        if target.position is None:
            return _WAITS if target.task_id in self._core.tasks.held else SETTLED
        progress = self._progress_of(target)
        if progress is None or target.position < progress.start:
            return SETTLED
        return progress.state_of(target.position)

    def _progress_of(self, target: Target) -> Progress | None:
        queue = self._core.queues.get(target.queue)
        return None if queue is None or target.partition is None else queue.groups[GROUP].progress[target.partition]


def _deliveries_of(group: Group) -> Iterable[tuple[tuple[int, int], Chosen]]:
    """What is leased, each delivery by itself, by its place."""
    for lease in group.leases.values():
        for take, indexes in lease.open_takes():
            number = take.progress.partition.id
            for index in indexes:
                yield (number, take.offsets[index]), Chosen(lease, take, [index])


class TaskWork:
    """Works on operations on tasks."""

    def __init__(self, shard: Shard, service: TaskService) -> None:
        self._shard = shard
        self._service = service

    def count(self, operation: OperationSet, until: int | None = None) -> Counted:
        """How many tasks match; the task index counts them in one go."""
        phases = phases_of(operation)
        if not phases:
            return Counted(0, ())
        filter = _narrowed(operation, tuple(state for phase in phases for state in phase.states))
        task_index, as_of = self._service.caught_up(), frozen_at(operation)
        samples = task_index.targets(filter, None, SAMPLES, as_of)
        return Counted(task_index.count(filter, as_of), tuple(id_text(target.task_id) for target in samples))

    def step(self, operation: OperationSet, room: int) -> Stepped:
        """The next tasks of the phase that the operation is in, or the next phase."""
        phases = phases_of(operation)
        if operation.phase >= len(phases):
            return Stepped(0, is_over=True)
        if operation.action == OperationAction.RETRY:
            return self._retry(operation, phases[operation.phase], min(room, RETRIES))
        phase = phases[operation.phase]
        filter = _narrowed(operation, phase.states)
        targets = self._service.caught_up().targets(filter, operation.cursor, min(room, CHUNK), frozen_at(operation))
        if not targets:
            advance(self._shard, operation.operation_id, phase=operation.phase + 1, cursor=None)
            return Stepped(0, is_over=operation.phase + 1 >= len(phases))
        self._take(operation.operation_id, phase, targets)
        return Stepped(len(targets), is_over=False)

    def _retry(self, operation: OperationSet, phase: Phase, room: int) -> Stepped:
        """Retry the next tasks, first all that match and then all that are left."""
        is_last, filter = operation.phase == 1, _narrowed(operation, phase.states)
        targets = self._service.caught_up().targets(
            filter, operation.cursor, room, frozen_at(operation), is_last_pass=is_last
        )
        if targets:
            self._bring_back(operation, targets)
            return Stepped(len(targets), is_over=False)
        # In the end all others are back: some with a parent, or before a crash that kept them from being counted.
        done = max(0, operation.matched - operation.failed) if is_last else operation.done
        advance(self._shard, operation.operation_id, phase=operation.phase + 1, cursor=None, done=done)
        return Stepped(0, is_over=is_last)

    def _bring_back(self, operation: OperationSet, targets: list[Target]) -> None:
        """Retry some tasks. A refusal that is about one of them is noted; any other error is raised."""
        views = {view.task_id: view for view in self._service.task_index.views(map(_task_id, targets))}
        failures: dict[str, PenstockError] = {}
        tried: list[Target] = []
        done = 0
        try:
            for target in targets:
                if operation.phase == 0 or self._is_left(operation, target, views.get(_task_id(target))):
                    self._retry_one(_task_id(target), views.get(_task_id(target)), failures)
                    done += 1
                tried.append(target)
            for task_id in reversed(list(failures)):  # a child comes back with its parent, which may have come after it
                self._retry_one(task_id, None, failures)
        finally:
            if tried:
                refused = list(failures.items()) if operation.phase else []
                self._note(operation, tried[-1], done - len(failures), refused)

    def _is_left(self, operation: OperationSet, target: Target, view: TaskView | None) -> bool:
        """Whether an operation is still about a task: not if somebody cancelled it since, unless it was its parent."""
        if view is None or view.finished_at is None or to_micros(view.finished_at, "") <= frozen_at(operation):
            return True
        withdrawn, _ = self._shard.look(lambda now: self._shard.core.tasks.withdrawn.known.get(target.task_id))
        return withdrawn is not None and bool(withdrawn.because)

    def _retry_one(self, task_id: str, view: TaskView | None, failures: dict[str, PenstockError]) -> None:
        try:
            self._service.bring_back(task_id, view)
        except REFUSALS as error:
            failures[task_id] = error
        else:
            failures.pop(task_id, None)

    def _note(
        self, operation: OperationSet, last: Target, done: int, failures: list[tuple[str, PenstockError]]
    ) -> None:
        cursor = last.submitted_at, last.number

        def decide(now: int) -> list[Entry]:
            known = self._shard.core.tasks.operations.known.get(operation.operation_id)
            return [] if known is None else [progressed(known, now, done, failures, cursor)]

        self._shard.change(decide)

    def _take(self, operation_id: str, phase: Phase, targets: list[Target]) -> None:
        taken = take_step(self._shard, operation_id, phase, targets)
        if taken is None:
            return
        step, _ = taken
        for worker, task_id in step.workers:
            self._service.cancelled(worker, id_text(task_id))
        if phase.purges:
            self._service.waiters.wake_all()
        parents = [target.task_id for target in step.cancelled if target.has_open_child] if phase.purges else []
        closed = self._service.caught_up().closed_targets(parents) if parents else []
        if closed:
            # Their children were cancelled with them. The cursor stays where the step left it.
            last = targets[-1]
            closed[-1] = closed[-1]._replace(submitted_at=last.submitted_at, number=last.number)
            take_step(self._shard, operation_id, Phase((), cancels=False, purges=True), closed)


def _narrowed(operation: OperationSet, states: tuple[TaskState, ...]) -> TaskFilter:
    return msgspec.structs.replace(filter_of(operation), states=states)


def _task_id(target: Target) -> str:
    return id_text(target.task_id)
