"""Operations on many tasks: cancel those that match a filter, or have the task index forget them.

An operation is worked on in steps. A step is one frame: the new states of some tasks, and how far the operation is with
them. The caller looked the tasks up; where they are by now, and whether they are final, is decided with the lock held.

`OperationRunner` looks up the tasks that match, some thousands at a time, and runs the steps. An operation that was
running when the process stopped goes on where its last step was. The task index follows from step to step, so that
whoever looks when an operation is over sees what it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock import limits
from penstock.delivery import settle as settle_rules
from penstock.delivery.entries import Entry, OperationSet, Settled, Span, TasksPurged
from penstock.delivery.group import Group
from penstock.delivery.phases import LEASED, SETTLED
from penstock.delivery.progress import Progress, span_of
from penstock.delivery.settle import Chosen
from penstock.delivery.task_pushes import cancelled
from penstock.delivery.tasks import GROUP
from penstock.errors import InvalidField, OperationNotFound, QueueFull, TaskConflict
from penstock.model import Outcome, to_datetime
from penstock.model_tasks import FINAL, OperationAction, OperationState, OperationView, TaskFilter, TaskState
from penstock.requests import Settling, Target
from penstock.shard.tasks.submit import CANCELLED_ERROR, commit
from penstock.shard.upkeep import Sleeper
from penstock.storage.task_changes import id_text

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard
    from penstock.shard.tasks.service import TaskService


CHUNK: Final = 1_000  # tasks in one frame, and while the shard is held
WAITING: Final = (TaskState.SCHEDULED, TaskState.PENDING, TaskState.BLOCKED, TaskState.FAILED)
STATES: Final[dict[int, OperationState]] = {
    OperationSet.RUNNING: OperationState.RUNNING,
    OperationSet.DONE: OperationState.DONE,
    OperationSet.STOPPED: OperationState.STOPPED,
    OperationSet.FAILED: OperationState.FAILED,
}
_WAITS: Final = -1  # the phase of a task that waits for its parents
_CANCELLED: Final = Settling(Outcome.CANCELLED, error=CANCELLED_ERROR)
_decode: Final = msgspec.json.Decoder(TaskFilter).decode


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
    if operation.action == "cancel":
        opened = tuple(state for state in states if state not in FINAL)
        phases = [Phase(opened, cancels=True, purges=False)]
    else:
        waiting = tuple(state for state in states if state in WAITING)
        phases = [Phase(waiting, cancels=True, purges=True), Phase(final, cancels=False, purges=True)]
    return [phase for phase in phases if phase.states]


def filter_of(operation: OperationSet) -> TaskFilter:
    """Which tasks it is about: none that were submitted after it began."""
    filter = _decode(operation.filter)
    begun = to_datetime(operation.started_at + 1)
    until = filter.submitted_until
    return msgspec.structs.replace(filter, submitted_until=begun if until is None else min(until, begun))


def view_of(operation: OperationSet) -> OperationView:
    """An operation as it is shown."""
    is_over = operation.state != OperationSet.RUNNING
    return OperationView(
        operation_id=operation.operation_id,
        action=OperationAction(operation.action),
        state=STATES[operation.state],
        filter=_decode(operation.filter),
        started_at=to_datetime(operation.started_at),
        updated_at=to_datetime(operation.at),
        ended_at=to_datetime(operation.at) if is_over else None,
        matched=operation.matched,
        cancelled=operation.cancelled,
        purged=operation.purged,
        error=operation.error,
    )


# beginning, looking, stopping


def _check_filter(shard: Shard, filter: TaskFilter) -> None:
    """Refuse to look for text in an encrypted queue: nothing would be found, and the text would be stored in clear."""
    if filter.queue is None or shard.number_of(filter.queue) not in shard.core.encrypted:
        return
    for name in ("argument", "error_contains"):
        if getattr(filter, name) is not None:
            hint = "choose tasks by state, type, time, worker, workflow or schedule"
            raise InvalidField(f"{name}: the tasks of encrypted queue {filter.queue!r} cannot be searched", hint=hint)


def begin_operation(
    shard: Shard, action: OperationAction, filter: TaskFilter, operation_id: str = ""
) -> tuple[OperationView, Ticket]:
    """Note what is to be done; whoever works on operations does it. Begun again with the same id, it is the same."""
    name = operation_id or f"{shard.rng.getrandbits(48):012x}"

    def decide(now: int) -> list[Entry]:
        if name in shard.core.tasks.operations.known:
            return []
        running = shard.core.tasks.operations.running()
        if len(running) >= limits.operations_running_max:
            hint = "wait until one is done, or stop one: 'penstock operations'"
            raise QueueFull(f"{len(running)} operations are running already", hint=hint)
        _check_filter(shard, filter)
        chosen = msgspec.structs.replace(filter, cursor=None, limit=limits.task_page_max)
        return [OperationSet(name, action.value, msgspec.json.encode(chosen), OperationSet.RUNNING, now, now)]

    ticket = shard.change(decide)
    view, read = operation(shard, name)
    return view, max(ticket, read)


def operation(shard: Shard, operation_id: str) -> tuple[OperationView, Ticket]:
    """How far it is."""
    return shard.look(lambda now: view_of(_known(shard, operation_id)))


def operations(shard: Shard) -> tuple[list[OperationView], Ticket]:
    """Those that run and those that did lately, the newest first."""
    return shard.look(
        lambda now: [view_of(operation) for operation in reversed(shard.core.tasks.operations.known.values())]
    )


def queue_of_operation(shard: Shard, operation_id: str) -> str | None:
    """The queue that an operation is confined to, empty when it is about all of them; None when there is none."""

    def question(now: int) -> str | None:
        known = shard.core.tasks.operations.known.get(operation_id)
        return None if known is None else _decode(known.filter).queue or ""

    return shard.look(question)[0]


def stop_operation(shard: Shard, operation_id: str) -> tuple[OperationView, Ticket]:
    """No step more; what was done stays done. One that is over stays as it is."""

    def decide(now: int) -> list[Entry]:
        known = _known(shard, operation_id)
        if known.state == OperationSet.STOPPED:
            return []
        if known.state != OperationSet.RUNNING:
            raise TaskConflict(f"operation {operation_id} is {STATES[known.state]} and cannot be stopped")
        return [msgspec.structs.replace(known, state=OperationSet.STOPPED, at=now)]

    ticket = shard.change(decide)
    view, read = operation(shard, operation_id)
    return view, max(ticket, read)


def _known(shard: Shard, operation_id: str) -> OperationSet:
    operation = shard.core.tasks.operations.known.get(operation_id)
    if operation is None:
        raise OperationNotFound(f"there is no operation {operation_id!r}")
    return operation


# steps


def running(shard: Shard) -> list[OperationSet]:
    """Operations that are to be worked on."""
    with shard.lock:
        shard.check()
        return shard.core.tasks.operations.running()


def advance(shard: Shard, operation_id: str, **changes: object) -> bool:
    """Note that an operation is further, or over; whether it was running."""

    def decide(now: int) -> list[Entry]:
        known = shard.core.tasks.operations.known.get(operation_id)
        if known is None or known.state != OperationSet.RUNNING:
            return []
        return [msgspec.structs.replace(known, at=now, **changes)]

    shard.change(decide)
    with shard.lock:
        shard.check()
        known = shard.core.tasks.operations.known.get(operation_id)
        return known is not None and known.state == OperationSet.RUNNING


def take_step(shard: Shard, operation_id: str, phase: Phase, targets: Sequence[Target]) -> tuple[Step, Ticket] | None:
    """Deal with some tasks, in one frame; None when the operation is not running any more."""
    return shard.run(lambda: _Taking(shard, phase).run(targets, operation_id))


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

    def run(self, targets: Sequence[Target], operation_id: str) -> tuple[Step, Ticket] | None:
        shard = self._shard
        now, monotonic = shard.begin()
        shard.tick(now, monotonic)
        known = self._core.tasks.operations.known.get(operation_id)
        if known is None or known.state != OperationSet.RUNNING:
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


PAGE: Final = 10 * CHUNK  # looked up at a time


class OperationRunner:
    """One for each shard. Without `background` whoever begins an operation works on it."""

    def __init__(self, shard: Shard, service: TaskService, *, background: bool) -> None:
        self._shard = shard
        self._service = service
        self._is_stopping = False
        self.sleeper = Sleeper("operations", self._tick, shard.is_over) if background else None

    def start(self) -> None:
        """Go on with what was running when the process stopped."""
        if self.sleeper is not None and running(self._shard):
            self.work()

    def work(self) -> None:
        """There is something to do."""
        if self.sleeper is None:
            self.run()
        elif self.sleeper.was_started:
            self.sleeper.wake()
        else:
            self.sleeper.start()

    def stop(self) -> None:
        """After the step that is under way; whoever opens the directory next goes on."""
        self._is_stopping = True
        if self.sleeper is not None:
            self.sleeper.stop()

    def run(self) -> None:
        """Work on all operations until none is running."""
        while (active := running(self._shard)) and not self._is_stopping:
            self._finish(active[0])

    def _tick(self) -> float | None:
        self.run()
        return None

    def _finish(self, operation: OperationSet) -> None:
        try:
            phases = phases_of(operation)
            self._count(operation, phases)
            for number in range(operation.phase, len(phases)):
                if not self._pass(operation, number, phases[number]):
                    return
            advance(self._shard, operation.operation_id, state=OperationSet.DONE)
        except InvalidField as error:  # not retryable: the filter cannot be understood
            changes = {"state": OperationSet.FAILED, "error": str(error)}
            advance(self._shard, operation.operation_id, **changes)

    def _count(self, operation: OperationSet, phases: list[Phase]) -> None:
        if not operation.matched:
            filter = _narrowed(operation, tuple(state for phase in phases for state in phase.states))
            matched = self._service.caught_up().count(filter) if phases else 0
            advance(self._shard, operation.operation_id, matched=matched)

    def _pass(self, operation: OperationSet, number: int, phase: Phase) -> bool:
        """One pass over the tasks; whether the operation is still running."""
        filter = _narrowed(operation, phase.states)
        cursor = operation.cursor if number == operation.phase else None
        advance(self._shard, operation.operation_id, phase=number, cursor=cursor)
        while targets := self._service.caught_up().targets(filter, cursor, PAGE):
            for start in range(0, len(targets), CHUNK):
                if not self._step(operation.operation_id, phase, targets[start : start + CHUNK]):
                    return False
            cursor = targets[-1].submitted_at, targets[-1].number
        return True

    def _step(self, operation_id: str, phase: Phase, targets: list[Target]) -> bool:
        if self._is_stopping:
            return False
        taken = take_step(self._shard, operation_id, phase, targets)
        if taken is None:
            return False
        step, _ = taken
        for worker, task_id in step.workers:
            self._service.cancelled(worker, id_text(task_id))
        if phase.purges:
            self._service.waiters.wake_all()
        parents = [target.task_id for target in step.cancelled if target.has_open_child] if phase.purges else []
        closed = self._service.caught_up().closed_targets(parents) if parents else []
        if not closed:
            return True
        # Their children were cancelled with them. The cursor stays where the step left it.
        last = targets[-1]
        closed[-1] = closed[-1]._replace(submitted_at=last.submitted_at, number=last.number)
        return take_step(self._shard, operation_id, Phase((), cancels=False, purges=True), closed) is not None


def _narrowed(operation: OperationSet, states: tuple[TaskState, ...]) -> TaskFilter:
    return msgspec.structs.replace(filter_of(operation), states=states)
