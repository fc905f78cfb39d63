"""What only all tasks of a call together can break, found before the shard is held. Fields belong to `validation`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.errors import InvalidField
from penstock.model_tasks import TaskSubmission
from penstock.shard.tasks.checks import id_bytes


class Wanted(NamedTuple):
    """A submission that was looked at: its place in the call, its id and those of its parents as entries have them."""

    place: int
    task: TaskSubmission
    task_id: bytes
    parents: tuple[bytes, ...]


def check_submissions(tasks: Sequence[TaskSubmission]) -> list[Wanted]:
    """All of them, parents first. Refuses ids that stand twice, and tasks that wait for themselves."""
    found: dict[bytes, Wanted] = {}
    for place, task in enumerate(tasks):
        task_id = id_bytes(task.task_id)
        if task_id in found:
            raise InvalidField(f"tasks[{place}].task_id: {task.task_id} stands twice in one call")
        parents = tuple(dict.fromkeys(map(id_bytes, task.depends_on)))
        if task_id in parents:
            raise InvalidField(f"tasks[{place}].depends_on: {task.task_id} waits for itself")
        # An id that its queue remembers is what makes it safe to submit again.
        named = task if task.is_named else msgspec.structs.replace(task, is_named=True)
        found[task_id] = Wanted(place, named, task_id, parents)
    return _parents_first(found)


def _parents_first(found: dict[bytes, Wanted]) -> list[Wanted]:
    if not any(each.parents for each in found.values()):
        return list(found.values())
    children: dict[bytes, list[bytes]] = {}
    missing = {}
    for each in found.values():
        inside = [parent for parent in each.parents if parent in found]
        missing[each.task_id] = len(inside)
        for parent in inside:
            children.setdefault(parent, []).append(each.task_id)
    free = deque(task_id for task_id, count in missing.items() if not count)
    ordered: list[Wanted] = []
    while free:
        task_id = free.popleft()
        ordered.append(found[task_id])
        for child in children.get(task_id, ()):
            missing[child] -= 1
            if not missing[child]:
                free.append(child)
    if len(ordered) < len(found):
        place = next(each.place for each in found.values() if missing[each.task_id])
        raise InvalidField(f"tasks[{place}].depends_on: these tasks wait for each other in a circle")
    return ordered
