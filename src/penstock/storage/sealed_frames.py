"""Frames of the journal with entries of encrypted queues. docs/formats/journal.md has the picture.

An entry that holds what users wrote is stored as kind 25: what is needed to go on without it in clear, and all of it as
one seal. Whoever reads frames opens them first, so that nobody else needs to know; and a frame without such entries is
passed on as it is. When the data key was erased, what was in clear is all that is left: the message keeps its place,
its times and its priority, and has the header `penstock.erased` instead of its content.

    kind u8 | 0 × 3 | head length u32 | clear length u32 | 0 u32 | data key id 16 | salt 16        48 bytes
    head, then clear, padded together to 8    of a push: where its rows went; then a batch without content, if any
    seal                                      ciphertext of the rest of the entry, and its tag

The seal covers what is before it too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import msgspec

from penstock.batch import Batch, fields, layout
from penstock.delivery import entries as journal
from penstock.delivery.entries import (
    Entry,
    Note,
    OperationSet,
    Push,
    Record,
    ScheduleSet,
    Settled,
    TaskFreed,
    TaskHeld,
    TasksNoted,
    UniqueTaken,
)
from penstock.seals import ERASED, Seals

SEALED: Final = journal.SEALED
SEALED_HEAD: Final = struct.Struct("<B3xIII16s16s")
CLEAR: Final = sum(layout.FIXED) | layout.TRACE  # columns of a batch that stay in clear
HASHED: Final = layout.KEY | layout.DEDUP_KEY  # columns of which keyed hashes do

_NOTHING: Final = {Note.RESULT: b"null", Note.PROGRESS: b"null", Note.ERROR: b"", Note.CANCELLED: b""}


class _Schedule(msgspec.Struct):
    queue: str


class _Operation(msgspec.Struct):
    queue: str | None = None


_schedule: Final = msgspec.json.Decoder(_Schedule)
_operation: Final = msgspec.json.Decoder(_Operation)
QueueOf = Callable[[str], int | None]  # the number of a queue by its name


class FrameSeals:
    """Encodes and opens the frames of one journal."""

    def __init__(self, seals: Seals) -> None:
        self.seals = seals

    def encode(
        self, entries: Sequence[Entry], encrypted: Collection[int], queue_of: QueueOf
    ) -> tuple[bytes, bytes | memoryview]:
        """The bytes of one frame's entries, those of the queues `encrypted` sealed; the last seal by itself."""
        if len(entries) == 1 and type(push := entries[0]) is Push and push.queue in encrypted:
            before, sealed = self._sealed_push(push)  # by far the most frames
            size = len(before) + len(sealed)
            if size > journal.FRAME_BYTES_MAX:
                journal.check_frame(size)
            if not size & 7:
                return journal.HEAD.pack(SEALED, size) + before, sealed
        pieces: list[Any] = []
        for entry in entries:
            queue = _queue_of(entry, queue_of)
            body = self._sealed(entry, queue) if queue in encrypted else None
            pieces += journal.entry_pieces(*journal.encode_body(entry) if body is None else (SEALED, body))
        journal.check_frame(sum(map(len, pieces)))
        if len(pieces[-1]):  # padding
            return b"".join(pieces), b""
        return b"".join(pieces[:-2]), pieces[-2]

    def _sealed(self, entry: Entry, queue: int) -> list[Any] | None:
        """The body of an entry of kind 25; None for one that holds nothing of users."""
        if isinstance(entry, Push):
            return list(self._sealed_push(entry))
        blank = self._blank(entry, queue)
        if blank is None:
            return None
        (kind, (data,)), (_, (clear,)) = journal.encode_body(entry), journal.encode_body(blank)
        return list(self._close(kind, b"", clear, data, queue))

    def _sealed_push(self, push: Push) -> tuple[bytes, bytes]:
        *head, data = journal.encode_push(push)
        clear = b""
        if layout.flags_of(data) & (CLEAR | HASHED):
            clear = self._shell(push.columns or Batch.parse(data, validate=False), push.queue)
        return self._close(journal.PUSH, b"".join(head), clear, data, push.queue)

    def _close(self, kind: int, head: bytes, clear: bytes, data: bytes | memoryview, queue: int) -> tuple[bytes, bytes]:
        seal = self.seals.new(queue)
        before = SEALED_HEAD.pack(kind, len(head), len(clear), 0, seal.id, seal.salt) + head + clear
        before += bytes(-len(before) % 8)
        return before, seal.close(data, before)

    def _blank(self, entry: Entry, queue: int) -> Record | None:
        """A record without what users wrote; None when it holds nothing of that."""
        replace = msgspec.structs.replace
        if isinstance(entry, Settled | TaskFreed):
            return replace(entry, error="") if entry.error else None
        if isinstance(entry, TasksNoted):
            return replace(entry, notes=[replace(note, data=_NOTHING[note.what]) for note in entry.notes])
        if isinstance(entry, TaskHeld):
            batch = Batch.parse(entry.batch, validate=False)
            return replace(entry, batch=self._shell(batch, queue) or erased_batch(batch.count))
        if isinstance(entry, UniqueTaken):
            return replace(entry, hash=entry.task_id)  # as long, and no other task has it
        if isinstance(entry, ScheduleSet):
            return None if entry.is_deleted else replace(entry, spec=b"", is_deleted=True)
        return blank_operation(entry) if isinstance(entry, OperationSet) else None

    def _shell(self, batch: Batch, queue: int) -> bytes:
        """A batch without content, with the columns that stay in clear; nothing when there are none."""
        kept = batch.flags & (CLEAR | HASHED)
        if not kept:
            return b""
        hashed = self.seals.hashes(queue) if kept & HASHED else None
        columns = [_clear_column(batch, flag, hashed) for flag in layout.NAMES if kept & flag]
        return fields.seal_fields(columns, [b""] * batch.count)

    # reading

    def open(self, frame: memoryview) -> memoryview:
        """The entries of a frame as they were before they were sealed."""
        return _opened(frame, self._open)

    def _open(self, body: memoryview) -> tuple[int, list[Any]]:
        kind, head_length, clear_length, _, id, salt = SEALED_HEAD.unpack_from(body)
        head_end = SEALED_HEAD.size + head_length
        if not self.seals.opens(_queue_in(kind, body[SEALED_HEAD.size : head_end + clear_length])):
            return _left(body)
        seal = self.seals.known(id, salt)
        if seal is None:
            return _left(body)
        start = layout.padded(head_end + clear_length)
        return kind, [body[SEALED_HEAD.size : head_end], seal.open(body[start:], bytes(body[:start]))]


