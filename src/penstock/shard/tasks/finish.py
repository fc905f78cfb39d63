"""What a shard does with tasks: runs that end, progress, workers that are gone.

A finish is a settle with words: the delivery ends as any other, and what the run gave is noted in the same frame.
Each finish of a call stands by itself; those that are accepted share a frame, as long as they fit into one.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock.delivery import settle as settle_rules
from penstock.delivery.entries import Entry, Note, Push, TasksNoted
from penstock.delivery.group import Lease, Take
from penstock.delivery.log import Partition
from penstock.delivery.phases import LEASED
from penstock.delivery.settle import Chosen
from penstock.delivery.task_pushes import ROOM
from penstock.delivery.tasks import GROUP
from penstock.envelopes import envelope_json
from penstock.errors import InvalidField, LeaseLost, PenstockError, TooLarge
from penstock.model import Durability, Outcome, Receipt, check_seconds
from penstock.model_tasks import Finish, bytes_of_result, id_text, result_of_bytes
from penstock.requests import ACK, RELEASE, Settling
from penstock.shard.tasks.frames import check_json, commit, cut, id_bytes, safest

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard

OUTCOMES: Final = {
    "completed": Outcome.ACKED,
    "failed": Outcome.RETRIED,
    "dead": Outcome.REJECTED,
    "snoozed": Outcome.SNOOZED,
    "cancelled": Outcome.CANCELLED,
    "released": Outcome.RELEASED,
}
NOTED: Final = {"completed": Note.RESULT, "failed": Note.ERROR, "dead": Note.ERROR, "cancelled": Note.CANCELLED}
DEAD_WORKER: Final = Settling(Outcome.TIMED_OUT, error="the worker is dead")
FRAME_BYTES: Final = limits.frame_bytes_max // 2  # of results and errors; the rest is for what comes with them

Checked = tuple[bytes, Settling]  # the task's id, and how its run ends
Found = tuple[Finish, Checked, Lease, Take, int]


def finish_tasks(shard: Shard, finishes: Sequence[Finish]) -> tuple[list[PenstockError | None], Ticket]:
    """End runs: for each None, or why it was refused."""
    answers: list[PenstockError | None] = []
    ticket = 0
    for part in _frames(finishes):
        answered, ticket_part = _finish_some(shard, part)
        answers += answered
        ticket = max(ticket, ticket_part)
    return answers, ticket


def _frames(finishes: Sequence[Finish]) -> Iterator[Sequence[Finish]]:
    """As many at a time as fit into a frame."""
    start = size = 0
    for position, finish in enumerate(finishes):
        size += len(finish.result) + len(finish.error)
        if size > FRAME_BYTES and position > start:
            yield finishes[start:position]
            start, size = position, len(finish.result) + len(finish.error)
    if start < len(finishes):
        yield finishes[start:]


def _finish_some(shard: Shard, finishes: Sequence[Finish]) -> tuple[list[PenstockError | None], Ticket]:
    checked = [_checked(finish, shard.task_result_bytes_max) for finish in finishes]
    try:
        return shard.run_now(lambda now: _finish(shard, finishes, checked, now))
    except TooLarge:
        # Dead letters bring their payloads along.
        if len(finishes) == 1:
            raise
        half = len(finishes) // 2
        first, ticket_first = _finish_some(shard, finishes[:half])
        second, ticket = _finish_some(shard, finishes[half:])
        return first + second, max(ticket_first, ticket)


def _finish(
    shard: Shard, finishes: Sequence[Finish], checked: Sequence[Checked | PenstockError], now: int
) -> tuple[list[PenstockError | None], Ticket]:
    answers: list[PenstockError | None] = []
    deliveries: list[Found] = []
    seen: set[tuple[int, int]] = set()
    for finish, checked_finish in zip(finishes, checked, strict=True):
        try:
            if isinstance(checked_finish, PenstockError):
                raise checked_finish
            lease, take, index = _delivery_of(shard, finish.receipt, checked_finish[0], finish.task_id)
            if (id(take), index) in seen:
                raise LeaseLost(f"receipt {finish.receipt} appears twice in one call")
            seen.add((id(take), index))
            deliveries.append((finish, checked_finish, lease, take, index))
            answers.append(None)
        except PenstockError as error:
            answers.append(error)
    if not deliveries:
        return answers, shard.read_ticket
    pairs = _grouped(deliveries)
    entries = settle_rules.decide_settles(shard.core, pairs, now, shard.rng)
    entries += _notes(deliveries, now)
    letters = sum(len(entry.batch) for entry in entries if isinstance(entry, Push))
    if letters > ROOM - FRAME_BYTES and len(deliveries) > 1:
        raise TooLarge("these finishes do not fit into one frame")
    return answers, commit(shard, entries, now, _level(shard, deliveries), [chosen for chosen, _ in pairs])


def _checked(finish: Finish, result_bytes_max: int) -> Checked | PenstockError:
    """How a run ends, or what is wrong with the request."""
    try:
        task = id_bytes(finish.task_id)
        outcome = OUTCOMES[finish.outcome]
        if outcome is Outcome.ACKED:
            _check_result(finish.result, result_bytes_max)
            return task, ACK
        delay = finish.delay_seconds
        if delay is not None or outcome is Outcome.SNOOZED:
            delay = check_seconds(delay, "delay_seconds")
        return task, Settling(outcome, delay, cut(finish.error, limits.error_bytes_max))
    except KeyError:
        return InvalidField(f"outcome: {finish.outcome!r} is not one of {', '.join(OUTCOMES)}")
    except PenstockError as error:
        return error


def _check_result(result: bytes, bytes_max: int) -> None:
    try:
        data = bytes_of_result(result)
        is_sound = data is None or result_of_bytes(data) == result
    except binascii.Error:
        is_sound = False
    if not is_sound:
        raise InvalidField("result: its bytes are not valid base64", hint="send them as result_base64")
    size = len(result if data is None else data)
    if size > bytes_max:
        hint = "raise task_result_bytes_max of the broker, or store it elsewhere and return its address"
        raise TooLarge(f"result: {size:,} bytes are over task_result_bytes_max, {bytes_max:,}", hint=hint)
    if data is None:
        check_json(result, "result", len(result))


def _delivery_of(shard: Shard, receipt: Receipt, task: bytes, named: str) -> tuple[Lease, Take, int]:
    """The delivery behind a receipt, and nobody else's task."""
    lease = shard.core.leases.get(receipt.nonce)
    position = lease.find(receipt.partition, receipt.offset) if lease is not None else None
    is_over = lease is None or lease.deadline <= shard.core.over_at
    if lease is None or position is None or is_over or lease.group.queue.name != receipt.queue:
        raise LeaseLost(f"receipt {receipt} is not held by a live lease")
    take, index = position
    is_held = take.is_open(index) and take.progress.state_of(take.offsets[index]) == LEASED
    if take.attempt_of(index) != receipt.attempt or not is_held:
        raise LeaseLost(f"receipt {receipt} is already settled or belongs to another attempt")
    if lease.group.id != GROUP:
        raise InvalidField(f"receipt: {receipt} belongs to group {lease.group.name!r}; tasks run in group 'default'")
    partition = take.progress.partition
    positions = shard.core.tasks.positions.get(lease.group.queue.id)
    awaited = None if positions is None else positions.get((partition.id, receipt.offset))
    if (awaited or task) != task or not _may_be(shard, partition, receipt.offset, task, named):
        raise InvalidField(f"task_id: {named} is not the task of receipt {receipt}")
    return lease, take, index


