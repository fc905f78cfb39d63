"""The task index: every task that is kept, its state, and searching among them.

It is a view. Nothing that stores or settles a message knows of it: a follower reads the journal behind them. A query is
answered from an index that has caught up with everything confirmed before the query, and with nothing that is not
durable yet. When the database is missing, damaged, or not of this journal, it is rebuilt, which only takes time. It is
opened when it is first used.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock import limits
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Entry, TasksPurged
from penstock.delivery.progress import span_of
from penstock.delivery.tasks import is_settled
from penstock.errors import Closed, Damaged, InvalidField, PenstockError, StorageError
from penstock.model_tasks import (
    Suggestion,
    TaskCounts,
    TaskFilter,
    TaskPage,
    TaskView,
    WorkflowPage,
    WorkflowView,
    id_text,
)
from penstock.requests import ParentFound, Target
from penstock.storage.disk import Disk, RealDisk
from penstock.storage.task_changes import Known, id_bytes
from penstock.storage.task_rows import Identity, Key
from penstock.task_index import database, lookahead, queries, workflows
from penstock.task_index.database import Database, DatabaseBroken
from penstock.task_index.follower import Follower, rebuild
from penstock.task_index.queries import Cursor, Names
from penstock.task_index.sealed_values import IndexSeals
from penstock.task_index.suggestions import suggest

if TYPE_CHECKING:
    from penstock.shard.shard import Shard

logger: Final = logging.getLogger("penstock.task_index")

T = TypeVar("T")
Listener = Callable[[list[TaskView]], None]
Among = Callable[[], Collection[bytes] | None]  # ids as 16 bytes; None for all tasks

NEAR: Final = 256  # frames: an index that is no further behind catches up …
NEAR_BYTES: Final = 64 * limits.KIB  # … unless they are large: one frame may hold ten thousand tasks
SOME: Final = 1_000  # tasks that are worth checking for changes …
FEW: Final = 64  # … and looking for in the journal
EXPIRED_AT_ONCE: Final = 2_000


class TaskIndex:
    """Searches the tasks of a shard. Safe to use from several threads. `disk` None keeps it in memory."""

    def __init__(
        self, shard: Shard, disk: Disk | None = None, *, retention_seconds: float = limits.task_retention_seconds
    ) -> None:
        self.retention_us = round(retention_seconds * 1_000_000)
        self._shard = shard
        self._disk = disk if isinstance(disk, RealDisk) else None  # SQLite opens files of the operating system only
        seals = shard.frame_seals
        self._seals = None if seals is None else IndexSeals(seals.seals, shard.core.encrypted)
        self._following = threading.Lock()
        self._reader = shard.journal.reader()
        # It holds its database: a query takes both at once, since they may be replaced meanwhile.
        self._follower: Follower | None = None
        self._followed_bytes = 0  # of the journal, when the index caught up last
        self._listeners: list[tuple[Listener, Among]] = []
        self._is_closed = False

    # Following the journal.

    @property
    def is_open(self) -> bool:
        return self._follower is not None

    @property
    def is_behind(self) -> bool:
        """Whether the journal has frames that were not read yet."""
        follower = self._follower
        return follower is not None and follower.position < self._shard.journal.sequence

    def open_if_there(self) -> None:
        """Continue with a database from before, if there is one."""
        if self._disk is not None and self._disk.exists(database.NAME):
            with self._following:
                self._opened()

    def catch_up(self, sequence: int | None = None, between: Callable[[], None] = lambda: None) -> int:
        """Read the journal up to its end, or, with `sequence`, at least up to there; returns how far."""
        follower = self._follower
        if sequence is not None and follower is not None and follower.position >= sequence:
            return follower.position
        size, target = self._shard.journal.size_bytes(), self._durable()
        with self._following:
            changed = self._follow(target, between)
        self._followed_bytes = size
        try:
            if changed and (follower := self._follower) is not None:
                self._notify(changed, follower)
        except DatabaseBroken as error:
            raise self._unusable(error) from error
        return target

    def _durable(self) -> int:
        """The last frame by now. What is read up to there may be shown: what must be durable first is, after this."""
        target, ticket = self._shard.look(lambda now: self._shard.journal.sequence)
        self._shard.confirm(ticket)
        if self._shard.journal.written_sequence < target:
            self._shard.journal.write()
        return target

    def _follow(self, target: int, between: Callable[[], None]) -> set[bytes]:
        """The ids of the tasks that changed, if somebody listens. The caller holds `_following`."""
        for attempt in range(2):
            try:
                follower = self._opened()
                if follower.position < target:
                    follower.watches = self.is_listened_to
                    follower.follow(self._reader.read(follower.position, target), between)
            except (DatabaseBroken, Damaged, FileNotFoundError) as error:
                if attempt:
                    raise self._unusable(error) from error
                self._start_over(error)
            else:
                changed, follower.touched = follower.touched, set()
                return changed
        raise AssertionError("unreachable")

    def _opened(self) -> Follower:
        """The follower of the database, which is opened or rebuilt if need be. The caller holds `_following`."""
        if self._is_closed:
            raise Closed("the task index is closed")
        if self._follower is None:
            try:
                self._follower = self._open()
            except DatabaseBroken as error:
                return self._start_over(error)
        return self._follower

    def _open(self) -> Follower:
        opened = Database(self._disk) if self._seals is None else Database(self._disk, self._seals.open)
        try:
            return rebuild(opened, self._shard, self._seals) if opened.is_new else self._continue(opened)
        except BaseException:
            opened.close()
            raise

    def _continue(self, opened: Database) -> Follower:
        follower = Follower(opened, remembers=self._shard.store is not None, seals=self._seals)
        if opened.meta("position") is None or not self._is_of_this_journal(follower):
            raise DatabaseBroken("it does not belong to this journal, or is too far behind it")
        return follower

    def _is_of_this_journal(self, follower: Follower) -> bool:
        """Whether the frame that was read last is there, unchanged, and what follows it too."""
        position, journal = follower.position, self._shard.journal
        if position > journal.sequence:
            return False
        try:
            for _, checksum, _ in self._reader.read(position - 1, position):
                return follower.checksum in (checksum, 0)  # 0 after a rebuild, which takes nothing from the journal
        except FileNotFoundError:
            # It was in a file that is sealed by now.
            sealed = self._shard.store.sealed_sequence if self._shard.store is not None else 0
            return position >= sealed
        return position == 0

    def _start_over(self, error: Exception) -> Follower:
        logger.warning("the task index is rebuilt: %s", error)
        self._release()
        if self._disk is not None:
            database.remove(self._disk)
        self._follower = self._open()
        return self._follower

    def _release(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.database.close()

    # Listeners.

    def on_change(self, listener: Listener, among: Among = lambda: None) -> Callable[[], None]:
        """Call `listener` with the tasks that changed, each time the journal was read. Returns what ends it.

        `among` returns the ids that are of interest, None for all. Both may be called from any thread and must not
        block.
        """
        pair = (listener, among)
        self._listeners.append(pair)

        def end() -> None:
            with suppress(ValueError):
                self._listeners.remove(pair)

        return end

    @property
    def is_listened_to(self) -> bool:
        """Whether any listener is interested in any task now."""
        return any(ids is None or len(ids) for ids in (among() for _, among in list(self._listeners)))

    def _notify(self, changed: set[bytes], follower: Follower) -> None:
        for listener, among in list(self._listeners):
            interest = among()
            ids = sorted(changed if interest is None else changed.intersection(interest))
            if ids:
                with follower.database.reading() as connection:
                    views = self._views_of(connection, self._names(follower.known), ids)
                listener(views)

    # Some tasks by their ids, as they are now, however far the index is behind.

    def find(self, task_id: str) -> TaskView | None:
        """One task, with its runs."""

        def question(connection: sqlite3.Connection, names: Names, ids: Sequence[bytes]) -> TaskView | None:
            for row in queries.rows_of(connection, ids):
                return queries.view(row, names, self._shard.clock.now(), queries.runs_of(connection, row, names))
            return None

        return self._ask_now([task_id], question)

    def positions(self, ids: Iterable[str]) -> dict[str, ParentFound]:
        """Where the messages of some tasks are, and their states; unknown tasks are left out."""

        def question(connection: sqlite3.Connection, names: Names, ids: Sequence[bytes]) -> dict[str, ParentFound]:
            now = self._shard.clock.now()
            return {id_text(row[1]): queries.parent_of(row, names, now) for row in queries.rows_of(connection, ids)}

        return self._ask_now(ids, question)

    def views(self, ids: Iterable[str]) -> list[TaskView]:
        """Some tasks, without their runs, in no order; unknown tasks are left out."""
        return self._ask_now(ids, self._views_of)

    def _views_of(self, connection: sqlite3.Connection, names: Names, ids: Sequence[bytes]) -> list[TaskView]:
        now = self._shard.clock.now()
        return [queries.view(row, names, now) for row in queries.rows_of(connection, ids)]

    def _ask_now(self, ids: Iterable[str], question: Callable[[sqlite3.Connection, Names, Sequence[bytes]], T]) -> T:
        valid = [id for text in dict.fromkeys(ids) if (id := _id(text))]
        target = self._durable()
        if 0 < len(valid) <= SOME and self._is_far(target):
            try:
                return self._look_ahead(self._open_follower(), target, valid, question)
            except (DatabaseBroken, Damaged, FileNotFoundError, _Unknown):
                pass  # catching up finds out
        self.catch_up(target)
        return self._ask(lambda connection, names: question(connection, names, valid))

    def _is_far(self, target: int) -> bool:
        """Whether catching up would take longer than looking for a few tasks."""
        position = 0 if self._follower is None else self._follower.position
        # Fewer bytes than before: files were sealed and removed, and nobody knows how much is new.
        new = self._shard.journal.size_bytes() - self._followed_bytes
        return target > position and (target - position > NEAR or not 0 <= new <= NEAR_BYTES)

    def _open_follower(self) -> Follower:
        """The follower at whatever position it is; the database is opened if need be."""
        follower = self._follower
        if follower is None:
            with self._following:
                follower = self._opened()
        return follower

    def _look_ahead(
        self,
        follower: Follower,
        target: int,
        ids: Sequence[bytes],
        question: Callable[[sqlite3.Connection, Names, Sequence[bytes]], T],
    ) -> T:
        """Answer from what the journal says of these tasks after the position of the index."""
        with follower.database.reading() as connection:
            seen = lookahead.read_seen(connection, ids)
        with self._shard.locked():
            changed = lookahead.changed(self._shard, seen, ids)
        if len(changed) > FEW:
            raise _Unknown
        scratch = lookahead.Scratch(seen, changed)
        try:
            if changed:
                scratch.follow(self._shard.journal.reader().read(seen.position, target))
            with scratch.database.reading() as connection:
                if sum(1 for _ in queries.rows_of(connection, ids)) < len(ids):
                    raise _Unknown
                return question(connection, self._names(seen.known), ids)
        finally:
            scratch.database.close()

    # Queries: `catch_up` first. The answer is as of the last time the journal was read.

    def page(self, filter: TaskFilter, may: Callable[[str], bool] | None = None) -> TaskPage:
        """One page of the tasks that match, of the queues for which `may` is true if that is given."""
        now = self._shard.clock.now()
        return self._ask(lambda connection, names: queries.page(connection, filter, names, now, may))

    def suggest(
        self, field: str, prefix: str, limit: int, may: Callable[[str], bool] | None = None
    ) -> list[Suggestion]:
        """Values that tasks have in a field, of the queues for which `may` is true if that is given."""
        return self._ask(lambda connection, names: suggest(connection, names, field, prefix, limit, may))

    def workflows(self, limit: int, cursor: str | None, may: Callable[[str], bool] | None = None) -> WorkflowPage:
        """One page of the workflows with tasks in queues for which `may` is true if that is given."""
        now = self._shard.clock.now()
        return self._ask(lambda connection, names: workflows.page(connection, names, now, limit, cursor, may))

    def workflow(self, workflow: str, may: Callable[[str], bool] | None = None) -> WorkflowView:
        """One workflow, with its tasks."""
        now = self._shard.clock.now()
        return self._ask(lambda connection, names: workflows.find(connection, names, now, workflow, may))

    def targets(
        self, filter: TaskFilter, cursor: Cursor | None, limit: int, as_of: int, *, is_last_pass: bool = False
    ) -> list[Target]:
        """The next of the tasks that match, for an operation on what matched at an instant; see `queries.targets`."""
        return self._ask(
            lambda connection, names: queries.targets(
                connection, filter, names, as_of, cursor, limit, is_last_pass=is_last_pass
            )
        )

    def counts(self) -> list[TaskCounts]:
        """How many tasks of each queue are in each state."""
        return self._ask(lambda connection, names: queries.counts(connection, names, self._shard.clock.now()))

    def count(self, filter: TaskFilter, as_of: int) -> int:
        """How many tasks match, of those that did at an instant."""
        return self._ask(lambda connection, names: queries.count(connection, filter, names, as_of))

    def closed_targets(self, ids: Iterable[bytes]) -> list[Target]:
        """Those of some tasks that are final and have no unfinished child."""
        chosen = list(ids)
        return self._ask(lambda connection, names: queries.closed_targets(connection, chosen))

    def identify(self, keys: Iterable[Key]) -> Mapping[Key, Identity]:
        """For the sealer: which tasks have messages at some places, or some ids; other messages are left out."""
        return self._ask(lambda connection, names: queries.identify(connection, keys, names))

    def _ask(self, question: Callable[[sqlite3.Connection, Names], T]) -> T:
        """Ask; once more when the database turns out to be damaged, or was replaced meanwhile."""
        for attempt in range(2):
            if self._follower is None:
                self.catch_up()
            follower = self._follower
            try:
                if follower is not None:
                    with follower.database.reading() as connection:
                        return question(connection, self._names(follower.known))
            except DatabaseBroken as error:
                if attempt:
                    raise self._unusable(error) from error
                with self._following:
                    if self._follower is follower:
                        self._start_over(error)
                self.catch_up()
        raise Closed("the task index is closed")

    def _names(self, known: Known) -> Names:
        opened = None if self._seals is None else self._seals.open
        return Names(known.texts, known.words, known.queues, known.partitions, self._attempts_max, opened)

    def _attempts_max(self, name: str) -> int:
        queue = self._shard.core.by_name.get(name)
        return 0 if queue is None else queue.options.max_attempts

    # Forgetting.

    def expire(self) -> int:
        """Forget tasks that have been final for longer than they are kept; how many. The journal records it."""
        count = 0
        while self._follower is not None and (targets := self._expired()):
            self._shard.change(partial(decide_expired, self._shard.core, targets))
            self.catch_up()
            count += len(targets)
            if len(targets) < EXPIRED_AT_ONCE or self._expired() == targets:
                break  # those that are left were revived just now
        return count

    def _expired(self) -> list[Target]:
        final_before = self._shard.clock.now() - self.retention_us
        return self._ask(lambda connection, names: queries.expired(connection, final_before, EXPIRED_AT_ONCE))

    def sealed(self, sequence: int) -> None:
        """Frames up to here are sealed: which forgotten tasks they were about need not be known any more."""
        follower = self._follower
        if follower is not None:
            try:
                with follower.database.writing() as connection:
                    connection.execute(database.SEALED, (sequence,))
            except DatabaseBroken as error:
                raise self._unusable(error) from error

    def close(self) -> None:
        """Close the database for good; it may be called twice."""
        with self._following:
            self._is_closed = True
            self._release()

    def _unusable(self, error: Exception) -> PenstockError:
        """The error for callers; a database that was closed under its hands is closed, not damaged."""
        if self._is_closed:
            return Closed("the task index is closed")
        return StorageError(f"the task index cannot be used: {error}", hint=f"remove {database.NAME} and try again")


class _Unknown(Exception):
    """Not all of the tasks were found without catching up."""


def decide_expired(core: DeliveryState, targets: Iterable[Target], now: int) -> list[Entry]:
    """Entries that forget these tasks, but for those that were revived. The lock is held."""
    positions: dict[int, dict[int, list[int]]] = {}
    ids: dict[int, list[bytes]] = {}
    for target in targets:
        if target.partition is None or target.position is None:
            if target.task_id not in core.tasks.held:
                ids.setdefault(target.queue, []).append(target.task_id)
        elif is_settled(core, (target.queue, target.partition, target.position)):
            positions.setdefault(target.queue, {}).setdefault(target.partition, []).append(target.position)
    return [
        TasksPurged(
            queue,
            now,
            [span_of(number, sorted(offsets)) for number, offsets in positions.get(queue, {}).items()],
            b"".join(ids.get(queue, ())),
        )
        for queue in {**positions, **ids}
    ]


def _id(task_id: str) -> bytes | None:
    """None for what is no task's id."""
    try:
        return id_bytes(task_id)
    except InvalidField:
        return None
