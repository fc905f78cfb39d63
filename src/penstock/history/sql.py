"""SQL over the history, by DuckDB, in this process: an answer takes well under a second.

Each view is an Arrow dataset that is read while the query runs: only the columns that it needs, only the slices that
may hold its rows. The database is empty and in memory. It can open no file and no address and load no extension, and a
statement cannot change that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from penstock.errors import BadQuery, InvalidField
from penstock.extras import extra
from penstock.history.change_rows import EVENTS_SCHEMA
from penstock.history.history import History
from penstock.history.moment import Moment
from penstock.history.slices import Limits, OffsetRange
from penstock.model import to_micros
from penstock.refusals import suggestion
from penstock.storage.schema import EVENTS, MESSAGES, SCHEMAS, TASKS

if TYPE_CHECKING:
    import duckdb

LATEST: Final = "latest"
TABLES: Final = (MESSAGES, EVENTS, TASKS, LATEST)
_LATEST_VIEW: Final = """create temp view latest as select * from messages where key is not null
    qualify row_number() over (partition by queue, "partition", key order by "offset" desc) = 1
    and content_type <> 'application/vnd.penstock.tombstone+json'"""
HIDDEN: Final = ("incarnation", "partition_id", "number")  # stored, and not shown
_NOT_IN_WORDS: Final = re.compile(r"\W", re.ASCII)
_WORDS: Final = re.compile(r"\w+", re.ASCII)
_LISTING: Final = re.compile(r"\s*show\b", re.IGNORECASE)
_READS: Final = ("select", "with", "from", "values", "table", "show", "describe", "explain")
# What Spark understands and DuckDB does not: names in backticks, and a column called offset, which is a keyword there
# unless a number follows. Strings, quoted names and comments are passed over.
_SPELLINGS: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|`(?P<name>[^`]*)`|\b(?P<offset>offset)\b(?!\s+\d)""",
    re.DOTALL | re.IGNORECASE,
)
_MEMORY_MB: Final = 512
# Names of Spark's functions that documented queries use; most others have the same name in both.
_MACROS: Final = (
    "get_json_object(document, path) as json_extract_string(document, path)",
    "decode(bytes) as system.main.decode(bytes), (bytes, encoding) as system.main.decode(bytes)",
)
Allows = Callable[[str], bool]  # whether the caller may read a queue


MESSAGE_COLUMNS: Final = (
    "queue", "partition", "offset", "key", "payload", "headers", "priority", "pushed_at", "available_at", "expires_at",
    "dedup_key", "trace_id", "producer", "content_type", "max_attempts",
)  # fmt: skip


def _shown(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in HIDDEN])


SHOWN: Final = {
    MESSAGES: pa.schema([SCHEMAS[MESSAGES].field(name) for name in MESSAGE_COLUMNS]),
    EVENTS: _shown(EVENTS_SCHEMA),
    TASKS: _shown(SCHEMAS[TASKS]),
}


def meant(text: str, queues: Sequence[str]) -> dict[str, str | None]:
    """The views that a statement may mean, by name, each with its queue; None is all queues.

    There may be very many queues, so none is made that the statement cannot mean. `show views` means all of them.
    """
    words = {word.lower() for word in _WORDS.findall(text)}
    is_listing = _LISTING.match(text) is not None
    alike = Counter(queue.lower() for queue in queues)
    named = [queue for queue in queues if alike[queue.lower()] == 1]
    plain = {_NOT_IN_WORDS.sub("_", queue): queue for queue in named}
    views: dict[str, str | None] = {name: queue for name, queue in plain.items() if name.lower() in words}
    # All words of a name that is quoted are in the text.
    views |= {name: name for name in named if is_listing or words.issuperset(_WORDS.findall(name.lower()))}
    if LATEST in words:
        words.add(MESSAGES)  # the last messages are found among all of them
    return views | {name: None for name in TABLES if is_listing or name in words}


class _Scan:
    """What `Dataset.scanner` returns, without Arrow's own threads: they would go on reading when the query is over."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches, self.projected_schema = batches, schema

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)


class _View(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A table of the history as a dataset: DuckDB calls `scanner` with the columns and the filter of its plan."""

    def __init__(self, history: History, moment: Moment, table: str, queues: Sequence[str], limits: Limits) -> None:
        self._history, self._moment, self._table = history, moment, table
        self._queues, self._limits = queues, limits

    @property
    def schema(self) -> pa.Schema:
        return SHOWN[self._table]

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> _Scan:
        """The rows, read while they are taken."""
        wanted = list(columns) if columns is not None else self.schema.names
        # A filter does not list its columns. Its text has their names; one too many is only read in vain.
        words = set(_WORDS.findall(str(filter))) if filter is not None else set()
        names = [name for name in self.schema.names if name in wanted or name in words] or self.schema.names[:1]
        return _Scan(self._batches(names, wanted, filter), pa.schema([self.schema.field(name) for name in wanted]))

    def _batches(self, names: list[str], wanted: list[str], filter: Any) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([self.schema.field(name) for name in names])
        for batch in self._history.read(self._slices(), names):
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            yield (batch if filter is None else batch.filter(filter)).select(wanted)

    def _slices(self) -> Any:
        if self._table != MESSAGES:
            return self._history.plan_changes(self._moment, self._table, self._queues, self._limits)
        ranges = [
            OffsetRange(name, partition.name, partition.start, partition.end)
            for name in self._queues
            for partition in self._moment.queues[name].partitions.values()
            if partition.start < partition.end
        ]
        return self._history.plan(self._moment, ranges, self._limits)


