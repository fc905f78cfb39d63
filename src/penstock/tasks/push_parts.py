"""Many tasks, in parts that one push each can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from penstock import limits
from penstock.model_tasks import TaskSubmission

PUSH_BYTES: Final = limits.batch_bytes_max // 2  # that one push aims at
_ENVELOPE_BYTES: Final = 512  # of a task beside its arguments, at most in the ordinary


def parts(tasks: Sequence[TaskSubmission]) -> Iterator[tuple[str, list[TaskSubmission]]]:
    """Neighbours of one queue, as many as one push can hold."""
    for queue, neighbours in groupby(tasks, key=lambda task: task.queue):
        run = list(neighbours)
        sizes = [len(task.args) + len(task.kwargs) + _ENVELOPE_BYTES for task in run]
        for first, end in _cuts(sizes):
            yield queue, run[first:end]


def slices(payloads: list[bytes]) -> Iterator[list[bytes]]:
    """As many as one push can hold."""
    for first, end in _cuts([len(payload) for payload in payloads]):
        yield payloads[first:end]


def _cuts(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Where to cut so that every part is within `PUSH_BYTES`, or has but one."""
    if sum(sizes) <= PUSH_BYTES:
        if sizes:
            yield 0, len(sizes)
        return
    first = total = 0
    for index, size in enumerate(sizes):
        if index > first and total + size > PUSH_BYTES:
            yield first, index
            first, total = index, 0
        total += size
    yield first, len(sizes)
