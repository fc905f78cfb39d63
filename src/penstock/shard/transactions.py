"""Transactions: pushes and settles over any queues of the shard, in one frame, whole or not at all.

Everything is decided once, each push with what those before it do to its queue, then written and applied. A refusal
changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from penstock import limits
from penstock.delivery import settle
from penstock.delivery.admin import queue_to_push
from penstock.delivery.entries import Entry, Push, entry_bytes
from penstock.delivery.log import Queue
from penstock.delivery.producers import answer_bytes_max, answered, check_producer, ids_of
from penstock.delivery.push import FramePushes, decide_push
from penstock.delivery.rate_limits import decide_bill, pay
from penstock.delivery.repeats import check_types
from penstock.errors import LeaseLost, TooLarge
from penstock.model import Durability, MessageId, Receipt
from penstock.replies import PushReply
from penstock.requests import Operation, Producer, PushOperation, SettleOperation, Settling
from penstock.shard.engine import Ticket
from penstock.shard.shard import Shard

TRANSACTION: Final = 0  # in place of a queue: the answer is that of a transaction


def transact(
    shard: Shard, operations: Sequence[Operation], producer: Producer | None = None, client: str = ""
) -> tuple[list[list[MessageId]], Ticket]:
    """Do all of it in one frame; the ids of each push, in order. Asked again by its producer, it only answers."""
    _check_receipts(operations)
    if producer is not None:
        check_producer(producer)
    return shard.run(lambda: _transact(shard, operations, producer, client))


def _transact(
    shard: Shard, operations: Sequence[Operation], producer: Producer | None, client: str
) -> tuple[list[list[MessageId]], Ticket]:
    answer = shard.core.producers.find(producer, TRANSACTION) if producer is not None else None
    if answer is not None:
        shard.begin()
        return [ids_of(push) for push in answer.pushes], shard.read_ticket
    now = shard.begin_push() if any(isinstance(each, PushOperation) for each in operations) else shard.begin()[0]
    shard.tick(now, shard.clock.monotonic())
    plan = Plan(shard, operations, now, client, is_remembered=producer is not None)
    entries, pushed = plan.entries, plan.ids
    if producer is not None:
        entries.append(answered(TRANSACTION, producer, now, pushed))
    return pushed, plan.commit(entries, shard.durability) if entries else shard.read_ticket


class Plan:
    """Operations that are done in one frame, decided with the lock held."""

    def __init__(
        self, shard: Shard, operations: Sequence[Operation], now: int, client: str, *, is_remembered: bool = False
    ) -> None:
        self.entries: list[Entry] = []
        self.queues: dict[str, Queue] = {}  # those that are pushed to; new ones as they will be
        self._made = 0  # queues that are made
        self._shard = shard
        self._now = now
        self._client = client
        self._ahead: dict[str, FramePushes] = {}
        self._answers: list[PushReply] = []
        self._pushes: list[tuple[Queue, Push]] = []
        self._chosen: list[settle.Chosen] = []
        for each in operations:
            if isinstance(each, PushOperation):
                self.queue(each.queue)
        self._settle([each for each in operations if isinstance(each, SettleOperation)])
        for each in operations:
            if isinstance(each, PushOperation):
                self._push(each)
        self._check_frame(is_remembered=is_remembered)
        self._bill = decide_bill(self._pushes, client, now)

    @property
    def ids(self) -> list[list[MessageId]]:
        """Those of each push, in order."""
        return [each.ids() for each in self._answers]

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
            queue, created = queue_to_push(core, name, self._now, core.queue_id_next + self._made)
            self._made += bool(created)
            self.queues[name] = queue
            self._ahead[name] = FramePushes(queue)
            self.entries += created
        return queue

    def _settle(self, operations: Sequence[SettleOperation]) -> None:
        core, by_way = self._shard.core, dict[Settling, list[Receipt]]()
        for each in operations:
            by_way.setdefault(each.how, []).append(each.receipt)
        pairs = [(chosen, how) for how, receipts in by_way.items() for chosen in settle.find_receipts(core, receipts)]
        self.entries += settle.decide_settles(core, pairs, self._now, self._shard.rng, core.queue_id_next + self._made)
        self._chosen = [chosen for chosen, _ in pairs]

    def _push(self, each: PushOperation) -> None:
        queue, ahead = self.queues[each.queue], self._ahead[each.queue]
        decided = decide_push(self._shard.core, queue, each.batch, self._now, each.partition, ahead=ahead)
        check_types(queue, each.batch, decided.duplicates)
        ahead.add(each.batch, decided, self._now)
        self._answers.append(self._shard.push_reply(queue, each.batch, decided, ahead.made))
        self._pushes.append((queue, decided.push))
        self.entries += decided.entries

    def _check_frame(self, *, is_remembered: bool) -> None:
        """All of it must fit into one frame."""
        size = sum(map(entry_bytes, self.entries))
        if is_remembered:
            size += sum(answer_bytes_max(queue, push) for queue, push in self._pushes)
        if size > limits.frame_bytes_max - limits.MIB:
            raise TooLarge(f"the transaction holds {size:,} bytes of messages", hint="split it into smaller ones")


def _check_receipts(operations: Sequence[Operation]) -> None:
    settled = Counter(each.receipt for each in operations if isinstance(each, SettleOperation))
    for receipt, count in settled.items():
        if count > 1:
            raise LeaseLost(f"receipt {receipt} is settled {count} times in one transaction")
