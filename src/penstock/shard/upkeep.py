"""The two background roles of an open shard, each with a `tick`, each asleep until something is due.

`Timekeeper` lets time happen: timers, leases that ran out, expiries, the interval sync. `Storekeeper` keeps house: it
seals full journal files, writes checkpoints, removes what retention allows, watches the free disk. Neither polls: they
sleep until the next due instant, and are woken when something earlier comes up.

No role stops for good while its shard works: whatever goes wrong in a round is logged, counted and shown, and the
round is made again, at first soon and then less often.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from penstock import limits
from penstock.delivery.admin import decide_trim
from penstock.delivery.compaction import check_compacted
from penstock.delivery.entries import FOREVER
from penstock.delivery.log import Partition, Queue
from penstock.delivery.timers import needs_delays
from penstock.delivery.upkeep import archived_of, floors_of
from penstock.errors import Closed, InvalidField, PenstockError
from penstock.journal import JournalFile
from penstock.model import AUDIT_QUEUE, Freed, check_seconds, check_size
from penstock.shard.checkpoints import Checkpointer
from penstock.shard.compaction import Compactor, relocate
from penstock.shard.delays import fetch_delays
from penstock.storage import segment_audit
from penstock.storage.extents import Extent as SealedExtent
from penstock.storage.retention import counts_messages, new_starts
from penstock.storage.schema import Names
from penstock.storage.segments import release_memory
from penstock.storage.staging import Staging
from penstock.storage.task_rows import Identify

if TYPE_CHECKING:
    from penstock.shard.shard import Shard

T = TypeVar("T")

logger: Final = logging.getLogger("penstock.shard")

HOUSEKEEPING_SECONDS: Final = 10.0
RETRY_SECONDS_MIN: Final = 0.1
RETRY_SECONDS_MAX: Final = 10.0


def do_all(duties: Sequence[Callable[[], T]]) -> list[T]:
    """Do one duty after the other, also when one fails: the others must not wait for it. Raises the first failure."""
    done: list[T] = []
    failed: list[Exception] = []
    for duty in duties:
        try:
            done.append(duty())
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)
    if failed:
        raise failed[0]
    return done


class Sleeper:
    """A thread that runs `tick` whenever it is woken or its time has come."""

    def __init__(self, role: str, tick: Callable[[], float | None], is_over: Callable[[], bool]) -> None:
        self.role = role
        self.failures = 0  # rounds that failed, since it was started
        self.problem = ""  # why the last round failed; empty when it did not
        self._tick = tick
        self._is_over = is_over  # whether the shard has failed or is closed
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._backoff = RETRY_SECONDS_MIN
        self._thread = threading.Thread(target=self._run, name=f"penstock-{role}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def was_started(self) -> bool:
        return self._thread.ident is not None

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                seconds = self._tick()
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                if self._is_over():
                    # Callers get the error; this thread has nothing left to do.
                    logger.warning("the %s stops: %s", self.role, error)
                    return
                self._failed(error)
                # Not to be hurried: who wakes it does not know that it fails.
                self._stopping.wait(self._backoff)
                self._backoff = min(2 * self._backoff, RETRY_SECONDS_MAX)
            else:
                self.problem, self._backoff = "", RETRY_SECONDS_MIN
                self._wake.wait(seconds)
                self._wake.clear()

    def _failed(self, error: Exception) -> None:
        """Say what went wrong; where it did, if nobody has foreseen it and it was not said before."""
        is_known = isinstance(error, PenstockError)  # a full disk, say, that somebody will make room on
        problem = str(error) if is_known else f"{type(error).__name__}: {error}"
        is_new = problem != self.problem
        self.failures += 1
        self.problem = problem
        logger.log(
            logging.WARNING if is_known else logging.ERROR,
            "the %s failed and retries in %g s: %s",
            self.role,
            self._backoff,
            problem,
            exc_info=error if is_new and not is_known else None,
        )


class Upkeep(msgspec.Struct, frozen=True):
    """How a shard is kept: when a journal file counts as full although it has room, and what is done by itself."""

    journal_file_frames: int | None = None  # None: as many as fit
    journal_file_seconds: float | None = None  # None: age does not matter
    compaction_seconds: float | None = None  # between two rounds of retention; None: with every housekeeping
    sealing: bool = True  # full files are sealed without being asked

    def __post_init__(self) -> None:
        check_size(self.journal_file_frames, "journal_file_frames", *limits.journal_file_frames_range)
        for name in ("journal_file_seconds", "compaction_seconds"):
            if getattr(self, name) is not None:
                check_seconds(getattr(self, name), name)
        if not isinstance(self.sealing, bool):
            raise InvalidField(f"sealing: {self.sealing!r} is neither true nor false")

    @property
    def file_us_max(self) -> int | None:
        return None if self.journal_file_seconds is None else round(self.journal_file_seconds * 1_000_000)

    @property
    def compaction_us(self) -> int:
        return round((self.compaction_seconds or 0) * 1_000_000)


class Timekeeper:
    """Lets time happen while nobody calls."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.sleeper = Sleeper("timekeeper", self.tick, shard.is_over)
        # What else time brings: each does what is due and answers when it has more to do, or None.
        self.roles: list[Callable[[], int | None]] = []
        shard.on_deadline = self._deadline

    def start(self) -> None:
        self._shard.clock.on_jump(self.sleeper.wake)
        self.sleeper.start()

    def stop(self) -> None:
        self.sleeper.stop()

    def tick(self) -> float | None:
        """Do what is due; returns seconds until there may be more."""
        shard = self._shard
        instants = do_all([self._sync_if_due, self._let_time_happen, *self.roles])
        with shard.locked():
            now = shard.clock.now()
            instants.append(shard.next_at(now, shard.clock.monotonic()))
            next_at = min((instant for instant in instants if instant is not None), default=None)
            put_off = max(0, shard.put_off_until - shard.clock.monotonic())
            seconds = None if next_at is None else max(put_off, next_at - now) / 1e6
            shard.asleep_until = float("inf") if seconds is None else now + seconds * 1e6
        return seconds

    def _sync_if_due(self) -> None:
        shard = self._shard
        with shard.locked():
            is_due = shard.sync_at is not None and shard.sync_at <= shard.clock.now()
            if is_due:
                shard.sync_at = None  # what is appended from here on may miss this sync
        if is_due:
            try:
                shard.journal.sync()
            except Exception:
                shard.sync_at = shard.clock.now()  # it is still due
                raise

    def _let_time_happen(self) -> None:
        self._shard.run(self._shard.let_time_happen)

    def _deadline(self, instant: int) -> None:
        if instant < self._shard.asleep_until:
            self._shard.asleep_until = instant
            self.sleeper.wake()


