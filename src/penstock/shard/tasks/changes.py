"""Tasks that somebody stops, or starts again.

The caller has looked the task up and says where it is; `Moved` says that it is not there, or not so, any more.

Tasks that were cancelled while they waited for their parents, and wait again: one that is retried, and all that were
cancelled because of one that is.

Whether a parent is done is for the caller to find out, as when tasks are submitted. `kin` says what it must look up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock import limits
from penstock.batch import Batch
from penstock.delivery import admin
from penstock.delivery import settle as settle_rules
from penstock.delivery.core import DeliveryState
from penstock.delivery.dedup import digest
from penstock.delivery.entries import Entry, Note, Parent, Revived, Settled, TaskHeld, TasksNoted, UniqueTaken
from penstock.delivery.group import Group
from penstock.delivery.phases import LEASED, SETTLED, WAITING
from penstock.delivery.progress import Progress, span_of
from penstock.delivery.settle import Chosen, DeadLetter, decide_redrive
from penstock.delivery.task_pushes import cancelled
from penstock.delivery.tasks import GROUP, HELD, TaskPosition, WithdrawnTask
from penstock.envelopes import parse_envelope
from penstock.errors import QueueFull, TaskConflict
from penstock.model import DEFAULT_GROUP, DLQ_SUFFIX, MessageId, Outcome, to_micros
from penstock.model_letters import DEAD_GROUP, DEAD_ORIGIN
from penstock.model_tasks import FINAL, TaskState, id_text
from penstock.replies import Piece
from penstock.requests import ParentFound, Settling
from penstock.shard.payload_rows import pieces_of
from penstock.shard.tasks.frames import CANCELLED_ERROR, commit, id_bytes
from penstock.shard.tasks.submit import Moved, open_position

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard

CHUNK: Final = 1_000
RETRIED: Final = (TaskState.DEAD, TaskState.CANCELLED, TaskState.FAILED)
# What a task may have ended as that is neither done nor a dead letter, the likeliest first.
DROPPED: Final = (
    Outcome.CANCELLED, Outcome.DISCARDED, Outcome.EXPIRED, Outcome.EVICTED, Outcome.PURGED, Outcome.OVERFLOWED,
)  # fmt: skip


class Kin(NamedTuple):
    """Tasks that come back with one that is retried, and their parents: which were asked for, and which are known."""

    asked: frozenset[str] = frozenset()
    found: Mapping[str, ParentFound] = {}


NO_KIN: Final = Kin()


def cancel(shard: Shard, position: MessageId | None, task_id: str) -> tuple[Ticket, str]:
    """End a task wherever it stands; also who was running it, "" for nobody. May raise `Moved`."""
    task = id_bytes(task_id)

    def operation(now: int) -> tuple[Ticket, str]:
        if position is None:
            held = shard.core.tasks.held.get(task)
            if held is None:
                raise Moved
            return commit(shard, [cancelled(held.queue, task, CANCELLED_ERROR, now)], now, shard.durability), ""
        progress = _progress_of(shard, position)
        entries, chosen = _decide_cancel(shard, progress, position.offset, now)
        worker = chosen[0].lease.consumer if chosen else ""
        partition, queue = progress.partition, progress.partition.queue
        attempt = entries[0].spans[0].attempt if entries[0].leased_at else 0
        note = Note(task, partition.id, position.offset, attempt, Note.CANCELLED, CANCELLED_ERROR.encode())
        noted = TasksNoted(queue.id, now, worker, [note])
        level = queue.options.durability or shard.durability
        holder = chosen[0].lease.holder if chosen else ""
        return commit(shard, [*entries, noted], now, level, chosen), holder

    return shard.run_now(operation)


def _decide_cancel(shard: Shard, progress: Progress, offset: int, now: int) -> tuple[list[Settled], list[Chosen]]:
    """The end of one message, also when it is in somebody's hands: then also the delivery that ends with it."""
    phase = progress.state_of(offset)
    if phase == SETTLED:
        raise Moved
    group, partition = progress.group, progress.partition
    chosen = _delivery_of(group, progress, offset) if phase == LEASED else None
    if chosen is not None:
        ended = settle_rules.decide_settle(
            shard.core, [chosen], Settling(Outcome.CANCELLED, error=CANCELLED_ERROR), now, shard.rng
        )
        return [entry for entry in ended if isinstance(entry, Settled)], [chosen]
    span = span_of(partition.id, range(offset, offset + 1))
    return [Settled(partition.queue.id, group.id, int(Outcome.CANCELLED), now, 0, "", CANCELLED_ERROR, [span])], []


