"""What `push_many` answers."""

from __future__ import annotations

from functools import cached_property

from penstock.model import MessageId
from penstock.replies import PushReply


class PushResult:
    """Ids are made when asked for. A duplicate has the id of the message that came first."""

    def __init__(self, reply: PushReply) -> None:
        self._reply = reply

    def __len__(self) -> int:
        return self._reply.count

    @cached_property
    def ids(self) -> list[MessageId]:
        """One id per item, in order."""
        return self._reply.ids()

    @property
    def duplicates(self) -> list[int]:
        """Which items were duplicates: their places in the list that was pushed."""
        return sorted(self._reply.duplicates)

    @property
    def statuses(self) -> list[str]:
        """`queued` or `duplicate` for each item."""
        return ["duplicate" if row in self._reply.duplicates else "queued" for row in range(self._reply.count)]

    def __repr__(self) -> str:
        return f"<PushResult {len(self)} items, {len(self._reply.duplicates)} duplicates>"
