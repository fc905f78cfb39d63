"""A table of one moment, planned so that Spark reads what it can by itself.

Sealed history is Parquet: Spark's own reader takes only the columns and row groups that a query needs, which no source
written in Python receives. So where the files are visible from here, Spark reads them, and the source adds what was not
sealed at that moment. Of messages it is asked for offsets, of events and tasks for frames of the journal: what is
sealed between now and the query is read from wherever it is by then. Nothing comes twice, nothing is missed, and
nothing newer than the moment is seen.

For a broker on another machine and on a cluster the source reads everything.

A DataFrame reads its files when its rows are first needed, which may be much later or never. So the files of a table
are pinned while the program runs, for some hours at most. One thread renews all pins; those of a program that died
expire after two minutes.
"""

from __future__ import annotations

import atexit
import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from penstock import limits
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidField
from penstock.history import History, Limits, Moment, QueueView, open_history
from penstock.history.change_rows import PushTimes
from penstock.history.files import LocalFiles
from penstock.history.sql import LATEST, TABLES, meant
from penstock.model import CONTENT_TYPE_NAMES, ContentType
from penstock.refusals import suggestion
from penstock.spark import functions as f
from penstock.spark import ranges
from penstock.spark.options import SourceOptions, source_options, spelt_slices
from penstock.spark.schema import COLUMNS
from penstock.spark.sessions import SOURCE, load_by_source, register
from penstock.storage.directory import MARKER
from penstock.storage.schema import EVENTS, MESSAGES, SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


PIN_SECONDS: Final = 8 * 3600.0  # a working day in a notebook
RENEW_SECONDS: Final = limits.segment_pin_seconds / 4


class Pin:
    """One pin. It begins with every file; `narrow` reduces it to some."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.root = root
        self._files = LocalFiles(root)
        self._clock = clock
        self._name = f"table-{secrets.token_hex(8)}"
        self.names: tuple[str, ...] | None = None
        self.ends_at = clock.monotonic() + round(PIN_SECONDS * 1_000_000)
        self.renew()

    def narrow(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.renew()

    def renew(self) -> None:
        self._files.pin(self._name, self._clock.now(), self.names)

    def release(self) -> None:
        self._files.unpin(self._name)


class PinKeeper:
    """Renews pins until their time is over."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._pins: list[Pin] = []
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def pin(self, root: Path) -> Pin:
        """Pin all files of a data directory, and renew the pin from now on."""
        pin = Pin(root, self._clock)
        with self._lock:
            self._pins.append(pin)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-pins", daemon=True)
                self._thread.start()
                atexit.register(self.release)
        return pin

    def narrow(self, pin: Pin, names: Sequence[str]) -> None:
        """Pin only these files. If another pin holds the same ones, that pin is prolonged and this one is released."""
        with self._lock:
            same = next((other for other in self._pins if other.root == pin.root and other.names == tuple(names)), None)
            if same is not None:
                same.ends_at = pin.ends_at
        if same is None and names:
            pin.narrow(names)
        else:
            self.unpin(pin)

    def unpin(self, pin: Pin) -> None:
        """Release a pin."""
        with self._lock:
            self._pins = [other for other in self._pins if other is not pin]
        pin.release()

    def tick(self) -> None:
        """Renew all pins; release those whose time is over."""
        now = self._clock.monotonic()
        with self._lock:
            over = [pin for pin in self._pins if pin.ends_at <= now]
            self._pins = [pin for pin in self._pins if pin.ends_at > now]
            renewed = list(self._pins)
        for pin in over:
            pin.release()
        for pin in renewed:
            pin.renew()

    def release(self) -> None:
        """Release everything, for good."""
        self._is_over.set()
        with self._lock:
            pins, self._pins = self._pins, []
        for pin in pins:
            pin.release()

    def _run(self) -> None:
        while not self._is_over.wait(RENEW_SECONDS):
            self.tick()


KEEPER: Final = PinKeeper()


