"""Staging and committing for the sink: the same steps against a data directory and against a broker.

Tasks stage: into the directory, also the broker's if it is on this machine, or over the wire. The driver commits: it
opens the directory for as long as that takes, or asks the broker. A directory that another process, such as another
query, holds for a moment is waited for; one that a broker holds is committed to by the broker alone.

The columns of a frame are checked once on the driver, and made into batches by the tasks. Columns are found by name; an
unknown one is refused before anything is written. The columns that the source adds when messages are read are ignored,
so that what was read can be written to another queue. No object is created per message but for payloads that become
JSON.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from msgspec import structs

from penstock import limits
from penstock import operations as ops
from penstock.access.encryption import KeyRing, wrapper_of
from penstock.batch import Batch
from penstock.batch.arrow import READ_COLUMNS
from penstock.clock import Clock, SystemClock
from penstock.delivery.entries import is_encrypted
from penstock.errors import DirectoryInUse, InvalidField, PenstockError, QueueNotFound, RateLimited, Unavailable
from penstock.history import open_history
from penstock.model import CONTENT_TYPE_NAMES, ContentType, QueueOptions
from penstock.refusals import suggestion
from penstock.requests import SinkCommit
from penstock.seals import Seals
from penstock.spark.location import CLIENT, Location, check_directory, not_here
from penstock.storage.access import DirectoryLock
from penstock.storage.directory import MARKER, read_identity
from penstock.storage.disk import ReadOnlyDisk, RealDisk
from penstock.storage.staging import Staging, encode_staged, name_for

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


PAYLOAD: Final = "payload"
CONTENT_TYPE: Final = "content_type"

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_SECONDS: Final = (*_INTEGERS, "float", "double", "decimal", "interval")
_NESTED: Final = ("struct", "map", "array", "variant")
_ROWS_MAX: Final = 250_000  # of one batch, however small they are
_json: Final = msgspec.json.Encoder(decimal_format="number")


class Column(NamedTuple):
    """The types a column may have: the first words of Spark's names, and a description."""

    kinds: tuple[str, ...]
    expected: str


COLUMNS: Final = {
    PAYLOAD: Column(("binary", "string", *_NESTED[:3]), "binary or string; struct, map and array become JSON"),
    "key": Column(("string",), "string"),
    "headers": Column(("map<string,string>",), "map<string,string>"),
    "priority": Column(_INTEGERS, "an integer from 0 to 255"),
    "delay": Column(_SECONDS, "a number of seconds"),
    "deliver_at": Column(("timestamp",), "timestamp"),
    "ttl": Column(_SECONDS, "a number of seconds"),
    "max_attempts": Column(_INTEGERS, "an integer"),
    "partition": Column(("string", *_INTEGERS), "string or an integer"),
    "dedup_key": Column(("string",), "string"),
    "trace_id": Column(("string",), "string"),
    CONTENT_TYPE: Column(("string",), "string"),
}


def check_columns(schema: StructType) -> tuple[str, ...]:
    """The columns that belong to messages, by name; `InvalidField` names one that does not fit."""
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name in COLUMNS:
            _check_type(field.name, field.dataType)
        elif field.name not in READ_COLUMNS:
            raise InvalidField(
                f"{field.name}: a column of {field.dataType.simpleString()} that messages do not have",
                hint=_hint(field.name, names),
            )
    if PAYLOAD not in names:
        raise InvalidField(f"{PAYLOAD}: there is no such column among {', '.join(names) or 'none'}", hint=_TO_JSON)
    for name in names:
        if names.count(name) > 1:
            raise InvalidField(f"{name}: there are {names.count(name)} columns of this name")
    return tuple(name for name in names if name in COLUMNS)


_TO_JSON: Final = "df.selectExpr('to_json(struct(*)) AS payload') combines all columns into one"


def _check_type(name: str, kind: DataType) -> None:
    type_name, column = kind.simpleString(), COLUMNS[name]
    if type_name.split("(")[0].split(" ")[0].split("<")[0] not in column.kinds and type_name not in column.kinds:
        raise InvalidField(f"{name}: a column of {type_name} does not fit", hint=f"expected: {column.expected}")


def _hint(name: str, names: list[str]) -> str:
    """What to do about an unknown column: a misspelt one, or a frame that was not made for a queue."""
    meant = suggestion(name, tuple(COLUMNS))
    if meant.startswith("did you mean"):
        return meant
    return f"known: {', '.join(COLUMNS)}; drop it, or put it into the payload" if PAYLOAD in names else _TO_JSON


