"""The heart of a shard: one lock, one state, one journal; frames, and the passing of time.

One order of events, here and everywhere: **decide → apply → append → wake**, all with the lock held; the caller
receives the reply when the frame is durable. A decision alters nothing, so whatever refuses or needs a column that is
not loaded may simply be asked again. What is written was applied before: no frame gets into the journal that cannot be
replayed.

`changing` is set before the first alteration and cleared after the last. An exception in between, be it Ctrl-C or a
fault, leaves it set, and whoever takes the lock next finds it and stops the shard, as after a failed write: what is in
memory is not to be trusted then, what is in the journal is. So whoever takes the lock calls `begin` or `check`
first, or takes it with `locked`.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Final, TypeVar

from penstock import limits
from penstock.clock import Clock
from penstock.delivery import settle as settle_rules
from penstock.delivery import task_pushes, timers
from penstock.delivery import upkeep as upkeep_rules
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import FOREVER, Entry, PauseSet, Push, QueueSet, encode_apart, entry_bytes
from penstock.delivery.group import Group, Lease
from penstock.delivery.inspection import EVERYONE, made_ready
from penstock.delivery.log import ColumnNotLoaded, Extent
from penstock.delivery.settle import Chosen
from penstock.delivery.task_pushes import ROOM, decide_child_release
from penstock.delivery.timers import TICK_BITS
from penstock.errors import Closed, PenstockError, Unavailable
from penstock.forks import refuse_in_forks
from penstock.journal import Journal, outcome_unknown
from penstock.journal.commit import GroupCommit
from penstock.model import Durability, Outcome
from penstock.requests import Settling
from penstock.shard.waiters import Waiters
from penstock.storage.sealed_frames import FrameSeals
from penstock.storage.segments import Prefetcher, SegmentStore

logger: Final = logging.getLogger("penstock.shard")
T = TypeVar("T")
Ticket = int
FREED_MAX: Final = 1_000  # tasks that are freed in one frame
PUT_OFF_US: Final = 1_000_000  # how long what needs sealed messages waits when they cannot be read
FULL_DISK_US: Final = 1_000_000  # how long schedules wait for room before they look again
GIVEN_UP: Final = Settling(Outcome.INTERRUPTED, delay_seconds=0, error="the member that held it is gone")


class Engine:
    """Holds the lock, the state and the journal of a shard. `store` is None when the journal is in memory only."""

    def __init__(
        self,
        journal: Journal,
        core: DeliveryState,
        clock: Clock,
        rng: random.Random,
        *,
        store: SegmentStore | None = None,
        durability: Durability = "fsync",
        frame_seals: FrameSeals | None = None,
    ) -> None:
        self.journal = journal
        self.frame_seals = frame_seals  # None: there is no master key
        self.core = core
        self.clock = clock
        self.rng = rng
        self.store = store
        self.durability: Durability = durability
        self.lock = threading.Lock()
        self.commit = GroupCommit(journal)
        self.waiters = Waiters(core)
        self.on_deadline: Callable[[int], None] = lambda instant: None  # upkeep: something is due at this instant
        self.on_unreported: Callable[[], object] = lambda: None  # something may have ended that nobody reports
        self.asleep_until = float("inf")  # when upkeep wakes by itself
        self.is_closed = False
        self.changing = False  # set while the state is altered; still set afterwards: it was interrupted
        self.once_appended: list[Callable[[], None]] = []  # for observers of entries: called after this frame
        self.joining: Callable[[int], list[Entry]] | None = None  # what joins the frame of an operation: its record
        self.on_fail: list[Callable[[], None]] = []  # called when the journal has stopped for good; must not block
        journal.on_fail = self._failed
        self.is_remote = journal.is_remote
        # Leases whose replies have not left yet, each with its frame and when it was decided, by the monotonic clock.
        self.unstarted: deque[tuple[int, Lease, int]] = deque()
        self.prefetcher = Prefetcher(store) if store is not None else None
        self.throttle = threading.Event()  # cleared while too many journal files wait for the sealer
        self.throttle.set()
        self._nonces: list[int] = []  # drawn in advance
        self.task_result_bytes_max = limits.task_result_bytes_max
        self.sync_us = 50_000  # `interval`: how long a frame may wait for its sync
        self.sync_at: int | None = None  # when upkeep must sync; None while nothing waits for it
        self.put_off_until = 0  # monotonic µs: sealed messages could not be read
        self._must_sync = 0  # last frame that must be durable before any reply shows it
        clock.on_jump(self._time_jumped)
        refuse_in_forks(self)

    def is_over(self) -> bool:
        """Whether nothing can be done here any more: closed, or its journal failed."""
        return self.is_closed or self.journal.failed is not None

    def begin(self) -> tuple[int, int]:
        """The start of an operation, with the lock held: refused on a closed shard. Returns now, and monotonic time."""
        if self.is_closed or self.changing:
            raise self._refusal()
        return self.clock.read()

    def require_open(self) -> None:
        """Refused when nothing can be done here any more. For those who do not hold the lock."""
        if self.is_closed:
            raise Closed("this Penstock is closed")
        if self.journal.failed is not None:
            raise outcome_unknown(self.journal.failed)

    def require_fresh(self) -> None:
        """Refuse to answer from memory when another node may own the shard. For journals that are remote."""
        if self.journal.is_stale():
            raise self.journal.stale_refusal()

    def check(self) -> None:
        """Stop the shard if a change was interrupted. Called first by whoever takes the lock, unless `begin` is."""
        if self.changing:
            raise self.abandon()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The lock, after `check`. It costs a microsecond more than the lock itself, which hot paths take."""
        with self.lock:
            self.check()
            yield

    def abandon(self) -> PenstockError:
        """Stop: somebody was interrupted while the state changed. The lock is held. Returns the error for callers."""
        self.changing = True
        self.journal.fail(RuntimeError("a call was interrupted while it changed the state; open it again"))
        self.waiters.wake_all()
        assert self.journal.failed is not None
        return outcome_unknown(self.journal.failed)

    def _refusal(self) -> PenstockError:
        return Closed("this Penstock is closed") if self.is_closed else self.abandon()

    def _failed(self) -> None:
        self.throttle.set()  # nobody seals any more: whoever waits to push receives the error
        for notify in self.on_fail:
            notify()

    # the frame

    def commit_frame(self, entries: list[Entry], level: Durability, chosen: Sequence[Chosen] = ()) -> Ticket:
        """One frame: apply it and append it; `chosen` are the deliveries that it ends.

        The caller wakes whoever it concerns, and then clears `changing`; `changed` does both.
        """
        # May refuse: nothing has changed yet.
        data, batch = self._encoded(entries) if self.core.encrypted else encode_apart(entries)
        if self.core.namespaces is not None:
            self.core.namespaces.admit(self.core, entries)  # may refuse too
        self.changing = True
        if chosen:
            settle_rules.close_chosen(self.core, chosen)
        self.core.apply(entries, self.journal.sequence + 1)
        sequence = self.append_frame(data, batch, level)
        if self.once_appended or self.core.tasks.ripe:
            self._appended()
        return sequence if level == "fsync" or self.is_remote else 0

    def commit_freeing(
        self, entries: list[Entry], now: int, level: Durability, chosen: Sequence[Chosen] = ()
    ) -> tuple[Ticket, list[Entry]]:
        """`commit_frame()` with the tasks that it frees, and those that they free, in one frame; returns all entries.

        Each round is decided from what the one before it has left.
        """
        room = ROOM - sum(map(entry_bytes, entries))  # encodes them: what cannot be written is refused here
        entries, left = list(entries), FREED_MAX
        if self.core.namespaces is not None:
            self.core.namespaces.admit(self.core, entries)
        self.changing = True
        if chosen:
            settle_rules.close_chosen(self.core, chosen)
        self.core.apply(entries, self.journal.sequence + 1)
        while left > 0 and (freed := decide_child_release(self.core, now, left, room)):
            self.core.apply(freed, self.journal.sequence + 1)
            entries += freed
            left -= len(freed)
            room -= sum(map(entry_bytes, freed))
        if not entries:
            return 0, []
        sequence = self.append_frame(*self._encoded(entries), level)
        self._appended()
        return sequence if level == "fsync" or self.is_remote else 0, entries

    def _encoded(self, entries: list[Entry]) -> tuple[bytes, bytes | memoryview]:
        """The bytes of a frame, those of encrypted queues sealed."""
        encrypted = self.core.encrypted
        if not encrypted or self.frame_seals is None:
            return encode_apart(entries)
        made = {entry.queue for entry in entries if type(entry) is QueueSet and b"encryption" in entry.options}
        return self.frame_seals.encode(entries, encrypted | made if made else encrypted, self.number_of)

    def number_of(self, name: str) -> int | None:
        """The number of a queue by its name."""
        queue = self.core.by_name.get(name)
        return None if queue is None else queue.id

    def _appended(self) -> None:
        if self.core.tasks.ripe:
            self.on_deadline(0)  # somebody's parents are done: the next tick sees to it
        callbacks, self.once_appended = self.once_appended, []
        for notify in callbacks:
            notify()

    def append_frame(self, data: bytes, batch: bytes | memoryview, level: Durability) -> int:
        """Append, and make as safe at once as the level asks for; the sync of `fsync` is for whoever has the ticket."""
        if level == "fsync" or self.is_remote:
            self._must_sync = sequence = self.journal.append(data, batch)
            return sequence
        if level == "interval" and self.sync_at is None:
            self.sync_at = self.clock.now() + self.sync_us
            self.on_deadline(self.sync_at)
        return self.journal.append_written(data, batch)

    def changed(self, entries: Iterable[Entry]) -> None:
        """The end of a change that may have made messages ready: wake waiters, notify upkeep of new due times."""
        if self.waiters:
            for entry in entries:
                if type(entry) is PauseSet and not entry.queue:
                    self.waiters.wake_all()
                count, group = made_ready(self.core, entry)
                if count:
                    self.waiters.wake(entry.queue, count, group)
        self.mind_timers()
        self.changing = False

    def mind_timers(self) -> None:
        """Upkeep must not sleep longer than until the next timer, which may be new."""
        next_at = self.core.wheel.next_at()
        if next_at is not None:
            self.on_deadline(next_at)

    # time

    def tick(self, now: int, monotonic: int) -> int:  # noqa: C901
        """What time has brought by now: timers, leases that ran out, expiries. The caller holds the lock.

        While sealed messages cannot be read, what needs them is put off.
        """
        core, did = self.core, 0
        try:  # one function: every lease and every settle comes through here
            if self.is_remote:
                self._start_leases()
            if now >> TICK_BITS > core.wheel.tick:
                self.changing = True
                did += self._advance(now)
                self.changing = False
            if core.deadlines and core.deadlines[0][0] <= monotonic:
                did += self._end_leases(now, monotonic)
            if core.expiries and core.expiries[0][0] <= now:
                did += self._upkept(self._expired(now))
            if now >= core.look_at:
                did += self._evict(now)
            if monotonic >= core.rosters.next_at:
                did += self._end_sessions(now, monotonic)
            if core.tasks.ripe:
                did += self._free_tasks(now)
            if now >= core.tasks.schedules.next_at:
                did += self._fire(now)
        except ColumnNotLoaded:
            if monotonic >= self.put_off_until:
                raise
            return self._tick_apart(now, monotonic)
        return did

    def let_time_happen(self) -> None:
        """What time has brought, while nobody calls. The caller holds the lock."""
        self.tick(*self.begin())

    def _tick_apart(self, now: int, monotonic: int) -> int:
        """What is due, each by itself: one that needs sealed messages does not hold up the others."""
        steps: list[Callable[[], int]] = []
        core = self.core
        if core.deadlines and core.deadlines[0][0] <= monotonic:
            steps.append(lambda: self._end_leases(now, monotonic))
        if core.expiries and core.expiries[0][0] <= now:
            steps.append(lambda: self._upkept(self._expired(now)))
        if now >= core.look_at:
            steps.append(lambda: self._evict(now))
        if monotonic >= core.rosters.next_at:
            steps.append(lambda: self._end_sessions(now, monotonic))
        steps.append(lambda: self._free_tasks(now) if core.tasks.ripe else 0)
        steps.append(lambda: self._fire(now) if now >= core.tasks.schedules.next_at else 0)
        did = 0
        for step in steps:
            with suppress(ColumnNotLoaded):
                did += step()
        return did

    def _advance(self, now: int) -> int:
        if not self.core.advance(now):
            return 0
        for (queue, group), count in self.core.came_ready.items():
            self.waiters.wake(queue, count, group)
        self.core.came_ready.clear()
        return 1

    def _expired(self, now: int) -> list[Entry]:
        """What has expired; looking for it uses up the index of expiries."""
        self.changing = True
        try:
            entries = upkeep_rules.decide_expired(self.core, now)
        except ColumnNotLoaded:  # nothing was used up
            self.changing = False
            raise
        if not entries:
            self.changing = False
        return entries

    def _start_leases(self) -> None:
        """The time of a lease starts when its reply leaves, which is when its frame is durable."""
        unstarted, durable = self.unstarted, self.journal.durable_sequence
        while unstarted and unstarted[0][0] <= durable:
            sequence, lease, leased_at = unstarted[0]
            late = self.journal.confirmed_at(sequence) - leased_at
            if late > 0 and self.core.leases.get(lease.nonce) is lease:
                self.changing = True
                lease.deadline += late
                self.core.set_deadline(lease)
                self.changing = False
            unstarted.popleft()

    def _end_leases(self, now: int, monotonic: int) -> int:
        """A slice of the leases that ran out; all of them are over."""
        self.core.over_at = monotonic
        leases = upkeep_rules.expired_leases(self.core, monotonic)
        entries, chosen = upkeep_rules.decide_timeouts(self.core, leases, now, self.rng)
        if not chosen:
            for lease in leases:
                self.drop_lease(lease)
        return self._upkept(entries, chosen)

    def drop_lease(self, lease: Lease) -> None:
        """What is left of it was purged under its holder's hands."""
        self.changing = True
        self.core.close_deliveries(lease, lease.count)
        self.changing = False

    def _evict(self, now: int) -> int:
        """A slice of the messages that waited too long, and of groups nobody uses; the next tick looks again."""
        self.waiters.sets.touch(now)
        entries = upkeep_rules.decide_evicted(self.core, now) or upkeep_rules.decide_idle_groups(self.core, now)
        if not entries:
            self.core.look_at = upkeep_rules.next_look(self.core, now)
        return self._upkept(entries)

    def _end_sessions(self, now: int, monotonic: int) -> int:
        """Members that were silent for too long, and partitions that were not released in time."""
        did = 0
        for group, roster in self.core.rosters.groups():
            for member, partitions in list(roster.overdue(monotonic)):
                # The attempt counts: a message must not bring one member after the other down for ever.
                self.take_away(group, member, partitions, GIVEN_UP, now)
            self.changing = True
            if roster.expire(monotonic):
                self.waiters.wake(group.queue.id, EVERYONE, group.id)
                did += 1
            self.changing = False
        self.core.rosters.look()
        return did

    def _free_tasks(self, now: int) -> int:
        """Tasks that waited for others, a frame of them; the rest comes with the next tick."""
        entries = self.commit_freeing([], now, self.durability)[1]
        self.pushed(entries)
        self.changed(entries)
        return len(entries)

    def pushed(self, entries: Iterable[Entry]) -> None:
        """Entries with pushes were applied: delays that are many are kept elsewhere."""
        queues = self.core.queues
        for number in {entry.queue for entry in entries if isinstance(entry, Push)}:
            if number in queues and queues[number].near > 0 and timers.has_too_many_delays(queues[number]):
                timers.drop_far_delays(self.core, queues[number])

    def _fire(self, now: int) -> int:
        """Schedules whose time has come, some at a time; each tick is a frame. The rest comes with the next tick."""
        schedules, did, did_max = self.core.tasks.schedules, 0, limits.schedule_ticks_max
        if self.journal.disk_full:
            schedules.postpone(now + FULL_DISK_US)
            return 0
        while did < did_max and (name := schedules.due(now)) is not None:
            for tick in islice(task_pushes.ticks(schedules.known[name], now), did_max - did):
                self._fire_one(name, tick, now)
                did += 1
        if schedules.next_at <= now:
            self.on_deadline(schedules.next_at)
        return did

    def _fire_one(self, name: str, tick: task_pushes.Tick, now: int) -> None:
        try:
            entries = task_pushes.decide_tick(self.core, name, tick, now)
            if self.core.namespaces is not None:
                self.core.namespaces.check(self.core, entries)
        except PenstockError as error:
            logger.warning("schedule %r: a tick was skipped: %s", name, error)
            entries = task_pushes.skipped_tick(name, tick)
        self.commit_frame(entries, self.durability)
        self.changed(entries)

    def take_away(self, group: Group, member: str, partitions: Collection[int], how: Settling, now: int) -> None:
        """End what a member holds of some partitions, before they move. The caller holds the lock."""
        while True:
            entries, chosen = upkeep_rules.decide_revoked(self.core, group, member, partitions, how, now, self.rng)
            if not chosen:
                return
            self._upkept(entries, chosen)

    def upkeep_commit(self, entries: list[Entry]) -> None:
        """Entries decided by an upkeep role; nobody waits for them. The caller holds the lock."""
        self._upkept(entries)

    def _upkept(self, entries: list[Entry], chosen: Sequence[Chosen] = ()) -> int:
        if entries:
            self.commit_frame(entries, self.durability, chosen)
            self.changed(entries)
            self.on_unreported()
        return len(entries)

    def next_at(self, now: int, monotonic: int) -> int | None:
        """The next instant at which `tick` may have something to do. The caller holds the lock."""
        instants = [self.core.wheel.next_at(), self.sync_at]
        deadline = upkeep_rules.next_deadline(self.core)
        instants.append(None if deadline is None else now + deadline - monotonic)
        instants.append(self.core.expiries[0][0] if self.core.expiries else None)
        instants.append(self.core.look_at if self.core.look_at < FOREVER else None)
        session_end = self.core.rosters.next_at
        instants.append(now + session_end - monotonic if session_end < FOREVER else None)
        instants.append(now if self.core.tasks.ripe else None)
        schedule_at = self.core.tasks.schedules.next_at
        instants.append(schedule_at if schedule_at < FOREVER else None)
        known = [instant for instant in instants if instant is not None]
        return min(known) if known else None

    def _time_jumped(self) -> None:
        with self.lock:
            self.waiters.wake_all()

    # columns of sealed segments

    def run(self, operation: Callable[[], T]) -> T:
        """An operation, with the lock held and the columns that it turns out to need."""
        try:
            with self.lock:
                return operation()
        except ColumnNotLoaded as need:
            return self.with_columns(need, operation)
        except BaseException:
            self.notice()
            raise

    def run_now(self, operation: Callable[[int], T]) -> T:
        """`run`, with the instant at which it runs, and after what time has brought by then."""

        def begun() -> T:
            now, monotonic = self.begin()
            self.tick(now, monotonic)
            return operation(now)

        return self.run(begun)

    def notice(self) -> None:
        """A call has ended with an exception: if a change was interrupted, stop now and not at the next call."""
        with self.lock:
            if self.changing:
                self.abandon()

    def with_columns(self, need: ColumnNotLoaded, operation: Callable[[], T]) -> T:
        """Make a decision again until it has all the columns it needs; they are released afterwards."""
        fetched: list[tuple[Extent, str]] = []
        try:
            while True:
                try:
                    for extent, column in need.columns:
                        extent.load(column, self.column(extent, column))
                        fetched.append((extent, column))
                except Unavailable as error:
                    return self._without_columns(operation, error)
                try:
                    with self.lock:
                        return operation()
                except ColumnNotLoaded as another:
                    need = another
        except BaseException:
            self.notice()
            raise
        finally:
            for extent, column in fetched:
                extent.unload(column)

    def _without_columns(self, operation: Callable[[], T], error: Unavailable) -> T:
        """Where sealed messages are kept does not answer: an operation that does not need them itself goes on."""
        with self.lock:
            self.put_off_until = self.clock.monotonic() + PUT_OFF_US
            try:
                return operation()
            except ColumnNotLoaded:
                raise error from None

    def column(self, extent: Extent, name: str) -> Any:
        """A column of a sealed extent, or the whole row group that it lies in, from its file."""
        assert self.store is not None
        return self.store.load(extent.sealed) if name == "batch" else self.store.column(extent.sealed, name)
