"""Search in the messages of a queue: a page of those that match, the newest first.

The order is that of the pushes, over all partitions; within one instant by partition and offset. A cursor names a place
in that order, so pages neither repeat nor skip anything, whatever is pushed meanwhile. A page ends when it is full,
after `look_back` messages, or after `SECONDS`; its cursor continues from there. Messages are read a few at a time,
without the lock, and a partition is read only when it is its turn. Of states that are indexed (leased, waiting, dead)
only the messages in them are looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock import limits
from penstock.batch import Batch
from penstock.delivery import admin
from penstock.delivery.inspection import state_name
from penstock.delivery.log import Partition
from penstock.delivery.phases import LEASED, WAITING
from penstock.delivery.progress import Progress
from penstock.errors import InvalidField, shown
from penstock.model import Message, to_datetime, to_micros
from penstock.model_letters import MessageFilter
from penstock.replies import MessagePage, Piece
from penstock.shard import browse
from penstock.shard.payload_rows import pieces_of

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard

SECONDS: Final = 2.0  # that a page takes at most, and one read
PAGE_BYTES: Final = 8 * limits.MIB  # of payloads, and one message
READ_FIRST: Final = 64  # messages of a partition that are read at a time at first
READ_MAX: Final = 1_024  # and later
END: Final = 1 << 62  # later, or further on, than anything
UNSETTLED: Final = ("ready", "delayed", "leased", "waiting")


class Cursor(NamedTuple):
    """A place in the order: passed are later instants, and at this one higher partitions, and offsets from this on."""

    at: int
    partition: int
    offset: int

    def __str__(self) -> str:
        return "-".join(f"{part:x}" for part in self)

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The inverse of `str`; `InvalidField` for anything else."""
        try:
            at, partition, offset = (int(part, 16) for part in text.split("-"))
        except ValueError:
            at = partition = offset = -1
        if not (0 <= at <= END and 0 <= partition < limits.partitions_max and 0 <= offset <= END):
            hint = "pass the cursor of the previous page unchanged"
            raise InvalidField(f"cursor: {shown(text)} is not a cursor", hint=hint)
        return cls(at, partition, offset)


class Query(NamedTuple):
    """What is looked for: the fields of the operation."""

    queue: str
    filter: MessageFilter
    state: str | None
    group: str
    limit: int
    look_back: int
    cursor: str | None


class Row(NamedTuple):
    """A message that was read."""

    at: int
    offset: int
    is_in_state: bool
    piece: Piece
    row: int  # of the piece


@dataclass(slots=True)
class Run:
    """How far a partition is searched."""

    first: int = -1  # the oldest offset that can match; -1: nothing is read yet
    end: int = END  # offsets from here on are read
    size: int = READ_FIRST
    chosen: list[int] | None = None  # the offsets that can match, where an index knows them; None: all
    rows: list[Row] = field(default_factory=list)  # read and not looked at yet, the newest last


