"""The catalogue: every task that is kept, what has become of it, and searching among them.

It is a view. Nothing that stores or settles a message knows of it: a follower reads the journal behind them. Whoever
asks is answered from a catalogue that has caught up with everything told before the question, and with nothing that is
not durable yet. When the database is missing, damaged, or not of this journal, it is made anew; nobody notices but for
the time that it takes. It is opened when it is first used.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from penstock import limits
from penstock.errors import Closed, Damaged, InvalidField, PenstockError, StorageError
from penstock.model_tasks import TaskFilter, TaskPage, TaskView
from penstock.requests import ParentFound, Target
from penstock.shard.shard import Shard
from penstock.storage.disk import Disk, RealDisk
from penstock.storage.task_changes import Known, id_bytes, id_text
from penstock.storage.task_rows import Identity, Key
from penstock.task_index import forgetting, queries, single, store
from penstock.task_index.follower import Follower
from penstock.task_index.listeners import Among, Listener, Listeners
from penstock.task_index.queries import Cursor, Names
from penstock.task_index.rebuild import rebuild
from penstock.task_index.store import DatabaseBroken, Store

logger: Final = logging.getLogger("penstock.task_index")

T = TypeVar("T")
NEAR: Final = 256  # frames: a catalogue that is no further behind catches up …
NEAR_BYTES: Final = 64 * limits.KIB  # … unless they are large: one frame may hold ten thousand tasks
SOME: Final = 1_000  # tasks that are worth asking whether they have changed …
FEW: Final = 64  # … and looking for in the journal


class Catalogue:
    """See the module's rules. Safe to use from several threads. `disk` None keeps it in memory."""

    def __init__(
        self, shard: Shard, disk: Disk | None = None, *, retention_seconds: float = limits.task_retention_seconds
    ) -> None:
        self.retention_us = round(retention_seconds * 1_000_000)
        self._shard = shard
        self._disk = disk if isinstance(disk, RealDisk) else None  # SQLite opens files of the operating system only
        self._following = threading.Lock()
        self._reader = shard.journal.reader()
        # With its store: whoever asks takes both at once, since it may be let go meanwhile.
        self._follower: Follower | None = None
        self._followed_bytes = 0  # of the journal, by the last look at all of it
        self._listeners = Listeners()
        self._is_closed = False

    # Keeping up.

    @property
    def is_open(self) -> bool:
        return self._follower is not None

    @property
    def is_behind(self) -> bool:
        """Whether the journal has frames that were not looked at yet."""
        follower = self._follower
        return follower is not None and follower.position < self._shard.journal.sequence

    def open_if_there(self) -> None:
        """Go on with a database from before, if there is one."""
        if self._disk is not None and store.exists(self._disk):
            with self._following:
                self._opened()

    def catch_up(self, sequence: int | None = None, between: Callable[[], None] = lambda: None) -> int:
        """Know everything that has been told up to now, or, with `sequence`, at least up to there; returns how far."""
        follower = self._follower
        if sequence is not None and follower is not None and follower.position >= sequence:
            return follower.position
        size, target = self._shard.journal.size_bytes(), self._durable()
        with self._following:
            changed = self._follow(target, between)
        self._followed_bytes = size
        try:
            if (asked := self._follower) is not None:
                self._listeners.tell(changed, lambda ids: self._views(asked, ids))
        except DatabaseBroken as error:
            raise self._unusable(error) from error
        return target

    def _durable(self) -> int:
        """The last frame by now. What is read up to there may be told: what must be durable first is so after this."""
        target, ticket = self._shard.look(lambda now: self._shard.journal.sequence)
        self._shard.confirm(ticket)
        if self._shard.journal.written_sequence < target:
            self._shard.journal.write()
        return target

    def _follow(self, target: int, between: Callable[[], None]) -> set[bytes]:
        """The caller holds `_following`. Returns which tasks changed, if somebody listens."""
        for attempt in range(2):
            try:
                follower = self._opened()
                if follower.position < target:
                    follower.watches = self._listeners.are_there()
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
        """The follower of the open database, which is opened, or made, if need be. The caller holds `_following`."""
        if self._is_closed:
            raise Closed("the catalogue is closed")
        if self._follower is None:
            try:
                self._follower = self._open()
            except DatabaseBroken as error:
                return self._start_over(error)
        return self._follower

    def _open(self) -> Follower:
        opened = Store(self._disk)
        try:
            return rebuild(opened, self._shard) if opened.is_new else self._from_before(opened)
        except BaseException:
            opened.close()
            raise

    def _from_before(self, opened: Store) -> Follower:
        follower = Follower(opened, remembers=self._shard.store is not None)
        if opened.meta("position") is None or not self._is_of_this_journal(follower):
            raise DatabaseBroken("it is not of this journal, or too far behind it")
        return follower

    def _is_of_this_journal(self, follower: Follower) -> bool:
        """Whether the frame that was looked at last is there, the same as then, and what follows it too."""
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
        logger.warning("the catalogue of tasks is made anew: %s", error)
        self._let_go()
        if self._disk is not None:
            store.remove(self._disk)
        self._follower = self._open()
        return self._follower

    def _let_go(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.store.close()

    # Listening.

    def on_change(self, listener: Listener, among: Among = lambda: None) -> Callable[[], None]:
        """Have `listener` called with the tasks that changed, after each look at the journal.

        `among` answers with the ids that are of interest, None for all. Both may be called from any thread and must not
        block. What is returned ends it.
        """
        return self._listeners.add(listener, among)

    @property
    def is_listened_to(self) -> bool:
        return self._listeners.are_there()

    # Asking for some tasks: as they are now, however far the catalogue is behind.

    def find(self, task_id: str) -> TaskView | None:
        """One task, with its runs."""

        def question(connection: sqlite3.Connection, names: Names, ids: Sequence[bytes]) -> TaskView | None:
            for row in queries.rows_of(connection, ids):
                return queries.view(row, names, self._shard.clock.now(), queries.runs_of(connection, row, names))
            return None

        return self._now([task_id], question)

    def places(self, ids: Iterable[str]) -> dict[str, ParentFound]:
        """Where some tasks are, and how they stand; those that are not known are left out."""

        def question(connection: sqlite3.Connection, names: Names, ids: Sequence[bytes]) -> dict[str, ParentFound]:
            now = self._shard.clock.now()
            return {id_text(row[1]): queries.found(row, names, now) for row in queries.rows_of(connection, ids)}

        return self._now(ids, question)

    def views(self, ids: Iterable[str]) -> list[TaskView]:
        """Some tasks, without their runs, in no order; those that are not known are left out."""

        def question(connection: sqlite3.Connection, names: Names, ids: Sequence[bytes]) -> list[TaskView]:
            now = self._shard.clock.now()
            return [queries.view(row, names, now) for row in queries.rows_of(connection, ids)]

        return self._now(ids, question)

    def _now(self, ids: Iterable[str], question: Callable[[sqlite3.Connection, Names, Sequence[bytes]], T]) -> T:
        wanted = [found for each in dict.fromkeys(ids) if (found := _id(each))]
        target = self._durable()
        if 0 < len(wanted) <= SOME and self._is_far(target):
            try:
                return self._ahead(self._here(), target, wanted, question)
            except (DatabaseBroken, Damaged, FileNotFoundError, _Unknown):
                pass  # a look at everything finds out
        self.catch_up(target)

        def ask(asked: Follower) -> T:
            with asked.store.reading() as connection:
                return question(connection, self._names(asked.known), wanted)

        return self._ask(ask)

    def _is_far(self, target: int) -> bool:
        """Whether catching up would take longer than looking for a few tasks."""
        position = 0 if self._follower is None else self._follower.position
        # Fewer bytes than before: files were sealed and removed, and nobody knows how much is new.
        new = self._shard.journal.size_bytes() - self._followed_bytes
        return target > position and (target - position > NEAR or not 0 <= new <= NEAR_BYTES)

    def _here(self) -> Follower:
        """The follower wherever it is; opened if need be."""
        follower = self._follower
        if follower is None:
            with self._following:
                follower = self._opened()
        return follower

    def _ahead(
        self,
        follower: Follower,
        target: int,
        wanted: Sequence[bytes],
        question: Callable[[sqlite3.Connection, Names, Sequence[bytes]], T],
    ) -> T:
        """Answer from what the journal says of these tasks after the catalogue."""
        with follower.store.reading() as connection:
            found = single.seen(connection, wanted)
        with self._shard.lock:
            self._shard.check()
            changed = single.changed(self._shard, found, wanted)
        if len(changed) > FEW:
            raise _Unknown
        scratch = single.Scratch(found, changed)
        try:
            if changed:
                scratch.follow(self._shard.journal.reader().read(found.position, target))
            return scratch.ask(lambda connection: self._complete(connection, found.known, wanted, question))
        finally:
            scratch.close()

    def _complete(
        self,
        connection: sqlite3.Connection,
        known: Known,
        wanted: Sequence[bytes],
        question: Callable[[sqlite3.Connection, Names, Sequence[bytes]], T],
    ) -> T:
        if sum(1 for _ in queries.rows_of(connection, wanted)) < len(wanted):
            raise _Unknown
        return question(connection, self._names(known), wanted)

    # Asking for others: `catch_up` first. The answer is of the last look at the journal.

    def page(self, wanted: TaskFilter) -> TaskPage:
        """One page of those that match."""

        def ask(asked: Follower) -> TaskPage:
            with asked.store.reading() as connection:
                return queries.page(connection, wanted, self._names(asked.known), self._shard.clock.now())

        return self._ask(ask)

    def targets(self, wanted: TaskFilter, cursor: Cursor | None, limit: int) -> list[Target]:
        """The next ones of those that match, newest first, for whoever ends or forgets them."""

        def ask(asked: Follower) -> list[Target]:
            with asked.store.reading() as connection:
                names, now = self._names(asked.known), self._shard.clock.now()
                return queries.targets(connection, wanted, names, now, cursor, limit)

        return self._ask(ask)

    def count(self, wanted: TaskFilter) -> int:
        """How many tasks match."""

        def ask(asked: Follower) -> int:
            with asked.store.reading() as connection:
                return queries.count(connection, wanted, self._names(asked.known), self._shard.clock.now())

        return self._ask(ask)

    def closed_targets(self, ids: Iterable[bytes]) -> list[Target]:
        """Those of some tasks that are final, and that no unfinished child may ask for."""
        wanted = list(ids)

        def ask(asked: Follower) -> list[Target]:
            with asked.store.reading() as connection:
                return queries.closed_targets(connection, wanted)

        return self._ask(ask)

    def _views(self, asked: Follower, ids: Sequence[bytes]) -> list[TaskView]:
        with asked.store.reading() as connection:
            names, now = self._names(asked.known), self._shard.clock.now()
            return [queries.view(row, names, now) for row in queries.rows_of(connection, ids)]

    def _ask(self, question: Callable[[Follower], T]) -> T:
        """Ask; once more when the database turns out to be damaged, or was let go meanwhile."""
        for attempt in range(2):
            if self._follower is None:
                self.catch_up()
            asked = self._follower
            try:
                if asked is not None:
                    return question(asked)
            except DatabaseBroken as error:
                if attempt:
                    raise self._unusable(error) from error
                with self._following:
                    if self._follower is asked:
                        self._start_over(error)
                self.catch_up()
        raise Closed("the catalogue is closed")

    def _names(self, known: Known) -> Names:
        return Names(known.texts, known.words, known.queues, known.partitions, self._attempts_max)

    def _attempts_max(self, queue: str) -> int:
        found = self._shard.core.by_name.get(queue)
        return 0 if found is None else found.options.max_attempts

    # Forgetting.

    def expire(self) -> int:
        """Forget tasks that have been final for longer than they are kept; how many. The journal says so."""
        gone = 0
        while self._follower is not None and (targets := self._ask(self._expired)):
            self._shard.change(partial(forgetting.decide_expired, self._shard.core, targets))
            self.catch_up()
            gone += len(targets)
            if len(targets) < forgetting.AT_ONCE or self._ask(self._expired) == targets:
                break  # those that are left were brought back just now
        return gone

    def _expired(self, asked: Follower) -> list[Target]:
        with asked.store.reading() as connection:
            return queries.expired(connection, self._final_before(), forgetting.AT_ONCE)

    def _final_before(self) -> int:
        return self._shard.clock.now() - self.retention_us

    # For the sealer.

    def identify(self, keys: Iterable[Key]) -> Mapping[Key, Identity]:
        """The id, the type and the number of the tasks at some places, or of some ids; other messages are left out."""

        def ask(asked: Follower) -> dict[Key, Identity]:
            with asked.store.reading() as connection:
                return queries.identify(connection, keys, self._names(asked.known))

        return self._ask(ask)

    def sealed(self, sequence: int) -> None:
        """Frames up to here are sealed: which forgotten tasks they were about need not be known any more."""
        follower = self._follower
        if follower is not None:
            try:
                forgetting.sealed(follower.store, sequence)
            except DatabaseBroken as error:
                raise self._unusable(error) from error

    def close(self) -> None:
        """Let go of the database for good; it may be called twice."""
        with self._following:
            self._is_closed = True
            self._let_go()

    def _unusable(self, error: Exception) -> PenstockError:
        """What whoever asks is told; a database that was closed under its hands is closed, not damaged."""
        if self._is_closed:
            return Closed("the catalogue is closed")
        return StorageError(
            f"the catalogue of tasks cannot be used: {error}", hint=f"remove {store.NAME} and try again"
        )


class _Unknown(Exception):
    """Not all of the tasks were found without a look at everything."""


def _id(task_id: str) -> bytes | None:
    """None for what can be no task's id."""
    try:
        return id_bytes(task_id)
    except InvalidField:
        return None