def _may_be(shard: Shard, partition: Partition, offset: int, task: bytes, named: str) -> bool:
    """Whether a message is this task, where a look at it costs next to nothing; elsewhere the worker is believed.

    What lies in a segment was read when it was leased, and is mostly still there.
    """
    extent = partition.extent_at(offset) if partition.start <= offset and partition.extents else None
    if extent is None or not extent.first <= offset < extent.end:
        return True
    batch, row_of = extent.batch, extent.row_of
    if extent.sealed is not None and shard.store is not None:
        batch, row_of = shard.store.at_hand(extent.sealed), extent.sealed.row_of
    if batch is None or batch.compressed:
        return True
    payload = envelope_json(batch.payload(row_of(offset)))
    return named.encode() in payload or id_text(task).encode() in payload


def _grouped(deliveries: Sequence[Found]) -> list[tuple[Chosen, Settling]]:
    """What ends in the same way, a take at a time."""
    groups: dict[tuple[int, Settling], tuple[Chosen, list[int]]] = {}
    for _, (_, how), lease, take, index in deliveries:
        group = groups.get((id(take), how))
        if group is None:
            indexes: list[int] = []
            group = groups[id(take), how] = Chosen(lease, take, indexes), indexes
        group[1].append(index)
    for _, indexes in groups.values():
        indexes.sort()
    return [(chosen, how) for (_, how), (chosen, _) in groups.items()]