def blank_operation(operation: OperationSet) -> OperationSet:
    """An operation without what users look for, which is over: without its filter it would be about everything."""
    is_open = operation.state in (OperationSet.RUNNING, OperationSet.WAITING)
    return msgspec.structs.replace(
        operation,
        filter=msgspec.json.encode(_operation.decode(operation.filter)),
        state=OperationSet.FAILED if is_open else operation.state,
        error="its filter was erased with the data keys of its queue" if is_open else "",
        errors=(),
    )


def shell_frame(frame: memoryview) -> memoryview:
    """A frame with what is in clear alone, for who counts and has no keys."""
    return _opened(frame, _left)


def _opened(frame: memoryview, opened: Callable[[memoryview], tuple[int, list[Any]]]) -> memoryview:
    if not _has_sealed(frame):
        return frame
    pieces: list[Any] = []
    for kind, body in journal.split(frame, is_raw=True):
        pieces += journal.entry_pieces(*(kind, [body]) if kind != SEALED else opened(body))
    return memoryview(b"".join(pieces))


def _left(body: memoryview) -> tuple[int, list[Any]]:
    """What is left of an entry whose data key is gone."""
    kind, head_length, clear_length, _, id, _ = SEALED_HEAD.unpack_from(body)
    head_end = SEALED_HEAD.size + head_length
    clear = bytes(body[head_end : head_end + clear_length])
    if kind != journal.PUSH:
        return kind, [clear]
    head = body[SEALED_HEAD.size : head_end]
    return kind, [head, _erased(head, clear, id)]


def clear_entries(frame: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(kind, body) of each entry as far as it is in clear; a sealed push ends before its batch."""
    for kind, body in journal.split(frame, is_raw=True):
        if kind != SEALED:
            yield kind, body
        else:
            kind, head_length, clear_length, *_ = SEALED_HEAD.unpack_from(body)
            length = head_length if kind == journal.PUSH else clear_length
            yield kind, body[SEALED_HEAD.size : SEALED_HEAD.size + length]


def _queue_in(kind: int, clear: memoryview) -> int:
    """The queue that an entry belongs to, by what is in clear of it."""
    if kind == journal.PUSH:
        return int(journal.PUSH_HEAD.unpack_from(clear)[0])
    return journal.decode_record(clear).queue


def _has_sealed(frame: memoryview) -> bool:
    place, end, unpack = 0, len(frame), journal.HEAD.unpack_from
    while place < end:
        kind, length = unpack(frame, place)
        if kind == SEALED:
            return True
        place += journal.HEAD.size + length + -length % 8
    return False


def schedule_queue(spec: bytes) -> str:
    """The queue of a schedule's task."""
    return _schedule.decode(spec).queue


def _queue_of(entry: Entry, queue_of: QueueOf) -> int:
    if isinstance(entry, ScheduleSet) and not entry.is_deleted:
        return queue_of(schedule_queue(entry.spec)) or 0
    return entry.queue


def _clear_column(batch: Batch, flag: int, hashed: Callable[[bytes], str] | None) -> fields.Field:
    if flag in layout.FIXED:
        return fields.fixed(flag, batch.fixed(flag))
    texts = batch.texts(flag)
    if flag & HASHED:
        assert hashed is not None
        texts = [None if text is None else hashed(text.encode()) for text in texts]
    return fields.texts(flag, texts)


def erased_batch(count: int) -> bytes:
    """A batch of messages of which nothing is left."""
    return fields.seal_fields([], [b""] * count)


def _erased(head: memoryview, clear: bytes, id: bytes) -> bytes:
    """The batch of a push whose data key is gone: what was in clear, and a header that says so."""
    count = _rows_of(head)
    columns: list[fields.Field] = []
    if clear:
        batch = Batch.parse(clear, validate=False)
        columns = [_clear_column(batch, flag, bytes.decode) for flag in layout.NAMES if batch.flags & flag]
    return fields.seal_fields([*columns, fields.headers([{ERASED: id.hex()}] * count)], [b""] * count)


def _rows_of(head: memoryview) -> int:
    """How many rows the batch of a push has, by its head."""
    _, rows, *_ = journal.PUSH_HEAD.unpack_from(head)
    if rows:
        return int(rows)
    _, count, _ = journal.PUSH_PART.unpack_from(head, journal.PUSH_HEAD.size)
    return int(count)