class Storekeeper:
    """Seals, checkpoints, removes. One thread at a time may call it; `start` gives it one of its own."""

    def __init__(self, shard: Shard, checkpointer: Checkpointer, staging: Staging) -> None:
        self._shard = shard
        self._checkpointer = checkpointer
        self.staging = staging
        # Called before frames up to a sequence are removed from the journal, for those who follow it.
        self.before_removal: Callable[[int], object] = lambda sequence: None
        self.before_audit_removal: Callable[[int], object] = lambda start: None  # its records before this offset go
        self.identify_tasks: Identify | None = None  # which tasks messages are, for the sealed table
        self.options = Upkeep()
        self._compacted_at: int | None = None
        self._file_since = shard.clock.monotonic()
        self._busy = threading.Lock()
        self._is_over = False
        self._seals = True  # whether sealing worked when it was tried last
        self._unplaced: tuple[list[SealedExtent], int] | None = None  # sealed, and partitions do not know it yet
        self.sleeper = Sleeper("storekeeper", self.tick, shard.is_over)
        self._compactor = Compactor(shard)
        shard.journal.on_rotate = self._rotated

    def start(self) -> None:
        self._shard.clock.on_jump(self.sleeper.wake)
        self.sleeper.start()

    def stop(self) -> None:
        self.sleeper.stop()

    def tick(self) -> float:
        """One round of housekeeping."""
        duties = [self._watch_journal, self._seal_full, self._refill_delays, self.sweep_staged, self._make_room]
        do_all([*duties, self.compact_due])
        return min(HOUSEKEEPING_SECONDS, self.options.compaction_seconds or HOUSEKEEPING_SECONDS)

    def _watch_journal(self) -> None:
        journal = self._shard.journal
        journal.check_space()
        if (age := self.options.file_us_max) is not None and self._shard.clock.monotonic() - self._file_since >= age:
            journal.rotate()
        journal.mark()

    def _make_room(self) -> None:
        now = self._shard.clock.monotonic()
        if self._compacted_at is None or now - self._compacted_at >= self.options.compaction_us:
            self._compacted_at = now
            if self.retain().messages_removed:
                self._rewrite()

    def sweep_staged(self) -> int:
        """Remove staged files that are old and needed by no batch of a sink; how many."""
        with self._shard.locked():
            needed = self._shard.core.sinks.needed()
        return self.staging.sweep(self._shard.clock.now(), needed)

    # sealing

    def _seal_full(self) -> None:
        if not self.options.sealing:
            return
        try:
            self.seal()
        except Exception:
            # Pushes must not wait for what does not happen: they go on, or receive the reason.
            self._seals = False
            self._shard.throttle.set()
            raise
        self._seals = True

    def seal(self) -> int:
        """Seal every full journal file; returns how many."""
        sealed = 0
        with self._at_work():
            for file in self._shard.journal.full_files():
                self._seal(file)
                self._checkpointer.save()
                self.before_removal(file.end_sequence - 1)
                self._shard.journal.remove_file(file)
                self._unthrottle()
                sealed += 1
        return sealed

    def _seal(self, file: JournalFile) -> None:
        shard, store = self._shard, self._shard.store
        assert store is not None
        sequence = file.end_sequence - 1
        if sequence > store.sealed_sequence:
            frames = shard.journal.read_file(file)
            new = store.seal(frames, file.end_sequence, self._names(), self._start, self.identify_tasks)
            self._unplaced = new, sequence
        if self._unplaced is not None:  # again, when partitions could not be updated the last time
            extents, sealed_sequence = self._unplaced
            relocate(self._shard, extents, lambda partition, run: partition.reseal(run, sealed_sequence))
            self._unplaced = None
            release_memory()

    def _names(self) -> Names:
        """Of all queues there are now. Partitions and groups are looked up when somebody wants to know their names."""
        with self._shard.locked():
            queues = dict(self._shard.core.queues)
        return Names(
            {id: (queue.name, PartitionNames(queue.partitions)) for id, queue in queues.items()}, GroupNames(queues)
        )

    def _start(self, queue_id: int, number: int) -> int:
        """The oldest offset that is kept. It only grows."""
        queue = self._shard.core.queues.get(queue_id)
        return 0 if queue is None or number >= len(queue.partitions) else queue.partitions[number].start

    def _rotated(self) -> None:
        self._file_since = self._shard.clock.monotonic()
        journal = self._shard.journal
        is_helped = self._seals and self.options.sealing and self.sleeper.is_running
        if is_helped and len(journal.full_files()) >= journal.files_unsealed_max:
            self._shard.throttle.clear()
        self.sleeper.wake()

    def _unthrottle(self) -> None:
        journal = self._shard.journal
        if len(journal.full_files()) < journal.files_unsealed_max:
            self._shard.throttle.set()

    # checkpoints

    def checkpoint(self) -> None:
        """Write what has changed since the last one."""
        with self._at_work():
            self._checkpointer.save()

    def finish(self) -> None:
        """The last checkpoint, once what is under way is done; nothing touches the directory after it."""
        with self._busy:
            self._is_over = True
            if self._shard.journal.failed is None:
                self._checkpointer.save()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """After a checkpoint: nothing is sealed, checkpointed or removed inside the block. Keep it short."""
        with self._at_work():
            self._checkpointer.save()
            yield

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """One at a time, and nobody when the directory is given back."""
        with self._busy:
            if self._is_over:
                raise Closed("this Penstock is closed")
            yield

    # delays

    def _refill_delays(self) -> None:
        # By the clock, not by the timers: after a pause of the whole machine they are behind.
        now = self._shard.clock.now()
        for queue in [queue for queue in list(self._shard.core.queues.values()) if needs_delays(queue, now)]:
            fetch_delays(self._shard, queue, queue.horizon)

    # retention

    def retain(self) -> Freed:
        """Let go of history that no rule keeps and no group needs; returns what was freed."""
        with self._at_work():
            shard, store = self._shard, self._shard.store
            assert store is not None
            with shard.locked():
                queues = list(shard.core.queues.values())
            starts: dict[tuple[int, int], int] = {}
            for queue in queues:
                starts |= self._trim(queue)
            sealed_queues = store.queues()
            with shard.locked():
                gone = sealed_queues - shard.core.queues.keys()
                sequence = shard.core.sequence
            if not starts and not gone:
                return Freed()
            shard.commit.wait(sequence)
            return store.remove(starts, gone)

    def compact(self) -> Freed:
        """Retention, then rewriting of files that are mostly empty."""
        return self.retain() + self._rewrite()

    def compact_due(self) -> Freed:
        """Compact the queues in which enough is superseded."""
        freed = Freed()
        for queue in self._compactor.due():
            with self._at_work():
                freed += self._compactor.run(queue, queue.options.compaction_ratio)
        return freed

    def compact_queue(self, name: str) -> Freed:
        """Remove all that is superseded in one queue now, however little; returns what was freed."""
        with self._shard.locked():
            queue = check_compacted(self._shard.core, name)
        with self._at_work():
            return self._compactor.run(queue)

    def _rewrite(self) -> Freed:
        assert self._shard.store is not None
        with self._at_work():
            return self._shard.store.compact(moved=self._relocate)

    def move_segments(self, on_progress: segment_audit.Progress = lambda done, total: None) -> tuple[int, int]:
        """Move all segment files to where new ones go; returns how many, and how many bytes."""
        assert self._shard.store is not None
        with self._at_work():
            return self._shard.store.move(self._relocate, on_progress)

    def _trim(self, queue: Queue) -> dict[tuple[int, int], int]:
        """Move the starts of a queue's partitions as far as its rules say."""
        shard = self._shard
        if not self._starts_by_limits(queue):  # looks without the lock, since mostly nothing may go
            return {}
        end = self._anchored(queue) if queue.name == AUDIT_QUEUE else FOREVER
        with shard.locked():
            now = shard.clock.now()
            if queue.id not in shard.core.queues:
                return {}
            moved = self._new_starts(queue, now, floors_of(shard.core, queue), archived_of(queue))
            moved = {number: min(start, end) for number, start in moved.items()}
            moved = {number: start for number, start in moved.items() if start > queue.partitions[number].start}
            if moved:
                shard.upkeep_commit(decide_trim(queue, moved, now))
            return {(queue.id, number): start for number, start in moved.items()}

    def _starts_by_limits(self, queue: Queue) -> dict[int, int]:
        """How far the limits alone would let partitions be trimmed."""
        no_floors = dict.fromkeys(range(len(queue.partitions)), FOREVER)
        return self._new_starts(queue, self._shard.clock.now(), no_floors, no_floors)

    def _anchored(self, queue: Queue) -> int:
        """Up to where the audit log may be trimmed now: the hash of the last record before it is kept first."""
        start = self._starts_by_limits(queue).get(0, 0)
        if start:
            self.before_audit_removal(start)
        return start

    def _new_starts(self, queue: Queue, now: int, floors: dict[int, int], archived: dict[int, int]) -> dict[int, int]:
        sealed = {p.id: SealedOf(p) for p in list(queue.partitions) if p.extents and p.extents[0].sealed is not None}
        if not sealed:
            return {}
        messages, size = _tail_of(queue) if counts_messages(queue.options) else (0, 0)
        return new_starts(
            queue.options, sealed, floors, now, archived=archived, tail_messages=messages, tail_bytes=size
        )

    def _relocate(self, moved: list[SealedExtent]) -> None:
        """Compaction moved rows to another file: learn the new places."""
        relocate(self._shard, moved, Partition.relocate)


