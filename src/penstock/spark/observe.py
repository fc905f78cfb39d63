"""The mode `observe`: the log is read by offsets, and nothing in it is settled.

The truth about progress is Spark's checkpoint. It is also committed as a consumer group, named by the option `group`,
else `spark-` and the random name of the query: so its lag can be seen, and retention waits for it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from penstock.errors import InvalidField
from penstock.history import Limits, Moment, QueueView
from penstock.model import DEFAULT_GROUP, check_name
from penstock.spark import failures, ranges, stream_offsets
from penstock.spark.batch_reader import Lot, lots
from penstock.spark.location import Location
from penstock.spark.options import SourceOptions
from penstock.spark.stream_offsets import Loss, QueueOffset, StreamOffset, offset_of
from penstock.spark.stream_reader import PATTERN, StreamReader, count_max_of, pause

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

GROUP_PREFIX: Final = "spark-"

_log = logging.getLogger(__name__)


class ObservingReader(StreamReader):
    """Reader of the mode `observe`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.group is not None and check_name(options.group, "group") == DEFAULT_GROUP:
            raise InvalidField(
                f"group: {DEFAULT_GROUP!r} is the group of ordinary consumers, whose messages this would settle",
                hint="name another one, or take messages from it with mode=consume",
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
            _log.warning("%s; skipped, %s messages so far", loss.text, self.lost_count)

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