class Search:
    """One page."""

    def __init__(self, shard: Shard, query: Query) -> None:
        filter = query.filter
        self._shard = shard
        self._query = query
        self._since = 0 if filter.since is None else to_micros(filter.since, "from")
        self._until = END if filter.until is None else to_micros(filter.until, "to")
        self._text = None if filter.text is None else filter.text.encode()
        self._cursor = None if query.cursor is None else Cursor.parse(query.cursor)
        self._messages: list[Message] = []
        self._examined = self._bytes = self._oldest = 0

    def page(self) -> tuple[MessagePage, Ticket]:
        """The messages that match, and where to go on."""
        clock = self._shard.clock
        tops, ticket = self._shard.look(lambda now: self._tops())
        heapify(tops)
        runs: dict[int, Run] = {}
        deadline = clock.monotonic() + round(SECONDS * 1_000_000)
        while tops:
            at, number = -tops[0][0], -tops[0][1]
            run = runs.setdefault(number, Run())
            if run.rows:
                self._look_at(run.rows.pop())
            elif not self._read(number, run):
                heappop(tops)
                continue
            heapreplace(tops, (-(run.rows[-1].at if run.rows else at), -number))
            if self._is_full() or clock.monotonic() >= deadline:
                return self._reply(_place(tops[0], runs)), ticket
        return self._reply(None), ticket

    def _tops(self) -> list[tuple[int, int]]:
        """For each partition, negated for the heap, an instant that no message of it that is left is later than."""
        queue = admin.queue_named(self._shard.core, self._query.queue)
        admin.group_named(queue, self._query.group)
        tops = ((self._latest(partition), partition.id) for partition in queue.partitions)
        return [(-at, -number) for at, number in tops if at >= self._since]

    def _latest(self, partition: Partition) -> int:
        at = min(partition.pushed_at, self._until - 1)
        if self._cursor is None:
            return at
        return min(at, self._cursor.at - (partition.id > self._cursor.partition))

    def _read(self, number: int, run: Run) -> bool:
        """Read the messages before those that were read; False when there are none."""
        start = 0
        in_state: set[int] | None = None

        def question(now: int) -> list[Piece]:
            nonlocal start, in_state
            queue = admin.queue_named(self._shard.core, self._query.queue)
            if number >= len(queue.partitions):  # another queue of this name, with fewer of them
                start = END
                return []
            partition = queue.partitions[number]
            progress = admin.group_named(queue, self._query.group).progress[number]
            if run.first < 0:
                run.first, run.end = self._bounds(partition, progress)
                run.chosen = _indexed(progress, self._query.state)
            offsets, start = _next(partition, run)
            if self._query.state is not None:
                core, state = self._shard.core, self._query.state
                in_state = {offset for offset in offsets if state_name(core, progress, offset, now) == state}
            return pieces_of(partition, offsets) if offsets else []

        pieces, _ = browse.look_and_load(self._shard, question)
        if start >= run.end:
            return False
        run.end, run.size = start, min(READ_MAX, 2 * run.size)
        run.rows = list(_rows(pieces, in_state))
        return True

    def _bounds(self, partition: Partition, progress: Progress) -> tuple[int, int]:
        """The oldest offset that can match, and the one after the newest. The lock is held."""
        first, end = partition.offset_at(self._since), partition.end
        if self._query.state in UNSETTLED:
            first = max(first, min(progress.sparse or (), default=progress.base))
        if self._until < END:
            end = min(end, partition.offset_at(self._until))
        if self._cursor is not None:
            at, number, offset = self._cursor
            end = min(end, partition.offset_at(at + (partition.id <= number)))
            end = min(end, offset) if partition.id == number else end
        return first, end

    def _look_at(self, row: Row) -> None:
        self._examined += 1
        self._oldest = row.at
        if not row.is_in_state:
            return
        if not self._may_match(row.piece.batch, row.piece.row(row.row)):
            return
        filter = self._query.filter
        message = browse.message(self._query.queue, row.piece, row.row, row.offset)
        if filter.matches(message):
            self._messages.append(message)
            self._bytes += len(message.payload)

    def _may_match(self, batch: Batch, index: int) -> bool:
        """Of most messages one column tells that they do not match; the cheapest column is looked at first."""
        filter = self._query.filter
        if filter.key is not None and batch.key(index) != filter.key:
            return False
        if filter.trace is not None and batch.trace(index) != filter.trace:
            return False
        if filter.headers and not filter.headers.items() <= (batch.headers(index) or {}).items():
            return False
        return self._text is None or self._text in batch.payload(index)

    def _is_full(self) -> bool:
        return (
            len(self._messages) >= self._query.limit
            or self._examined >= self._query.look_back
            or self._bytes >= PAGE_BYTES
        )

    def _reply(self, cursor: Cursor | None) -> MessagePage:
        return MessagePage(
            messages=self._messages,
            cursor=None if cursor is None else str(cursor),
            examined=self._examined,
            looked_back_to=to_datetime(self._oldest) if self._examined else None,
        )


def _indexed(progress: Progress, state: str | None) -> list[int] | None:
    """The offsets that may be in a state, ascending, where they need not be looked for; else None."""
    if state == "leased":
        return progress.offsets_in(LEASED)
    if state == "waiting":
        return progress.offsets_in(WAITING)
    return sorted(progress.dead_offsets or ()) if state == "dead" else None


def _next(partition: Partition, run: Run) -> tuple[Sequence[int], int]:
    """The offsets to read before those that were read, and the least offset that is read then."""
    if run.chosen is None:
        start = max(run.first, partition.start, run.end - run.size)
        return [offset for offset in partition.kept_from(start, run.size) if offset < run.end], start
    left = run.chosen[bisect_left(run.chosen, run.first) : bisect_left(run.chosen, run.end)][-run.size :]
    return [offset for offset in left if offset in partition.kept_from(offset, 1)], left[0] if left else run.end


def _rows(pieces: Sequence[Piece], in_state: set[int] | None) -> list[Row]:
    return [
        Row(piece.pushed(index), offset, in_state is None or offset in in_state, piece, index)
        for piece in pieces
        for index, offset in enumerate(piece.offsets)
    ]


def _place(top: tuple[int, int], runs: Mapping[int, Run]) -> Cursor:
    """Before the message whose turn it is."""
    at, number = -top[0], -top[1]
    run = runs.get(number)
    if run is None:
        return Cursor(at, number, END)
    return Cursor(at, number, run.rows[-1].offset + 1 if run.rows else run.end)