def can_look_up() -> bool:
    """Whether Spark has functions of Arrow columns: since 4.1."""
    return hasattr(f, "arrow_udf")


def with_push_times(events: DataFrame, url: str) -> DataFrame:
    """Events with `pushed_at`, `wait_ms` and `processing_ms`.

    The events in a file lack them. They come from a function of Spark's, which a query without these columns never
    calls.
    """
    functions: Any = f  # its stubs know nothing of Arrow yet
    pushed = functions.arrow_udf(_lookup(url), "bigint")("incarnation", "partition", "first_offset")
    leased = f.unix_micros("leased_at")
    return events.withColumns(
        {
            "pushed_at": f.timestamp_micros(pushed),
            "wait_ms": (leased - pushed) / f.lit(1000.0),
            "processing_ms": (f.unix_micros("settled_at") - leased) / f.lit(1000.0),
        }
    )


def _lookup(url: str) -> Any:
    """A function of columns that Spark calls in its own processes, once for all batches of a task."""

    def look_up(batches: Iterator[tuple[pa.Array, pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        from penstock.spark.location import open_planned

        with closing(open_planned(url)) as history:
            history.look()
            for incarnation, partition, first_offset in batches:
                columns = {"incarnation": incarnation, "partition": partition, "first_offset": first_offset}
                yield PushTimes.of_moment(history).of_table(pa.table(columns))

    # Spark reads the types to see how it is to be called, and they are not written out here.
    look_up.__annotations__ = {
        "batches": Iterator[tuple[pa.Array, pa.Array, pa.Array]],
        "return": Iterator[pa.Array],
    }
    return look_up


_OFFSET_MAX: Final = 2**63 - 1
_PARTITION: Final = "incarnation * 4294967296 + partition_id"  # a partition, as one number

Offsets = dict[tuple[int, int], int]  # (queue id, partition id): an offset


TOMBSTONE: Final = CONTENT_TYPE_NAMES[ContentType.TOMBSTONE]


def table(
    spark: SparkSession,
    url: str | Path,
    queues: str | Iterable[str],
    table: str = "messages",
    since: datetime | None = None,
    until: datetime | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Return a DataFrame of the messages of queues (names or patterns) at this moment.

    With `table="events"` it has how messages were settled, with `table="tasks"` the state changes of tasks, with
    `table="latest"` the last message of each key. Filters: `since` ≤ `pushed_at` < `until`; for events `settled_at`,
    for tasks `at`. Raises `QueueNotFound` if no queue matches.
    """
    names = [queues] if isinstance(queues, str) else list(queues)
    if table == LATEST:
        return _latest(spark, url, names, since, until, columns)
    texts = {"url": str(url), "path": ",".join(names), "table": table}
    texts |= {name: _spelt(name, at) for name, at in (("startingTime", since), ("endingTime", until)) if at is not None}
    if columns is not None:
        texts["columns"] = msgspec.json.encode(list(columns)).decode()
    return frame(spark, texts)


def _latest(
    spark: SparkSession,
    url: str | Path,
    names: list[str],
    since: datetime | None,
    until: datetime | None,
    columns: Sequence[str] | None,
) -> DataFrame:
    """The last message of each key in each partition; keys whose last message is a tombstone are gone."""
    from pyspark.sql import Window

    messages = table(spark, url, names, since=since, until=until)
    by_key = Window.partitionBy("queue", "partition", "key").orderBy(f.col("offset").desc())
    kept = messages.where(f.col("key").isNotNull()).withColumn("penstock_place", f.row_number().over(by_key))
    last = kept.where((f.col("penstock_place") == 1) & (f.col("content_type") != TOMBSTONE)).drop("penstock_place")
    return last if columns is None else last.select(*(f"`{name}`" for name in _known(list(columns), "messages")))


def frame(spark: SparkSession, texts: Mapping[str, str]) -> DataFrame:
    """A read with these options of the source, of the moment of this call."""
    options = source_options(texts)
    columns = _known(options.columns, options.table)
    texts = {**texts, "url": options.url}  # a directory in full: Spark's processes may be in others
    register(spark)
    with closing(open_history(options.url)) as history:
        root = _root(spark, history) if options.table != EVENTS or can_look_up() else None
        if root is None or _is_encrypted(history, options):
            return _from_source(spark, texts | _ends(history, options), columns)
        pin = KEEPER.pin(root)  # before the look, so that no file it finds is removed
        try:
            sealed = _sealed(history, options)
        except BaseException:
            KEEPER.unpin(pin)
            raise
        paths = [history.segment_files.path(name) for name in sealed.files]
        if None in paths:  # in object storage, for which Spark's own reader needs connectors: the source reads it there
            KEEPER.unpin(pin)
            return _from_source(spark, texts | _ends(history, options), columns)
    KEEPER.narrow(pin, sealed.files)
    if not sealed.files:
        return _from_source(spark, texts | sealed.tail(), columns)
    parquet = sealed.read(spark, [str(path) for path in paths]).select(*(f"`{name}`" for name in columns))
    return parquet.unionByName(_from_source(spark, texts | sealed.tail(), columns)) if sealed.has_tail else parquet


# What of a moment is in Parquet files, and what the source must add: for messages, and for events and tasks.


class SealedMessages:
    """Messages: sealed up to an offset of each partition."""

    def __init__(self, moment: Moment, views: Sequence[QueueView], since: int | None, until: int | None) -> None:
        self.queues = {view.incarnation: view for view in views}
        self.since, self.until = since, until
        limits = Limits(since, until)
        extents = [extent for extent in moment.manifest.extents if extent.queue in self.queues]
        self._ends: Offsets = {}
        for extent in extents:
            key = (extent.queue, extent.partition)
            self._ends[key] = max(self._ends.get(key, 0), extent.end_offset)
        self.files = sorted(
            {extent.file for extent in extents if limits.meets(extent.pushed_first_at, extent.pushed_last_at)}
        )

    def tail(self) -> dict[str, str]:
        """Options of the source for what is not sealed."""
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for view in self.queues.values():
            parts = {partition.name: partition for partition in view.partitions.values()}
            sealed = {name: self._ends.get((view.incarnation, partition.id), 0) for name, partition in parts.items()}
            starts[view.name] = {name: max(partition.start, sealed[name]) for name, partition in parts.items()}
            ends[view.name] = {name: partition.end for name, partition in parts.items()}
        return {"startingOffsets": _json(starts), "endingOffsets": _json(ends)}

    @property
    def has_tail(self) -> bool:
        return any(
            part.end > max(part.start, self._ends.get((view.incarnation, part.id), 0))
            for view in self.queues.values()
            for part in view.partitions.values()
        )

    def outside(self) -> tuple[Offsets, Offsets]:
        """Where files have more than is kept: the first offset of those partitions; and where more than the moment
        has, since the manifest may be a little newer: the end of those.
        """
        parts = {
            (view.incarnation, part.id): part for view in self.queues.values() for part in view.partitions.values()
        }
        starts = {key: part.start for key, part in parts.items() if part.start}
        ends = {key: part.end for key, part in parts.items() if self._ends.get(key, 0) > part.end}
        return starts, ends

    def read(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        types = {**COLUMNS["messages"], "incarnation": "bigint", "partition_id": "int"}
        rows = _parquet(spark, paths, types, self.queues)
        for is_kept in _kept(*self.outside()):
            rows = rows.where(is_kept)
        return _timed(rows, "pushed_at", self.since, self.until)


class SealedChanges:
    """Events, or tasks: sealed up to a frame of the journal. The slices after it are named to the source."""

    def __init__(self, history: History, moment: Moment, views: Sequence[QueueView], options: SourceOptions) -> None:
        names, limits = [view.name for view in views], Limits(options.since, options.until)
        slices = history.plan_changes(moment, options.table, names, limits)
        self._options = options
        self._queues = {view.incarnation: view for view in views}
        self._tail = [part for part in slices if part.is_tail]
        self.files = sorted({part.file for part in slices if not part.is_tail})

    @property
    def has_tail(self) -> bool:
        return bool(self._tail)

    def tail(self) -> dict[str, str]:
        return {"slices": spelt_slices(self._tail)}

    def read(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        options = self._options
        stored = {name: kind for name, kind in COLUMNS[options.table].items() if name in SCHEMAS[options.table].names}
        rows = _parquet(spark, paths, {**stored, "incarnation": "bigint"}, self._queues)
        rows = _timed(rows, "settled_at" if options.table == EVENTS else "at", options.since, options.until)
        return with_push_times(rows, options.url) if options.table == EVENTS else rows


def _sealed(history: History, options: SourceOptions) -> SealedMessages | SealedChanges:
    moment = history.look()
    views = ranges.chosen(moment, options.queues)
    if options.table == MESSAGES:
        return SealedMessages(moment, views, options.since, options.until)
    return SealedChanges(history, moment, views, options)


def _is_encrypted(history: History, options: SourceOptions) -> bool:
    """Whether a chosen queue is encrypted: Spark's own reader would show ciphertext."""
    return any(view.options.encryption for view in ranges.chosen(history.look(), options.queues))


def _ends(history: History, options: SourceOptions) -> dict[str, str]:
    """Where a read by the source alone ends, for it to be of this moment too; other tables grow until they are read."""
    if options.table != MESSAGES:
        return {}
    moment = history.look()
    ends = SealedMessages(moment, ranges.chosen(moment, options.queues), None, None).tail()["endingOffsets"]
    return {"endingOffsets": ends}


def _root(spark: SparkSession, history: History) -> Path | None:
    """The data directory, if Spark's own tasks can read it: they run on this machine, and it is here."""
    try:
        is_local = str(spark.sparkContext.master).startswith("local")
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and says so in its own way
        is_local = False
    root = Path(history.files.root)
    return root if is_local and (root / MARKER).is_file() else None


def _from_source(spark: SparkSession, texts: Mapping[str, str], columns: Sequence[str]) -> DataFrame:
    texts = {**texts, "columns": msgspec.json.encode(list(columns)).decode()}
    return load_by_source(spark.read.format(SOURCE).options(**texts))


def _parquet(spark: SparkSession, paths: Sequence[str], types: Mapping[str, str], queues: Iterable[int]) -> DataFrame:
    schema = ", ".join(f"`{name}` {kind}" for name, kind in types.items())
    rows = spark.read.schema(schema).parquet(*paths)
    return rows.where(f.col("incarnation").isin(list(queues)))


def _timed(rows: DataFrame, column: str, since: int | None, until: int | None) -> DataFrame:
    if since is not None:
        rows = rows.where(f.col(column) >= f.timestamp_micros(f.lit(since)))
    if until is not None:
        rows = rows.where(f.col(column) < f.timestamp_micros(f.lit(until)))
    return rows


def _kept(starts: Offsets, ends: Offsets) -> Iterable[Column]:
    if starts:
        yield f.col("offset") >= f.coalesce(_looked_up(starts), f.lit(0))
    if ends:
        yield f.col("offset") < f.coalesce(_looked_up(ends), f.lit(_OFFSET_MAX))


def _looked_up(offsets: Offsets) -> Column:
    """The offset of a row's partition; null for a partition that is not among these."""
    pairs: list[Any] = []
    for (queue, partition), offset in offsets.items():
        pairs += [f.lit(queue * 2**32 + partition), f.lit(offset)]
    return f.try_element_at(f.create_map(*pairs), f.expr(_PARTITION))


def _known(columns: Sequence[str] | None, table: str) -> Sequence[str]:
    known = tuple(COLUMNS[table])
    for name in columns or ():
        if name not in known:
            raise InvalidField(f"columns: the table {table} has no column {name!r}", hint=suggestion(name, known))
    return known if columns is None else list(dict.fromkeys(columns))


def _spelt(name: str, at: datetime) -> str:
    if at.tzinfo is None:
        raise InvalidField(f"{name}: {at.isoformat()} has no time zone", hint="datetime.now(UTC) has one")
    return at.astimezone(UTC).isoformat()


def _json(offsets: Mapping[str, Mapping[str, int]]) -> str:
    return msgspec.json.encode(offsets).decode()


ALL: Final = "*"
_WORDS: Final = re.compile(r"\w+", re.ASCII)
# What no word of a statement is in: strings, quoted names, comments.
_QUOTED: Final = re.compile(
    r"""\br(?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/""",
    re.IGNORECASE | re.DOTALL,
)
_READS: Final = ("select", "with", "from", "values", "table", "show", "desc", "describe", "explain", "set")
_TEMPORARY: Final = re.compile(r"create\s+(or\s+replace\s+)?temp(orary)?\s+view\b", re.IGNORECASE)
_INSERT: Final = re.compile(r"\binsert\b", re.IGNORECASE)
# A program that rows are sent through, and functions that call any method of Java.
_PROGRAM: Final = re.compile(r"\busing\s*''", re.IGNORECASE)
_JAVA: Final = re.compile(r"\b(?:java_method|(?:try_)?reflect)`?\s*\(", re.IGNORECASE)


def query(
    spark: SparkSession, url: str, text: str, *, since: datetime | None = None, until: datetime | None = None
) -> DataFrame:
    """The result of a statement over the views of a directory or a broker.

    Messages are those with `since` ≤ `pushed_at` < `until`; for events it is `settled_at`.
    """
    check_reading(text)
    from pyspark.errors import AnalysisException

    from penstock.spark.tables import table

    queues = queue_names(url)
    for name, queue in meant(text, queues).items():
        kind = name if queue is None else "messages"
        table(spark, url, queue or ALL, kind, since, until).createOrReplaceTempView(f"`{name}`")
    try:
        return spark.sql(text.strip().rstrip(";"))
    except AnalysisException as error:
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
            raise
        missing = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
        hint = suggestion(missing, (*TABLES, *queues))
        raise InvalidField(f"there is no view or queue {missing!r}", hint=hint) from None


def check_reading(text: str) -> None:
    """Refuse a statement that does anything but read: an insert may stand after a WITH or a FROM too."""
    plain = _QUOTED.sub(_without_words, text).lstrip(" \t\r\n(;")
    first = next(iter(_WORDS.findall(plain)), "").lower()
    is_reading = first in ("", *_READS) or _TEMPORARY.match(plain)
    if not is_reading or _INSERT.search(plain):
        hint = suggestion(first, _READS) if not is_reading else ""
        hint = hint or "docs/spark-sink.md shows how to write rows to a queue; 'penstock push' needs no Spark"
        raise InvalidField(f"{first if not is_reading else 'insert'}: queues are read-only here", hint=hint)
    if _PROGRAM.search(plain) or _JAVA.search(_QUOTED.sub(_without_texts, text)):
        hint = "read the rows with penstock.spark.table in your own program"
        raise InvalidField("a query runs no other program: queues are read-only here", hint=hint)


def _without_words(quoted: re.Match[str]) -> str:
    """The replacement of a quoted part of a statement: blank, or for a string an empty string."""
    return " " if quoted[0][0] in "`-/" else "''"


def _without_texts(quoted: re.Match[str]) -> str:
    """As `_without_words`, but quoted names stay: those of functions may be quoted."""
    return quoted[0] if quoted[0][0] == "`" else _without_words(quoted)


def queue_names(url: str) -> list[str]:
    """The queues that are there, in the order of their names."""
    with closing(open_history(url)) as history:
        return sorted(history.look().queues)
