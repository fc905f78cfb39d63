"""Operations on many tasks: each is worked on in steps, whose frames say how far it is.

So one that was running when the process stopped goes on where it was. Those that are over are kept for a while, so that
somebody can ask what became of them.
"""

from __future__ import annotations

from penstock import limits
from penstock.delivery.entries import OperationSet


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
        over = [each.operation_id for each in self.known.values() if each.state != OperationSet.RUNNING]
        for operation_id in over[: max(0, len(over) - limits.operations_kept)]:
            del self.known[operation_id]

    def running(self) -> list[OperationSet]:
        return [each for each in self.known.values() if each.state == OperationSet.RUNNING]

    def restore(self, known: list[OperationSet]) -> None:
        """Put those of a checkpoint back."""
        self.known = {each.operation_id: each for each in known}
