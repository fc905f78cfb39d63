"""Which kind of work each action of an operation is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.model_tasks import TASK_ACTIONS, OperationAction
from penstock.shard.bulk.book import Work
from penstock.shard.bulk.letters import LetterWork
from penstock.shard.bulk.replay import ReplayWork
from penstock.shard.tasks.operations import TaskWork

if TYPE_CHECKING:
    from penstock.shard.shard import Shard
    from penstock.shard.tasks.service import TaskService


def works_of(shard: Shard, service: TaskService) -> Mapping[str, Work]:
    """The work of each action."""
    letters, replay = LetterWork(shard), ReplayWork(shard)
    return {
        **dict.fromkeys(TASK_ACTIONS, TaskWork(shard, service)),
        OperationAction.REDRIVE: letters,
        OperationAction.DISCARD: letters,
        OperationAction.REPLAY: replay,
    }
