"""Who is told of tasks that changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from penstock.model_tasks import TaskView

Listener = Callable[[list[TaskView]], None]
Among = Callable[[], Collection[bytes] | None]  # ids as 16 bytes


class Listeners:
    """All listeners, each with the ids that it wants to hear of: None for all of them."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Listener, Among]] = []

    def add(self, listener: Listener, among: Among) -> Callable[[], None]:
        """Returns what ends it."""
        pair = (listener, among)
        self._pairs.append(pair)

        def end() -> None:
            with suppress(ValueError):
                self._pairs.remove(pair)

        return end

    def are_there(self) -> bool:
        """Whether anybody wants to hear of anything now."""
        wanted = (among() for _, among in list(self._pairs))
        return any(ids is None or len(ids) for ids in wanted)

    def tell(self, changed: set[bytes], views: Callable[[Sequence[bytes]], list[TaskView]]) -> None:
        for listener, among in list(self._pairs) if changed else ():
            wanted = among()
            chosen = changed if wanted is None else changed.intersection(wanted)
            if chosen:
                listener(views(sorted(chosen)))
