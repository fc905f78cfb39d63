"""Runs from their lease to their end: buffered, started when a slot is free, interrupted, finished.

Everything here happens on the event loop, between two awaits. An executor runs what it is given and calls `ended` once
for each run; the outcome goes to `FinishReporter`. `Prefetch` says how many runs to buffer; what has been buffered for
a second is given back. Nothing starts under a lease that may have expired: the lease is extended first.

A run that was interrupted and does not end, usually in a thread, is abandoned. Its slot is given to others as long as
no more than `abandoned_max` are; above that the worker is stuck, and logs it. It is reported as failed at once, unless
it has a key: while it goes on, nobody else may run under that key, so its lease is kept until it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from penstock.batch import layout
from penstock.clock import Clock
from penstock.envelopes import parse_envelope
from penstock.errors import InvalidField
from penstock.model import Receipt
from penstock.replies import LeaseReply, Piece
from penstock.tasks.endings import Ending
from penstock.tasks.runs import unknown
from penstock.worker.event_loop import NEVER, Ticker
from penstock.worker.executors import Lane
from penstock.worker.reports import Finishing
from penstock.worker.runs import NOT_BEGUN, Lease, Run, Stage, Why, sure_us
from penstock.worker.settings import Settings

READY_US: Final = 100_000  # so much work may be ready
AVERAGED: Final = 16  # so many runs make the average


class Pace:
    """How long runs take of late, and what follows from it."""

    def __init__(self, concurrency: int, ready_max: int) -> None:
        self._slots_us = READY_US * concurrency  # what all slots do in that time
        self._ready_max = ready_max
        self.run_us = 0.0
        self.slow_down()

    @property
    def ready(self) -> int:
        """How many to have beside those that run."""
        return min(self._ready_max, int(self._slots_us / self.run_us))

    def note(self, run_us: int) -> None:
        """A run took so long."""
        self.run_us += (run_us + 1 - self.run_us) / AVERAGED

    def slow_down(self) -> None:
        """What was ready could not be started: runs take longer than it seemed."""
        self.run_us = max(self.run_us, 2.0 * self._slots_us)


log: Any = structlog.stdlib.get_logger("penstock.worker")

UNKNOWN_SECONDS: Final = 10.0  # until an unknown type is tried again: doubled each time, enough for a new release …
UNKNOWN_SECONDS_MAX: Final = 600.0  # … to reach every worker
PUMPED_MAX: Final = 64  # starts in one turn of the loop
MORE: Final = layout.KEY | layout.TRACE
RELEASED: Final = Ending("released")
SLOT_TAKEN: Final = "a run cannot be broken off: its slot stays taken"
SLOT_REPLACED: Final = "a run cannot be broken off: others have its slot"
GRACE_US: Final = 5_000_000  # for a run that was broken off to clean up


class Desk:
    """See the module's rules."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        tasks: Mapping[str, Any],
        lane_of: Callable[[Any], Lane],
        finishing: Finishing,
        begin: Callable[[Lane, Run], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._lane_of = {name: lane_of(task) for name, task in tasks.items()}
        self.lanes: list[Lane] = list({id(lane): lane for lane in self._lane_of.values()}.values())
        self._lanes_by_queue: dict[str, list[Lane]] = {}
        self._finishing = finishing
        self._begin = begin
        self.runs: set[Run] = set()
        self.running = 0
        self.buffered = 0
        self.completed = 0
        self.failed = 0
        self.abandoned: list[Run] = []  # the oldest first
        self.stuck = asyncio.Event()  # there were more of them than may be
        self.is_open = True
        self.changed = asyncio.Event()  # a run is over, or has begun: there may be room
        finishing.told = self.changed.set
        self.hurry: Callable[[int], None] = lambda at: None  # somebody has less time than all before
        self.confirm: Callable[[Lease], None] = lambda lease: None  # a lease may be over: extend it, then `pump`
        self.pace = Pace(settings.concurrency, settings.prefetch_max)
        self._is_pumping = False
        self._sure_us = sure_us(settings.lease_seconds)

    # room

    def now(self) -> int:
        """The worker's monotonic clock, µs."""
        return self._clock.monotonic()

    def wanted(self, queue: str) -> int:
        """How many tasks of a queue there is room for."""
        lanes = self._lanes_of(queue)
        if not self.is_open or any(lane.buffered and lane.running >= lane.size for lane in lanes):
            return 0
        free = [lane.size - lane.running - lane.buffered for lane in lanes]
        # Nobody knows which lane the next ones are for: at most one too many for the narrowest.
        room = min(self._settings.concurrency - self.running - self.buffered, max(free), max(min(free), 0) + 1)
        ready = self.pace.ready
        return room + ready if room > 0 or self.buffered * 2 < ready else 0

    def _lanes_of(self, queue: str) -> Sequence[Lane]:
        found = self._lanes_by_queue.get(queue)
        if found is None:
            own = {id(lane): lane for name, lane in self._lane_of.items() if self._tasks[name].defaults.queue == queue}
            found = self._lanes_by_queue[queue] = list(own.values()) or list(self.lanes)
        return found

    @property
    def is_idle(self) -> bool:
        return not self.runs and not len(self._finishing)

    def is_done(self) -> bool:
        """Whether nothing runs that is worth waiting for."""
        return all(run.is_told or run.is_abandoned for run in self.runs)

    # in

    def accept(self, reply: LeaseReply, pieces: Iterable[Piece], asked_at: int) -> Lease:
        """Take what was leased, and start what can be started. `asked_at` is when the lease was asked for."""
        lease = Lease(reply.queue, reply.nonce, reply.count, asked_at + self._sure_us)
        now = self._clock.monotonic()
        for piece in pieces:
            for index, payload in enumerate(piece.payloads()):
                receipt = Receipt(
                    reply.queue, piece.partition(index), piece.offsets[index], piece.attempt(index), reply.nonce
                )
                run = self._take(lease, receipt, payload, now)
                if run is not None and piece.batch.flags & MORE:
                    run.key, run.trace = piece.batch.key(piece.row(index)), piece.batch.trace(piece.row(index))
        self.pump()
        return lease

    def _take(self, lease: Lease, receipt: Receipt, payload: bytes, now: int) -> Run | None:
        try:
            envelope = parse_envelope(payload)
        except InvalidField as error:
            self._finishing.reject(lease, receipt, str(error))
            return None
        run = Run(lease, receipt, envelope, self._tasks.get(envelope.task_type), now)
        lane = self._lane_of.get(envelope.task_type)
        if lane is None:
            self._unknown(run)
            return None
        self.runs.add(run)
        lane.waiting.append(run)
        lane.buffered += 1
        self.buffered += 1
        return run

    def _unknown(self, run: Run) -> None:
        log.warning("unknown task type: it is tried again later, maybe by a worker that knows it", **run.fields())
        self.failed += 1
        delay = min(UNKNOWN_SECONDS * 2.0 ** min(run.attempt - 1, 16), UNKNOWN_SECONDS_MAX)
        ending = unknown(run.envelope, list(self._tasks))
        self._tell(run, msgspec.structs.replace(ending, delay_seconds=delay))

    def pump(self) -> None:
        """Start what waits while there are slots."""
        self._is_pumping = False
        lanes = self.lanes
        lanes.append(lanes.pop(0))  # so that none is always last
        limit = self._settings.concurrency
        left = max(limit, PUMPED_MAX)  # what never waits may be over at once: others want their turn too
        doubtful: list[Run] = []
        for lane in lanes:
            while lane.waiting and lane.running < lane.size and self.running < limit and left:
                run = lane.waiting.popleft()
                if run.stage is not Stage.BUFFERED:
                    continue
                if not run.lease.holds(self._clock.monotonic()):
                    doubtful.append(run)
                    continue
                left -= 1
                self._start(lane, run)
        for run in reversed(doubtful):
            self._lane_of[run.envelope.task_type].waiting.appendleft(run)
            self.confirm(run.lease)
        self.changed.set()

    def _start(self, lane: Lane, run: Run) -> None:
        lane.buffered -= 1
        lane.running += 1
        self.buffered -= 1
        self.running += 1
        run.stage = Stage.RUNNING
        run.has_slot = True
        self.began(run)
        self._begin(lane, run)

    def began(self, run: Run) -> None:
        """Its time runs from now on."""
        run.since = self._clock.monotonic()
        seconds = run.timeout_seconds
        if seconds is not None:
            run.deadline = run.since + round(seconds * 1_000_000)
            self.hurry(run.deadline)

    # out

    def ended(self, run: Run, ending: Ending | None) -> None:
        """A lane is done with a run; None: it was broken off."""
        lane = self._lane_of[run.envelope.task_type]
        self._leave(lane, run)
        if ending is NOT_BEGUN:
            self._put_back(lane, run)
            return
        self.pace.note(self._clock.monotonic() - run.since)
        run.stage = Stage.OVER
        run.handle = run.context = None  # they know the run, and would keep it until the next garbage collection
        self.runs.discard(run)
        if run.is_abandoned:
            log.warning("a run that had been given up is over", **run.fields())
        if not run.is_told:
            self._settle(run, ending)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._is_pumping:
            self._is_pumping = True
            asyncio.get_running_loop().call_soon(self.pump)

    def _put_back(self, lane: Lane, run: Run) -> None:
        """It was to begin, and its lease may be over."""
        run.stage = Stage.BUFFERED
        run.handle = run.context = None
        lane.waiting.appendleft(run)
        lane.buffered += 1
        self.buffered += 1
        if run.is_told:
            self._drop(run)
        elif run.why is not None or not self.is_open:
            # One that timed out before it began was no attempt.
            self.break_off(run, run.why if run.why in (Why.CANCELLED, Why.LOST) else Why.STOPPING)
        self._pump_soon()

    def _settle(self, run: Run, ending: Ending | None) -> None:
        if run.why is Why.TIMED_OUT:
            ending = timed_out(run)
        elif run.why is Why.STOPPING and ending is None:
            ending = RELEASED
        elif run.why is not None and ending is not None:
            # Its result is told nevertheless: the broker decides, not we.
            log.warning("a handler took no notice of being broken off", why=run.why.value, **run.fields())
        if ending is None:
            run.lease.left -= 1
            log.info("broken off", why=run.why.value if run.why else "", **run.fields())
            return
        self._count(run, ending)
        self._tell(run, ending)

    def _count(self, run: Run, ending: Ending) -> None:
        if ending.outcome == "completed":
            self.completed += 1
        elif ending.outcome in ("failed", "dead"):
            self.failed += 1
            last = ending.error.rstrip().rpartition("\n")[2]
            log.warning(ending.outcome, error=last, **run.fields())

    def _tell(self, run: Run, ending: Ending) -> None:
        seconds = 0.0 if run.stage is Stage.BUFFERED else (self._clock.monotonic() - run.since + 1) / 1e6
        self._finishing.add(run, ending.finish(run.receipt, run.envelope.task_id, run.envelope.task_type, seconds))

    # broken off

    def break_off(self, run: Run, why: Why) -> bool:
        """End a run before its time; whether it ends by that."""
        if run.stage is Stage.BUFFERED:
            self._drop(run)
            if why is Why.STOPPING:
                self._tell(run, RELEASED)
            else:
                run.lease.left -= 1
            return True
        if run.stage is Stage.OVER or run.is_told:
            return True
        run.why = run.why or why
        if run.context is not None:
            run.context.cancel()
            run.context.broken_off = timed_out(run) if run.why is Why.TIMED_OUT else None
        if run.why in (Why.CANCELLED, Why.LOST):
            run.deadline = self._clock.monotonic() + GRACE_US
            self.hurry(run.deadline)
        return self._lane_of[run.envelope.task_type].break_off(run)

    def abandon(self, run: Run) -> None:
        """A run does not end though it was broken off."""
        run.is_abandoned = True
        self.abandoned.append(run)
        self._replace_slots()
        event = SLOT_TAKEN if run.has_slot else SLOT_REPLACED
        log.warning(event, why=run.why and run.why.value, abandoned=len(self.abandoned), **run.fields())
        if run.why is Why.TIMED_OUT and run.key is None:
            self._give_up(run, timed_out(run))
        if self.is_stuck and not self.stuck.is_set():
            log.error("stuck: too many runs cannot be broken off", abandoned=len(self.abandoned))
            self.stuck.set()
        self._pump_soon()

    @property
    def is_stuck(self) -> bool:
        """Whether more runs are abandoned than may be: slots are lost."""
        return len(self.abandoned) > self._settings.abandoned_max

    def _replace_slots(self) -> None:
        for run in self.abandoned[: self._settings.abandoned_max]:
            if run.has_slot:
                run.has_slot = False
                lane = self._lane_of[run.envelope.task_type]
                lane.running -= 1
                lane.abandoned += 1
                self.running -= 1

    def _leave(self, lane: Lane, run: Run) -> None:
        if run.has_slot:
            run.has_slot = False
            lane.running -= 1
            self.running -= 1
        else:
            lane.abandoned -= 1
        if run.is_abandoned:
            self.abandoned.remove(run)
            self._replace_slots()

    def _give_up(self, run: Run, ending: Ending) -> None:
        """Report a run that goes on."""
        run.is_told = True
        self._count(run, ending)
        self._tell(run, ending)

    def lost(self, lease: Lease) -> None:
        """A lease is gone: whatever its runs do now, somebody else does it too."""
        for run in [run for run in self.runs if run.lease is lease]:
            log.warning("the lease is lost", stage=run.stage.value, **run.fields())
            self.break_off(run, Why.LOST)

    def cancelled(self, task_ids: Iterable[str]) -> None:
        """News from the broker: these were cancelled."""
        wanted = set(task_ids)
        for run in [run for run in self.runs if run.envelope.task_id in wanted]:
            if run.why is None:
                self._cancel(run)

    def _cancel(self, run: Run) -> None:
        log.info("cancelled", stage=run.stage.value, **run.fields())
        if not self.break_off(run, Why.CANCELLED):
            log.warning("a cancelled run goes on: threads cannot be broken off", **run.fields())

    def give_back(self, since: int) -> int:
        """Release what was buffered at that time and still is; how many."""
        late = [run for run in self.runs if run.stage is Stage.BUFFERED and run.since <= since]
        for run in late:
            self.break_off(run, Why.STOPPING)
        if late:
            self.pace.slow_down()
            self.changed.set()
        return len(late)

    def close(self) -> int:
        """Take no more, and give back what has not begun; how much."""
        self.is_open = False
        return self.give_back(NEVER)

    def break_off_all(self) -> None:
        for run in list(self.runs):
            self.break_off(run, Why.STOPPING)

    def give_up_all(self) -> None:
        """Give back what cannot be broken off."""
        for run in self.runs:
            if not run.is_told:
                self._give_up(run, timed_out(run) if run.why is Why.TIMED_OUT else RELEASED)

    def _drop(self, run: Run) -> None:
        run.stage = Stage.OVER
        self.runs.discard(run)
        self._lane_of[run.envelope.task_type].buffered -= 1
        self.buffered -= 1
        self.changed.set()  # whoever waits for room would not hear of it otherwise: nothing ended here


def timed_out(run: Run) -> Ending:
    """What is told of a run that took too long."""
    return Ending("failed", error=f"timeout: it took longer than {run.timeout_seconds:g} s and was broken off")


class Deadlines:
    """See the module's rules. `next_at` may be too early, never too late."""

    def __init__(self, desk: Desk, ticker: Ticker) -> None:
        self._desk = desk
        self._ticker = ticker
        self.next_at = NEVER
        desk.hurry = self._hurry

    def _hurry(self, at: int) -> None:
        if at < self.next_at:
            self.next_at = at
            self._ticker.wake(at)

    def tick(self, now: int) -> None:
        for run in [run for run in self._desk.runs if run.stage is Stage.RUNNING and 0 < run.deadline <= now]:
            if run.why is None:
                log.warning("timed out", seconds=run.timeout_seconds, **run.fields())
                if self._desk.break_off(run, Why.TIMED_OUT):
                    run.deadline = now + GRACE_US
                    continue
            run.deadline = 0
            if run.why is not Why.STOPPING:
                self._desk.abandon(run)
        waiting = [run.deadline for run in self._desk.runs if run.stage is Stage.RUNNING and run.deadline]
        self.next_at = min(waiting, default=NEVER)


class Aging:
    """What has been buffered for a second is given back: whoever is free may have it."""

    AGE_US: Final = 1_000_000

    def __init__(self, desk: Desk, ticker: Ticker) -> None:
        self._desk = desk
        self._ticker = ticker
        self.next_at = NEVER

    def watch(self, now: int) -> None:
        """Something may have been buffered."""
        if self._desk.buffered and self.next_at == NEVER:
            self.next_at = now + self.AGE_US
            self._ticker.wake(self.next_at)

    def tick(self, now: int) -> None:
        given_back = self._desk.give_back(now - self.AGE_US)
        if given_back:
            log.info("given back, since all slots are taken", tasks=given_back)
        self.next_at = NEVER
        self.watch(now)
