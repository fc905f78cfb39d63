"""Tasks that were cancelled while they waited for their parents, and wait again: one that is retried, and all that were
cancelled because of one that is.

Whether a parent is done is for the caller to find out, as when tasks are submitted. What it must look up, `kin` tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock import limits
from penstock.batch import Batch
from penstock.delivery.child_release import cancelled
from penstock.delivery.core import DeliveryState
from penstock.delivery.dedup import digest
from penstock.delivery.entries import Entry, Parent, TaskHeld, UniqueTaken
from penstock.delivery.tasks import HELD, Place, WithdrawnTask, id_text
from penstock.envelopes import parse_envelope
from penstock.errors import QueueFull, TaskConflict
from penstock.model_tasks import FINAL, TaskState
from penstock.requests import ParentFound
from penstock.shard.shard import Shard
from penstock.shard.tasks.checks import id_bytes
from penstock.shard.tasks.submit import Moved, open_place


class Kin(NamedTuple):
    """Tasks that come back with one that is retried, and their parents: which were asked for, and which are known."""

    asked: frozenset[str] = frozenset()
    found: Mapping[str, ParentFound] = {}


def kin(shard: Shard, task_id: str) -> frozenset[str]:
    """Of whom the task index must tell before a task is retried."""
    task = id_bytes(task_id)
    members, _ = shard.look(lambda now: _family(shard.core, task))
    return frozenset({id_text(each.task_id) for each in members}.union(*map(_parents, members)))


def _family(core: DeliveryState, task: bytes) -> list[WithdrawnTask]:
    """Those that were cancelled because of a task, and because of them, and so on; with the task, if it is one."""
    withdrawn = core.tasks.withdrawn
    itself = withdrawn.known.get(task)
    found = {each.task_id: each for each in withdrawn.because_of(task)}
    todo = list(found)
    while todo:
        for each in withdrawn.because_of(todo.pop()):
            if each.task_id not in found:
                found[each.task_id] = each
                todo.append(each.task_id)
    found.pop(task, None)
    return [*([] if itself is None else [itself]), *found.values()]


def _parents(each: WithdrawnTask) -> tuple[str, ...]:
    return parse_envelope(Batch(each.batch).payload(0)).depends_on


def decide_revived(core: DeliveryState, task_id: str, place: Place | None, known: Kin, now: int) -> list[Entry]:
    """Hold again whoever was cancelled because of a task, and the task itself if it has no place. May raise `Moved`."""
    root = id_bytes(task_id)
    family = {each.task_id: each for each in _family(core, root)}
    if place is None:
        if root not in family or core.queues.get(family[root].queue) is None:
            raise _gone(task_id)
    else:
        family.pop(root, None)  # it was submitted once more
    if not family:
        return []
    kept = {each.task_id: each for each in family.values() if each.task_id == root or _is_kept(core, each, known, now)}
    tasks = core.tasks
    if len(tasks.held) + len(kept) > limits.tasks_held_max:
        raise QueueFull(f"{len(tasks.held):,} tasks wait for others already", hint="wait until some are done")
    revival = _Revival(core, kept, known, {} if place is None else {root: place})
    return revival.entries(root if place is None else b"", now)


def _is_kept(core: DeliveryState, each: WithdrawnTask, known: Kin, now: int) -> bool:
    """Whether a task is still as it was when it was cancelled: neither forgotten nor submitted once more."""
    name = id_text(each.task_id)
    if name not in known.asked:
        raise Moved
    found, queue = known.found.get(name), core.queues.get(each.queue)
    if found is None or found.state is not TaskState.CANCELLED or found.place is not None or queue is None:
        return False
    return queue.dedup is None or queue.dedup.find(digest(name), now) is None


class _Revival:
    """Some tasks that are held again, with the lock held."""

    def __init__(
        self, core: DeliveryState, members: Mapping[bytes, WithdrawnTask], known: Kin, places: Mapping[bytes, Place]
    ) -> None:
        self._core = core
        self._members = members
        self._known = known
        self._places = places  # of those that are brought back in this frame
        self._keys: set[tuple[int, bytes]] = set()  # unique keys that are taken in it

    def entries(self, root: bytes, now: int) -> list[Entry]:
        """All are held first: who is doomed by another parent takes along whoever waits for it."""
        looked = {each.task_id: self._look(each) for each in self._members.values()}
        lost = looked[root][1] if root else None
        if lost is not None:
            why = f"its parent {id_text(lost[0])} is {lost[1]}"
            hint = "retry that one: whoever was cancelled because of it waits again"
            raise TaskConflict(f"task {id_text(root)} cannot be retried: {why}", hint=hint)
        held: list[Entry] = []
        doomed: list[Entry] = []
        for task_id, (waits, lost) in looked.items():
            each = self._members[task_id]
            held.append(TaskHeld(each.queue, task_id, now, waits, each.policy, each.batch))
            held += self._key(each, now)
            if lost is not None:
                why = f"its parent {id_text(lost[0])} was {lost[1]}"
                doomed.append(cancelled(each.queue, task_id, why, now, lost[0]))
        return held + doomed

    def _look(self, each: WithdrawnTask) -> tuple[list[Parent], tuple[bytes, str] | None]:
        """Whom a task waits for; and a parent that did not complete, with its state."""
        waits: list[Parent] = []
        for name in dict.fromkeys(_parents(each)):
            parent = id_bytes(name)
            place, state = self._stand_of(parent, name)
            if place is not None:
                waits.append(Parent(parent, *place))
            elif state != TaskState.COMPLETED and each.policy == TaskHeld.CANCEL:
                return waits, (parent, state)
        return waits, None

    def _stand_of(self, parent: bytes, name: str) -> tuple[Place | None, str]:
        """Where a parent is that is not final, or else how it ended."""
        held = self._members.get(parent) or self._core.tasks.held.get(parent)
        if parent in self._places:
            return self._places[parent], ""
        if held is not None:
            return (held.queue, HELD, HELD), ""
        if name not in self._known.asked:
            raise Moved
        found = self._known.found.get(name)
        if found is None:
            return None, "not known any more"
        place = open_place(self._core, found)
        if (place is None) != (found.state in FINAL):
            raise Moved
        return place, found.state.value

    def _key(self, each: WithdrawnTask, now: int) -> list[Entry]:
        """Its unique key is its own again, unless somebody else has it."""
        key = (each.queue, each.unique)
        if not each.unique or key in self._keys or self._core.tasks.owner_of(self._core, *key, now) is not None:
            return []
        self._keys.add(key)
        return [UniqueTaken(each.queue, each.unique, each.task_id, 0, HELD, HELD)]


def _gone(task_id: str) -> TaskConflict:
    why = f"task {task_id} was cancelled while it waited for its parents, and is not kept"
    return TaskConflict(why, hint="submit it again")