def _delivery_of(group: Group, progress: Progress, offset: int) -> Chosen | None:
    for lease in group.leases.values():
        for take in lease.takes:
            index = take.index_of(offset) if take.progress is progress else -1
            if index >= 0 and take.is_open(index):
                return Chosen(lease, take, [index])
    return None


def retry(
    shard: Shard,
    position: MessageId | None,
    task_id: str,
    state: TaskState,
    died_at: datetime | None = None,
    known: Kin = NO_KIN,
) -> Ticket:
    """Make a dead, cancelled or failed task pending again, with all its attempts. May raise `Moved`.

    Whoever was cancelled because of it waits for it again, in the same frame; one without a place waits for its
    parents. `known` is what the task index has of those. `died_at` says where among many dead letters to look for
    the one of this task.
    """
    if state not in RETRIED:
        raise TaskConflict(f"task {task_id} is {state}", hint="only dead, cancelled and failed ones can be retried")
    letter = _letter_of(shard, position, died_at) if position is not None and state is TaskState.DEAD else None

    def operation(now: int) -> Ticket:
        entries: list[Entry] = []
        where: TaskPosition | None = None
        if letter is not None:
            entries = _decide_redrive(shard, letter, now)
        elif position is not None:
            entries = _decide_retry(shard, position, task_id, state, now)
        if position is not None:
            partition = _progress_of(shard, position).partition
            where = partition.queue.id, partition.id, position.offset
        entries += decide_revived(shard.core, task_id, where, known, now)
        return commit(shard, entries, now, shard.durability)

    return shard.run_now(operation)


def _decide_redrive(shard: Shard, letter: DeadLetter, now: int) -> list[Entry]:
    progress = _progress_of(shard, letter.origin)
    dlq, offset = admin.queue_named(shard.core, letter.origin.queue + DLQ_SUFFIX), letter.origin.offset
    is_dead = offset < progress.partition.start or offset in (progress.dead_offsets or ())
    if not is_dead or dlq.groups[GROUP].progress[0].state_of(letter.offset) == SETTLED:
        raise Moved  # somebody else was quicker
    return decide_redrive(shard.core, dlq, [letter], now, 0.0, 0.0)


def _decide_retry(shard: Shard, position: MessageId, task_id: str, state: TaskState, now: int) -> list[Entry]:
    progress = _progress_of(shard, position)
    partition, phase = progress.partition, progress.state_of(position.offset)
    if phase != (WAITING if state is TaskState.FAILED else SETTLED):
        raise Moved
    if not any(offset == position.offset for offset in partition.kept_from(position.offset, 1)):
        raise TaskConflict(f"the message of task {task_id} is no longer kept", hint="submit it again")
    has_died = phase == WAITING or position.offset in (progress.dead_offsets or ())
    was = 0 if has_died else next((reason for reason in DROPPED if (progress.dropped or {}).get(reason, 0) > 0), None)
    if was is None:
        raise Moved  # it was completed
    span = span_of(partition.id, range(position.offset, position.offset + 1))
    span.dues = np.array([now], np.int64).tobytes()
    return [Revived(partition.queue.id, GROUP, now, [span], int(was))]


