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
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.batch import layout
from penstock.clock import Clock
from penstock.envelopes import parse_envelope
from penstock.errors import InvalidField
from penstock.model import Receipt
from penstock.replies import LeaseReply, Piece
from penstock.tasks.endings import Ending
from penstock.tasks.runs import unknown
from penstock.tasks.signing import Signer
from penstock.telemetry.logs import TRACE
from penstock.worker.event_loop import NEVER, Ticker
from penstock.worker.executors import Executor
from penstock.worker.reports import FinishReporter
from penstock.worker.runs import NOT_STARTED, InterruptReason, Lease, Run, Stage, sure_us
from penstock.worker.settings import Settings

logger: Final = logging.getLogger("penstock.worker")

PREFETCH_US: Final = 100_000  # of work may be buffered
AVERAGED_RUNS: Final = 16
BUFFER_US: Final = 1_000_000  # then what is buffered is given back
UNKNOWN_SECONDS: Final = 10.0  # until an unknown type is retried: doubled each time, enough for a new release …
UNKNOWN_SECONDS_MAX: Final = 600.0  # … to reach every worker
STARTS_MAX: Final = 64  # in one turn of the loop
KEY_OR_TRACE: Final = layout.KEY | layout.TRACE
RELEASED: Final = Ending("released")
SLOT_TAKEN: Final = "a run cannot be interrupted: its slot stays taken"
SLOT_REPLACED: Final = "a run cannot be interrupted: its slot is reused"
GRACE_US: Final = 5_000_000  # for a run that was interrupted to clean up


class Prefetch:
    """How many tasks to buffer: as many as run within a tenth of a second, judged by how long runs take of late.

    So hundreds of quick ones, whose next lease is under way before they are used up; and none of those that take long,
    which other workers may be free to run. It begins with none.
    """

    def __init__(self, concurrency: int, size_max: int) -> None:
        self._slots_us = PREFETCH_US * concurrency  # what all slots do in that time
        self._size_max = size_max
        self.run_us = 0.0
        self.slow_down()

    @property
    def size(self) -> int:
        """How many to buffer."""
        return min(self._size_max, int(self._slots_us / self.run_us))

    def note(self, run_us: int) -> None:
        """Take the duration of a run into the average."""
        self.run_us += (run_us + 1 - self.run_us) / AVERAGED_RUNS

    def slow_down(self) -> None:
        """What was buffered could not be started: runs take longer than it seemed."""
        self.run_us = max(self.run_us, 2.0 * self._slots_us)


