"""Reading queues as a stream: what both modes share, and the mode `observe`; `consume.py` is the mode that settles.

Spark keeps one process per query that plans (`initialOffset`, `latestOffset`, `partitions`, `commit`) and hands the
result of `partitions` to tasks (`read`), pickled along with the reader: so a reader is pickled as its options, and
opens what it needs where it runs.

Spark asks for the next offset only when everything up to `start` is done. So `start` counts as processed, and with it
the last batch before a pause, for which Spark makes no `commit`.
"""

from __future__ import annotations

import logging
import secrets
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.errors import InvalidField
from penstock.history import History, Limits, Moment, QueueView, Slice, open_history
from penstock.model import DEFAULT_GROUP, check_name
from penstock.spark import failures, ranges, stream_offsets
from penstock.spark.batch_reader import Lot, Shaper, lots, read_planned
from penstock.spark.location import Location
from penstock.spark.options import SourceOptions, source_options
from penstock.spark.schema import layout
from penstock.spark.stream_offsets import Loss, QueueOffset, StreamOffset, offset_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
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
        return self.history.identity

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


GROUP_PREFIX: Final = "spark-"

logger: Final = logging.getLogger("penstock.spark")


class ObservingReader(StreamReader):
    """Reader of the mode `observe`: the log is read by offsets, and nothing in it is settled.

    The truth about progress is Spark's checkpoint. It is also committed as a consumer group, named by the option
    `group`, else `spark-` and the random name of the query: so its lag can be seen, and retention waits for it.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.group is not None and check_name(options.group, "group") == DEFAULT_GROUP:
            raise InvalidField(
                f"group: {DEFAULT_GROUP!r} is the group of ordinary consumers, whose messages this would settle",
                hint="use another group, or take messages from it with mode=consume",
            )
        self._location: Location | None = None
        self._targets: Mapping[tuple[str, str], int] | None = None  # of availableNow
        self._reached: StreamOffset | None = None  # for versions of Spark that do not say where to go on from
        self.lost_count = 0  # messages that were skipped, as far as is known

    @failures.shown_plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        moment = self.history.look()
        queues = {view.name: view for view in ranges.chosen(moment, self.options.queues)}
        positions = self._starting(moment, queues)
        self._reached = stream_offsets.begin(self.shard, secrets.token_hex(4), queues, positions)
        return self._reached.as_dict()

    @failures.shown_plainly
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        begun = self._begun(start)
        self.release()
        next_offset = self._next(
            begun, count_max_of(limit)
        )  # refuses an offset that is not ours, before it is committed
        self._commit_progress(begun)
        if next_offset is begun and self._targets is None:
            pause()
            next_offset = self._next(begun, count_max_of(limit))
        elif next_offset is begun:
            self.location.flush()  # the query ends here
        self._reached = next_offset
        return next_offset.as_dict() if next_offset is not begun or start is None else start

    @failures.shown_plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = offset_of(start), offset_of(end)
        self._reached = last
        moment = self.history.look()
        queues = self._checked(last, moment)
        offset_ranges = list(stream_offsets.requested(first, last, queues))
        self._report_loss(stream_offsets.missing(offset_ranges, last, queues))
        kept = [item for item in offset_ranges if _is_same(queues.get(item.queue), last.queues[item.queue])]
        slices = self.history.plan(moment, kept)
        self.hold(slices)
        return [Lot(tuple(lot), self.shard) for lot in lots(slices, self.options.partition_bytes_max)]

    def read_lot(self, lot: Any) -> Iterator[pa.RecordBatch]:
        for batch, shaper in self.rows(lot):
            yield shaper.shaped(batch)

    @failures.shown_plainly
    def commit(self, end: dict[str, Any]) -> None:
        self._commit_progress(offset_of(end))

    @failures.shown_plainly
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        queues = self.queues(self.history.recent())
        query = self._reached.query if self._reached is not None else ""
        return stream_offsets.begin(self.shard, query, queues, stream_offsets.ends(queues)).as_dict()

    @failures.shown_plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._targets = stream_offsets.ends(self.queues(self.history.look()))

    def stop(self) -> None:
        if self._location is not None:
            self._location.finish()
            self._location = None
        super().stop()

    # where to begin

    def _starting(self, moment: Moment, queues: Mapping[str, QueueView]) -> dict[tuple[str, str], int]:
        if self.options.since is not None:
            return self._since(moment, queues, self.options.since)
        ranges.requested(moment, self.options)  # refuses what does not exist, or was removed
        positions = {}
        for queue, view in queues.items():
            for name, partition in view.partitions.items():
                offset = ranges.offset_at(self.options.starting_offsets, view, partition, partition.start)
                if offset > partition.end:
                    raise InvalidField(f"startingOffsets: {queue}/{name} ends at {partition.end}, before {offset}")
                positions[queue, name] = max(offset, partition.start)
        return positions

    def _since(self, moment: Moment, queues: Mapping[str, QueueView], since: int) -> dict[tuple[str, str], int]:
        """The first message of each partition that was pushed at that time or later; its end when there is none."""
        positions = stream_offsets.ends(queues)
        offset_ranges = [item for name in queues for item in moment.everything(name)]
        missing = {(item.queue, item.partition) for item in offset_ranges}
        slices = self.history.plan(moment, offset_ranges, Limits(since=since))
        slices.sort(key=lambda part: min(first for _, first, _ in part.partitions.values()))
        for part in slices:
            (queue,) = part.queues.values()
            if not any((queue, name) in missing for name, _, _ in part.partitions.values()):
                continue
            for batch in self.history.read([part], ["partition", "offset"]):
                for name, offset in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                    if (queue, name) in missing:
                        missing.discard((queue, name))
                        positions[queue, name] = offset
        return positions

    # going on

    def _begun(self, start: dict[str, Any] | None) -> StreamOffset:
        if start is not None:
            return offset_of(start)
        return self._reached if self._reached is not None else offset_of(self.initialOffset())

    def _next(self, begun: StreamOffset, count_max: int | None) -> StreamOffset:
        queues = self._checked(begun, self.history.look())
        positions, lost = stream_offsets.losses(begun, queues)
        if self.options.fail_on_data_loss:
            stream_offsets.refuse(lost)
        seen = queues if self._targets is None else stream_offsets.capped(queues, self._targets)
        return stream_offsets.advance(begun, positions, seen, count_max)

    def _checked(self, offset: StreamOffset, moment: Moment) -> dict[str, QueueView]:
        """The queues of the query, which must be those of the offset."""
        stream_offsets.check(offset, self.shard, {queue: self.is_meant(queue) for queue in offset.queues})
        for name in self.options.queues:
            if name not in offset.queues and not PATTERN.intersection(name):
                moment.queue(name)  # raises: it does not exist, and never did
        return self.queues(moment)

    def _report_loss(self, lost: Sequence[Loss]) -> None:
        """Fail because of lost messages, or log them and go on."""
        if self.options.fail_on_data_loss:
            stream_offsets.refuse(lost)
        for loss in lost:
            self.lost_count += loss.count or 0
            logger.warning("%s; skipped, %s messages so far", loss.text, self.lost_count)

    # progress

    @property
    def location(self) -> Location:
        if self._location is None:
            self._location = Location(self.options.url)
        return self._location

    def _commit_progress(self, done: StreamOffset) -> None:
        group = self.options.group or GROUP_PREFIX + done.query
        known = self.history.recent().queues
        for queue, position in done.queues.items():
            if _is_same(known.get(queue), position):
                self.location.commit_progress(queue, group, position.next)


def _is_same(view: QueueView | None, known: QueueOffset) -> bool:
    """Whether a queue is the one that an offset speaks of, and not another one of its name."""
    return view is not None and view.incarnation == known.incarnation