def _progress_of(shard: Shard, position: MessageId) -> Progress:
    """The workers' progress through the partition of a message."""
    queue = shard.core.by_name.get(position.queue)
    partition = queue.by_name.get(position.partition) if queue is not None else None
    if queue is None or partition is None or not HELD < position.offset < partition.end:
        raise Moved
    return queue.groups[GROUP].progress[partition.id]


# the dead letter of a task


def _letter_of(shard: Shard, position: MessageId, died_at: datetime | None) -> DeadLetter | None:
    """The dead letter that waits for somebody to deal with it."""
    dlq = position.queue + DLQ_SUFFIX
    since = 0 if died_at is None else to_micros(died_at, "died_at")
    for piece in _letters(shard, dlq, since):
        for index, offset in enumerate(piece.offsets):
            headers = piece.batch.headers(piece.row(index)) or {}
            if headers.get(DEAD_ORIGIN) == str(position) and headers.get(DEAD_GROUP) == DEFAULT_GROUP:
                return DeadLetter(offset, position, DEFAULT_GROUP)
    return None


def _letters(shard: Shard, dlq: str, since: int) -> Iterator[Piece]:
    """Dead letters that nobody has dealt with, a chunk at a time: those that died at an instant, or all."""
    position = -1
    while True:
        pieces, position = shard.look(lambda now, start=position: _some_letters(shard, dlq, start, since))[0]  # type: ignore[misc]
        if not pieces:
            return
        yield from shard.loaded(pieces, only_kept=True)


def _some_letters(shard: Shard, dlq: str, start: int, since: int) -> tuple[list[Piece], int]:
    queue = shard.core.by_name.get(dlq)
    if queue is None:
        return [], 0
    progress, partition = queue.groups[GROUP].progress[0], queue.partitions[0]
    end = partition.offset_at(since + 1) if since else partition.end
    if start < 0:
        start = partition.offset_at(since) if since else partition.start
    offsets: list[int] = []
    while start < end and len(offsets) < CHUNK:
        if progress.state_of(start) != SETTLED:
            offsets.append(start)
        start += 1
    return pieces_of(partition, offsets), start


def kin(shard: Shard, task_id: str) -> frozenset[str]:
    """The tasks to look up in the task index before a task is retried."""
    task = id_bytes(task_id)
    members, _ = shard.look(lambda now: _family(shard.core, task))
    return frozenset({id_text(member.task_id) for member in members}.union(*map(_parents, members)))


def _family(core: DeliveryState, task: bytes) -> list[WithdrawnTask]:
    """Those that were cancelled because of a task, and because of them, and so on; with the task, if it is one."""
    withdrawn = core.tasks.withdrawn
    itself = withdrawn.known.get(task)
    family = {member.task_id: member for member in withdrawn.because_of(task)}
    todo = list(family)
    while todo:
        for member in withdrawn.because_of(todo.pop()):
            if member.task_id not in family:
                family[member.task_id] = member
                todo.append(member.task_id)
    family.pop(task, None)
    return [*([] if itself is None else [itself]), *family.values()]


def _parents(task: WithdrawnTask) -> tuple[str, ...]:
    return parse_envelope(Batch(task.batch).payload(0)).depends_on


def decide_revived(
    core: DeliveryState, task_id: str, position: TaskPosition | None, known: Kin, now: int
) -> list[Entry]:
    """Hold again whoever was cancelled because of a task, and the task itself if it has no place. May raise `Moved`."""
    root = id_bytes(task_id)
    family = {task.task_id: task for task in _family(core, root)}
    if position is None:
        if root not in family or core.queues.get(family[root].queue) is None:
            raise _gone(task_id)
    else:
        family.pop(root, None)  # it was submitted once more
    if not family:
        return []
    kept = {task.task_id: task for task in family.values() if task.task_id == root or _is_kept(core, task, known, now)}
    tasks = core.tasks
    if len(tasks.held) + len(kept) > limits.tasks_held_max:
        raise QueueFull(f"{len(tasks.held):,} tasks are already waiting for others", hint="wait until some are done")
    revival = _Revival(core, kept, known, {} if position is None else {root: position})
    return revival.entries(root if position is None else b"", now)


