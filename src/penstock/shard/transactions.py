"""Transactions: pushes and settles over any queues of the shard, in one frame, whole or not at all.

Everything is decided once, each push with what those before it do to its queue, then written and applied. A refusal
changes nothing.

The lock is held for as little as possible: small pushes to one queue are joined into one batch before it is taken, and
ids are listed after it is released. A joined batch does what its pushes would have done one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock import limits
from penstock.batch import Batch, join
from penstock.delivery import settle
from penstock.delivery.admin import group_named, queue_named, queue_to_push
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Entry, Push, entry_bytes
from penstock.delivery.log import Queue
from penstock.delivery.membership import check_owned
from penstock.delivery.producers import answer_bytes_max, answered, check_producer, ids_of
from penstock.delivery.push import FramePushes, check_types, decide_push
from penstock.delivery.rate_limits import decide_bill, pay
from penstock.errors import LeaseLost, TooLarge
from penstock.model import Durability, MessageId, Receipt
from penstock.replies import PushReply
from penstock.requests import (
    Operation,
    OwnOperation,
    PartitionChoice,
    Producer,
    PushOperation,
    SettleOperation,
    Settling,
)

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard

TRANSACTION: Final = 0  # in place of a queue: the answer is that of a transaction
SMALL_BYTES: Final = 64 * limits.KIB  # a batch above this is not worth copying to save an entry
JOINED_BYTES_MAX: Final = limits.batch_bytes_max // 4


class Pushes(NamedTuple):
    """Pushes to one queue as one batch."""

    queue: str
    batch: Batch
    partition: PartitionChoice
    counts: Sequence[int]  # rows of each of them
    numbers: Sequence[int]  # of each of them among the pushes of the transaction


class Prepared(NamedTuple):
    """The operations of a transaction, grouped."""

    pushes: list[Pushes]
    settles: dict[Settling, list[Receipt]]
    owns: Sequence[OwnOperation] = ()


def prepared(operations: Sequence[Operation]) -> Prepared:
    """Group operations; refuses a receipt that is named twice. Needs no lock."""
    settles: dict[Settling, list[Receipt]] = {}
    for operation in operations:
        if isinstance(operation, SettleOperation):
            settles.setdefault(operation.how, []).append(operation.receipt)
    _check_receipts(settles)
    return Prepared(
        joined([operation for operation in operations if isinstance(operation, PushOperation)]),
        settles,
        [operation for operation in operations if isinstance(operation, OwnOperation)],
    )


def joined(pushes: Sequence[PushOperation]) -> list[Pushes]:
    """Pushes in which small neighbours of the same queue are one batch; the order within each queue stays."""
    if len(pushes) == 1:
        return [_joined(pushes, [0])]
    groups: list[list[int]] = []
    open: dict[str, tuple[list[int], int]] = {}  # by queue: the group that may grow, and its bytes
    for number, push in enumerate(pushes):
        size = push.batch.nbytes
        group, total = open.get(push.queue, ([], JOINED_BYTES_MAX))
        if total + size > JOINED_BYTES_MAX or not _is_small(push):
            group, total = [], 0
            groups.append(group)
        group.append(number)
        open[push.queue] = group, total + size if _is_small(push) else JOINED_BYTES_MAX
    return [_joined(pushes, group) for group in groups]


def _is_small(push: PushOperation) -> bool:
    batch, choice = push.batch, push.partition
    is_whole = choice is None or isinstance(choice, int | str) or len(choice) == batch.count
    return is_whole and batch.count > 0 and batch.nbytes <= SMALL_BYTES and not batch.compressed


def _joined(pushes: Sequence[PushOperation], numbers: list[int]) -> Pushes:
    some = [pushes[number] for number in numbers]
    counts = [push.batch.count for push in some]
    if len(some) == 1:
        return Pushes(some[0].queue, some[0].batch, some[0].partition, counts, numbers)
    choices: list[int | str | None] | None = None
    if any(push.partition is not None for push in some):
        choices = []
        for push, count in zip(some, counts, strict=True):
            choice = push.partition
            choices += repeat(choice, count) if choice is None or isinstance(choice, int | str) else choice
    return Pushes(some[0].queue, join([push.batch for push in some]), choices, counts, numbers)


def transact(
    shard: Shard, operations: Sequence[Operation], producer: Producer | None = None, client: str = ""
) -> tuple[list[list[MessageId]], Ticket]:
    """Do all of it in one frame; the ids of each push, in order. Asked again by its producer, it only answers."""
    work = prepared(operations)
    if producer is not None:
        check_producer(producer)
    ids, ticket = shard.run(lambda: _transact(shard, work, producer, client))
    return ids(), ticket


def _transact(
    shard: Shard, work: Prepared, producer: Producer | None, client: str
) -> tuple[Callable[[], list[list[MessageId]]], Ticket]:
    answer = shard.core.producers.find(producer, TRANSACTION) if producer is not None else None
    if answer is not None:
        shard.begin()
        pushes = answer.pushes
        return lambda: [ids_of(push) for push in pushes], shard.read_ticket
    now = shard.begin_push() if work.pushes else shard.begin()[0]
    shard.tick(now, shard.clock.monotonic())
    for own in work.owns:
        group = group_named(queue_named(shard.core, own.queue), own.group)
        check_owned(group, own.member, own.generation, own.partitions)
    plan = Plan(shard, work, now, client, is_remembered=producer is not None)
    entries = plan.entries
    if producer is not None:
        entries.append(answered(TRANSACTION, producer, now, plan.ids()))
    return plan.ids, plan.commit(entries, shard.durability) if entries else shard.read_ticket


class Plan:
    """Operations that are done in one frame, decided with the lock held."""

    def __init__(self, shard: Shard, work: Prepared, now: int, client: str, *, is_remembered: bool = False) -> None:
        self.entries: list[Entry] = []
        self.queues: dict[str, Queue] = {}  # those that are pushed to; new ones as they will be
        self._made: DeliveryState | None = None  # with the queues that are made
        self._shard = shard
        self._now = now
        self._client = client
        self._ahead: dict[str, FramePushes] = {}
        self._answers: list[tuple[Pushes, PushReply]] = []
        self._pushes: list[tuple[Queue, Push]] = []
        self._chosen: list[settle.Chosen] = []
        for push in work.pushes:
            self.queue(push.queue)
        self._settle(work.settles)
        last = {push.queue: push for push in work.pushes}
        for push in work.pushes:
            self._push(push, is_last=last[push.queue] is push)
        self._check_frame(is_remembered=is_remembered)
        self._bill = decide_bill(self._pushes, client, now)

    def ids(self) -> list[list[MessageId]]:
        """Those of each push, in order. Needs no lock."""
        ids_by_number: dict[int, list[MessageId]] = {}
        for pushes, reply in self._answers:
            ids, first = reply.ids(), 0
            for number, count in zip(pushes.numbers, pushes.counts, strict=True):
                ids_by_number[number] = ids[first : first + count]
                first += count
        return [ids_by_number[number] for number in range(len(ids_by_number))]

    def commit(self, entries: list[Entry], level: Durability) -> Ticket:
        """Do it, with whatever else the frame holds."""
        shard = self._shard
        ticket = shard.commit_frame(entries, level, self._chosen)
        pay(self._bill, self._now)
        shard.pushed(entries)
        shard.changed(entries)
        return ticket

    def queue(self, name: str) -> Queue:
        """A queue that is pushed to; the entries that make a new one come first in the frame."""
        queue = self.queues.get(name)
        if queue is None:
            core = self._shard.core
            if self._made is None and name not in core.by_name:
                self._made = DeliveryState(self._now)
            queue, created = queue_to_push(core, name, self._now, self._id_next, self._made)
            self.queues[name] = queue
            self._ahead[name] = FramePushes(queue)
            self.entries += created
        return queue

    @property
    def _id_next(self) -> int:
        return self._shard.core.queue_id_next + (0 if self._made is None else len(self._made.queues))

    def _settle(self, settles: dict[Settling, list[Receipt]]) -> None:
        core = self._shard.core
        pairs = [(chosen, how) for how, receipts in settles.items() for chosen in settle.find_receipts(core, receipts)]
        self.entries += settle.decide_settles(core, pairs, self._now, self._shard.rng, self._id_next)
        self._chosen = [chosen for chosen, _ in pairs]

    def _push(self, pushes: Pushes, *, is_last: bool) -> None:
        queue, ahead, batch = self.queues[pushes.queue], self._ahead[pushes.queue], pushes.batch
        ahead.turns = np.repeat(np.arange(len(pushes.counts)), pushes.counts) if len(pushes.counts) > 1 else 0
        decided = decide_push(self._shard.core, queue, batch, self._now, pushes.partition, ahead=ahead)
        check_types(queue, batch, decided.duplicates)
        ahead.add(batch, decided, len(pushes.counts), is_last=is_last)
        self._answers.append((pushes, self._shard.push_reply(queue, batch, decided, ahead.made)))
        self._pushes.append((queue, decided.push))
        self.entries += decided.entries

    def _check_frame(self, *, is_remembered: bool) -> None:
        """All of it must fit into one frame."""
        size = sum(map(entry_bytes, self.entries))
        if is_remembered:
            size += sum(answer_bytes_max(queue, push) for queue, push in self._pushes)
        if size > limits.frame_bytes_max - limits.MIB:
            raise TooLarge(f"the transaction holds {size:,} bytes of messages", hint="split it into smaller ones")


def _check_receipts(settles: dict[Settling, list[Receipt]]) -> None:
    everything = [receipt for receipts in settles.values() for receipt in receipts]
    if len(set(everything)) < len(everything):
        receipt, count = Counter(everything).most_common(1)[0]
        raise LeaseLost(f"receipt {receipt} is settled {count} times in one transaction")