class Dispatcher:
    """All runs of a worker, and the slots that they take."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        tasks: Mapping[str, Any],
        executor_of: Callable[[Any], Executor],
        finishes: FinishReporter,
        start: Callable[[Executor, Run], None],
        signer: Signer | None = None,
    ) -> None:
        self._settings = settings
        self._signer = signer
        self._clock = clock
        self._tasks = tasks
        self._executor_of = {name: executor_of(task) for name, task in tasks.items()}
        self.executors: list[Executor] = list(dict.fromkeys(self._executor_of.values()))
        for executor in self.executors:
            executor.on_end = self.ended
        self.task_types = frozenset(tasks) or None  # what the worker can run: it is given nothing else
        self._executors_by_queue: dict[str, list[Executor]] = {}
        self._finishes = finishes
        self._start_run = start
        self.runs: set[Run] = set()
        self.running = 0
        self.buffered = 0
        self.completed = 0
        self.failed = 0
        self.abandoned: list[Run] = []  # the oldest first
        self.stuck = asyncio.Event()  # there were more of them than `abandoned_max`
        self.is_open = True
        self.changed = asyncio.Event()  # a run has ended or started: there may be room
        finishes.on_idle = self.changed.set
        self.on_deadline: Callable[[int], None] = lambda at: None  # a run has a new deadline
        self.extend_lease: Callable[[Lease], None] = lambda lease: None  # it may have expired: extend it, then `pump`
        self.prefetch = Prefetch(settings.concurrency, settings.prefetch_max)
        self._is_pumping = False
        self._sure_us = sure_us(settings.lease_seconds)

    # room

    def now(self) -> int:
        """The worker's monotonic clock, µs."""
        return self._clock.monotonic()

    def room_for(self, queue: str) -> int:
        """How many tasks of a queue there is room for."""
        executors = self._executors_for(queue)
        if not self.is_open or any(executor.buffered and executor.running >= executor.size for executor in executors):
            return 0
        free = [executor.size - executor.running - executor.buffered for executor in executors]
        # Nobody knows which executor the next ones are for: at most one too many for the narrowest.
        room = min(self._settings.concurrency - self.running - self.buffered, max(free), max(min(free), 0) + 1)
        size = self.prefetch.size
        return room + size if room > 0 or self.buffered * 2 < size else 0

    def _executors_for(self, queue: str) -> Sequence[Executor]:
        executors = self._executors_by_queue.get(queue)
        if executors is None:
            names = (name for name in self._executor_of if self._tasks[name].defaults.queue == queue)
            executors = list(dict.fromkeys(self._executor_of[name] for name in names)) or list(self.executors)
            self._executors_by_queue[queue] = executors
        return executors

    @property
    def is_idle(self) -> bool:
        return not self.runs and not len(self._finishes)

    def is_done(self) -> bool:
        """Whether nothing runs that is worth waiting for."""
        return all(run.is_reported or run.is_abandoned for run in self.runs)

    # in

    def accept(self, reply: LeaseReply, pieces: Sequence[Piece], requested_at: int) -> Lease:
        """Take what was leased, and start what can be started. `requested_at` is when the lease was requested."""
        until, worker = requested_at + self._sure_us, self._settings.worker_id
        lease = Lease(reply.queue, reply.nonce, sum(len(piece.offsets) for piece in pieces), until, worker)
        now = self._clock.monotonic()
        for piece in pieces:
            for index, payload in enumerate(piece.payloads()):
                receipt = Receipt(
                    reply.queue, piece.partition(index), piece.offsets[index], piece.attempt(index), reply.nonce
                )
                headers = piece.batch.headers(piece.row(index)) if self._signer is not None else None
                run = self._buffer(lease, receipt, payload, now, headers)
                if run is not None and piece.batch.flags & KEY_OR_TRACE:
                    run.key, run.trace = piece.batch.key(piece.row(index)), piece.batch.trace(piece.row(index))
        self.pump()
        return lease

    def _buffer(
        self, lease: Lease, receipt: Receipt, payload: bytes, now: int, headers: Mapping[str, str] | None
    ) -> Run | None:
        try:
            envelope = parse_envelope(payload)
        except InvalidField as error:
            self._finishes.reject(lease, receipt, str(error))
            return None
        if self._signer is not None:
            problem = self._signer.problem(envelope, receipt.queue, headers, self._clock.now())
            if problem:
                self._finishes.reject(lease, receipt, problem)
                return None
        run = Run(lease, receipt, envelope, self._tasks.get(envelope.task_type), now)
        executor = self._executor_of.get(envelope.task_type)
        if executor is None:
            self._report_unknown(run)
            return None
        self.runs.add(run)
        executor.waiting.append(run)
        executor.buffered += 1
        self.buffered += 1
        return run

    def _report_unknown(self, run: Run) -> None:
        logger.warning("unknown task type: retried later, possibly by a worker that knows it", extra=run.fields())
        self.failed += 1
        delay = min(UNKNOWN_SECONDS * 2.0 ** min(run.attempt - 1, 16), UNKNOWN_SECONDS_MAX)
        ending = unknown(run.envelope, list(self._tasks))
        self._report(run, msgspec.structs.replace(ending, delay_seconds=delay))

    def pump(self) -> None:
        """Start buffered runs while there are slots."""
        self._is_pumping = False
        executors = self.executors
        executors.append(executors.pop(0))  # so that none is always last
        limit = self._settings.concurrency
        left = max(limit, STARTS_MAX)  # runs that never wait end at once: others need their turn too
        doubtful: list[Run] = []
        for executor in executors:
            while executor.waiting and executor.running < executor.size and self.running < limit and left:
                run = executor.waiting.popleft()
                if run.stage is not Stage.BUFFERED:
                    continue
                if not run.lease.holds(self._clock.monotonic()):
                    doubtful.append(run)
                    continue
                left -= 1
                self._start(executor, run)
        for run in reversed(doubtful):
            self._executor_of[run.envelope.task_type].waiting.appendleft(run)
            self.extend_lease(run.lease)
        self.changed.set()

    def _start(self, executor: Executor, run: Run) -> None:
        executor.buffered -= 1
        executor.running += 1
        self.buffered -= 1
        self.running += 1
        run.stage = Stage.RUNNING
        run.has_slot = True
        self.started(run)
        if logger.isEnabledFor(TRACE):
            logger.log(TRACE, "started", extra=run.fields(queue=run.lease.queue))
        self._start_run(executor, run)

    def started(self, run: Run) -> None:
        """Its timeout counts from now on."""
        run.since = self._clock.monotonic()
        seconds = run.timeout_seconds
        if seconds is not None:
            run.deadline = run.since + round(seconds * 1_000_000)
            self.on_deadline(run.deadline)

    # out

    def ended(self, run: Run, ending: Ending | None) -> None:
        """A run has ended; None: it was interrupted."""
        executor = self._executor_of[run.envelope.task_type]
        self._free_slot(executor, run)
        if ending is NOT_STARTED:
            self._put_back(executor, run)
            return
        self.prefetch.note(self._clock.monotonic() - run.since)
        run.stage = Stage.ENDED
        run.handle = run.context = None  # they refer to the run, and would keep it until the next garbage collection
        self.runs.discard(run)
        if run.is_abandoned:
            logger.warning("an abandoned run has ended", extra=run.fields())
        if not run.is_reported:
            self._finish(run, ending)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._is_pumping:
            self._is_pumping = True
            asyncio.get_running_loop().call_soon(self.pump)

    def _put_back(self, executor: Executor, run: Run) -> None:
        """Buffer a run again: it was to start, and its lease may have expired."""
        run.stage = Stage.BUFFERED
        run.handle = run.context = None
        executor.waiting.appendleft(run)
        executor.buffered += 1
        self.buffered += 1
        reason = run.interrupt_reason
        if run.is_reported:
            self._drop(run)
        elif reason in (InterruptReason.CANCELLED, InterruptReason.LEASE_LOST):
            self.interrupt(run, reason)
        elif reason is not None or not self.is_open:
            self.interrupt(run, InterruptReason.STOPPING)  # one that timed out before it started was no attempt
        self._pump_soon()

    def _finish(self, run: Run, ending: Ending | None) -> None:
        reason = run.interrupt_reason
        if reason is InterruptReason.TIMED_OUT:
            ending = timed_out(run)
        elif reason is InterruptReason.STOPPING and ending is None:
            ending = RELEASED
        elif reason is not None and ending is not None:
            # Its result is reported nevertheless: the broker decides.
            logger.warning("a handler ignored its interruption", extra=run.fields(reason=reason.value))
        if ending is None:
            run.lease.unreported -= 1
            logger.info("interrupted", extra=run.fields(reason=reason.value if reason else ""))
            return
        self._count(run, ending)
        self._report(run, ending)

    def _count(self, run: Run, ending: Ending) -> None:
        if logger.isEnabledFor(TRACE):
            logger.log(TRACE, "ended", extra=run.fields(outcome=ending.outcome))
        if ending.outcome == "completed":
            self.completed += 1
        elif ending.outcome in ("failed", "dead"):
            self.failed += 1
            last = ending.error.rstrip().rpartition("\n")[2]
            logger.warning(ending.outcome, extra=run.fields(error=last))

    def _report(self, run: Run, ending: Ending) -> None:
        seconds = 0.0 if run.stage is Stage.BUFFERED else (self._clock.monotonic() - run.since + 1) / 1e6
        self._finishes.add(run, ending.finish(run.receipt, run.envelope.task_id, run.envelope.task_type, seconds))

    # interrupted

    def interrupt(self, run: Run, reason: InterruptReason) -> bool:
        """End a run before its time; whether it ends by that."""
        if run.stage is Stage.BUFFERED:
            self._drop(run)
            if reason is InterruptReason.STOPPING:
                self._report(run, RELEASED)
            else:
                run.lease.unreported -= 1
            return True
        if run.stage is Stage.ENDED or run.is_reported:
            return True
        reason = run.interrupt_reason = run.interrupt_reason or reason
        if run.context is not None:
            run.context.cancel()
            run.context.broken_off = timed_out(run) if reason is InterruptReason.TIMED_OUT else None
        if reason in (InterruptReason.CANCELLED, InterruptReason.LEASE_LOST):
            run.deadline = self._clock.monotonic() + GRACE_US
            self.on_deadline(run.deadline)
        return self._executor_of[run.envelope.task_type].interrupt(run)

    def abandon(self, run: Run) -> None:
        """Go on without a run that does not end though it was interrupted."""
        run.is_abandoned = True
        self.abandoned.append(run)
        self._replace_slots()
        reason = run.interrupt_reason
        fields = run.fields(reason=reason and reason.value, abandoned=len(self.abandoned))
        logger.warning(SLOT_TAKEN if run.has_slot else SLOT_REPLACED, extra=fields)
        if reason is InterruptReason.TIMED_OUT and run.key is None:
            self._report_early(run, timed_out(run))
        if self.is_stuck and not self.stuck.is_set():
            logger.error("stuck: too many runs cannot be interrupted", extra={"abandoned": len(self.abandoned)})
            self.stuck.set()
        self._pump_soon()

    @property
    def is_stuck(self) -> bool:
        """Whether more than `abandoned_max` runs are abandoned: slots are lost."""
        return len(self.abandoned) > self._settings.abandoned_max

    def _replace_slots(self) -> None:
        for run in self.abandoned[: self._settings.abandoned_max]:
            if run.has_slot:
                run.has_slot = False
                executor = self._executor_of[run.envelope.task_type]
                executor.running -= 1
                executor.abandoned += 1
                self.running -= 1

    def _free_slot(self, executor: Executor, run: Run) -> None:
        if run.has_slot:
            run.has_slot = False
            executor.running -= 1
            self.running -= 1
        else:
            executor.abandoned -= 1
        if run.is_abandoned:
            self.abandoned.remove(run)
            self._replace_slots()

    def _report_early(self, run: Run, ending: Ending) -> None:
        """Report a run that goes on."""
        run.is_reported = True
        self._count(run, ending)
        self._report(run, ending)

    def lease_lost(self, lease: Lease) -> None:
        """Interrupt the runs of a lease that is gone: somebody else may be running their tasks."""
        for run in [run for run in self.runs if run.lease is lease]:
            logger.warning("the lease was lost", extra=run.fields(stage=run.stage.value))
            self.interrupt(run, InterruptReason.LEASE_LOST)

    def cancel(self, task_ids: Iterable[str]) -> None:
        """Interrupt the runs of tasks that were cancelled at the broker."""
        cancelled = set(task_ids)
        for run in [run for run in self.runs if run.envelope.task_id in cancelled]:
            if run.interrupt_reason is None:
                logger.info("cancelled", extra=run.fields(stage=run.stage.value))
                if not self.interrupt(run, InterruptReason.CANCELLED):
                    logger.warning("a cancelled run continues: threads cannot be interrupted", extra=run.fields())

    def give_back(self, since: int) -> int:
        """Release what was buffered at that time and still is; how many."""
        late = [run for run in self.runs if run.stage is Stage.BUFFERED and run.since <= since]
        for run in late:
            self.interrupt(run, InterruptReason.STOPPING)
        if late:
            self.prefetch.slow_down()
            self.changed.set()
        return len(late)

    def close(self) -> int:
        """Take no more, and give back what has not started; how many."""
        self.is_open = False
        return self.give_back(NEVER)

    def open(self) -> None:
        """Take tasks again."""
        self.is_open = True
        self.changed.set()

    def interrupt_all(self) -> None:
        for run in list(self.runs):
            self.interrupt(run, InterruptReason.STOPPING)

    def give_up_all(self) -> None:
        """Give back what cannot be interrupted."""
        for run in self.runs:
            if not run.is_reported:
                is_late = run.interrupt_reason is InterruptReason.TIMED_OUT
                self._report_early(run, timed_out(run) if is_late else RELEASED)

    def _drop(self, run: Run) -> None:
        run.stage = Stage.ENDED
        self.runs.discard(run)
        self._executor_of[run.envelope.task_type].buffered -= 1
        self.buffered -= 1
        self.changed.set()  # nothing ended here that would say that there is room