def _is_kept(core: DeliveryState, task: WithdrawnTask, known: Kin, now: int) -> bool:
    """Whether a task is still as it was when it was cancelled: neither forgotten nor submitted once more."""
    name = id_text(task.task_id)
    if name not in known.asked:
        raise Moved
    view, queue = known.found.get(name), core.queues.get(task.queue)
    if view is None or view.state is not TaskState.CANCELLED or view.position is not None or queue is None:
        return False
    return queue.dedup is None or queue.dedup.find(digest(name), now) is None


class _Revival:
    """Some tasks that are held again, with the lock held."""

    def __init__(
        self,
        core: DeliveryState,
        members: Mapping[bytes, WithdrawnTask],
        known: Kin,
        positions: Mapping[bytes, TaskPosition],
    ) -> None:
        self._core = core
        self._members = members
        self._known = known
        self._positions = positions  # of those that are brought back in this frame
        self._keys: set[tuple[int, bytes]] = set()  # unique keys that are taken in it

    def entries(self, root: bytes, now: int) -> list[Entry]:
        """All are held first: who is doomed by another parent takes along whoever waits for it."""
        looked = {task.task_id: self._look(task) for task in self._members.values()}
        lost = looked[root][1] if root else None
        if lost is not None:
            why = f"its parent {id_text(lost[0])} is {lost[1]}"
            hint = "retry the parent: tasks cancelled because of it wait again"
            raise TaskConflict(f"task {id_text(root)} cannot be retried: {why}", hint=hint)
        held: list[Entry] = []
        doomed: list[Entry] = []
        for task_id, (waits, lost) in looked.items():
            task = self._members[task_id]
            held.append(TaskHeld(task.queue, task_id, now, waits, task.policy, task.batch))
            held += self._key(task, now)
            if lost is not None:
                why = f"its parent {id_text(lost[0])} was {lost[1]}"
                doomed.append(cancelled(task.queue, task_id, why, now, lost[0]))
        return held + doomed

    def _look(self, task: WithdrawnTask) -> tuple[list[Parent], tuple[bytes, str] | None]:
        """Whom a task waits for; and a parent that did not complete, with its state."""
        waits: list[Parent] = []
        for name in dict.fromkeys(_parents(task)):
            parent = id_bytes(name)
            position, state = self._stand_of(parent, name)
            if position is not None:
                waits.append(Parent(parent, *position))
            elif state != TaskState.COMPLETED and task.policy == TaskHeld.CANCEL:
                return waits, (parent, state)
        return waits, None

    def _stand_of(self, parent: bytes, name: str) -> tuple[TaskPosition | None, str]:
        """Where a parent is that is not final, or else how it ended."""
        held = self._members.get(parent) or self._core.tasks.held.get(parent)
        if parent in self._positions:
            return self._positions[parent], ""
        if held is not None:
            return (held.queue, HELD, HELD), ""
        if name not in self._known.asked:
            raise Moved
        parent_view = self._known.found.get(name)
        if parent_view is None:
            return None, "no longer known"
        position = open_position(self._core, parent_view)
        if (position is None) != (parent_view.state in FINAL):
            raise Moved
        return position, parent_view.state.value

    def _key(self, task: WithdrawnTask, now: int) -> list[Entry]:
        """Its unique key is its own again, unless somebody else has it."""
        key = (task.queue, task.unique)
        if not task.unique or key in self._keys or self._core.tasks.owner_of(self._core, *key, now) is not None:
            return []
        self._keys.add(key)
        return [UniqueTaken(task.queue, task.unique, task.task_id, 0, HELD, HELD)]


def _gone(task_id: str) -> TaskConflict:
    why = f"task {task_id} was cancelled while it waited for its parents, and is not kept"
    return TaskConflict(why, hint="submit it again")
