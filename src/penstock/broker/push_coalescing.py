"""Single pushes that arrive together become one batch: one frame, one extent, one decision for all of them.

They are gathered for one turn of the event loop, per queue, and while a sync is under way that they would have to wait
for anyway, unless there are many of them: so nobody waits for company, and a push that comes alone is pushed alone.
A batch that is refused is tried again one by one, so that each caller gets an answer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final

from penstock import limits
from penstock.batch import Alike
from penstock.broker.callbacks import OnReply, answer_of
from penstock.errors import PenstockError
from penstock.model import ContentType

Producer = tuple[int, int, int]  # id, epoch, sequence
# Where messages went: one partition for all or one each, and an offset each.
Folded = tuple[str | list[str], Sequence[int]]
FOLD_MIN: Final = 16  # this many are worth a batch of their own although a sync is under way
Content = ContentType | Alike  # what a message holds; or all its options, when it has some that a fold can have
PushFolded = Callable[[str, Sequence[bytes], Sequence[Producer | None], str, Content], tuple[Folded, int]]
Kind = tuple[str, str, str, Content]  # queue, client, protocol, content: the same for a whole fold


class _Fold:
    """Pushes of one kind, side by side."""

    __slots__ = ("bytes", "on_replies", "payloads", "producers")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.producers: list[Producer | None] = []
        self.on_replies: list[OnReply] = []
        self.bytes = 0


class PushCoalescer:
    """Gathers, and pushes at the end of the turn."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        push: PushFolded,
        after: Callable[[int, OnReply, Any], None],
        is_syncing: Callable[[], bool],
        stored: Callable[[Kind, int, int], None],
        refused: Callable[[str, PenstockError], PenstockError],
    ) -> None:
        self._loop = loop
        self._push = push
        self._after = after
        self._is_syncing = is_syncing
        self._stored = stored  # called with the kind, messages and bytes of each batch that was stored
        self._refused = refused  # counts the refusal of one message
        self._count = 0  # of messages gathered
        self._folds: dict[Kind, _Fold] = {}

    def add(self, kind: Kind, payload: bytes, producer: Producer | None, on_reply: OnReply) -> None:
        """One message; `on_reply((partition, offset))` when it is durable."""
        fold = self._folds.get(kind)
        if fold is None:
            if not self._folds:
                self._loop.call_soon(self._turn_ends)
            fold = self._folds[kind] = _Fold()
        fold.payloads.append(payload)
        fold.producers.append(producer)
        fold.on_replies.append(on_reply)
        fold.bytes += len(payload)
        self._count += 1
        if fold.bytes > limits.batch_bytes_max // 2:
            self.flush()
        elif self._count == FOLD_MIN:
            self._loop.call_soon(self.flush)

    def _turn_ends(self) -> None:
        if not self._is_syncing():
            self.flush()

    def flush(self) -> None:
        """Push everything gathered so far; what comes later stands behind it."""
        if not self._folds:
            return
        folds, self._folds = self._folds, {}
        self._count = 0
        for kind, fold in folds.items():
            self._push_fold(kind, fold)

    def _push_fold(self, kind: Kind, fold: _Fold) -> None:
        queue, client, _, content = kind
        answer = answer_of(lambda: self._push(queue, fold.payloads, fold.producers, client, content))
        if not isinstance(answer, PenstockError):
            placed, ticket = answer
            self._stored(kind, len(fold.on_replies), sum(map(len, fold.payloads)))
            self._after(ticket, partial(_reply, fold.on_replies, placed), None)
        elif len(fold.on_replies) == 1:
            fold.on_replies[0](self._refused(queue, answer))
        else:
            self._push_singly(kind, fold)

    def _push_singly(self, kind: Kind, fold: _Fold) -> None:
        for payload, producer, on_reply in zip(fold.payloads, fold.producers, fold.on_replies, strict=True):
            one = _Fold()
            one.payloads, one.producers, one.on_replies = [payload], [producer], [on_reply]
            self._push_fold(kind, one)


def _reply(on_replies: list[OnReply], placed: Folded, failed: PenstockError | None) -> None:
    if failed is not None:
        for on_reply in on_replies:
            on_reply(failed)
        return
    partitions, offsets = placed
    names = repeat(partitions) if isinstance(partitions, str) else partitions
    for on_reply, place in zip(on_replies, zip(names, offsets, strict=False), strict=False):
        on_reply(place)
