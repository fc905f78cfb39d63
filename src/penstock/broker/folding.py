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
from penstock.broker.answers import Told, answer_of
from penstock.errors import PenstockError
from penstock.model import ContentType

Producer = tuple[int, int, int]  # id, epoch, sequence
# Where messages went: one partition for all or one each, and an offset each.
Folded = tuple[str | list[str], Sequence[int]]
FOLD_MIN: Final = 16  # so many are worth a batch of their own although a sync is under way
Content = ContentType | Alike  # what a message holds; or all its options, when it has some that a fold can have
PushFolded = Callable[[str, Sequence[bytes], Sequence[Producer | None], str, Content], tuple[Folded, int]]
Kind = tuple[str, str, str, Content]  # queue, client, protocol, content: the same for a whole fold


class _Fold:
    """Pushes of one kind, side by side."""

    __slots__ = ("bytes", "payloads", "producers", "told")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.producers: list[Producer | None] = []
        self.told: list[Told] = []
        self.bytes = 0


class Folder:
    """Gathers, and pushes at the end of the turn."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        push: PushFolded,
        after: Callable[[int, Told, Any], None],
        is_syncing: Callable[[], bool],
        stored: Callable[[Kind, int, int], None],
        refused: Callable[[str, PenstockError], PenstockError],
    ) -> None:
        self._loop = loop
        self._push = push
        self._after = after
        self._is_syncing = is_syncing
        self._stored = stored  # told of each fold that was: its kind, messages, bytes
        self._refused = refused  # counts the refusal of one message
        self._count = 0  # of messages gathered
        self._folds: dict[Kind, _Fold] = {}

    def add(self, kind: Kind, payload: bytes, producer: Producer | None, told: Told) -> None:
        """One message; `told((partition, offset))` when it is durable."""
        fold = self._folds.get(kind)
        if fold is None:
            if not self._folds:
                self._loop.call_soon(self._turn_ends)
            fold = self._folds[kind] = _Fold()
        fold.payloads.append(payload)
        fold.producers.append(producer)
        fold.told.append(told)
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
            self._stored(kind, len(fold.told), sum(map(len, fold.payloads)))
            self._after(ticket, partial(_tell, fold.told, placed), None)
        elif len(fold.told) == 1:
            fold.told[0](self._refused(queue, answer))
        else:
            self._push_singly(kind, fold)

    def _push_singly(self, kind: Kind, fold: _Fold) -> None:
        for payload, producer, told in zip(fold.payloads, fold.producers, fold.told, strict=True):
            one = _Fold()
            one.payloads, one.producers, one.told = [payload], [producer], [told]
            self._push_fold(kind, one)


def _tell(told: list[Told], placed: Folded, failed: PenstockError | None) -> None:
    if failed is not None:
        for each in told:
            each(failed)
        return
    partitions, offsets = placed
    names = repeat(partitions) if isinstance(partitions, str) else partitions
    for each, place in zip(told, zip(names, offsets, strict=False), strict=False):
        each(place)