def _notes(deliveries: Sequence[Found], now: int) -> list[Entry]:
    """One entry for each queue and worker."""
    entries: dict[tuple[int, str], TasksNoted] = {}
    for finish, (task, _), lease, take, index in deliveries:
        what = NOTED.get(finish.outcome)
        if what is None:
            continue
        queue = lease.group.queue.id
        noted = entries.get((queue, lease.consumer))
        if noted is None:
            noted = entries[queue, lease.consumer] = TasksNoted(queue, now, lease.consumer, [])
        text = finish.result if what == Note.RESULT else cut(finish.error, limits.task_error_bytes_max).encode()
        noted.notes.append(
            Note(
                task,
                take.progress.partition.id,
                take.offsets[index],
                take.attempt_of(index),
                what,
                text,
            )
        )
    return list(entries.values())


def _level(shard: Shard, deliveries: Sequence[Found]) -> Durability:
    """The safest that any of the queues asks for."""
    queues = {lease.group.queue for _, _, lease, _, _ in deliveries}
    return safest({queue.options.durability or shard.durability for queue in queues})


def note_progress(shard: Shard, receipt: Receipt, task_id: str, progress: bytes) -> Ticket:
    """What a run says of itself; refused once the run is no longer its worker's."""
    check_json(progress, "progress", limits.task_progress_bytes_max)
    task = id_bytes(task_id)

    def operation(now: int) -> Ticket:
        lease, take, _ = _delivery_of(shard, receipt, task, task_id)
        partition = take.progress.partition
        note = Note(task, partition.id, receipt.offset, receipt.attempt, Note.PROGRESS, progress)
        shard.commit_frame([TasksNoted(partition.queue.id, now, lease.consumer, [note])], "os")
        shard.changing = False
        return 0

    return shard.run_now(operation)


def expire_consumer(shard: Shard, holder: str) -> Ticket:
    """A worker is given up: its leases end as if they had run out, the attempts counted."""
    return _end_leases(shard, _of_worker(holder), DEAD_WORKER)


def release_consumer(shard: Shard, holder: str) -> Ticket:
    """A worker says goodbye: what it still holds is there for others at once."""
    return _end_leases(shard, _of_worker(holder), RELEASE)


def release_owner(shard: Shard, owner: str) -> Ticket:
    """A principal is gone: what it holds, in any group, is there for others at once."""
    return _end_leases(shard, lambda lease: lease.owner == owner, RELEASE)


def _end_leases(shard: Shard, is_meant: Callable[[Lease], bool], how: Settling) -> Ticket:
    ticket = 0
    while (ended := shard.run_now(lambda now: _end_some(shard, is_meant, how, now))) is not None:
        ticket = max(ticket, ended)
    return ticket


def _of_worker(holder: str) -> Callable[[Lease], bool]:
    return lambda lease: lease.holder == holder and lease.group.id == GROUP


def _end_some(shard: Shard, is_meant: Callable[[Lease], bool], how: Settling, now: int) -> Ticket | None:
    """As much of one lease as a frame takes; None when nothing is left."""
    for lease in [lease for lease in shard.core.leases.values() if is_meant(lease)]:
        chosen = [Chosen(lease, take, held) for take, held in _held_of(lease)]
        if not chosen:
            shard.drop_lease(lease)
            continue
        entries, done = settle_rules.decide_what_fits(shard.core, chosen, how, now, shard.rng)
        return commit(shard, entries, now, lease.group.queue.options.durability or shard.durability, done)
    return None


def _held_of(lease: Lease) -> Iterator[tuple[Take, list[int]]]:
    for take, indexes in lease.open_takes():
        held = [index for index in indexes if take.progress.state_of(take.offsets[index]) == LEASED]
        if held:
            yield take, held