def batches_of(arrived: Iterable[pa.RecordBatch], columns: tuple[str, ...]) -> Iterator[Batch]:
    """Batches of about `limits.staged_batch_bytes` from Spark's own, which are smaller."""
    gathered: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in arrived:
        for part in _split(_fitted(batch, columns)):
            if gathered and (size + part.nbytes > limits.staged_batch_bytes or rows + len(part) > _ROWS_MAX):
                yield Batch.build(pa.Table.from_batches(gathered))
                gathered, size, rows = [], 0, 0
            gathered.append(part)
            size += part.nbytes
            rows += len(part)
    if gathered:
        yield Batch.build(pa.Table.from_batches(gathered))


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The record batch, halved until its parts are small enough, or single messages."""
    if len(batch) > 1 and (batch.nbytes > limits.staged_batch_bytes or len(batch) > _ROWS_MAX):
        middle = len(batch) // 2
        yield from _split(batch.slice(0, middle))
        yield from _split(batch.slice(middle))
    elif len(batch):
        yield batch


def _fitted(arrived: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    """The columns of messages, as `Batch.build` takes them."""
    by_name: dict[str, Any] = {name: arrived.column(name) for name in columns}
    for name in ("delay", "ttl"):
        if name in by_name and pa.types.is_decimal(by_name[name].type):
            by_name[name] = by_name[name].cast(pa.float64())
    payload = by_name[PAYLOAD]
    if pa.types.is_nested(payload.type):
        by_name[PAYLOAD] = _as_json(payload)
        by_name.setdefault(CONTENT_TYPE, pa.repeat(CONTENT_TYPE_NAMES[ContentType.JSON], len(payload)))
    return pa.RecordBatch.from_arrays(list(by_name.values()), names=list(by_name))


def _as_json(column: pa.Array) -> pa.Array:
    """JSON texts, as bytes; a null stays one, to be refused like any other."""
    values = column.to_pylist(maps_as_pydicts="lossy")
    return pa.array([None if value is None else _json.encode(value) for value in values], pa.binary())


T = TypeVar("T")
E = TypeVar("E", bound=PenstockError)

HELD_SECONDS: Final = 5.0  # how long a directory that is held is waited for
PAUSE_SECONDS: Final = 0.05
RATE_SECONDS: Final = 60.0  # how long a limit that says when it will have room is waited for
CONNECT_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 300.0  # a broker that seals behind a large write may take its time

Put = Callable[[str, Batch], None]  # (name of the file, what it holds)
Sealed = Callable[[str, int, Any], bytes]  # of a staged file: its name, a position, and the bytes there
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
        from penstock.embedded.blocking import BlockingSession
        from penstock.embedded.session import Session
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
            yield partial(_write, staging, sealed=_sealing(location.url, self.queue)), staging.remove
            return
        with self._task_session() as session:
            local = None if _is_encrypted(session, self.queue) else _own_directory(session)
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


def _write(staging: Staging, name: str, batch: Batch, sealed: Sealed | None = None) -> None:
    head, data = encode_staged(batch)
    if sealed is not None:
        head, data = sealed(name, 0, head), sealed(name, len(head), data)
    staging.write(name, len(head), data)
    staging.write(name, 0, head)


def _sealing(directory: str, queue: str) -> Sealed | None:
    """What encrypts staged files in a directory, with the master key of this process; None for a plain queue."""
    with closing(open_history(directory)) as history:
        view = history.look().queues.get(queue)
        if view is None or not view.options.encryption:
            return None
        wrapper = wrapper_of()
        if wrapper is None:
            raise is_encrypted()
        seals = Seals(KeyRing(ReadOnlyDisk(directory), wrapper, SystemClock()), history.shard_id)
    return partial(seals.stream, view.incarnation)


def _is_encrypted(session: Any, queue: str) -> bool:
    """Whether the broker must write the staged files itself; so too when this client may not ask."""
    try:
        options: QueueOptions = session.execute(ops.GetOptions(queue))
    except QueueNotFound:
        return False
    except PenstockError:
        return True
    return options.encryption


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
        is_own = read_identity(disk) == info.identity and os.stat(disk.root).st_uid == os.geteuid()
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
        hint = "if that is a broker, use its url (penstock://host:port) instead of the directory"
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
