"""What the shard must know of tasks beyond their messages: dependencies, unique keys, schedules, operations.

A plain task is a message and nothing here knows it. A task that waits for parents is *held*: its message is not in the
log yet. When a parent's message is settled in the group `default`, however that came about, its children learn of it
in `apply`: acknowledged means completed, every other end is a failure. A child whose last parent is done, or that is
doomed because a parent failed, is *ripe*; `decide_child_release` pushes it or cancels it, in the same frame where a run
was finished and else with the next tick. So whatever happens in between, nobody is stranded and nobody runs too early.

A child that was cancelled while it waited is *withdrawn*. It has no message in the log that could be brought back: all
there is of it was in the entry that held it. The withdrawn of a week are kept, as many as can come back in one frame,
so that they can be retried; the oldest go first. Each knows because of which parent it was cancelled.

A schedule knows the instant of its next tick. A tick is one frame: the task is pushed and the schedule moves on, so it
happens once, whatever stops in between. An operation on many tasks is worked on in steps, whose frames say how far it
is: one that was running when the process stopped goes on where it was. Those that are over are kept for a while.

All of it follows from entries, and all of it is one part of a checkpoint, taken at one sequence. What is taken is
*lent*: it is not altered any more, changes are made to a copy. So it can be encoded while work goes on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock import limits
from penstock.delivery.entries import (
    FOREVER,
    OperationSet,
    ScheduleFired,
    ScheduleSet,
    Settled,
    Span,
    TaskFreed,
    TaskHeld,
    TasksPurged,
    UniqueTaken,
)
from penstock.delivery.phases import AFTER, SETTLED
from penstock.model import Outcome
from penstock.model_tasks import id_text

if TYPE_CHECKING:
    from penstock.delivery.core import DeliveryState


class Operations:
    """All operations of a shard, the oldest first."""

    def __init__(self) -> None:
        self.known: dict[str, OperationSet] = {}
        self.touched = 0
        self.applied = 0

    def set(self, entry: OperationSet, frame: int) -> None:
        """An operation was begun, is a step further, or is over."""
        if frame <= self.applied:
            return
        self.touched = frame
        self.known[entry.operation_id] = entry
        open_states = (OperationSet.RUNNING, OperationSet.WAITING)
        over = [operation.operation_id for operation in self.known.values() if operation.state not in open_states]
        for operation_id in over[: max(0, len(over) - limits.operations_kept)]:
            del self.known[operation_id]

    def running(self) -> list[OperationSet]:
        return [operation for operation in self.known.values() if operation.state == OperationSet.RUNNING]

    def waiting(self) -> list[OperationSet]:
        return [operation for operation in self.known.values() if operation.state == OperationSet.WAITING]

    def restore(self, known: list[OperationSet]) -> None:
        """Put those of a checkpoint back."""
        self.known = {operation.operation_id: operation for operation in known}


STALE_MAX: Final = 100  # ticks that are stale, kept before they are swept out


# schedules


class Schedule(msgspec.Struct, array_like=True, frozen=True):
    """One schedule. `spec` is JSON; `next_at` is 0 while it is paused. Frozen: a checkpoint may be reading it."""

    spec: bytes
    next_at: int
    last_at: int = 0
    last_task_id: bytes = b""


class Schedules:
    """All schedules of a shard, by name."""

    def __init__(self) -> None:
        self.known: dict[str, Schedule] = {}
        self.next_at = FOREVER  # of the one that comes first
        self._ticks: list[tuple[int, str]] = []  # heap; a tick that is not the next one of its schedule is stale
        self.touched = 0
        self.applied = 0

    def set(self, entry: ScheduleSet, frame: int) -> None:
        """A schedule was made, changed or deleted."""
        if frame <= self.applied:
            return
        self.touched = frame
        if entry.is_deleted:
            self.known.pop(entry.name, None)
        else:
            before = self.known.get(entry.name)
            last = (0, b"") if before is None else (before.last_at, before.last_task_id)
            self._put(entry.name, Schedule(entry.spec, entry.next_at, *last))
        self._look()

    def fire(self, entry: ScheduleFired, frame: int) -> None:
        """A tick came, or ticks that were missed are passed over."""
        schedule = self.known.get(entry.name)
        if frame <= self.applied or schedule is None:
            return
        self.touched = frame
        last = (entry.tick_at, entry.task_id) if entry.task_id else (schedule.last_at, schedule.last_task_id)
        self._put(entry.name, Schedule(schedule.spec, entry.next_at, *last))
        self._look()

    def postpone(self, instant: int) -> None:
        """Nothing can be pushed now: look again at an instant."""
        self.next_at = max(self.next_at, instant)

    def restore(self, known: dict[str, Schedule]) -> None:
        """Put those of a checkpoint back."""
        self.known = known
        self._sweep()
        self._look()

    def due(self, now: int) -> str | None:
        """Of those that have a tick behind them, the one that waits longest."""
        return self._ticks[0][1] if self.next_at <= now and self._ticks else None

    def _put(self, name: str, schedule: Schedule) -> None:
        self.known[name] = schedule
        if schedule.next_at:
            heapq.heappush(self._ticks, (schedule.next_at, name))
        if len(self._ticks) > 2 * len(self.known) + STALE_MAX:
            self._sweep()

    def _sweep(self) -> None:
        self._ticks = [(schedule.next_at, name) for name, schedule in self.known.items() if schedule.next_at]
        heapq.heapify(self._ticks)

    def _look(self) -> None:
        while self._ticks and self._is_stale(*self._ticks[0]):
            heapq.heappop(self._ticks)
        self.next_at = self._ticks[0][0] if self._ticks else FOREVER

    def _is_stale(self, at: int, name: str) -> bool:
        schedule = self.known.get(name)
        return schedule is None or schedule.next_at != at


KEPT: Final = round(limits.task_retention_seconds * 1_000_000)


# withdrawn tasks


class WithdrawnTask(msgspec.Struct, array_like=True, frozen=True):
    """One of them."""

    queue: int
    task_id: bytes
    at: int  # when it was cancelled
    because: bytes  # of which parent; empty when it was for another reason
    policy: int
    batch: bytes
    unique: bytes = b""  # the hash of a key that it gave up


class WithdrawnTasks:
    """Those of a shard, the oldest first."""

    def __init__(self) -> None:
        self.known: dict[bytes, WithdrawnTask] = {}
        self.size = 0  # of their messages, in bytes
        self._because: dict[bytes, dict[bytes, None]] = {}  # parent → those that were cancelled because of it

    def __bool__(self) -> bool:
        return bool(self.known)

    def add(self, task: WithdrawnTask) -> None:
        """One was cancelled; others may have to go."""
        self.discard(task.task_id)
        self.known[task.task_id] = task
        self.size += len(task.batch)
        if task.because:
            self._because.setdefault(task.because, {})[task.task_id] = None
        while self.known and self._is_too_much(task.at):
            self.discard(next(iter(self.known)))

    def _is_too_much(self, now: int) -> bool:
        first = next(iter(self.known.values()))
        is_full = len(self.known) > limits.tasks_withdrawn_max or self.size > limits.tasks_withdrawn_bytes_max
        return is_full or first.at < now - KEPT

    def discard(self, task_id: bytes) -> None:
        """It is held again, or forgotten."""
        task = self.known.pop(task_id, None)
        if task is None:
            return
        self.size -= len(task.batch)
        siblings = self._because.get(task.because, {})
        siblings.pop(task_id, None)
        if not siblings:
            self._because.pop(task.because, None)

    def drop_queue(self, queue: int) -> bool:
        """A queue is gone, and those that would have come to it; whether there were any."""
        gone = [task.task_id for task in self.known.values() if task.queue == queue]
        for task_id in gone:
            self.discard(task_id)
        return bool(gone)

    def because_of(self, task_id: bytes) -> list[WithdrawnTask]:
        """Those that were cancelled because of a task, which may itself be one of them."""
        return [self.known[child] for child in self._because.get(task_id, ())]


GROUP: Final = 0  # `default`: the one that workers lease from
HELD: Final = -1  # in place of an offset
TaskPosition = tuple[int, int, int]  # queue, partition, offset
# How a parent ended, in a child's words; other outcomes have a name that will do.
ENDS: Final[dict[int, str]] = {
    Outcome.ACKED: "",
    Outcome.REJECTED: "dead",
    Outcome.DEAD: "dead",
    Outcome.DISCARDED: "dead",
}


# held tasks and unique keys


class HeldTask(msgspec.Struct, array_like=True):
    """A task that waits for its parents."""

    queue: int
    task_id: bytes
    at: int
    waits: set[bytes]  # parents that are not final
    policy: int
    batch: bytes
    unique: bytes = b""  # the hash of its key, if it has one
    doomed: str = ""  # why it will be cancelled
    doomed_by: bytes = b""  # the parent whose end it was, if that was why


class UniqueKey(msgspec.Struct, array_like=True, frozen=True):
    """Whose a unique key is. `offset` is `HELD` while its task is."""

    task_id: bytes
    until: int  # 0: while its task is not final
    partition: int
    offset: int


class Tasks:
    """HeldTask tasks and their parents, unique keys, schedules and operations of a shard."""

    def __init__(self) -> None:
        self.held: dict[bytes, HeldTask] = {}
        self.held_bytes = 0
        self.awaited: dict[bytes, dict[bytes, None]] = {}  # parent → its children that are held
        self.positions: dict[int, dict[tuple[int, int], bytes]] = {}  # queue → (partition, offset) → awaited parent
        self.where: dict[bytes, TaskPosition] = {}  # the same the other way round
        self.ripe: dict[bytes, None] = {}
        self.unique: dict[tuple[int, bytes], UniqueKey] = {}
        self.withdrawn = WithdrawnTasks()
        self.schedules = Schedules()
        self.operations = Operations()
        self.touched = 0  # sequence of the last frame that changed something here
        self.applied = 0  # replay: the sequence at which a checkpoint took all this
        self._lent: dict[bytes, HeldTask] = {}  # those that whoever encodes a checkpoint is reading
        self._sweep_at = 1_000

    def __bool__(self) -> bool:
        """Whether there is anything to remember."""
        return bool(self.held or self.unique or self.withdrawn or self.schedules.known or self.operations.known)

    def touched_last(self) -> int:
        """The sequence of the last frame that changed something here, in the schedules or in the operations."""
        return max(self.touched, self.schedules.touched, self.operations.touched)

    # lending

    def lend(self) -> dict[bytes, HeldTask]:
        """The held tasks as they are now: none of them is altered until `take_back`."""
        self._lent = dict(self.held)
        return self._lent

    def take_back(self) -> None:
        """Nobody reads what was lent any more."""
        self._lent = {}

    def _to_change(self, task_id: bytes) -> HeldTask:
        """A held task that may be altered: its own copy once it is lent."""
        held = self.held[task_id]
        if self._lent.get(task_id) is held:
            held = self.held[task_id] = msgspec.structs.replace(held, waits=set(held.waits))
        return held

    # applying entries

    def hold(self, entry: TaskHeld, frame: int) -> None:
        """A task waits for its parents."""
        if frame <= self.applied:
            return
        self.touched = frame
        held = HeldTask(entry.queue, entry.task_id, entry.at, set(), entry.policy, entry.batch)
        self.withdrawn.discard(held.task_id)
        self.held[held.task_id] = held
        self.held_bytes += len(held.batch)
        for parent in entry.parents:
            held.waits.add(parent.task_id)
            self.awaited.setdefault(parent.task_id, {})[held.task_id] = None
            if parent.offset >= 0:
                self.await_at(parent.task_id, (parent.queue, parent.partition, parent.offset))
        if not held.waits:
            self.ripe[held.task_id] = None

    def free(self, entry: TaskFreed, frame: int) -> None:
        """A held task was pushed, or is cancelled."""
        if frame <= self.applied:
            return
        self.touched = frame
        held = self.held.pop(entry.task_id, None)
        if held is None:
            return  # pushed again by a retry
        self.held_bytes -= len(held.batch)
        self.ripe.pop(held.task_id, None)
        for parent in held.waits:
            children = self.awaited.get(parent, {})
            children.pop(held.task_id, None)
            if not children:
                self._await_no_more(parent)
        unique = self.unique.get((held.queue, held.unique)) if held.unique else None
        if entry.how == TaskFreed.PUSHED:
            if held.task_id in self.awaited:
                self.await_at(held.task_id, (entry.queue, entry.partition, entry.offset))
            if unique is not None:
                moved = UniqueKey(unique.task_id, unique.until, entry.partition, entry.offset)
                self.unique[held.queue, held.unique] = moved
            return
        key = b""
        if unique is not None and not unique.until:
            key = held.unique
            del self.unique[held.queue, key]
        self.withdrawn.add(
            WithdrawnTask(held.queue, held.task_id, entry.at, entry.because, held.policy, held.batch, key)
        )
        self._ended(held.task_id, "cancelled")

    def purge(self, entry: TasksPurged, frame: int) -> None:
        """Tasks are forgotten: one that was cancelled before it had a message can be submitted again."""
        for task_id in entry.id_list() if frame > self.applied else ():
            if task_id in self.withdrawn.known:
                self.touched = frame
                self.withdrawn.discard(task_id)

    def take_key(self, entry: UniqueTaken, frame: int) -> None:
        """A unique key has an owner."""
        if frame <= self.applied:
            return
        self.touched = frame
        self.unique[entry.queue, entry.hash] = UniqueKey(entry.task_id, entry.until, entry.partition, entry.offset)
        if entry.task_id in self.held:
            self._to_change(entry.task_id).unique = entry.hash

    def settle(self, settled: Settled, frame: int) -> None:
        """Messages of a queue in which somebody's parents are were settled."""
        if settled.group != GROUP or AFTER[settled.outcome] != SETTLED or frame <= self.applied:
            return
        how = ENDS.get(settled.outcome, Outcome(settled.outcome).name.lower())
        for span in settled.spans:
            self._settle(settled.queue, self._awaited_in(settled.queue, span), how, frame)

    def move(self, queue: int, starts: Iterable[tuple[int, int]], frame: int) -> None:
        """The group was moved: what it skipped will never be done."""
        if frame > self.applied:
            for partition, start in starts:
                positions = [
                    position
                    for position in self.positions.get(queue, ())
                    if position[0] == partition and position[1] < start
                ]
                self._settle(queue, positions, "skipped", frame)

    def drop_queue(self, queue: int, frame: int) -> None:
        """A queue is gone, with the parents that were in it and the children that would have come to it."""
        if frame <= self.applied:
            return
        self._settle(queue, list(self.positions.get(queue, ())), "lost with its queue", frame)
        if self.withdrawn.drop_queue(queue):
            self.touched = frame
        for task_id in [held.task_id for held in self.held.values() if held.queue == queue]:
            held = self._to_change(task_id)
            held.doomed = held.doomed or "its queue was deleted"
            self.ripe[task_id] = None
            self.touched = frame
        for key in [key for key in self.unique if key[0] == queue]:
            del self.unique[key]
            self.touched = frame

    # looking

    def owner_of(self, core: DeliveryState, queue: int, digest: bytes, now: int) -> UniqueKey | None:
        """Whose a unique key is, None when it is free."""
        unique = self.unique.get((queue, digest))
        return unique if unique is not None and self._is_taken(core, queue, unique, now) else None

    def sweep(self, core: DeliveryState, now: int) -> None:
        """Forget keys that are free again, once there are many."""
        if len(self.unique) < self._sweep_at:
            return
        self.unique = {key: unique for key, unique in self.unique.items() if self._is_taken(core, key[0], unique, now)}
        self._sweep_at = 2 * len(self.unique) + 1_000

    def _is_taken(self, core: DeliveryState, queue: int, unique: UniqueKey, now: int) -> bool:
        if unique.until:
            return unique.until > now
        if unique.offset == HELD:
            return unique.task_id in self.held
        return not is_settled(core, (queue, unique.partition, unique.offset))

    def find_lost(self, core: DeliveryState) -> None:
        """After replay: a parent whose message a repair had to give up was settled without an entry."""
        for position in list(self.where.values()):
            if is_settled(core, position):
                self._settle(position[0], [position[1:]], "lost", core.sequence)

    # keeping the two sides together

    def await_at(self, parent: bytes, position: TaskPosition) -> None:
        """Where the message of an awaited parent is."""
        self.where[parent] = position
        self.positions.setdefault(position[0], {})[position[1:]] = parent

    def _await_no_more(self, parent: bytes) -> None:
        self.awaited.pop(parent, None)
        position = self.where.pop(parent, None)
        if position is not None:
            positions = self.positions[position[0]]
            positions.pop(position[1:], None)
            if not positions:
                del self.positions[position[0]]  # the queue costs nothing any more

    def _settle(self, queue: int, positions: Iterable[tuple[int, int]], how: str, frame: int) -> None:
        for position in positions:
            self.touched = frame
            self._ended(self.positions[queue][position], how)

    def _ended(self, parent: bytes, how: str) -> None:
        """`how` is empty when the parent is completed."""
        children = self.awaited.get(parent, {})
        self._await_no_more(parent)
        for child in children:
            held = self._to_change(child)
            held.waits.discard(parent)
            if how and held.policy == TaskHeld.CANCEL and not held.doomed:
                held.doomed, held.doomed_by = f"its parent {id_text(parent)} was {how}", parent
            if held.doomed or not held.waits:
                self.ripe[child] = None

    def _awaited_in(self, queue: int, span: Span) -> list[tuple[int, int]]:
        positions = self.positions.get(queue)
        if not positions:
            return []
        number = span.partition
        if span.count < len(positions):
            return [(number, offset) for offset in span.offset_array().tolist() if (number, offset) in positions]
        offsets = set(span.offset_array().tolist()) if span.offsets else range(span.first, span.first + span.count)
        return [position for position in positions if position[0] == number and position[1] in offsets]


def is_settled(core: DeliveryState, position: TaskPosition) -> bool:
    """Whether workers are done with a message, or it is gone."""
    queue = core.queues.get(position[0])
    if queue is None or position[1] >= len(queue.partitions) or position[2] >= queue.partitions[position[1]].end:
        return True
    progress = queue.groups[GROUP].progress[position[1]]
    return position[2] < progress.start or progress.state_of(position[2]) == SETTLED