def timed_out(run: Run) -> Ending:
    """The ending of a run that took too long."""
    return Ending("failed", error=f"timeout: it took longer than {run.timeout_seconds:g} s and was interrupted")


class Deadlines:
    """Interrupts runs that take longer than they may, which count as failed; abandons those that do not end then.

    `next_at` may be too early, never too late.
    """

    def __init__(self, dispatcher: Dispatcher, ticker: Ticker) -> None:
        self._dispatcher = dispatcher
        self._ticker = ticker
        self.next_at = NEVER
        dispatcher.on_deadline = self._on_deadline

    def _on_deadline(self, at: int) -> None:
        if at < self.next_at:
            self.next_at = at
            self._ticker.wake(at)

    def tick(self, now: int) -> None:
        for run in [run for run in self._dispatcher.runs if run.stage is Stage.RUNNING and 0 < run.deadline <= now]:
            if run.interrupt_reason is None:
                logger.warning("timed out", extra=run.fields(seconds=run.timeout_seconds))
                if self._dispatcher.interrupt(run, InterruptReason.TIMED_OUT):
                    run.deadline = now + GRACE_US
                    continue
            run.deadline = 0
            if run.interrupt_reason is not InterruptReason.STOPPING:
                self._dispatcher.abandon(run)
        waiting = [run.deadline for run in self._dispatcher.runs if run.stage is Stage.RUNNING and run.deadline]
        self.next_at = min(waiting, default=NEVER)


class BufferTimeout:
    """Gives back what has been buffered for a second, so that a worker that is free may have it."""

    def __init__(self, dispatcher: Dispatcher, ticker: Ticker) -> None:
        self._dispatcher = dispatcher
        self._ticker = ticker
        self.next_at = NEVER

    def watch(self, now: int) -> None:
        """Something may have been buffered."""
        if self._dispatcher.buffered and self.next_at == NEVER:
            self.next_at = now + BUFFER_US
            self._ticker.wake(self.next_at)

    def tick(self, now: int) -> None:
        given_back = self._dispatcher.give_back(now - BUFFER_US)
        if given_back:
            logger.info("returned: all slots are taken", extra={"tasks": given_back})
        self.next_at = NEVER
