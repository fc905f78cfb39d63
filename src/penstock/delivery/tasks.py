"""What the shard must know of tasks beyond their messages: who waits for whom, and which unique keys are taken.

A plain task is a message and nothing here knows it. A task that waits for parents is *held*: its message is not in the
log yet. When a parent's message is settled in the group `default`, however that came about, its children learn of it
in `apply`: acknowledged means completed, every other end is a failure. A child whose last parent is done, or that is
doomed because a parent failed, is *ripe*; `freeing` pushes it or cancels it, in the same frame where a run was
finished and else with the next tick. So whatever happens in between, nobody is stranded and nobody runs too early.
Those that were cancelled are kept for a while, so that they can be held again: see `withdrawn`.

All of it follows from entries, and all of it is one part of a checkpoint, taken at one sequence. What is taken is
*lent*: it is not altered any more, changes are made to a copy. So it can be encoded while work goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.delivery.entries import Settled, Span, TaskFreed, TaskHeld, TasksPurged, UniqueTaken
from penstock.delivery.operations import Operations
from penstock.delivery.phases import AFTER, SETTLED
from penstock.delivery.schedules import Schedules
from penstock.delivery.withdrawn import AllWithdrawn, Withdrawn
from penstock.model import Outcome

if TYPE_CHECKING:
    from penstock.delivery.core import DeliveryState

GROUP: Final = 0  # `default`: the one that workers lease from
HELD: Final = -1  # in place of an offset
Place = tuple[int, int, int]  # queue, partition, offset
# How a parent ended, in a child's words; other outcomes have a name that will do.
ENDS: Final[dict[int, str]] = {
    Outcome.ACKED: "",
    Outcome.REJECTED: "dead",
    Outcome.DEAD: "dead",
    Outcome.DISCARDED: "dead",
}


def id_text(task_id: bytes) -> str:
    """A task id as people see it."""
    text = task_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Held(msgspec.Struct, array_like=True):
    """A task that waits for its parents."""

    queue: int
    task_id: bytes
    at: int
    waits: set[bytes]  # parents that are not final
    policy: int
    batch: bytes
    unique: bytes = b""  # the hash of its key, if it has one
    doomed: str = ""  # why it will be cancelled
    doomed_by: bytes = b""  # the parent whose end it was, if that was why


class Unique(msgspec.Struct, array_like=True, frozen=True):
    """Whose a unique key is. `offset` is `HELD` while its task is."""

    task_id: bytes
    until: int  # 0: while its task is not final
    partition: int
    offset: int


class Tasks:
    """See the module's rules."""

    def __init__(self) -> None:
        self.held: dict[bytes, Held] = {}
        self.held_bytes = 0
        self.awaited: dict[bytes, dict[bytes, None]] = {}  # parent → its children that are held
        self.places: dict[int, dict[tuple[int, int], bytes]] = {}  # queue → (partition, offset) → awaited parent
        self.where: dict[bytes, Place] = {}  # the same the other way round
        self.ripe: dict[bytes, None] = {}
        self.unique: dict[tuple[int, bytes], Unique] = {}
        self.withdrawn = AllWithdrawn()
        self.schedules = Schedules()
        self.operations = Operations()
        self.touched = 0  # sequence of the last frame that changed something here
        self.applied = 0  # replay: the sequence at which a checkpoint took all this
        self._lent: dict[bytes, Held] = {}  # those that whoever encodes a checkpoint is reading
        self._sweep_at = 1_000

    def __bool__(self) -> bool:
        """Whether there is anything to remember."""
        return bool(self.held or self.unique or self.withdrawn or self.schedules.known or self.operations.known)

    def touched_last(self) -> int:
        """The sequence of the last frame that changed something here, in the schedules or in the operations."""
        return max(self.touched, self.schedules.touched, self.operations.touched)

    # lending

    def lend(self) -> dict[bytes, Held]:
        """The held tasks as they are now: none of them is altered until `take_back`."""
        self._lent = dict(self.held)
        return self._lent

    def take_back(self) -> None:
        """Nobody reads what was lent any more."""
        self._lent = {}

    def _to_change(self, task_id: bytes) -> Held:
        """A held task that may be altered: its own copy once it is lent."""
        held = self.held[task_id]
        if self._lent.get(task_id) is held:
            held = self.held[task_id] = msgspec.structs.replace(held, waits=set(held.waits))
        return held

    # applying entries

    def hold(self, entry: TaskHeld, frame: int) -> None:
        """A task waits for its parents."""
        if frame <= self.applied:
            return
        self.touched = frame
        held = Held(entry.queue, entry.task_id, entry.at, set(), entry.policy, entry.batch)
        self.withdrawn.discard(held.task_id)
        self.held[held.task_id] = held
        self.held_bytes += len(held.batch)
        for parent in entry.parents:
            held.waits.add(parent.task_id)
            self.awaited.setdefault(parent.task_id, {})[held.task_id] = None
            if parent.offset >= 0:
                self.await_at(parent.task_id, (parent.queue, parent.partition, parent.offset))
        if not held.waits:
            self.ripe[held.task_id] = None

    def free(self, entry: TaskFreed, frame: int) -> None:
        """A held task was pushed, or is cancelled."""
        if frame <= self.applied:
            return
        self.touched = frame
        held = self.held.pop(entry.task_id, None)
        if held is None:
            return  # pushed anew by a retry
        self.held_bytes -= len(held.batch)
        self.ripe.pop(held.task_id, None)
        for parent in held.waits:
            children = self.awaited.get(parent, {})
            children.pop(held.task_id, None)
            if not children:
                self._await_no_more(parent)
        unique = self.unique.get((held.queue, held.unique)) if held.unique else None
        if entry.how == TaskFreed.PUSHED:
            if held.task_id in self.awaited:
                self.await_at(held.task_id, (entry.queue, entry.partition, entry.offset))
            if unique is not None:
                moved = Unique(unique.task_id, unique.until, entry.partition, entry.offset)
                self.unique[held.queue, held.unique] = moved
            return
        key = b""
        if unique is not None and not unique.until:
            key = held.unique
            del self.unique[held.queue, key]
        self.withdrawn.add(Withdrawn(held.queue, held.task_id, entry.at, entry.because, held.policy, held.batch, key))
        self._ended(held.task_id, "cancelled")

    def purge(self, entry: TasksPurged, frame: int) -> None:
        """Tasks are forgotten: one that was cancelled before it had a message can be submitted again."""
        for task_id in entry.id_list() if frame > self.applied else ():
            if task_id in self.withdrawn.known:
                self.touched = frame
                self.withdrawn.discard(task_id)

    def take_key(self, entry: UniqueTaken, frame: int) -> None:
        """A unique key has an owner."""
        if frame <= self.applied:
            return
        self.touched = frame
        self.unique[entry.queue, entry.hash] = Unique(entry.task_id, entry.until, entry.partition, entry.offset)
        if entry.task_id in self.held:
            self._to_change(entry.task_id).unique = entry.hash

    def settle(self, settled: Settled, frame: int) -> None:
        """Messages of a queue in which somebody's parents are were settled."""
        if settled.group != GROUP or AFTER[settled.outcome] != SETTLED or frame <= self.applied:
            return
        how = ENDS.get(settled.outcome, Outcome(settled.outcome).name.lower())
        for span in settled.spans:
            self._settle(settled.queue, self._awaited_in(settled.queue, span), how, frame)

    def move(self, queue: int, starts: Iterable[tuple[int, int]], frame: int) -> None:
        """The group was moved: what it skipped will never be done."""
        if frame > self.applied:
            for partition, start in starts:
                places = [place for place in self.places.get(queue, ()) if place[0] == partition and place[1] < start]
                self._settle(queue, places, "skipped", frame)

    def drop_queue(self, queue: int, frame: int) -> None:
        """A queue is gone, with the parents that were in it and the children that would have come to it."""
        if frame <= self.applied:
            return
        self._settle(queue, list(self.places.get(queue, ())), "lost with its queue", frame)
        if self.withdrawn.drop_queue(queue):
            self.touched = frame
        for task_id in [held.task_id for held in self.held.values() if held.queue == queue]:
            held = self._to_change(task_id)
            held.doomed = held.doomed or "its queue was deleted"
            self.ripe[task_id] = None
            self.touched = frame
        for key in [key for key in self.unique if key[0] == queue]:
            del self.unique[key]
            self.touched = frame

    # looking

    def owner_of(self, core: DeliveryState, queue: int, digest: bytes, now: int) -> Unique | None:
        """Whose a unique key is, None when it is free."""
        unique = self.unique.get((queue, digest))
        return unique if unique is not None and self._is_taken(core, queue, unique, now) else None

    def sweep(self, core: DeliveryState, now: int) -> None:
        """Forget keys that are free again, once there are many."""
        if len(self.unique) < self._sweep_at:
            return
        self.unique = {key: each for key, each in self.unique.items() if self._is_taken(core, key[0], each, now)}
        self._sweep_at = 2 * len(self.unique) + 1_000

    def _is_taken(self, core: DeliveryState, queue: int, unique: Unique, now: int) -> bool:
        if unique.until:
            return unique.until > now
        if unique.offset == HELD:
            return unique.task_id in self.held
        return not is_settled(core, (queue, unique.partition, unique.offset))

    def find_lost(self, core: DeliveryState) -> None:
        """After replay: a parent whose message a repair had to give up was settled without an entry."""
        for place in list(self.where.values()):
            if is_settled(core, place):
                self._settle(place[0], [place[1:]], "lost", core.sequence)

    # keeping the two sides together

    def await_at(self, parent: bytes, place: Place) -> None:
        """Where the message of an awaited parent is."""
        self.where[parent] = place
        self.places.setdefault(place[0], {})[place[1:]] = parent

    def _await_no_more(self, parent: bytes) -> None:
        self.awaited.pop(parent, None)
        place = self.where.pop(parent, None)
        if place is not None:
            places = self.places[place[0]]
            places.pop(place[1:], None)
            if not places:
                del self.places[place[0]]  # the queue costs nothing any more

    def _settle(self, queue: int, places: Iterable[tuple[int, int]], how: str, frame: int) -> None:
        for place in places:
            self.touched = frame
            self._ended(self.places[queue][place], how)

    def _ended(self, parent: bytes, how: str) -> None:
        """`how` is empty when the parent is completed."""
        children = self.awaited.get(parent, {})
        self._await_no_more(parent)
        for child in children:
            held = self._to_change(child)
            held.waits.discard(parent)
            if how and held.policy == TaskHeld.CANCEL and not held.doomed:
                held.doomed, held.doomed_by = f"its parent {id_text(parent)} was {how}", parent
            if held.doomed or not held.waits:
                self.ripe[child] = None

    def _awaited_in(self, queue: int, span: Span) -> list[tuple[int, int]]:
        places = self.places.get(queue)
        if not places:
            return []
        number = span.partition
        if span.count < len(places):
            return [(number, offset) for offset in span.offset_array().tolist() if (number, offset) in places]
        offsets = set(span.offset_array().tolist()) if span.offsets else range(span.first, span.first + span.count)
        return [place for place in places if place[0] == number and place[1] in offsets]


def is_settled(core: DeliveryState, place: Place) -> bool:
    """Whether workers are done with a message, or it is gone."""
    queue = core.queues.get(place[0])
    if queue is None or place[1] >= len(queue.partitions) or place[2] >= queue.partitions[place[1]].end:
        return True
    progress = queue.groups[GROUP].progress[place[1]]
    return place[2] < progress.start or progress.state_of(place[2]) == SETTLED
