"""Producers that may push again without pushing twice: what each has pushed lately, and the reply to it.

A producer has an id, an epoch and numbers its pushes. When (id, epoch, sequence) comes a second time, the shard replies
as it did the first time and stores nothing; after a restart too, since all of this follows from entries.

- A newer epoch starts over. An older one is refused: its producer has a successor.
- Sequences grow. Gaps are allowed, and so is disorder within the window: the `producer_window` sequences up to the
  highest. One that has left the window is refused, since nobody can tell any more whether it was stored.
- An answer holds for the queue that it speaks of: a queue that was deleted and created again knows nothing of it.
- A producer that is silent for a day is forgotten when the next one comes, and of too many the one silent longest.

Answers are kept as packed rows. What a row cannot say (several partitions, duplicates, transactions) is kept beside it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from penstock import limits
from penstock.delivery.entries import Answered, Failure, IdRun, Int32s, Part, Produced, ProducerSet, Push
from penstock.errors import InvalidField, ProducerFenced
from penstock.model import MessageId, check_name, owned
from penstock.requests import Producer

if TYPE_CHECKING:
    from penstock.delivery.log import Queue

ROW: Final = struct.Struct("<QqIII")
ROWS: Final = np.dtype(
    [("sequence", "<u8"), ("first", "<i8"), ("queue", "<u4"), ("partition", "<u4"), ("count", "<u4")]
)
BESIDE: Final = 0xFFFFFFFF  # as partition: the answer is kept beside the row
ROWS_BYTES_MAX: Final = 2 * limits.producer_window * ROW.size  # when rows that left the window are swept out
IDLE: Final = round(limits.producer_idle_seconds * 1_000_000)
NOBODY: Final[Producer] = (0, 0, 0)
SEQUENCE_END: Final = 1 << 63
NAMED: Final = 1 << 63  # ids made from names have this bit, those that producers draw do not


class Answer(msgspec.Struct, array_like=True):
    """Where a push went, as its entry says; or, of a transaction or a push with duplicates, the ids themselves."""

    parts: list[Part]
    rows: bytes = b""  # partition of each row, as integers of `width` bytes, when there are several
    width: int = 4
    pushes: list[list[IdRun]] = []
    duplicates: list[int] = []
    failures: list[Failure] = []

    def row_array(self) -> Int32s | None:
        return np.frombuffer(self.rows, f"<i{self.width}").astype(np.int32) if self.rows else None


@dataclass(slots=True, eq=False)
class KnownProducer:
    """One producer. Whatever is at most `floor`, or at most `last − producer_window`, has left the window."""

    epoch: int
    seen_at: int
    last: int = -1
    floor: int = -1
    rows: bytearray = field(default_factory=bytearray)
    beside: dict[tuple[int, int], bytes] = field(default_factory=dict)  # by sequence and queue
    beside_bytes: int = 0
    applied: int = 0  # replay: the sequence at which a checkpoint took it

    def window_floor(self) -> int:
        return max(self.floor, self.last - limits.producer_window)

    def find(self, sequence: int, queue: int) -> Answer | None:
        rows = np.frombuffer(bytes(self.rows), ROWS)
        matches = rows[(rows["sequence"] == sequence) & (rows["queue"] == queue)]
        if not len(matches):
            return None
        _, first, _, partition, count = matches[-1].item()
        if partition == BESIDE:
            return msgspec.msgpack.decode(self.beside[sequence, queue], type=Answer)
        return Answer([(partition, count, first)])

    def keep(self, sequence: int, queue: int, answer: Answer) -> None:
        """Remember the answer to one push."""
        if len(answer.parts) == 1 and not answer.rows and not answer.pushes:
            ((partition, count, first),) = answer.parts
            self.rows += ROW.pack(sequence, first, queue, partition, count)
        else:
            self.rows += ROW.pack(sequence, 0, queue, BESIDE, 0)
            self.keep_beside((sequence, queue), msgspec.msgpack.encode(answer))
        self.last = max(self.last, sequence)
        if len(self.rows) >= ROWS_BYTES_MAX:
            self.sweep()

    def keep_beside(self, position: tuple[int, int], answer: bytes) -> None:
        self.beside_bytes += len(answer) - len(self.beside.pop(position, b""))
        self.beside[position] = answer
        while self.beside_bytes > limits.producer_answers_bytes_max and len(self.beside) > 1:
            oldest = next(iter(self.beside))
            self.beside_bytes -= len(self.beside.pop(oldest))
            self.floor = max(self.floor, oldest[0])

    def sweep(self) -> None:
        """Drop what has left the window."""
        floor = self.window_floor()
        rows = np.frombuffer(bytes(self.rows), ROWS)
        self.rows = bytearray(rows[rows["sequence"].astype(np.int64) > floor].tobytes())
        self.beside = {position: answer for position, answer in self.beside.items() if position[0] > floor}
        self.beside_bytes = sum(map(len, self.beside.values()))


class Producers:
    """All producers of a shard, by id."""

    def __init__(self) -> None:
        self.known: dict[int, KnownProducer] = {}
        self.touched = 0  # sequence of the last frame that changed something here
        self.look_at = 0  # when to look next for those that are silent

    def find(self, producer: Producer, queue: int) -> Answer | None:
        """The answer to this push from before; None when it is new. Refuses what comes too late."""
        id, epoch, sequence = producer
        known = self.known.get(id)
        if known is None or epoch > known.epoch:
            return None
        if epoch < known.epoch:
            raise ProducerFenced(f"producer {id} is in epoch {known.epoch}; this push is of epoch {epoch}")
        if sequence > known.last:
            return None
        if sequence <= known.window_floor():
            raise ProducerFenced(
                f"producer {id} has pushed up to sequence {known.last}; whether {sequence} was stored is unknown",
                hint=f"keep fewer than {limits.producer_window:,} pushes in flight, and do not reuse a sequence",
            )
        return known.find(sequence, queue)

    def find_rows(self, producers: Sequence[Producer | None], queue: int) -> dict[int, tuple[int, int]]:
        """Of single pushes, those that are known: the partition and offset of each, by its row."""
        positions: dict[int, tuple[int, int]] = {}
        by_id = self.known
        for row, producer in enumerate(producers):
            if producer is None:
                continue
            known = by_id.get(producer[0])
            if known is not None and producer[1] == known.epoch and known.last < producer[2] < SEQUENCE_END:
                continue  # as it is nearly always
            answer = self.find(check_producer(producer), queue)
            if answer is not None:
                if len(answer.parts) != 1:
                    raise ProducerFenced(f"producer {producer[0]} has used sequence {producer[2]} for another push")
                partition, _, first = answer.parts[0]
                positions[row] = (partition, first)
        return positions

    # apply

    def apply_push(self, push: Push, frame: int) -> None:
        """A batch was pushed."""
        rows, width = b"", 4
        if push.rows is not None:
            smallest = np.min_scalar_type(-1 - max(number for number, _, _ in push.parts))
            rows, width = push.rows.astype(smallest).tobytes(), smallest.itemsize
        self._apply(push.producer, push.pushed_at, frame, push.queue, Answer(list(push.parts), rows, width))

    def apply_answer(self, answered: Answered, frame: int) -> None:
        """A transaction, or a push with duplicates: its ids in full."""
        producer = (answered.producer, answered.epoch, answered.producer_sequence)
        answer = Answer([], pushes=answered.pushes, duplicates=answered.duplicates, failures=answered.failures)
        self._apply(producer, answered.at, frame, answered.queue, answer)

    def apply_coalesced(self, produced: Produced, frame: int) -> None:
        """Single messages of many producers were pushed as one batch."""
        queue, partition, first, at = produced.queue, produced.partition, produced.first, produced.at
        by_id, pack = self.known, ROW.pack
        for id, sequence, epoch, row in Produced.ROW.iter_unpack(produced.rows):
            known = by_id.get(id)
            if known is None or known.epoch != epoch or frame <= known.applied:
                known = self._begin(id, epoch, at, frame)
                if known is None:
                    continue
            known.rows += pack(sequence, first + row, queue, partition, 1)
            known.seen_at = at
            if sequence > known.last:
                known.last = sequence
            if len(known.rows) >= ROWS_BYTES_MAX:
                known.sweep()
        self.touched = frame

    def apply_epoch(self, change: ProducerSet, frame: int) -> None:
        """A named producer begins an epoch."""
        self._begin(change.producer, change.epoch, change.at, frame)
        self.touched = frame

    def drop(self, queue: int, partition: int, first: int, end: int) -> None:
        """Repair: forget pushes whose messages are lost. Whoever sends them again means messages we no longer have."""
        for known in self.known.values():
            rows = np.frombuffer(bytes(known.rows), ROWS)
            gone = (rows["queue"] == queue) & (rows["partition"] == partition)
            gone &= (rows["first"] >= first) & (rows["first"] + rows["count"] <= end)
            known.rows = bytearray(rows[~gone].tobytes())

    def _apply(self, producer: Producer, at: int, frame: int, queue: int, answer: Answer) -> None:
        id, epoch, sequence = producer
        known = self._begin(id, epoch, at, frame)
        if known is not None:
            known.keep(sequence, queue, answer)
            known.seen_at = at
        self.touched = frame

    def _begin(self, id: int, epoch: int, at: int, frame: int) -> KnownProducer | None:
        """The producer in this epoch; None when a checkpoint has this frame already, or the epoch is over."""
        known = self.known.get(id)
        if known is not None and known.epoch >= epoch:
            return known if known.epoch == epoch and frame > known.applied else None
        if known is None and (at >= self.look_at or len(self.known) >= limits.producers_max):
            self._forget(at)
        known = self.known[id] = KnownProducer(epoch, at)
        return known

    def _forget(self, now: int) -> None:
        for id in [id for id, known in self.known.items() if known.seen_at <= now - IDLE]:
            del self.known[id]
        if len(self.known) >= limits.producers_max:
            many = 1 + limits.producers_max // 100  # so that not every newcomer has to look at all
            for id in nsmallest(many, self.known, key=lambda id: self.known[id].seen_at):
                del self.known[id]
        self.look_at = now + IDLE // 24


def decide_producer(producers: Producers, name: str, now: int, owner: str = "") -> ProducerSet:
    """The next epoch of a named producer of a principal.

    Epochs follow the clock, so that one of before stays older: of a producer that was forgotten, and of a history that
    went on after the backup from which this one was restored.
    """
    check_name(name, "producer")
    id = stored_id(owner, named_id(owner, name))
    known = producers.known.get(id)
    return ProducerSet(id, max(1 if known is None else known.epoch + 1, now // 1_000_000), now)


# Producers of principals. Each principal has numbers of its own: the id that it uses is not the one that is kept, so
# that whatever id somebody chooses or learns, they reach none but their own producers. Ids of names say whose they are,
# so that one that is used by somebody else is refused. The owner of the broker uses the ids that are kept, as everybody
# did before there were principals: the format of journal and checkpoint does not change, nor does what they hold.

TAG_SHIFT: Final = 47
TAG_MASK: Final = 0xFFFF


def named_id(owner: str, name: str) -> int:
    """The id that a principal uses for its producer of this name."""
    if not owner:
        return _digest(name.encode()) | NAMED
    number = _digest(owned(owner, name).encode()) & ((1 << TAG_SHIFT) - 1)
    return NAMED | _tag(owner) << TAG_SHIFT | number


@lru_cache(maxsize=4096)
def stored_id(owner: str, id: int) -> int:
    """The id under which the producer is kept that a principal calls `id`; refuses the name of somebody else."""
    if not owner:
        return id
    if id & NAMED and (id >> TAG_SHIFT) & TAG_MASK != _tag(owner):
        raise ProducerFenced(
            f"producer {id} belongs to another client", hint="register a name: connect(producer=…) or POST /producers"
        )
    number = _digest(owner.encode() + b"\0" + id.to_bytes(8, "little"))
    return max(1, number & ~NAMED) | id & NAMED


def _tag(owner: str) -> int:
    return _digest(owner.encode()) & TAG_MASK


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def check_producer(producer: Producer) -> Producer:
    """`producer` itself when its numbers can be stored."""
    id, epoch, sequence = producer
    if not (0 < id < 1 << 64 and 0 <= epoch < 1 << 32 and 0 <= sequence < SEQUENCE_END):
        raise InvalidField(
            f"producer: {producer} is not an id, an epoch and a sequence",
            hint="an id is 1 to 2⁶⁴ − 1, an epoch 0 to 2³² − 1, a sequence 0 to 2⁶³ − 1",
        )
    return producer


def answered(queue: int, producer: Producer, now: int, pushes: Iterable[Sequence[MessageId]]) -> Answered:
    """The entry that remembers the ids of each push."""
    id, epoch, sequence = producer
    return Answered(queue, id, epoch, sequence, now, [_runs_of(ids) for ids in pushes])


def answered_push(
    queue: int,
    producer: Producer,
    now: int,
    ids: Sequence[MessageId],
    duplicates: Iterable[int],
    failures: Mapping[int, tuple[str, str, str]],
) -> Answered:
    """The entry that remembers the reply to one push, item by item; a failure is a code, a message and a hint."""
    entry = answered(queue, producer, now, [ids])
    entry.duplicates = sorted(duplicates)
    rows: dict[tuple[str, str, str], list[int]] = {}
    for row, failure in sorted(failures.items()):
        rows.setdefault(failure, []).append(row)
    entry.failures = [(*failure, places) for failure, places in rows.items()]
    return entry


def answer_bytes_max(queue: Queue, push: Push) -> int:
    """What the ids of a push may add to its frame, in `Answered`. Those of one partition follow each other."""
    if push.rows is None:
        return 0
    partition_bytes = limits.name_length_max if queue.options.partitions == "named" else 8
    return len(push.rows) * (len(queue.name) + partition_bytes + 16)


def _runs_of(ids: Sequence[MessageId]) -> list[IdRun]:
    runs: list[IdRun] = []
    for queue, partition, offset in ids:
        if runs and runs[-1][:2] == (queue, partition) and runs[-1][2] + runs[-1][3] == offset:
            runs[-1] = (queue, partition, runs[-1][2], runs[-1][3] + 1)
        else:
            runs.append((queue, partition, offset, 1))
    return runs


def ids_of(runs: Iterable[IdRun]) -> list[MessageId]:
    """The inverse: the ids of one push."""
    return [
        MessageId(queue, partition, offset)
        for queue, partition, first, count in runs
        for offset in range(first, first + count)
    ]
