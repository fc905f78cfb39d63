"""Dead letters of a queue: finding them, sending them back, throwing them away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.batch import Batch
from penstock.delivery import admin
from penstock.delivery.entries import Entry, Settled
from penstock.delivery.log import Queue
from penstock.delivery.phases import SETTLED
from penstock.delivery.progress import span_of
from penstock.delivery.push import decide_push
from penstock.delivery.settle import DeadLetter, origin_of
from penstock.errors import MessageNotFound
from penstock.model import DLQ_SUFFIX, Message, MessageId, Outcome
from penstock.model_letters import DEAD_GROUP, DEAD_ORIGIN, LetterFilter
from penstock.replies import Piece
from penstock.shard import browse
from penstock.shard.payload_rows import pieces_of

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard

CHUNK: Final = 1_000
LOOKED_AT_ONCE: Final = 20_000  # offsets that are looked at while the shard is held


def find(shard: Shard, queue: str, filter: LetterFilter) -> tuple[list[Message], Ticket]:
    """Dead letters that nobody has dealt with, oldest first."""
    _, ticket = shard.look(lambda now: admin.queue_named(shard.core, queue))
    letters: list[Message] = []
    for letter in _all(shard, queue + DLQ_SUFFIX, filter.from_offset):
        if len(letters) >= filter.limit:
            break
        if filter.matches(letter):
            letters.append(letter)
    return letters, ticket


def _all(shard: Shard, dlq: str, position: int) -> Iterator[Message]:
    """Every unsettled dead letter from an offset on, a slice at a time."""
    end = end_of(shard, dlq)
    while position < end:
        letters, position = some_letters(shard, dlq, position, end)
        yield from letters


def end_of(shard: Shard, dlq: str) -> int:
    """Where the dead letters of a queue end; 0 when there are none."""

    def question(now: int) -> int:
        queue = shard.core.by_name.get(dlq)
        return 0 if queue is None else queue.partitions[0].end

    return shard.look(question)[0]


def some_letters(shard: Shard, dlq: str, start: int, end: int, limit: int = CHUNK) -> tuple[Iterator[Message], int]:
    """The next dead letters before `end` that are not settled, and where to go on. The messages are made one by one."""

    def question(now: int) -> tuple[list[Piece], int]:
        offsets, position = _unsettled(shard.core.by_name.get(dlq), start, end, limit)
        return pieces_of(shard.core.by_name[dlq].partitions[0], offsets) if offsets else [], position

    (pieces, position), _ = shard.look(question)
    return browse.messages(dlq, shard.loaded(pieces, only_kept=True)), position


def _unsettled(queue: Queue | None, start: int, end: int, limit: int) -> tuple[list[int], int]:
    """Up to `limit` offsets that are not settled, and where to go on. Looks at so many only while the lock is held."""
    if queue is None:
        return [], end
    progress = queue.groups[0].progress[0]
    first = max(start, progress.base)
    last = min(end, progress.partition.end, first + LOOKED_AT_ONCE)
    offsets: list[int] = []
    for offset in range(first, last):
        if progress.state_of(offset) != SETTLED:
            offsets.append(offset)
            if len(offsets) == limit:
                return offsets, offset + 1
    return offsets, end if last <= first else last  # the queue may be another one by now, which ends sooner


def redrive(shard: Shard, queue: str, filter: LetterFilter, per_second: float | None) -> tuple[int, Ticket]:
    """Send dead letters back to the group where they died."""
    messages, ticket = find(shard, queue, filter)
    gap_seconds = 0.0 if per_second is None else 1 / per_second
    letters = [letter_of(message) for message in messages]
    slices = [letters[start : start + CHUNK] for start in range(0, len(letters), CHUNK)]
    # Refuse before anything has changed: there may be more of them than one frame takes.
    for some in slices:
        shard.look(lambda now, some=some: [origin_of(shard.core, letter) for letter in some])  # type: ignore[misc]
    for number, some in enumerate(slices):
        ticket = shard.redrive(queue, some, number * CHUNK * gap_seconds, gap_seconds)
    return len(messages), ticket


def letter_of(message: Message) -> DeadLetter:
    """A dead letter as a redrive needs it."""
    assert message.id is not None
    headers = message.headers or {}
    return DeadLetter(message.id.offset, MessageId.parse(headers[DEAD_ORIGIN]), headers[DEAD_GROUP])


def replace(shard: Shard, queue: str, ids: Sequence[MessageId], batch: Batch) -> Ticket:
    """Push messages and settle the dead letters that they replace, in one frame.

    A letter that somebody has dealt with is refused: what is asked twice is done once.
    """

    def decide(now: int) -> list[Entry]:
        target = admin.check_changeable(admin.queue_named(shard.core, queue))
        dlq = admin.queue_named(shard.core, queue + DLQ_SUFFIX)
        offsets = sorted({_unsettled_offset(dlq, id) for id in ids})  # each is settled, and counted, once
        if target.is_shut:
            raise shard.core.pauses.refuse(target)
        decided = decide_push(shard.core, target, batch, now)
        return [
            *decided.entries,
            Settled(dlq.id, 0, int(Outcome.REDRIVEN), now, 0, "", "", [span_of(0, offsets)]),
        ]

    return shard.change(decide)


def _unsettled_offset(dlq: Queue, id: MessageId) -> int:
    progress = dlq.groups[0].progress[0]
    is_there = (id.queue, id.partition) == (dlq.name, progress.partition.name) and id.offset < progress.partition.end
    if not is_there or progress.state_of(id.offset) == SETTLED:
        raise MessageNotFound(
            f"{id} is not an open dead letter", hint="list them again: it has been redriven, replaced or purged"
        )
    return id.offset


def purge(shard: Shard, queue: str) -> Ticket:
    """Throw all dead letters of a queue away."""

    def decide(now: int) -> list[Entry]:
        admin.check_changeable(admin.queue_named(shard.core, queue))
        dlq = shard.core.by_name.get(queue + DLQ_SUFFIX)
        return [] if dlq is None else admin.decide_purge(dlq, now)

    return shard.change(decide)
