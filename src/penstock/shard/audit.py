"""The audit log: who did what, in the frame of the change itself.

The log is the queue `penstock.audit`, which only this module writes. `run` executes an operation with its record in
the first frame that it commits, so that there is never a change without its record, nor the other way round, wherever
the process dies. What commits no frame, or fails, gets a frame for its record afterwards; what changes files calls
`record_first` before it does.

`model_audit` has the records and their chain. Its head is not kept anywhere: it is read from the last record, before
the first one is written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from penstock import limits
from penstock.batch import Batch, encode_plain
from penstock.delivery.entries import Entry
from penstock.delivery.log import Queue, create_queue_entries
from penstock.delivery.push import decide_push
from penstock.errors import BadSettings, Damaged, InvalidField, PenstockError, QueueNotFound
from penstock.model import (
    ACCESS_DIRECTORY,
    AUDIT_QUEUE,
    DEFAULT_PARTITION,
    ContentType,
    Durability,
    QueueOptions,
    to_datetime,
    to_micros,
)
from penstock.model_audit import (
    ANCHOR_FILE,
    GENESIS,
    OK,
    Anchor,
    AuditFilter,
    AuditRecord,
    AuditVerification,
    Caller,
    decode_record,
    encode_record,
    sealed,
    verify_chain,
)
from penstock.shard import browse
from penstock.shard.engine import Ticket
from penstock.shard.shard import Shard
from penstock.storage.disk import Disk

R = TypeVar("R")
logger: Final = logging.getLogger("penstock.shard")

OPTIONS: Final = QueueOptions(
    retention_seconds=limits.audit_retention_seconds,
    retention_bytes=limits.audit_retention_bytes,
    retention_drops_unread=True,  # nobody must read it for it to go
    dead_letter=False,
)
ANCHOR_DIRECTORY: Final = ACCESS_DIRECTORY
FAULT: Final = "fault"  # in place of the code of an error that nobody has foreseen
BROKER: Final = Caller("broker")  # who changes something when nobody has asked for it
SLICE: Final = 1_000  # records that are read at a time


class Draft:
    """What a record will say, apart from its place in the chain."""

    __slots__ = ("arguments", "caller", "count", "first_at", "is_written", "last_at", "outcome", "queue", "what")

    def __init__(self, caller: Caller, what: str, queue: str = "", arguments: dict[str, Any] | None = None) -> None:
        self.caller = caller
        self.what = what
        self.queue = queue
        self.arguments = arguments or {}
        self.outcome = OK
        self.count = 1
        self.first_at = 0  # µs UTC; 0: when it is written
        self.last_at = 0
        self.is_written = False

    def record(self, sequence: int, previous: str, now: int) -> AuditRecord:
        """The record, at its place in the chain."""
        return sealed(
            AuditRecord(
                sequence=sequence,
                at=to_datetime(self.first_at or now).isoformat(),
                what=self.what,
                queue=self.queue,
                arguments=self.arguments,
                outcome=self.outcome,
                count=self.count,
                until=to_datetime(self.last_at).isoformat() if self.count > 1 and self.last_at else "",
                previous=previous,
                **msgspec.structs.asdict(self.caller),
            )
        )


class AuditLog:
    """Writes, lists and verifies the audit log of a shard. `disk` None: everything is in memory."""

    def __init__(self, shard: Shard, disk: Disk | None, *, is_on: bool = False) -> None:
        self.is_on = is_on  # whether operations are recorded; what is there can be listed in any case
        self._shard = shard
        self._disk = disk
        self._running: dict[int, Draft] = {}  # by thread: the operation whose record is not written yet
        self._hashes: dict[int, str] = {}  # of the last records by offset, those of a refused frame among them
        self._opening = threading.Lock()
        self._anchor: Anchor | None = None
        shard.joining = self._joining

    def check(self) -> None:
        """Refuse, with `BadSettings`, to begin where a queue of somebody's own is in the place of the log."""
        if self.is_on:
            self._shard.look(lambda now: _check_own(self._shard.core.by_name.get(AUDIT_QUEUE)))

    # writing

    def run(self, draft: Draft, work: Callable[[], tuple[R, Ticket]]) -> tuple[R, Ticket]:
        """Execute something, and record it in the first frame that it commits; otherwise in a frame behind it."""
        self._open()
        thread = threading.get_ident()
        self._running[thread] = draft
        try:
            reply, ticket = work()
        except Exception as error:
            self._running.pop(thread, None)
            draft.outcome = error.code if isinstance(error, PenstockError) else FAULT
            with suppress(PenstockError):  # the caller receives the error that came first
                self.write([draft], self._shard.durability)
            raise
        finally:
            self._running.pop(thread, None)
        if draft.is_written:
            return reply, ticket
        return reply, max(ticket, self.write([draft], self._shard.durability))

    def record_first(self) -> None:
        """Make the record of the operation that this thread executes durable now: a file is about to be changed."""
        draft = self._running.pop(threading.get_ident(), None)
        if draft is not None:
            self._shard.confirm(self.write([draft], "fsync"))
            draft.is_written = True

    def note(self, **arguments: Any) -> None:
        """Add to the record of the operation that this thread executes, which is not written yet."""
        draft = self._running.get(threading.get_ident())
        if draft is not None:
            draft.arguments = {**draft.arguments, **arguments}

    def record_change(self, what: str, target: str) -> None:
        """Make the record of a change of access durable: its file is about to be changed.

        It is the record of the operation that this thread executes, or one of the broker's own.
        """
        if threading.get_ident() in self._running:
            self.record_first()
        elif self.is_on:
            draft = Draft(BROKER, what, arguments={"target": target} if target else {})
            self._shard.confirm(self.write([draft], "fsync"))

    def write(self, drafts: Sequence[Draft], level: Durability) -> Ticket:
        """Records in a frame of their own."""
        self._open()
        return self._shard.change(lambda now: self._entries(drafts, now), level)

    def _joining(self, now: int) -> list[Entry]:
        """What goes into the frame that this thread is about to commit: the record of its operation, once."""
        draft = self._running.pop(threading.get_ident(), None) if self._running else None
        if draft is None:
            return []
        draft.is_written = True
        return self._entries([draft], now)

    def _entries(self, drafts: Sequence[Draft], now: int) -> list[Entry]:
        """The push of some records. The lock is held, and the frame may still be refused."""
        queue = self._shard.core.by_name[AUDIT_QUEUE]
        first = queue.partitions[0].end
        previous = head = self._hashes[first - 1]
        payloads = []
        for sequence, draft in enumerate(drafts, first):
            record = draft.record(sequence, head, now)
            head = record.hash
            payloads.append(encode_record(record))
        self._hashes = {first - 1: previous, first + len(drafts) - 1: head}
        return decide_push(self._shard.core, queue, Batch(encode_plain(payloads, ContentType.JSON)), now).entries

    def _open(self) -> None:
        """Make the queue if it is not there, and find the head of the chain."""
        if self._hashes:
            return
        with self._opening:
            if not self._hashes:
                self._shard.change(self._decide_queue)
                _, end = self._extent()
                self._hashes = {end - 1: self._hash_at(end - 1)}

    def _decide_queue(self, now: int) -> list[Entry]:
        core = self._shard.core
        queue = core.by_name.get(AUDIT_QUEUE)
        if queue is None:
            return create_queue_entries(core.queue_id_next, AUDIT_QUEUE, OPTIONS, [DEFAULT_PARTITION], now)
        _check_own(queue)
        return []

    def _hash_at(self, offset: int) -> str:
        """The hash of a record; that of the anchor when retention has removed it."""
        if offset <= self.anchor.offset:
            return self.anchor.hash
        with suppress(InvalidField):
            return self._record_at(offset).hash
        if self._holds_records():  # damaged or changed, which `verify` reports
            logger.error("record %d of the audit log cannot be read; the chain starts over after it", offset)
        else:  # a queue of somebody's own: the chain begins behind its messages
            self._save(Anchor(offset, GENESIS))
        return GENESIS

    def _holds_records(self) -> bool:
        start, _ = self._extent()
        with suppress(InvalidField):
            return self.anchor.offset >= 0 or bool(self._record_at(start).hash)
        return False

    # looking

    def find(self, filter: AuditFilter, limit: int) -> list[AuditRecord]:
        """Records, newest first."""
        records: list[AuditRecord] = []
        for offset, pushed_at, payload in self._newest_first():
            if filter.since is not None and pushed_at < filter.since:
                break
            if offset < self.anchor.first_of(offset):
                break
            record = decode_record(payload)
            if filter.matches(record, pushed_at):
                records.append(record)
            if len(records) >= limit:
                break
        return records

    def verify(self) -> AuditVerification:
        """Check the whole chain."""
        while True:
            start, end = self._extent()
            anchor = self.anchor  # looked at after the start: it is never behind
            first = anchor.first_of(start)
            found = verify_chain(self._messages(first, end), first, end, anchor)
            if self._extent()[0] == start:  # else retention has removed some that were not read yet
                return found

    def _extent(self) -> tuple[int, int]:
        """The first offset that is kept, and the next to be written."""

        def question(now: int) -> tuple[int, int]:
            queue: Queue | None = self._shard.core.by_name.get(AUDIT_QUEUE)
            return (0, 0) if queue is None else (queue.partitions[0].start, queue.partitions[0].end)

        return self._shard.look(question)[0]

    def _messages(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        for first in range(start, end, SLICE):
            for offset, _, payload in self._read(first, min(SLICE, end - first)):
                yield offset, payload

    def _newest_first(self) -> Iterator[tuple[int, int, bytes]]:
        start, end = self._extent()
        while end > start:
            first = max(start, end - SLICE)
            yield from reversed(self._read(first, end - first))
            end = first

    def _record_at(self, offset: int) -> AuditRecord:
        for _, _, payload in self._read(offset, 1):
            return decode_record(payload)
        raise InvalidField(f"audit: there is no record {offset}")

    def _read(self, offset: int, count: int) -> list[tuple[int, int, bytes]]:
        """(offset, when it was written, payload) of some messages, as far as they are kept."""
        try:
            messages, _ = browse.read(self._shard, AUDIT_QUEUE, DEFAULT_PARTITION, offset, None, count)
        except QueueNotFound:
            return []
        return [
            (message.id.offset, to_micros(message.pushed_at, "pushed_at"), _bytes(message.payload))
            for message in messages
            if message.id is not None and message.pushed_at is not None and message.id.offset < offset + count
        ]

    # retention

    @property
    def anchor(self) -> Anchor:
        """The end of what retention has removed."""
        if self._anchor is None:
            self._anchor = read_anchor(self._disk)
        return self._anchor

    def before_removal(self, start: int) -> None:
        """Keep the hash of the last record before `start`: retention is about to remove it and all before it."""
        if start - 1 > self.anchor.offset:
            self._save(Anchor(start - 1, self._hash_at(start - 1)))

    def _save(self, anchor: Anchor) -> None:
        if self._disk is not None:
            self._disk.make_directory(ANCHOR_DIRECTORY)
            self._disk.write_whole(ANCHOR_FILE, msgspec.json.encode(anchor))
        self._anchor = anchor


def _bytes(payload: Any) -> bytes:
    return payload.encode() if isinstance(payload, str) else bytes(payload)


def _check_own(queue: Queue | None) -> None:
    if queue is not None and queue.options.partitions != 1:
        raise BadSettings(
            f"queue {AUDIT_QUEUE!r} is your own queue with several partitions, but the audit log needs its name",
            hint="start with audit = 'off', copy what you need to another queue and delete this one",
        )


def read_anchor(disk: Any) -> Anchor:
    """The anchor of a data directory."""
    if disk is None or not disk.exists(ANCHOR_FILE):
        return Anchor()
    try:
        return msgspec.json.decode(disk.read(ANCHOR_FILE), type=Anchor)
    except msgspec.DecodeError as error:
        raise Damaged(f"{ANCHOR_FILE}: not an anchor of the audit log: {error}") from None
