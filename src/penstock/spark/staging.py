"""Staging and committing for the sink: the same steps against a data directory and against a broker.

Tasks stage: into the directory, also the broker's if it is on this machine, or over the wire. The driver commits: it
opens the directory for as long as that takes, or asks the broker. A directory that another process, such as another
query, holds for a moment is waited for; one that a broker holds is committed to by the broker alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import structs

from penstock import operations as ops
from penstock.batch import Batch
from penstock.clock import Clock, SystemClock
from penstock.errors import DirectoryInUse, PenstockError, QueueNotFound, RateLimited, Unavailable
from penstock.requests import SinkCommit
from penstock.spark.location import CLIENT, Location, check_directory, not_here
from penstock.storage.access import DirectoryLock
from penstock.storage.directory import MARKER, read_marker
from penstock.storage.disk import RealDisk
from penstock.storage.staging import Staging, encode_staged, name_for

T = TypeVar("T")
E = TypeVar("E", bound=PenstockError)

HELD_SECONDS: Final = 5.0  # how long a directory that is held is waited for
PAUSE_SECONDS: Final = 0.05
RATE_SECONDS: Final = 60.0  # how long a limit that says when it will have room is waited for
CONNECT_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 300.0  # a broker that seals behind a large write may take its time

Put = Callable[[str, Batch], None]  # (name of the file, what it holds)
Remove = Callable[[list[str]], Any]


class Target(msgspec.Struct, frozen=True):
    """Where messages go: a queue of a data directory or of a broker. It is pickled to every task."""

    url: str
    queue: str

    def prepare(self) -> None:
        """Before anything is staged: create a directory that does not exist, refuse one that cannot be used."""
        location = Location(self.url)
        if not location.is_broker and (Path(location.url) / MARKER).is_file():
            _waiting_for_directory(lambda: _look(location.url))
        else:
            with self.session():
                pass

    @contextmanager
    def session(self) -> Iterator[Any]:
        """The directory opened, or a connection to the broker."""
        from penstock.embedded import BlockingSession, Session
        from penstock.remote.settings import session, settings

        location = Location(self.url)
        if location.is_broker:
            opened = session(
                settings(
                    location.url,
                    client=CLIENT,
                    connect_seconds=CONNECT_SECONDS,
                    timeout=TIMEOUT_SECONDS,
                    rate_limit_seconds=RATE_SECONDS,
                )
            )
        else:
            opened = _waiting_for_directory(lambda: BlockingSession(Session(location.url)))
        with closing(opened):
            yield opened

    @contextmanager
    def _staging(self) -> Iterator[tuple[Put, Remove]]:
        location = Location(self.url)
        if not location.is_broker:
            check_directory(location.url)
            staging = Staging(RealDisk(location.url))
            yield partial(_write, staging), staging.remove
            return
        with self._task_session() as session:
            local = _own_directory(session)
            put = partial(_send, session, self.queue) if local is None else partial(_write, Staging(local))
            yield put, lambda names: session.execute(ops.DiscardStaged(self.queue, names))

    @contextmanager
    def _task_session(self) -> Iterator[Any]:
        with ExitStack() as stack:
            try:
                session = stack.enter_context(self.session())
            except Unavailable as error:
                raise not_here(self.url, error) from None
            yield session

    def stage(
        self, sink: str, task: int, batches: Iterable[Batch], clock: Clock | None = None
    ) -> tuple[list[str], int]:
        """Stage the batches of a task. Returns the names of the files, and how many messages they hold."""
        clock = clock or SystemClock()
        names: list[str] = []
        rows = 0
        with self._staging() as (put, remove):
            try:
                for batch in batches:
                    names.append(name_for(self.queue, sink, task, clock.now(), os.urandom(10)))
                    put(names[-1], batch)
                    rows += batch.count
            except BaseException:
                with suppress(PenstockError):
                    remove(names)  # otherwise they are removed when they are old
                raise
        return names, rows

    def discard(self, names: list[str], sink: str = "") -> None:
        """Remove files that will not be committed, and all others of `sink` that are visible from here, unless an
        unfinished batch needs them.
        """
        if names or sink:
            with self.session() as session:
                session.execute(ops.DiscardStaged(self.queue, sorted({*names, *self._visible(session, sink)})))

    def _visible(self, session: Any, sink: str) -> list[str]:
        location = Location(self.url)
        disk = _own_directory(session) if location.is_broker else RealDisk(location.url)
        return Staging(disk).of_sink(self.queue, sink) if sink else []

    def commit(self, batch: SinkCommit) -> None:
        """Commit a batch, in as many steps as it takes."""
        step = ops.CommitSink(**structs.asdict(batch))
        with self.session() as session:
            while True:
                # Over the wire a session waits for limits of the queue by itself; in a directory it does not.
                state = _retried(
                    lambda: session.execute(step), RateLimited, RATE_SECONDS, lambda error: error.retry_after_seconds
                )
                if state.batch >= batch.batch:
                    return


def _write(staging: Staging, name: str, batch: Batch) -> None:
    head, data = encode_staged(batch)
    staging.write(name, len(head), data)
    staging.write(name, 0, head)


def _send(session: Any, queue: str, name: str, batch: Batch) -> None:
    data = b"".join(encode_staged(batch))
    try:
        session.execute(ops.Stage(queue, name, 0, data))
    except QueueNotFound:  # it is made by its first push, and this is one
        session.execute(ops.CreateQueue(queue, {}, exist_ok=True))
        session.execute(ops.Stage(queue, name, 0, data))


def _own_directory(session: Any) -> RealDisk | None:
    """The broker's directory, if it is on this machine and belongs to the same user."""
    try:
        info = session.execute(ops.History())
        disk = RealDisk(info.directory)
        is_own = read_marker(disk).hex() == info.shard_id and os.stat(disk.root).st_uid == os.geteuid()
    except (PenstockError, OSError):
        return None  # not visible from here, or this client may not ask
    return disk if is_own else None


def _look(directory: str) -> None:
    lock = DirectoryLock(Path(directory) / "lock")
    lock.share()
    lock.release()


def _waiting_for_directory(take: Callable[[], T]) -> T:
    try:
        return _retried(take, DirectoryInUse, HELD_SECONDS, lambda error: PAUSE_SECONDS)
    except DirectoryInUse as error:
        hint = "if that is a broker, give its url (penstock://host:port) instead of the directory"
        raise DirectoryInUse(error.message, hint=hint) from None


def _retried(action: Callable[[], T], kind: type[E], seconds_max: float, pause: Callable[[E], float]) -> T:
    """The result of an action, which is retried for `seconds_max` while it raises this kind of error."""
    clock = SystemClock()
    deadline = clock.monotonic() + round(seconds_max * 1_000_000)
    while True:
        try:
            return action()
        except kind as error:
            seconds = pause(error)
            if clock.monotonic() + seconds * 1_000_000 > deadline:
                raise
        threading.Event().wait(seconds)
