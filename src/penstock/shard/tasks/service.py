"""What a session keeps about tasks beside its shard: the task index, who waits for results, and who works.

All of it is volatile or a view of the journal. The task index is opened when it is first asked for, or found beside the
data; whoever never touches a task pays for none of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from penstock.delivery.entries import TaskFreed, TasksNoted
from penstock.errors import Closed, TaskConflict
from penstock.model import MessageId, bare_name, to_datetime
from penstock.model_tasks import (
    FINAL,
    Submitted,
    TaskCounts,
    TaskState,
    TaskSubmission,
    TaskView,
    WorkerInfo,
    WorkerNews,
    WorkerRequest,
    WorkerView,
)
from penstock.shard import browse, members
from penstock.shard.bulk.service import Bulk
from penstock.shard.tasks import changes, finish
from penstock.shard.tasks import submit as task_submit
from penstock.shard.tasks.waits import Looks, TaskWaiter, TaskWaiters, not_found
from penstock.shard.upkeep import Sleeper
from penstock.shard.worker_registry import NEVER, Registry
from penstock.storage.disk import Disk
from penstock.storage.task_rows import Identity, Key

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard
    from penstock.task_index.index import TaskIndex

T = TypeVar("T")
logger: Final = logging.getLogger("penstock.shard")

DIRECTORY: Final = "catalogue"  # declared twice: its own module loads SQLite, which is for those who have tasks
FOLLOW_SECONDS: Final = 1.0
EXPIRE_US: Final = 60_000_000
LOOKS_MAX: Final = 20  # at something that moves each time
PAUSE_SECONDS: Final = 0.002  # between two slices, for everybody else


class TaskService:
    """Tasks of one shard. `background`: whether there may be threads."""

    def __init__(self, shard: Shard, disk: Disk | None, retention_seconds: float, *, background: bool) -> None:
        self.shard = shard
        self._totals: dict[TaskState, int] = {}
        self._is_counted = False  # somebody collects the metrics
        self._totals_until = 0  # monotonic: they are counted again then
        self.waiters = TaskWaiters(lambda number: shard.core.queues[number].name if number in shard.core.queues else "")
        self.registry = Registry()
        self.looks = Looks(self._views)
        self._disk = disk
        self._retention_seconds = retention_seconds
        self._opening = threading.Lock()
        self._task_index: TaskIndex | None = None
        self.clerk = Sleeper("clerk", self.follow, shard.is_over) if background else None
        self.bulk: Bulk = Bulk(shard, self, background=background)
        self.operations = self.bulk.runner
        self._is_closed = threading.Event()
        self._expire_at = 0

        # Called with the shard's lock held, while the entry is applied; notified once there is a ticket to wait for.
        def later(notify: Callable[[], None]) -> None:
            shard.once_appended.append(notify)

        shard.core.observe(TasksNoted, lambda entry: later(lambda: self.waiters.noted(entry, shard.read_ticket)))
        shard.core.observe(TaskFreed, lambda entry: later(lambda: self.waiters.freed(entry, shard.read_ticket)))
        shard.on_unreported = self._hurry
        shard.clock.on_jump(self.wake_all)
        shard.on_fail.append(self.wake_all)

    def wake_all(self) -> None:
        """Whoever waits looks again."""
        self.waiters.wake_all()
        self.registry.wake_all()

    def close(self) -> None:
        """The shard is about to be closed; whoever waits is woken afterwards, and receives an error."""
        self.operations.stop()
        with self._opening:
            self._is_closed.set()
            task_index, self._task_index = self._task_index, None
        if task_index is not None:
            if self.clerk is not None:
                self.clerk.stop()
            task_index.close()

    # the task index

    @property
    def task_index(self) -> TaskIndex:
        """As it was left; `caught_up` has it follow the journal first."""
        with self._opening:
            if self._is_closed.is_set():
                raise Closed("this Penstock is closed")
            if self._task_index is None:
                self._task_index = self._open()
            return self._task_index

    def _open(self) -> TaskIndex:
        task_index = self._new_task_index(self._disk)
        task_index.on_change(self._changed, self.waiters.keys)
        if self.clerk is not None:
            self.clerk.start()
        return task_index

    def _new_task_index(self, disk: Disk | None) -> TaskIndex:
        from penstock.task_index.index import TaskIndex

        return TaskIndex(self.shard, disk, retention_seconds=self._retention_seconds)

    def start(self) -> None:
        """Go on with a task index from before, if there may be threads."""
        if self.clerk is not None and self._disk is not None and self._disk.exists(DIRECTORY):
            _ = self.task_index  # the clerk opens it
        self.operations.start()

    def identify(self, keys: Iterable[Key]) -> Mapping[Key, Identity]:
        """Which tasks messages are, for whoever seals the journal: not to be held up by a view that cannot be used."""
        try:
            return self.caught_up().identify(keys)
        except Exception as error:  # noqa: BLE001 - not to be held up by a view
            logger.warning("rebuilding the task index in memory for the sealer: %s", error)
        with closing(self._new_task_index(None)) as spare:
            spare.catch_up()
            return spare.identify(keys)

    def before_removal(self, sequence: int) -> None:
        """The journal is about to lose frames up to here; whoever follows it should have seen them."""
        task_index = self._task_index
        if task_index is None:
            return
        try:
            task_index.catch_up(sequence)
            task_index.sealed(sequence)
        except Exception as error:  # noqa: BLE001 - not to be held up by a view
            logger.warning("the task index will be rebuilt: %s", error)  # from what is sealed

    def follow(self) -> float:
        """What the clerk does, so that readers find little to catch up with, and deaths are reported soon."""
        task_index, monotonic = self._task_index, self.shard.clock.monotonic()
        if task_index is not None:
            if not task_index.is_open:
                task_index.open_if_there()
            if task_index.is_behind or (not task_index.is_open and self._is_counted and self.has_tasks):
                task_index.catch_up(between=self._pause)
            if monotonic >= self._expire_at:
                self._expire_at = monotonic + EXPIRE_US
                task_index.expire()
        return FOLLOW_SECONDS

    def watch(self, task_id: str, wake: Callable[[], object]) -> TaskWaiter:
        """Somebody waits for a task; what expires meanwhile is not left to whoever calls next."""
        waiter = self.waiters.add(task_id, wake)
        core = self.shard.core
        if core.expiries:
            with self.shard.locked():
                if core.expiries:
                    self.shard.on_deadline(core.expiries[0][0])
        return waiter

    def _hurry(self) -> None:
        """A lease ran out, a queue was purged: if somebody waits, the task index finds out at once if it matters."""
        if self.waiters and self.clerk is not None:
            self.clerk.wake()

    def _views(self, ids: Iterable[str]) -> list[TaskView]:
        return self.task_index.views(ids)

    def _pause(self) -> None:
        self._is_closed.wait(PAUSE_SECONDS)

    def _changed(self, views: Sequence[TaskView]) -> None:
        self.waiters.changed(views, self.shard.read_ticket)

    def caught_up(self) -> TaskIndex:
        """The task index, with everything that has happened by now. All of it is durable: it may be sent to clients."""
        task_index = self.task_index
        task_index.catch_up()
        return task_index

    # submitting and looking

    def submit(self, tasks: Sequence[TaskSubmission], client: str = "") -> tuple[list[Submitted], Ticket]:
        """Store tasks, all or none, in one frame. Parents may be among them, in any order."""
        parents = {parent for task in tasks for parent in task.depends_on}
        outside = parents.difference(task.task_id for task in tasks)
        if not outside:
            with suppress(task_submit.Moved):  # one of them was submitted before, and is done
                return task_submit.submit_tasks(self.shard, tasks, {}, client)

        def submit() -> tuple[list[Submitted], Ticket]:
            return task_submit.submit_tasks(self.shard, tasks, self.task_index.positions(parents), client)

        return _until_settled(submit, "depends_on")

    def task(self, task_id: str) -> TaskView:
        """One task, with its runs."""
        view = self.task_index.find(task_id)
        if view is None:
            raise not_found(task_id)
        return self._with_lease(view)

    def _with_lease(self, view: TaskView) -> TaskView:
        """A task that runs, with the end of the lease that it runs under."""
        if view.state is not TaskState.RUNNING:
            return view
        expires_at = browse.lease_end(self.shard, MessageId.parse(view.message_id))
        return view if expires_at is None else msgspec.structs.replace(view, lease_expires_at=to_datetime(expires_at))

    def queues_of(self, ids: Iterable[str]) -> dict[str, str]:
        """The queue of each of these tasks that is known."""
        return {view.task_id: view.queue for view in self.task_index.views(ids)}

    def totals(self) -> dict[TaskState, int]:
        """How many tasks there are in each state, a second ago at most. Counting takes at most 1 % of the time.

        The first call has the index follow the journal from now on, once there are tasks; later ones take no lock.
        """
        monotonic = self.shard.clock.monotonic
        now = monotonic()
        if now >= self._totals_until:
            if not self._is_counted and self.has_tasks:
                self.caught_up()
            self._is_counted = True
            counts = self.task_index.counts() if self.task_index.is_open else []
            self._totals = {state: sum(getattr(queue, state.value) for queue in counts) for state in TaskState}
            self._totals_until = now + 100 * (monotonic() - now)
        return self._totals

    @property
    def has_tasks(self) -> bool:
        """Whether there may be tasks that the task index does not know."""
        core = self.shard.core
        return core.has_tasks or bool(core.tasks.held)

    def counts(self) -> list[TaskCounts]:
        """How many tasks of each queue are in each state."""
        return self.caught_up().counts()

    def wait(self, task_id: str, seconds: float) -> tuple[TaskView, Ticket]:
        """A task once it is final, or as it is after `seconds`. Blocks; nothing polls."""
        clock = self.shard.clock
        deadline = clock.monotonic() + round(seconds * 1_000_000)
        turn = threading.Semaphore(0)
        waiter = self.watch(task_id, turn.release)
        try:
            while True:
                view = self.task(task_id)
                left = deadline - clock.monotonic()
                if view.is_final or left <= 0:
                    return view, 0
                turn.acquire(timeout=left / 1e6)
                final = self.final(waiter, view)
                if final is not None:
                    return final, waiter.ticket
        finally:
            self.waiters.leave(waiter)

    def final(self, waiter: TaskWaiter, view: TaskView) -> TaskView | None:
        """The final task, if the waiter was woken with it. The reply must wait for the waiter's ticket."""
        self.shard.require_open()  # closing wakes everybody
        return waiter.final(view)

    # changing

    def cancel(self, task_id: str) -> TaskView:
        """Cancel a task, also when it runs: its worker is notified, and what it still reports is refused."""
        _until_settled(lambda: self._cancel(self.task(task_id)), task_id)
        return self.task(task_id)

    def _cancel(self, view: TaskView) -> None:
        if view.state is TaskState.CANCELLED:
            return
        if view.state in FINAL:
            raise TaskConflict(f"task {view.task_id} is {view.state} and cannot be cancelled")
        _, consumer = changes.cancel(self.shard, _message_of(view), view.task_id)
        if consumer:
            self.cancelled(consumer, view.task_id)

    def retry(self, task_id: str) -> TaskView:
        """A dead, cancelled or failed task is pending again, or blocked; so are the tasks cancelled because of it."""
        _until_settled(lambda: self._retry(task_id, self.task(task_id)), task_id)
        return self.task(task_id)

    def bring_back(self, task_id: str, view: TaskView | None) -> None:
        """Retry one of many tasks, which was looked up before. One that was brought back meanwhile is fine as it is."""
        try:
            if view is not None:
                self._retry(task_id, view)
                return
        except task_submit.Moved:
            pass
        _until_settled(lambda: self._retry(task_id, self.task(task_id), is_lenient=True), task_id)

    def _retry(self, task_id: str, view: TaskView, *, is_lenient: bool = False) -> None:
        if is_lenient and view.state not in changes.RETRIED:
            return
        ids = changes.kin(self.shard, task_id)
        kin = changes.Kin(ids, self.task_index.positions(ids) if ids else {})
        self.registry.revived(task_id)
        changes.retry(self.shard, _message_of(view), task_id, view.state, view.finished_at, kin)

    # workers

    def tick(self) -> int | None:
        """Workers that have been silent for too long lose what they hold; answers when to look again."""
        now, monotonic = self.shard.clock.read()
        for worker_id in self.registry.overdue(monotonic):
            name = bare_name(worker_id)
            logger.warning("worker %s is dead: no heartbeat for too long; its tasks run again", name)
            finish.expire_consumer(self.shard, worker_id)
            self._hurry()
        look_at = self.registry.look_at
        return None if look_at == NEVER else now + look_at - monotonic

    def heartbeat(self, info: WorkerInfo, owner: str = "") -> WorkerNews:
        """A worker of a principal is there."""
        self.shard.require_open()
        now, monotonic = self.shard.clock.read()
        look_at = self.registry.look_at
        news = self.registry.heartbeat(info, now, monotonic, owner)
        self._mind(look_at)
        return news

    def cancelled(self, worker_id: str, task_id: str) -> None:
        """A task that a worker runs was cancelled."""
        look_at = self.registry.look_at
        self.registry.cancelled(worker_id, task_id, self.shard.clock.monotonic())
        self._mind(look_at)

    def await_news(self, worker_id: str, seconds: float) -> WorkerNews:
        """News for a worker; blocks until there are any, `seconds` at most."""
        clock, registry = self.shard.clock, self.registry
        deadline = clock.monotonic() + round(seconds * 1_000_000)
        turn = threading.Semaphore(0)
        registry.listen(worker_id, turn.release)
        try:
            while True:
                self.shard.require_open()
                news, is_new = registry.take_news(worker_id)
                left = deadline - clock.monotonic()
                if is_new or left <= 0:
                    return news
                turn.acquire(timeout=left / 1e6)
        finally:
            registry.unlisten(worker_id, turn.release)

    def request_worker(
        self, worker_id: str, owner: str | None, requested: WorkerRequest, grace_seconds: float | None = None
    ) -> WorkerView:
        """Have a worker be quiet, work again or stop."""
        self.shard.require_open()
        self.tick()
        return self.registry.request(worker_id, owner, requested, self.shard.clock.now(), grace_seconds)

    def forget(self, worker_id: str) -> Ticket:
        """A worker has stopped; what it still holds is released."""
        self.registry.forget(worker_id)
        return finish.release_consumer(self.shard, worker_id)

    def give_up(self, owner: str) -> Ticket:
        """A principal is gone: its workers are forgotten, its members leave, and what it holds is released."""
        self.registry.forget_owner(owner)
        return max(members.leave_all(self.shard, owner), finish.release_owner(self.shard, owner))

    def workers(self) -> list[WorkerView]:
        """The workers that sent a heartbeat lately."""
        self.shard.require_open()
        self.tick()
        return self.registry.workers()

    def known_types(self) -> frozenset[str]:
        """The task types that workers that are there can run."""
        living = (worker for worker in self.workers() if worker.state != "dead")
        return frozenset(name for worker in living for name in worker.info.task_types)

    def _mind(self, look_at: int) -> None:
        """Have the timekeeper look when the registry wants it, if that is sooner than before."""
        if self.registry.look_at < look_at:
            now, monotonic = self.shard.clock.read()
            with self.shard.locked():
                self.shard.on_deadline(now + self.registry.look_at - monotonic)


def _until_settled(decide: Callable[[], T], what: str) -> T:
    """Decide by the reply of the task index, again while the task has moved before the decision is made."""
    for _ in range(LOOKS_MAX):
        try:
            return decide()
        except task_submit.Moved:
            continue
    raise TaskConflict(f"{what}: changed during every attempt to read it", hint="try again")


def _message_of(view: TaskView) -> MessageId | None:
    """The message of a task; None while the task is blocked."""
    return MessageId.parse(view.message_id) if view.message_id else None
