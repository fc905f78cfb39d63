"""Pauses: of pushes, of delivery, or of both, for a queue, a group, a namespace or the whole broker.

A paused push is refused. Paused delivery hands nothing out: whoever waits for messages goes on waiting, and what was
leased before may be settled. Dead letters, tasks that are released and records of the broker are stored all the same.

`Pauses` knows what is paused, from entries and checkpoints. What follows from it for a queue and its groups is kept
with them (`Queue.is_shut`, `Queue.is_held`, `Group.is_held`), so that a push and a lease look at one flag.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from penstock.delivery.entries import PauseSet
from penstock.errors import PushPaused
from penstock.model import DLQ_SUFFIX, RESERVED_PREFIX, PauseState, to_datetime

if TYPE_CHECKING:
    from penstock.delivery.core import DeliveryState
    from penstock.delivery.log import Queue

Scope = tuple[int, int, str]  # queue, group, namespace
BROKER: Final[Scope] = (0, -1, "")


def namespace_of(queue: str) -> str:
    """The namespace that a name is in; empty when it is in none. Dead letters are where their queue is."""
    first, dot, _ = queue.removesuffix(DLQ_SUFFIX).partition(".")
    return first if dot else ""


class Pauses:
    """What is paused, by scope."""

    def __init__(self) -> None:
        self.known: dict[Scope, PauseSet] = {}

    def apply(self, core: DeliveryState, change: PauseSet) -> None:
        """Pause, or resume when nothing of the scope is paused any more."""
        scope = (change.queue, change.group, change.namespace)
        if change.push or change.delivery:
            self.known[scope] = change
        else:
            self.known.pop(scope, None)
        queue = core.queues.get(change.queue)
        if queue is not None and change.group < 0:
            queue.paused = change.delivery
        self.cover_all([queue] if queue is not None else core.queues.values() if not change.queue else ())

    def cover_all(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            self.cover(queue)

    def cover(self, queue: Queue) -> None:
        """Set the flags of a queue and of its groups."""
        above = list(self._above(queue.name))
        own = self.known.get((queue.id, -1, ""))
        is_shut = any(pause.push for pause in above) or (own is not None and own.push)
        queue.set_paused(is_shut=is_shut, is_held=queue.paused or any(pause.delivery for pause in above))
        for group in queue.groups.values():
            group.is_held = queue.is_held or (queue.id, group.id, "") in self.known

    def check_new(self, name: str) -> None:
        """Refuse a push that would make a queue where pushes are paused."""
        for pause in self._above(name):
            if pause.push:
                raise refusal(name, pause)

    def refuse(self, queue: Queue) -> PushPaused:
        """The error for a push to a queue that takes none."""
        own = self.known.get((queue.id, -1, ""))
        pauses = [*([] if own is None else [own]), *self._above(queue.name)]
        return refusal(queue.name, next(pause for pause in pauses if pause.push))

    def holding(self, queue: Queue, group: int | None = None) -> list[PauseState]:
        """The pauses that a queue, or one of its groups, is under; the closest first."""
        found = [] if group is None else [self.known.get((queue.id, group, ""))]
        own = self.known.get((queue.id, -1, ""))
        if own is None and queue.paused:  # of a version that kept no more than that
            own = PauseSet(queue.id, -1, "", False, True, 0)
        pauses = [pause for pause in (*found, own, *self._above(queue.name)) if pause is not None]
        return [view_of(pause, queue) for pause in pauses]

    def all(self, core: DeliveryState) -> list[PauseState]:
        """Everything that is paused: the broker, namespaces, then queues and groups."""
        wide = [view_of(pause, None) for scope, pause in sorted(self.known.items()) if not scope[0]]
        queues = sorted(core.queues.values(), key=lambda queue: queue.name)
        return [*wide, *(view for queue in queues for view in self._of_queue(queue))]

    def kept(self, core: DeliveryState) -> list[PauseSet]:
        """For a checkpoint: without those of queues and groups that are gone."""
        return [
            pause
            for (queue, group, _), pause in self.known.items()
            if not queue or (queue in core.queues and (group < 0 or group in core.queues[queue].groups))
        ]

    def restore(self, pauses: Iterable[PauseSet]) -> None:
        self.known = {(pause.queue, pause.group, pause.namespace): pause for pause in pauses}

    def _of_queue(self, queue: Queue) -> Iterator[PauseState]:
        own = [pause for pause in self.holding(queue) if pause.scope == "queue"]
        groups = [self.known.get((queue.id, number, "")) for number in queue.groups]
        yield from own
        yield from (view_of(pause, queue) for pause in groups if pause is not None)

    def _above(self, name: str) -> Iterator[PauseSet]:
        if not self.known or name.startswith(RESERVED_PREFIX):
            return
        namespace = namespace_of(name)
        for scope in ((0, -1, namespace), BROKER) if namespace else (BROKER,):
            pause = self.known.get(scope)
            if pause is not None:
                yield pause


def view_of(pause: PauseSet, queue: Queue | None) -> PauseState:
    """A pause as it is shown."""
    group = None if queue is None else queue.groups.get(pause.group)
    name = "" if queue is None or not pause.queue else queue.name
    scope = "group" if pause.group >= 0 else "queue" if pause.queue else "namespace" if pause.namespace else "broker"
    return PauseState(
        scope=scope,
        namespace=pause.namespace,
        queue=name,
        group="" if group is None else group.name,
        push=pause.push,
        delivery=pause.delivery,
        since=to_datetime(pause.at) if pause.at else None,
        reason=pause.reason,
    )


def subject(view: PauseState) -> str:
    """What is paused, for people."""
    names = {"group": f"group {view.group!r}", "queue": f"queue {view.queue!r}", "broker": "the broker"}
    return names.get(view.scope, f"namespace {view.namespace!r}")


def explained(view: PauseState) -> str:
    """A sentence about a pause."""
    since = f" since {view.since.isoformat()}" if view.since else ""
    return f"{subject(view)} is paused{since}" + (f": {view.reason}" if view.reason else "")


def refusal(queue: str, pause: PauseSet) -> PushPaused:
    """The error for a push that a pause refuses."""
    view = view_of(pause, None)
    of_queue = f"queue {queue!r}" if view.scope == "queue" else f"queue {queue!r}, since {subject(view)} is paused"
    reason = f": {pause.reason}" if pause.reason else ""
    return PushPaused(f"pushes are paused for {of_queue}{reason}")