class SqlEngine:
    """Answers statements over one history. For one thread at a time."""

    def __init__(self, history: History, *, allows: Allows = lambda queue: True) -> None:
        with extra("sql", "penstock sql"):
            import duckdb
        self._history, self._allows = history, allows
        self._duckdb = duckdb

    def query(
        self, text: str, *, since: datetime | None = None, until: datetime | None = None, rows_max: int | None = None
    ) -> pa.Table:
        """The result of one statement, at most `rows_max` rows of it. `BadQuery` when it cannot be run."""
        text = _SPELLINGS.sub(_quoted, text)
        moment = self._history.look()
        queues = sorted(filter(self._allows, moment.queues))
        limits = Limits(since=_micros("since", since), until=_micros("until", until))
        with self._database() as database:
            self._check(database, text)
            for name, queue in meant(text, queues).items():
                if name == LATEST:
                    database.execute(_LATEST_VIEW)
                    continue
                table = name if queue is None else MESSAGES
                view = _View(self._history, moment, table, queues if queue is None else [queue], limits)
                database.register(name, view)
            try:
                return _first(database.sql(text).to_arrow_reader(10_000), rows_max)
            except self._duckdb.Error as error:
                raise self._explained(error, queues) from None

    def _database(self) -> duckdb.DuckDBPyConnection:
        settings: dict[str, Any] = {
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "threads": "1",  # the history is read by one thread at a time
            "memory_limit": f"{_MEMORY_MB}MB",
            "python_enable_replacements": "false",  # a name in a query is never a variable of this program
        }
        database = self._duckdb.connect(":memory:", config=settings)
        for macro in _MACROS:
            database.execute(f"create macro {macro}")
        database.execute("set TimeZone = 'UTC'")
        database.execute("set lock_configuration = true")
        return database

    def _check(self, database: duckdb.DuckDBPyConnection, text: str) -> None:
        """One statement that only reads."""
        try:
            statements = database.extract_statements(text)
        except self._duckdb.Error as error:
            first = next(iter(_WORDS.findall(text)), "").lower()
            hint = None if first in _READS else suggestion(first, _READS)
            raise BadQuery(_first_line(error), hint=hint) from None
        kinds = self._duckdb.StatementType
        if len(statements) != 1:
            raise BadQuery("query: it must be one statement", hint="run several one after the other")
        if statements[0].type not in (kinds.SELECT, kinds.EXPLAIN, kinds.RELATION):
            raise InvalidField(
                f"{statements[0].type.name.lower()}: this query interface is read-only", hint="start with select"
            )

    def _explained(self, error: Exception, queues: Sequence[str]) -> BadQuery:
        missing = re.search(r"Table with name (\S+) does not exist", str(error))
        if missing:
            hint = suggestion(missing[1], (*TABLES, *queues))
            return BadQuery(f"there is no view or queue {missing[1]!r}", hint=hint)
        return BadQuery(_first_line(error))


def _first(reader: pa.RecordBatchReader, rows_max: int | None) -> pa.Table:
    if rows_max is None:
        return _plain(reader.read_all())
    batches, count = [], 0
    for batch in reader:
        batches.append(batch.slice(0, rows_max - count))
        count += batches[-1].num_rows
        if count >= rows_max:
            break
    return _plain(pa.Table.from_batches(batches, schema=reader.schema))


def _plain(found: pa.Table) -> pa.Table:
    """Sums of integers come as decimals of 38 digits: those that fit become integers again."""
    for index, field in enumerate(found.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            with suppress(pa.ArrowInvalid):
                found = found.set_column(index, field.name, found.column(index).cast(pa.int64()))
    return found


def _quoted(part: re.Match[str]) -> str:
    name = part["name"] if part["name"] is not None else part["offset"]
    return part[0] if name is None else '"' + name.replace('"', '""') + '"'


def _micros(name: str, at: datetime | None) -> int | None:
    return None if at is None else to_micros(at, name)


def _first_line(error: Exception) -> str:
    """DuckDB's message without its drawing of the statement."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].partition("Error: ")[2] or lines[0]
