"""A lease over several queues: one hold of the lock, one cap on messages, a lease for each queue that has something.

Queues take turns. A queue gives its share of what may be leased, at least `lease_quantum` messages, and then goes to
the end of its ring; so over time all queues with messages give the same number. As long as they have enough, a reply is
shared by `lease_sharers` queues, since every lease has its price. A queue that has nothing leaves the ring until
something becomes ready in it.

What cannot be leased from a queue that was named ends the poll with an error. A queue that only a prefix matches is
left out instead: because it may not be consumed, has no such group, or the group has members.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from penstock import limits
from penstock.delivery.admin import group_named, queue_named
from penstock.delivery.entries import Entry
from penstock.delivery.log import ColumnNotLoaded
from penstock.delivery.settle import decide_ack_whole
from penstock.errors import GroupNotFound, MemberFenced, NotAuthorised, QueueNotFound
from penstock.replies import LeaseReplies, LeaseReply
from penstock.requests import LeaseRequest
from penstock.shard.engine import Ticket
from penstock.shard.queue_sets import QueueSet, SetKey
from penstock.shard.tasks.frames import safest

if TYPE_CHECKING:
    from penstock.delivery.group import Group
    from penstock.delivery.log import Queue
    from penstock.shard.shard import Shard

Require = Callable[[str], None]  # raises `NotAuthorised` when the queue of this name may not be consumed
Ring = OrderedDict[int, None]
LEFT_OUT: Final = (GroupNotFound, MemberFenced, NotAuthorised)


class Turn(Enum):
    """How the turn of a queue ended."""

    HAS_MORE = "it goes to the end of its ring"
    IS_LIMITED = "others may have what this consumer was not given"
    HAS_NOTHING = "it leaves the ring"
    NEEDS_FILES = "it must be looked at by somebody who may read files"
    IS_CUT = "there was much to look at, and others want the lock"


def lease_queues(
    shard: Shard, key: SetKey, request: LeaseRequest, require: Require | None = None, *, may_read: bool = True
) -> tuple[LeaseReplies, Ticket] | None:
    """Hand out messages of several queues; no leases when there is nothing. None: it must read a file, and may not."""

    def operation() -> tuple[LeaseReplies, Ticket] | None:
        now, monotonic = shard.begin()
        shard.tick(now, monotonic)
        queue_set = shard.waiters.sets.of(key, monotonic)
        walk = _Walk(shard, queue_set, request, require, may_read=may_read)
        return walk.run()

    while True:
        answer = shard.run(operation)
        if answer is not None or not may_read:
            return answer


def ack_leases(shard: Shard, nonces: Sequence[int]) -> tuple[Ticket, list[int]]:
    """Acknowledge leases of which nothing was settled on its own, in one frame; and those that are left for later."""

    def operation(now: int) -> tuple[Ticket, list[int]]:
        found = {nonce: decide_ack_whole(shard.core, nonce, now) for nonce in nonces}
        wholes = [whole for whole in found.values() if whole is not None]
        left = [nonce for nonce, whole in found.items() if whole is None]
        left += [nonce for nonce, count in Counter(nonces).items() if count > 1]  # the second time it is lost
        if not wholes:
            return 0, left
        settled: list[Entry] = [entry for _, entry in wholes]
        levels = {lease.group.queue.options.durability or shard.durability for lease, _ in wholes}
        ticket = shard.commit_frame(settled, safest(levels))
        for lease, _ in wholes:
            shard.core.close_deliveries(lease, lease.count)
        if shard.waiters:
            shard.changed(settled)
        shard.changing = False
        return ticket, left

    return shard.run_now(operation)


class _Walk:
    """One look at the queues of a set that may have something.

    A queue is removed from its ring after the look, not before: when the call is interrupted, no queue is forgotten.
    """

    def __init__(
        self, shard: Shard, queue_set: QueueSet, request: LeaseRequest, require: Require | None, *, may_read: bool
    ) -> None:
        self._shard = shard
        self._set = queue_set
        self._request = request
        self._require = require
        self._may_read = may_read
        self._leases: list[LeaseReply] = []
        self._left = request.count_max
        self._ticket: Ticket = shard.read_ticket
        self._is_stopped = False

    def run(self) -> tuple[LeaseReplies, Ticket] | None:
        self._check_named()
        for ring in self._set.rings:
            self._serve(ring)
            if self._is_stopped or self._left <= 0:
                break
        if self._is_stopped and not self._leases:
            return None
        return LeaseReplies(self._leases, self._request.count_max - self._left), self._ticket

    def _check_named(self) -> None:
        queue_set = self._set
        if self._require is not None and not queue_set.is_checked:
            for name in queue_set.names:
                self._require(name)
            queue_set.is_checked = True
        if queue_set.missing:
            self._refuse_missing()

    def _refuse_missing(self) -> None:
        self._set.find_missing(self._shard.core)
        for name in self._set.missing:
            queue_named(self._shard.core, name)

    def _serve(self, ring: Ring) -> None:
        share = max(limits.lease_quantum, self._left // max(1, min(len(ring), limits.lease_sharers)))
        limited: set[int] = set()
        while ring and self._left > 0 and len(self._leases) < limits.lease_queues_max:
            number = next(iter(ring))
            if number in limited:
                return
            try:
                turn = self._take(number, min(share, self._left))
            except (ColumnNotLoaded, QueueNotFound, *LEFT_OUT):
                if not self._leases:
                    raise
                turn = Turn.NEEDS_FILES  # the next poll meets it, or its error
            if turn in (Turn.NEEDS_FILES, Turn.IS_CUT):
                self._is_stopped = True
                return
            if turn is Turn.HAS_NOTHING:
                del ring[number]
            else:
                ring.move_to_end(number)
            if turn is Turn.IS_LIMITED:
                limited.add(number)

    def _take(self, number: int, share: int) -> Turn:
        queue = self._shard.core.queues.get(number)
        if queue is None:  # it was deleted
            self._refuse_missing()
            return Turn.HAS_NOTHING
        try:
            group = self._group_in(queue)
            if group is not None and not self._may_read and group.reads_segments():
                return Turn.NEEDS_FILES
            return self._lease(queue, share)
        except LEFT_OUT as error:
            if self._set.is_named(queue.name):
                raise
            if isinstance(error, NotAuthorised):
                self._set.denied.add(number)
            return Turn.HAS_NOTHING

    def _group_in(self, queue: Queue) -> Group | None:
        """The group, or None when this poll creates it; raises when the queue must be left out."""
        if self._require is not None:
            self._require(queue.name)
        joined = self._set.joined
        number = queue.group_ids.get(self._set.group)
        if number is None and (self._request.start is None or queue.id in joined):
            return group_named(queue, self._set.group)  # raises: one that was deleted is not created again
        joined.add(queue.id)
        return None if number is None else queue.groups[number]

    def _lease(self, queue: Queue, share: int) -> Turn:
        request = msgspec.structs.replace(self._request, count_max=share)
        reply, ticket = self._shard.lease_locked(queue.name, self._set.group, request)
        self._ticket = max(self._ticket, ticket)
        if reply.count:
            self._leases.append(reply)
            self._left -= reply.count
            group, types = group_named(queue, self._set.group), self._request.task_types
            return Turn.HAS_MORE if any(lane.may_have(types) for lane in group.lanes.values()) else Turn.HAS_NOTHING
        if self._shard.was_cut:
            return Turn.IS_CUT
        return Turn.IS_LIMITED if _is_limited_by_consumer(queue) else Turn.HAS_NOTHING


def _is_limited_by_consumer(queue: Queue) -> bool:
    options = queue.options
    return options.max_in_flight is not None or options.client_lease_per_second is not None
