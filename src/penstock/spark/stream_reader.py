"""Reading queues as a stream: what both modes share. `observe.py` reads the log, `consume.py` takes messages from it.

Spark keeps one process per query that plans (`initialOffset`, `latestOffset`, `partitions`, `commit`) and hands the
result of `partitions` to tasks (`read`), pickled along with the reader: so a reader is pickled as its options, and
opens what it needs where it runs.

Spark asks for the next offset only when everything up to `start` is done. So `start` counts as processed, and with it
the last batch before a pause, for which Spark makes no `commit`.
"""

from __future__ import annotations

import secrets
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.errors import InvalidField
from penstock.history import History, Moment, QueueView, Slice, open_history
from penstock.spark import failures
from penstock.spark.batch_reader import Lot, Shaper, read_planned
from penstock.spark.options import SourceOptions, source_options
from penstock.spark.schema import layout

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # Spark before 4.2: no limits, and availableNow is one batch

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nobody asks."""

    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment,misc]

PAUSE_SECONDS: Final = 0.05  # before looking a second time, when there is nothing new: Spark asks again at once
TASK_CONNECT_SECONDS: Final = 60.0
PATTERN: Final = frozenset("*?[")  # what makes a name a pattern

_never = threading.Event()


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader for a mode."""
    parsed = source_options(options)
    _check(parsed)
    if parsed.mode == "consume":
        from penstock.spark.consume import ConsumingReader

        return ConsumingReader(parsed, schema)
    from penstock.spark.observe import ObservingReader

    return ObservingReader(parsed, schema)


def _check(options: SourceOptions) -> None:
    """Refuse options that do not fit a stream."""
    if options.table != "messages":
        raise InvalidField("table: only messages can be read as a stream", hint="read events and tasks with spark.read")
    if options.ending_offsets != "latest" or options.until is not None:
        name = "endingTime" if options.until is not None else "endingOffsets"
        raise InvalidField(f"{name}: a stream has no end", hint="read up to there with spark.read")
    if options.part != "all":
        raise InvalidField("part: a stream reads everything", hint="read one part with spark.read")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What both modes share: the history, the queues of the query, pinned files, and reading in tasks."""

    count_default: int | None = None  # messages of a batch when nothing is said

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.shape = layout(options, schema)
        self._history: History | None = None
        self._pin_name = f"spark-{secrets.token_hex(8)}"
        self._is_holding = False
        self._planned_shard = ""  # in a task: whose history its work was planned on

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options, self.schema)

    @property
    def history(self) -> History:
        """Opened when it is first needed, in the process that plans."""
        if self._history is None:
            self._history = open_history(self.options.url, local=self.options.is_local)
        return self._history

    @property
    def shard(self) -> str:
        return self.history.shard_id.hex()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        count_max = self.options.messages_per_trigger_max or self.count_default
        return ReadAllAvailable() if count_max is None else ReadMaxRows(count_max)

    def stop(self) -> None:
        self.release()
        if self._history is not None:
            self._history.close()
            self._history = None

    # for the modes

    def is_meant(self, queue: str) -> bool:
        """Whether the query reads a queue of this name."""
        return any(fnmatchcase(queue, name) for name in self.options.queues)

    def queues(self, moment: Moment) -> dict[str, QueueView]:
        """The queues of the query that there are."""
        return {name: view for name, view in moment.queues.items() if self.is_meant(name)}

    def hold(self, slices: Sequence[Slice]) -> None:
        """Pin the files of a batch until the tasks pin them themselves; those of the batch before are released."""
        files = sorted({part.file for part in slices if not part.is_tail})
        if files:
            self.history.files.pin(self._pin_name, self.history.clock.now(), files)
            self._is_holding = True

    def release(self) -> None:
        """Unpin the files of a batch that is done."""
        if self._is_holding and self._history is not None:
            self._history.files.unpin(self._pin_name)
        self._is_holding = False

    def rows(self, slices: Sequence[Slice], extra: Sequence[str] = ()) -> Iterator[tuple[pa.RecordBatch, Shaper]]:
        """In a task: batches with the needed columns and `extra` ones, and the shaper that fits them to the schema."""
        shaper = Shaper(self.shape, self.schema)
        columns = list(dict.fromkeys((*shaper.needed, *extra)))
        # The query has found its broker already: one that is being restarted is worth waiting for.
        batches = read_planned(self.options, self._planned_shard, slices, columns, TASK_CONNECT_SECONDS)
        return ((batch, shaper) for batch in batches)

    @failures.shown_plainly
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the rows of one lot, as batches of exactly the schema."""
        if partition.value is None:
            return iter(())
        self._planned_shard = partition.shard if isinstance(partition, Lot) else ""
        return failures.shown_rows(self.read_lot(partition.value))

    @abstractmethod
    def read_lot(self, lot: Any) -> Iterator[pa.RecordBatch]:
        """The rows that the mode has planned for one task."""


def count_max_of(limit: Any) -> int | None:
    """How many messages Spark allows; None for all."""
    count_max: int | None = getattr(limit, "max_rows", None)
    return count_max


def pause() -> None:
    """Let a moment pass."""
    _never.wait(PAUSE_SECONDS)
