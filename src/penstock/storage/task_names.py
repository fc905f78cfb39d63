"""The names that tasks are told by: queues, partitions, and texts that repeat, each with a number."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model import DLQ_SUFFIX


class Known:
    """What the stored tables say of names; a fold adds to it. Made anew when a transaction fails."""

    def __init__(
        self,
        queues: dict[int, str],
        task_queues: set[int],
        words: dict[str, int],
        partitions: dict[tuple[int, int], str],
    ) -> None:
        self.queues = queues
        self.task_queues = task_queues
        self.words = words
        self.partitions = partitions
        self.new_queues: dict[int, str] = {}
        self.new_task_queues: set[int] = set()
        self.new_words: dict[str, int] = {"": 0} if not words else {}
        self.new_partitions: dict[tuple[int, int], str] = {}
        self.words.setdefault("", 0)
        self.texts = {number: text for text, number in words.items()}

    def word(self, text: str) -> int:
        """The number of a text that repeats."""
        number = self.words.get(text)
        if number is None:
            number = self.words[text] = self.new_words[text] = len(self.words)
            self.texts[number] = text
        return number

    def learn_queue(self, id: int, name: str) -> None:
        if self.queues.get(id) != name:
            self.queues[id] = self.new_queues[id] = name

    def learn_partitions(self, queue: int, first: int, names: Sequence[str]) -> None:
        for id, name in enumerate(names, first):
            if self.partitions.get((queue, id)) != name:
                self.partitions[queue, id] = self.new_partitions[queue, id] = name

    def has_tasks(self, queue: int) -> bool:
        """Whether messages of this queue may be tasks: called for one that is; dead letters are no tasks."""
        if queue not in self.task_queues:
            if self.queues.get(queue, "").endswith(DLQ_SUFFIX):
                return False
            self.task_queues.add(queue)
            self.new_task_queues.add(queue)
        return True
