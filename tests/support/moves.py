"""Every move of every message, held to the table of phases while it is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.delivery.entries import Span
from penstock.delivery.phases import MOVES, Event, Phase
from penstock.delivery.progress import Progress
from penstock.model import Outcome

Move = tuple[Phase, Event]


@contextmanager
def legal_moves() -> Iterator[Counter[Move]]:
    """Look each move up in `MOVES`; yields how often each was made. What is settled already may be named again."""
    made: Counter[Move] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "mark_leased", _watched(Progress.mark_leased, made, lambda *_: "lease"))
        patch.setattr(Progress, "become_ready", _watched(Progress.become_ready, made, lambda *_: "due"))
        patch.setattr(Progress, "revive", _watched(Progress.revive, made, lambda *_: "revive"))
        patch.setattr(Progress, "settle", _watched(Progress.settle, made, lambda outcome, _: Outcome(outcome)))
        yield made


def _watched(method: Any, made: Counter[Move], event_of: Callable[..., Event]) -> Any:
    def watched(progress: Progress, span: Span | Iterable[int], *rest: Any) -> Any:
        offsets = span.offset_array().tolist() if isinstance(span, Span) else list(span)
        event = event_of(*rest)
        moves = [(Phase(progress.state_of(offset)), event) for offset in offsets]
        result = method(progress, span, *rest)
        for offset, move in zip(offsets, moves, strict=True):
            is_settled = move[0] == Phase.SETTLED and isinstance(event, Outcome)
            assert progress.state_of(offset) == (Phase.SETTLED if is_settled else MOVES[move]), move
        made.update(moves)
        return result

    return watched