class PartitionNames(Mapping[int, str]):
    """The names of a queue's partitions, which are never fewer and never called otherwise."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self._partitions = partitions

    def __getitem__(self, number: int) -> str:
        if number >= len(self._partitions):
            raise KeyError(number)
        return self._partitions[number].name

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._partitions)))

    def __len__(self) -> int:
        return len(self._partitions)


class GroupNames(Mapping[tuple[int, int], str]):
    """The names of groups, by queue and group."""

    def __init__(self, queues: dict[int, Queue]) -> None:
        self._queues = queues

    def __getitem__(self, position: tuple[int, int]) -> str:
        return self._queues[position[0]].groups[position[1]].name

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((id, number) for id, queue in self._queues.items() for number in list(queue.groups))

    def __len__(self) -> int:
        return sum(len(queue.groups) for queue in self._queues.values())


class SealedOf:
    """The sealed extents of a partition, in order, looked up when they are wanted."""

    def __init__(self, partition: Partition) -> None:
        self._extents = partition.extents

    def __iter__(self) -> Iterator[SealedExtent]:
        return (extent.sealed for extent in takewhile(lambda extent: extent.sealed is not None, self._extents))


def _tail_of(queue: Queue) -> tuple[int, int]:
    """Messages and bytes of a queue that are in the journal only."""
    messages = size = 0
    for partition in list(queue.partitions):
        for extent in takewhile(lambda extent: extent.sealed is None, reversed(list(partition.extents))):
            messages += extent.end - extent.first
            if extent.batch is not None and extent.rows is None:
                size += extent.batch.payload_bytes
    return messages, size
