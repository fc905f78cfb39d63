"""Transactions: pushes and settles over any queues of the shard, in one frame, whole or not at all.

Everything is decided once to see whether it may happen, and only then decided again and applied step by step, so that
each step sees what the ones before it did. A refusal changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from penstock import limits
from penstock.delivery import settle
from penstock.delivery.entries import Entry, Push, entry_bytes
from penstock.delivery.log import Queue
from penstock.delivery.producers import answer_bytes_max, answered, check_producer, ids_of
from penstock.delivery.push import Decided, decide_push
from penstock.delivery.rates import charge
from penstock.engine import Ticket
from penstock.errors import LeaseLost, QueueFull, TooLarge
from penstock.model import MessageId
from penstock.requests import Operation, Producer, PushOperation, SettleOperation
from penstock.shard import Shard

Decision = tuple[list[Entry], Decided | list[settle.Chosen]]
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
    pushed: list[list[MessageId]] = []
    entries = perform(shard, operations, now, client, pushed, is_remembered=producer is not None)
    if producer is not None:
        entries.append(answered(TRANSACTION, producer, now, pushed))
        shard.core.apply(entries[-1:], shard.journal.sequence + 1)
    return pushed, shard.commit_frame(entries, [], shard.durability) if entries else shard.read_ticket


def perform(
    shard: Shard,
    operations: Sequence[Operation],
    now: int,
    client: str,
    pushed: list[list[MessageId]] | None = None,
    *,
    is_remembered: bool = False,
) -> list[Entry]:
    """Decide all of it and apply it: the entries of one frame, for the caller to append with the lock still held.

    The ids of each push go to `pushed`, if anybody wants them; they go into the frame too when they are remembered.
    """
    shard.tick(now, shard.clock.monotonic())
    entries: list[Entry] = []
    try:
        _create_queues(shard, operations, now, entries)
        _check_lengths(shard, operations)
        decisions = [_decide(shard, each, now) for each in operations]
        found = [decided for decided, _ in decisions]
        _check_frame(found, _answer_bytes(shard, [about for _, about in decisions]) if is_remembered else 0)
        charge(_pushes(shard, found), client, now)
    except BaseException:
        shard.undo_create(entries)
        raise
    for place, each in enumerate(operations):
        # Nothing has happened since the first was decided.
        entries += _do(shard, each, decisions[0] if place == 0 else _decide(shard, each, now), pushed)
    return entries


def _create_queues(shard: Shard, operations: Sequence[Operation], now: int, entries: list[Entry]) -> None:
    for each in operations:
        if isinstance(each, PushOperation):
            entries += shard.queue_for_push(each.queue, now)[1]


def _decide(shard: Shard, each: Operation, now: int) -> Decision:
    core = shard.core
    if isinstance(each, PushOperation):
        decided = decide_push(core, core.by_name[each.queue], each.batch, now, each.partition)
        return decided.entries, decided
    chosen = settle.find_receipts(core, [each.receipt])
    return settle.decide_settle(core, chosen, each.how, now, shard.rng), chosen


def _do(shard: Shard, each: Operation, decision: Decision, pushed: list[list[MessageId]] | None) -> list[Entry]:
    entries, about = decision
    if isinstance(about, list):
        settle.close_chosen(shard.core, about)
    shard.core.apply(entries, shard.journal.sequence + 1)
    if pushed is not None and isinstance(about, Decided) and isinstance(each, PushOperation):
        pushed.append(shard.push_reply(shard.core.by_name[each.queue], each.batch, about).ids())
    shard.changed(entries)
    return entries


def _pushes(shard: Shard, found: list[list[Entry]]) -> list[tuple[Queue, Push]]:
    # A dead-letter queue that is made by this has no limits, and is not there yet.
    queues = shard.core.queues
    pushes = [each for entries in found for each in entries if isinstance(each, Push)]
    return [(queues[push.queue], push) for push in pushes if push.queue in queues]


def _check_receipts(operations: Sequence[Operation]) -> None:
    settled = Counter(each.receipt for each in operations if isinstance(each, SettleOperation))
    for receipt, count in settled.items():
        if count > 1:
            raise LeaseLost(f"receipt {receipt} is settled {count} times in one transaction")


def _answer_bytes(shard: Shard, decisions: list[Decided | list[settle.Chosen]]) -> int:
    pushes = [each.push for each in decisions if isinstance(each, Decided)]
    return sum(answer_bytes_max(shard.core.queues[push.queue], push) for push in pushes)


def _check_frame(found: list[list[Entry]], answer_bytes: int) -> None:
    """All of it must fit into one frame."""
    size = sum(entry_bytes(each) for entries in found for each in entries) + answer_bytes
    if size > limits.frame_bytes_max - limits.MIB:
        raise TooLarge(f"the transaction holds {size:,} bytes of messages", hint="split it into smaller ones")


def _check_lengths(shard: Shard, operations: Sequence[Operation]) -> None:
    """Each push alone may fit while all of them do not."""
    pushed: Counter[str] = Counter()
    for each in operations:
        if isinstance(each, PushOperation):
            pushed[each.queue] += each.batch.count
    for name, count in pushed.items():
        queue = shard.core.by_name.get(name)
        if queue is None or queue.options.max_length is None or queue.options.overflow != "reject_new":
            continue
        longest = max(group.backlog for group in queue.groups.values())
        if longest + count > queue.options.max_length:
            raise QueueFull(f"queue {name!r} holds {longest} messages; max_length is {queue.options.max_length}")
