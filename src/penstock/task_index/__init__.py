"""The task index: the state of each task, as a searchable view of the journal."""

from penstock.task_index.index import TaskIndex

__all__ = ["TaskIndex"]
