"""Works on operations: looks up the tasks that match, some thousands at a time, and has the shard deal with them.

An operation that was running when the process stopped goes on where its last step was. The task index follows from step
to step, so that whoever looks when an operation is over sees what it did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.delivery.entries import OperationSet
from penstock.errors import InvalidField
from penstock.model_tasks import TaskFilter, TaskState
from penstock.requests import Target
from penstock.shard import tasks as shard_tasks
from penstock.shard.shard import Shard
from penstock.shard.tasks import Phase
from penstock.shard.upkeep import Sleeper
from penstock.storage.task_changes import id_text

if TYPE_CHECKING:
    from penstock.shard.tasks.service import TaskService

PAGE: Final = 10 * shard_tasks.CHUNK  # looked up at a time


class OperationRunner:
    """One for each shard. Without `background` whoever begins an operation works on it."""

    def __init__(self, shard: Shard, desk: TaskService, *, background: bool) -> None:
        self._shard = shard
        self._desk = desk
        self._is_stopping = False
        self.sleeper = Sleeper("operations", self._tick, shard.is_over) if background else None

    def start(self) -> None:
        """Go on with what was running when the process stopped."""
        if self.sleeper is not None and shard_tasks.running(self._shard):
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
        while (running := shard_tasks.running(self._shard)) and not self._is_stopping:
            self._finish(running[0])

    def _tick(self) -> float | None:
        self.run()
        return None

    def _finish(self, operation: OperationSet) -> None:
        try:
            phases = shard_tasks.phases_of(operation)
            self._count(operation, phases)
            for number in range(operation.phase, len(phases)):
                if not self._pass(operation, number, phases[number]):
                    return
            shard_tasks.advance(self._shard, operation.operation_id, state=OperationSet.DONE)
        except InvalidField as error:  # not retryable: the filter cannot be understood
            changes = {"state": OperationSet.FAILED, "error": str(error)}
            shard_tasks.advance(self._shard, operation.operation_id, **changes)

    def _count(self, operation: OperationSet, phases: list[Phase]) -> None:
        if not operation.matched:
            filter = _narrowed(operation, tuple(state for phase in phases for state in phase.states))
            matched = self._desk.caught_up().count(filter) if phases else 0
            shard_tasks.advance(self._shard, operation.operation_id, matched=matched)

    def _pass(self, operation: OperationSet, number: int, phase: Phase) -> bool:
        """One pass over the tasks; whether the operation is still running."""
        filter = _narrowed(operation, phase.states)
        cursor = operation.cursor if number == operation.phase else None
        shard_tasks.advance(self._shard, operation.operation_id, phase=number, cursor=cursor)
        while targets := self._desk.caught_up().targets(filter, cursor, PAGE):
            for start in range(0, len(targets), shard_tasks.CHUNK):
                if not self._step(operation.operation_id, phase, targets[start : start + shard_tasks.CHUNK]):
                    return False
            cursor = targets[-1].submitted_at, targets[-1].number
        return True

    def _step(self, operation_id: str, phase: Phase, targets: list[Target]) -> bool:
        if self._is_stopping:
            return False
        taken = shard_tasks.take_step(self._shard, operation_id, phase, targets)
        if taken is None:
            return False
        step, _ = taken
        for worker, task_id in step.workers:
            self._desk.cancelled(worker, id_text(task_id))
        if phase.purges:
            self._desk.waiters.wake_all()
        parents = [target.task_id for target in step.cancelled if target.has_open_child] if phase.purges else []
        closed = self._desk.caught_up().closed_targets(parents) if parents else []
        if not closed:
            return True
        # Their children were cancelled with them. The cursor stays where the step left it.
        last = targets[-1]
        closed[-1] = closed[-1]._replace(submitted_at=last.submitted_at, number=last.number)
        return (
            shard_tasks.take_step(self._shard, operation_id, Phase((), cancels=False, purges=True), closed) is not None
        )


def _narrowed(operation: OperationSet, states: tuple[TaskState, ...]) -> TaskFilter:
    return msgspec.structs.replace(shard_tasks.filter_of(operation), states=states)
