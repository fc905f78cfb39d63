"""Submitting tasks that wait for others or are unique, in one frame with any plain ones among them.

What only all tasks of a call together can break is found before the shard is held; fields belong to `validation`. Every
id is remembered by its queue as a dedup key, so a call that is made again stores nothing twice. Whether a parent
from outside the call is final is for the caller to find out: what it saw is compared with the state, and `Moved` says
that it was too late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock import limits
from penstock.batch import Batch
from penstock.delivery.admin import queue_to_push
from penstock.delivery.core import DeliveryState
from penstock.delivery.dedup import digest
from penstock.delivery.entries import Entry, Parent, TaskHeld, UniqueTaken, entry_bytes
from penstock.delivery.log import Queue
from penstock.delivery.push import check_allowed, check_type, check_type_of, decide_push
from penstock.delivery.rate_limits import Bill, decide_bill
from penstock.delivery.task_pushes import ROOM, cancelled
from penstock.delivery.tasks import HELD, TaskPosition, is_settled
from penstock.envelopes import task_message, tasks_batch
from penstock.errors import InvalidField, QueueFull, TaskConflict, TooLarge
from penstock.model_tasks import FINAL, Submitted, TaskState, TaskSubmission, id_text
from penstock.requests import ParentFound
from penstock.shard.tasks.frames import commit, id_bytes, safest

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard


class Wanted(NamedTuple):
    """A submission that was looked at: its place in the call, its id and those of its parents as entries have them."""

    position: int
    task: TaskSubmission
    task_id: bytes
    parents: tuple[bytes, ...]


def check_submissions(tasks: Sequence[TaskSubmission]) -> list[Wanted]:
    """All of them, parents first. Refuses ids that stand twice, and tasks that wait for themselves."""
    tasks_by_id: dict[bytes, Wanted] = {}
    for position, task in enumerate(tasks):
        task_id = id_bytes(task.task_id)
        if task_id in tasks_by_id:
            raise InvalidField(f"tasks[{position}].task_id: {task.task_id} appears twice in one call")
        parents = tuple(dict.fromkeys(map(id_bytes, task.depends_on)))
        if task_id in parents:
            raise InvalidField(f"tasks[{position}].depends_on: {task.task_id} waits for itself")
        # An id that its queue remembers is what makes it safe to submit again.
        named = task if task.is_named else msgspec.structs.replace(task, is_named=True)
        tasks_by_id[task_id] = Wanted(position, named, task_id, parents)
    return _parents_first(tasks_by_id)


def _parents_first(tasks_by_id: dict[bytes, Wanted]) -> list[Wanted]:
    if not any(task.parents for task in tasks_by_id.values()):
        return list(tasks_by_id.values())
    children: dict[bytes, list[bytes]] = {}
    missing = {}
    for task in tasks_by_id.values():
        inside = [parent for parent in task.parents if parent in tasks_by_id]
        missing[task.task_id] = len(inside)
        for parent in inside:
            children.setdefault(parent, []).append(task.task_id)
    free = deque(task_id for task_id, count in missing.items() if not count)
    ordered: list[Wanted] = []
    while free:
        task_id = free.popleft()
        ordered.append(tasks_by_id[task_id])
        for child in children.get(task_id, ()):
            missing[child] -= 1
            if not missing[child]:
                free.append(child)
    if len(ordered) < len(tasks_by_id):
        position = next(task.position for task in tasks_by_id.values() if missing[task.task_id])
        raise InvalidField(f"tasks[{position}].depends_on: these tasks wait for each other in a circle")
    return ordered


POLICY: Final = {"cancel": TaskHeld.CANCEL, "run": TaskHeld.RUN}
Parents = Mapping[str, ParentFound]


class Lost(NamedTuple):
    """Why a child will not run, and the parent whose end it is."""

    why: str
    parent: bytes


class Moved(Exception):
    """A parent is no longer where, or as, the caller saw it: look again, and submit again."""


def open_position(core: DeliveryState, parent: ParentFound) -> TaskPosition | None:
    """Where the message of a parent is; None when there is none, or workers are done with it."""
    if parent.position is None:
        return None
    queue = core.by_name.get(parent.position.queue)
    partition = queue.by_name.get(parent.position.partition) if queue is not None else None
    if queue is None or partition is None:
        return None
    position = (queue.id, partition.id, parent.position.offset)
    return None if is_settled(core, position) else position


def submit_tasks(
    shard: Shard, tasks: Sequence[TaskSubmission], parents: Parents, client: str = ""
) -> tuple[list[Submitted], Ticket]:
    """Store all of them or none. `parents` has those that are not in the call. May raise `Moved`."""
    submissions = check_submissions(tasks)
    shard.throttle.wait()
    return shard.run(lambda: _Submission(shard, submissions, parents, client).run())


class _Submission:
    """One call, with the lock held."""

    def __init__(self, shard: Shard, submissions: list[Wanted], parents: Parents, client: str) -> None:
        self._shard = shard
        self._core = shard.core
        self._parents = parents
        self._client = client
        self._wanted = submissions
        self._now = 0
        self._there: dict[bytes, tuple[bytes, TaskPosition | None]] = {}  # those that were there before: id, and where
        self._keys: dict[tuple[str, bytes], bytes] = {}  # unique keys that this call takes
        self._new: set[bytes] = set()
        self._waits: dict[bytes, list[Parent | bytes]] = {}  # bytes: a task of this call
        self._doomed: dict[bytes, Lost] = {}
        self._positions: dict[bytes, TaskPosition] = {}  # of those that are pushed
        self._queues: dict[str, Queue] = {}  # of those that are new; queues that are made as they will be
        self._bill: Bill = {}

    def run(self) -> tuple[list[Submitted], Ticket]:
        shard, core = self._shard, self._core
        self._now = shard.begin_push()
        shard.tick(self._now, shard.clock.monotonic())
        core.tasks.sweep(core, self._now)
        for item in self._wanted:
            self._position(item)
        new = [item for item in self._wanted if item.task_id not in self._there]
        if not new:
            return self._answers(), shard.read_ticket
        created: list[Entry] = []
        made = 0
        for name in dict.fromkeys(item.task.queue for item in new):
            self._queues[name], entries = queue_to_push(core, name, self._now, core.queue_id_next + made)
            made += bool(entries)
            created += entries
        entries = created + self._entries(new)
        level = safest({queue.options.durability or shard.durability for queue in self._queues.values()})
        return self._answers(), commit(shard, entries, self._now, level, bill=self._bill)

    def _answers(self) -> list[Submitted]:
        answers = [(item.position, self._there.get(item.task_id), item.task_id) for item in self._wanted]
        return [
            Submitted(id_text(task_id if there is None else there[0]), there is None)
            for _, there, task_id in sorted(answers)
        ]

    # what becomes of each

    def _position(self, item: Wanted) -> None:
        """Whether a task is new, and whether it is pushed, held or doomed."""
        there = self._find(item)
        if there is not None:
            self._there[item.task_id] = there
            return
        waits: list[Parent | bytes] = []
        doomed: Lost | None = None
        for parent in item.parents:
            wait = self._wait_for(item, parent)
            if isinstance(wait, Lost):
                doomed = doomed or (wait if item.task.on_parent_failure == "cancel" else None)
            elif wait is not None:
                waits.append(wait)
        self._new.add(item.task_id)
        if doomed is not None:
            self._doomed[item.task_id] = doomed
        if waits or doomed is not None:
            self._waits[item.task_id] = waits if doomed is None else []

    def _find(self, item: Wanted) -> tuple[bytes, TaskPosition | None] | None:
        """The task that was there before: the same, or one with the same unique key."""
        tasks, queue = self._core.tasks, self._core.by_name.get(item.task.queue)
        kept = tasks.held.get(item.task_id) or tasks.withdrawn.known.get(item.task_id)
        if kept is not None:
            if queue is None or kept.queue != queue.id:
                raise TaskConflict(f"task {item.task.task_id} belongs to another queue", hint="choose another task_id")
            check_type_of(kept.batch, item.task.task_id, item.task.task_type)
            return item.task_id, None  # one that was cancelled stays so: whoever wants it to run retries it
        if queue is not None and queue.dedup is not None:
            known = queue.dedup.find(digest(item.task.task_id), self._now)
            if known is not None:
                check_type(queue, known.partition, known.offset, item.task.task_id, item.task.task_type)
                return item.task_id, (queue.id, known.partition, known.offset)
        if item.task.unique_key is None:
            return None
        key = digest(item.task.unique_key)
        inside = self._keys.get((item.task.queue, key))
        if inside is not None:
            return inside, None
        owner = tasks.owner_of(self._core, queue.id, key, self._now) if queue is not None else None
        if queue is not None and owner is not None:
            return owner.task_id, None if owner.offset == HELD else (queue.id, owner.partition, owner.offset)
        self._keys[item.task.queue, key] = item.task_id
        return None

    def _wait_for(self, child: Wanted, parent: bytes) -> Parent | bytes | Lost | None:
        """What a child has to wait for; None when that is done, `Lost` when it never will be."""
        position: TaskPosition | None = None
        was_there = parent in self._there
        if was_there:
            parent, position = self._there[parent]
        if parent in self._new:
            return parent
        held = self._core.tasks.held.get(parent)
        if held is not None:
            return Parent(parent, held.queue, HELD, HELD)
        if position is not None and not is_settled(self._core, position):
            return Parent(parent, *position)
        view = self._parents.get(id_text(parent))
        if view is None:
            where = f"tasks[{child.position}].depends_on"
            if was_there:
                raise Moved  # it was submitted before, and is done: how, the caller can find out
            raise InvalidField(f"{where}: there is no task {id_text(parent)}", hint="submit it first, or in this call")
        return self._wait_for_found(parent, view)

    def _wait_for_found(self, parent: bytes, view: ParentFound) -> Parent | Lost | None:
        if view.state in FINAL:
            if view.state == TaskState.COMPLETED:
                return None
            return Lost(f"its parent {id_text(parent)} was {view.state.value}", parent)
        position = open_position(self._core, view)
        if position is None:
            raise Moved
        return Parent(parent, *position)

    # the frame

    def _entries(self, new: list[Wanted]) -> list[Entry]:
        """All of it; refuses what does not fit."""
        entries = self._pushes([item for item in new if item.task_id not in self._waits])
        waiting = [item for item in new if item.task_id in self._waits]
        for item in waiting:
            entries.append(self._held(item, self._queues[item.task.queue]))
        entries += [self._key(item) for item in new if item.task.unique_key is not None]
        for item in waiting:
            if item.task_id in self._doomed:
                queue, lost = self._queues[item.task.queue], self._doomed[item.task_id]
                entries.append(cancelled(queue.id, item.task_id, lost.why, self._now, lost.parent))
        self._check_room(entries, waiting)
        return entries

    def _pushes(self, pushed: list[Wanted]) -> list[Entry]:
        """One push for each queue. None of them is a duplicate: those were found before."""
        by_queue: dict[Queue, list[Wanted]] = {}
        for item in pushed:
            by_queue.setdefault(self._queues[item.task.queue], []).append(item)
        entries: list[Entry] = []
        pushes = []
        for queue, some in by_queue.items():
            batch = tasks_batch([item.task for item in some])
            decided = decide_push(self._core, queue, batch, self._now)
            partitions, offsets = decided.push.positions(batch.count)
            for item, partition, offset in zip(some, partitions.tolist(), offsets.tolist(), strict=True):
                self._positions[item.task_id] = (queue.id, partition, offset)
            entries += decided.entries
            pushes.append((queue, decided.push))
        self._bill = decide_bill(pushes, self._client, self._now)
        return entries

    def _held(self, item: Wanted, queue: Queue) -> TaskHeld:
        message = task_message(item.task)
        check_allowed(queue, Batch(message))
        parents = [
            wait if isinstance(wait, Parent) else Parent(wait, *self._positions.get(wait, (queue.id, HELD, HELD)))
            for wait in self._waits[item.task_id]
        ]
        policy = POLICY[item.task.on_parent_failure]
        return TaskHeld(queue.id, item.task_id, self._now, parents, policy, message)

    def _key(self, item: Wanted) -> UniqueTaken:
        task, queue = item.task, self._queues[item.task.queue]
        assert task.unique_key is not None
        until = 0 if task.unique_seconds is None else self._now + round(task.unique_seconds * 1_000_000)
        _, partition, offset = self._positions.get(item.task_id, (queue.id, HELD, HELD))
        return UniqueTaken(queue.id, digest(task.unique_key), item.task_id, until, partition, offset)

    def _check_room(self, entries: list[Entry], waiting: list[Wanted]) -> None:
        tasks = self._core.tasks
        size = sum(map(entry_bytes, entries))
        if size > ROOM:
            raise TooLarge(f"tasks: {size:,} bytes are too many", hint="submit fewer tasks per call")
        if waiting and len(tasks.held) + len(waiting) > limits.tasks_held_max:
            raise QueueFull(
                f"{len(tasks.held):,} tasks are already waiting for others", hint="wait until some are done"
            )
        if waiting and tasks.held_bytes + size > limits.tasks_held_bytes_max:
            raise QueueFull(f"waiting tasks already take {tasks.held_bytes:,} bytes")
        if len(tasks.unique) + len(self._keys) > limits.unique_keys_max:
            raise QueueFull(f"{len(tasks.unique):,} unique keys are in use", hint="use a shorter unique_seconds")
