"""Ending deliveries each by itself: together while all can be, one by one where some cannot.

The loop has others to serve, so a turn of it ends a number of them at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.access import Client
from penstock.errors import PenstockError
from penstock.model import Receipt
from penstock.requests import Settling

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.callbacks import OnReply

TOGETHER_MAX: Final = 5_000  # deliveries that are ended by one entry
SINGLE_MAX: Final = 100  # that are ended one by one in a turn of the loop …
TURN_US: Final = 5_000  # … which ends after this time in any case


class SettleEach:
    """Ends some deliveries; `on_reply([None or PenstockError, …])` when all have their answer."""

    def __init__(
        self, broker: Broker, client: Client, receipts: Sequence[Receipt], how: Settling, on_reply: OnReply
    ) -> None:
        self._broker = broker
        self._client = client
        self._receipts = receipts
        self._how = how
        self._on_reply = on_reply
        self._answers: list[PenstockError | None] = [None] * len(receipts)
        self._left = len(receipts)

    def start(self) -> None:
        """Begin; what is few is done within the call."""
        self._together(0)

    def _together(self, first: int) -> None:
        end = min(first + TOGETHER_MAX, len(self._receipts))
        part = self._receipts[first:end]
        self._broker.settle(self._client, part, self._how, partial(self._settled, first, end))
        if end < len(self._receipts):
            self._broker.loop.call_soon(self._together, end)

    def _settled(self, first: int, end: int, answer: Any) -> None:
        if isinstance(answer, PenstockError):
            # Its traceback would hold frames, and the collector looks through those of every receipt again and again.
            answer.__traceback__ = answer.__context__ = answer.__cause__ = None
        if answer is None or end - first <= 1:
            self._answer(first, [answer] * (end - first))
        else:
            self._singly(first, end)

    def _singly(self, first: int, end: int) -> None:
        clock = self._broker.clock
        index, stop, until = first, min(first + SINGLE_MAX, end), clock.monotonic() + TURN_US
        while index < stop and clock.monotonic() < until:
            receipt = self._receipts[index]
            index += 1
            self._broker.settle(self._client, (receipt,), self._how, partial(self._settled, index - 1, index))
        if index < end:
            self._broker.loop.call_soon(self._singly, index, end)

    def _answer(self, first: int, answers: list[PenstockError | None]) -> None:
        self._answers[first : first + len(answers)] = answers
        self._left -= len(answers)
        if not self._left:
            self._on_reply(self._answers)
