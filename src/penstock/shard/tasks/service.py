"""What a session keeps about tasks beside its shard: the catalogue, who waits for results, and who works.

All of it is volatile or a view of the journal. The catalogue is opened when it is first asked for, or found beside the
data; whoever never touches a task pays for none of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from penstock.delivery.entries import TaskFreed, TasksNoted
from penstock.errors import Closed
from penstock.model_tasks import TaskView, WorkerInfo, WorkerNews
from penstock.shard import tasks as shard_tasks
from penstock.shard.shard import Shard
from penstock.shard.tasks.lookups import Looks
from penstock.shard.tasks.operation_runner import OperationRunner
from penstock.shard.tasks.waits import TaskWaiter, TaskWaiters
from penstock.shard.upkeep import Sleeper
from penstock.shard.worker_registry import NEVER, Registry
from penstock.storage.disk import Disk
from penstock.storage.task_rows import Identity, Key

if TYPE_CHECKING:
    from penstock.task_index import Catalogue

logger: Final = logging.getLogger("penstock")

DIRECTORY: Final = "catalogue"  # told twice: its own module loads SQLite, which is for those who have tasks
FOLLOW_SECONDS: Final = 1.0
EXPIRE_US: Final = 60_000_000
PAUSE_SECONDS: Final = 0.002  # between two slices, for everybody else


class Desk:
    """See the module's rules. `background` tells whether there may be threads."""

    def __init__(self, shard: Shard, disk: Disk | None, retention_seconds: float, *, background: bool) -> None:
        self.shard = shard
        self.waiters = TaskWaiters()
        self.registry = Registry()
        self.looks = Looks(self._views)
        self._disk = disk
        self._retention_seconds = retention_seconds
        self._opening = threading.Lock()
        self._catalogue: Catalogue | None = None
        self.clerk = Sleeper("clerk", self.follow, shard.is_over) if background else None
        self.operations = OperationRunner(shard, self, background=background)
        self._is_closed = threading.Event()
        self._expire_at = 0

        # Called with the shard's lock held, while the entry is applied; told once there is a ticket to wait for.
        def later(tell: Callable[[], None]) -> None:
            shard.once_appended.append(tell)

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
        """The shard is about to be closed; whoever waits is woken afterwards, and told so."""
        self.operations.stop()
        with self._opening:
            self._is_closed.set()
            catalogue, self._catalogue = self._catalogue, None
        if catalogue is not None:
            if self.clerk is not None:
                self.clerk.stop()
            catalogue.close()

    # the catalogue

    @property
    def catalogue(self) -> Catalogue:
        """As it was left; `caught_up` has it follow the journal first."""
        with self._opening:
            if self._is_closed.is_set():
                raise Closed("this Penstock is closed")
            if self._catalogue is None:
                self._catalogue = self._open()
            return self._catalogue

    def _open(self) -> Catalogue:
        catalogue = self._new_catalogue(self._disk)
        catalogue.on_change(self._changed, self.waiters.keys)
        if self.clerk is not None:
            self.clerk.start()
        return catalogue

    def _new_catalogue(self, disk: Disk | None) -> Catalogue:
        from penstock.task_index import Catalogue

        return Catalogue(self.shard, disk, retention_seconds=self._retention_seconds)

    def start(self) -> None:
        """Go on with a catalogue from before, if there may be threads."""
        if self.clerk is not None and self._disk is not None and self._disk.exists(DIRECTORY):
            _ = self.catalogue  # the clerk opens it
        self.operations.start()

    def identify(self, keys: Iterable[Key]) -> Mapping[Key, Identity]:
        """Which tasks messages are, for whoever seals the journal: not to be held up by a view that cannot be used."""
        try:
            return self.caught_up().identify(keys)
        except Exception as error:  # noqa: BLE001 - not to be held up by a view
            logger.warning("the catalogue of tasks is made anew in memory, for the sealer: %s", error)
        with closing(self._new_catalogue(None)) as spare:
            spare.catch_up()
            return spare.identify(keys)

    def before_removal(self, sequence: int) -> None:
        """The journal is about to lose frames up to here; whoever follows it should have seen them."""
        catalogue = self._catalogue
        if catalogue is None:
            return
        try:
            catalogue.catch_up(sequence)
            catalogue.sealed(sequence)
        except Exception as error:  # noqa: BLE001 - not to be held up by a view
            logger.warning("the catalogue of tasks will be made anew: %s", error)  # from what is sealed

    def follow(self) -> float:
        """What the clerk does, so that readers find little to catch up with, and deaths are told of soon."""
        catalogue, monotonic = self._catalogue, self.shard.clock.monotonic()
        if catalogue is not None:
            if not catalogue.is_open:
                catalogue.open_if_there()
            if catalogue.is_behind:
                catalogue.catch_up(between=self._pause)
            if monotonic >= self._expire_at:
                self._expire_at = monotonic + EXPIRE_US
                catalogue.expire()
        return FOLLOW_SECONDS

    def watch(self, task_id: str, wake: Callable[[], object]) -> TaskWaiter:
        """Somebody waits for a task; what expires meanwhile is not left to whoever calls next."""
        waiter = self.waiters.add(task_id, wake)
        core = self.shard.core
        if core.expiries:
            with self.shard.lock:
                self.shard.check()
                if core.expiries:
                    self.shard.on_deadline(core.expiries[0][0])
        return waiter

    def _hurry(self) -> None:
        """A lease ran out, a queue was purged: if somebody waits, the catalogue finds out at once if it matters."""
        if self.waiters and self.clerk is not None:
            self.clerk.wake()

    def _views(self, ids: Iterable[str]) -> list[TaskView]:
        return self.catalogue.views(ids)

    def _pause(self) -> None:
        self._is_closed.wait(PAUSE_SECONDS)

    def _changed(self, views: Sequence[TaskView]) -> None:
        self.waiters.changed(views, self.shard.read_ticket)

    def caught_up(self) -> Catalogue:
        """The catalogue, with everything that has happened by now. All of it is durable: it may be told."""
        catalogue = self.catalogue
        catalogue.catch_up()
        return catalogue

    # workers

    def tick(self) -> int | None:
        """Workers that have been silent for too long lose what they hold; answers when to look again."""
        now, monotonic = self.shard.clock.read()
        for worker_id in self.registry.overdue(monotonic):
            logger.warning("worker %s is dead: it was not heard of for too long; what it ran starts again", worker_id)
            shard_tasks.expire_consumer(self.shard, worker_id)
            self._hurry()
        look_at = self.registry.look_at
        return None if look_at == NEVER else now + look_at - monotonic

    def heartbeat(self, info: WorkerInfo) -> WorkerNews:
        """A worker is there."""
        self.shard.require_open()
        now, monotonic = self.shard.clock.read()
        look_at = self.registry.look_at
        news = self.registry.heartbeat(info, now, monotonic)
        self._mind(look_at)
        return news

    def cancelled(self, worker_id: str, task_id: str) -> None:
        """A task that a worker runs was cancelled."""
        look_at = self.registry.look_at
        self.registry.cancelled(worker_id, task_id, self.shard.clock.monotonic())
        self._mind(look_at)

    def _mind(self, look_at: int) -> None:
        """Have the timekeeper look when the registry wants it, if that is sooner than before."""
        if self.registry.look_at < look_at:
            now, monotonic = self.shard.clock.read()
            with self.shard.lock:
                self.shard.check()
                self.shard.on_deadline(now + self.registry.look_at - monotonic)
