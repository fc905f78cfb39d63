"""When messages were pushed, by offset: from the manifest where one instant fits all, from the segments otherwise."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import limits
from penstock.history.moments import Moment
from penstock.history.tail import PUSH_COLUMNS, Rows
from penstock.storage.cache import ByteCache
from penstock.storage.extents import Extent
from penstock.storage.parquet import read_column

if TYPE_CHECKING:
    from penstock.history.history import History

Int64s = NDArray[np.int64]
_PUSH: Final = {name: index for index, name in enumerate(PUSH_COLUMNS)}


class PushTimes:
    """The push times of one moment."""

    def __init__(self, history: History, moment: Moment) -> None:
        self._history = history
        self.moment = moment
        self._ids = {view.incarnation: view.partitions for view in moment.queues.values()}
        self._columns: ByteCache[tuple[str, int], Int64s] = ByteCache(limits.segment_cache_bytes)
        chunks = [chunk for view in moment.tail for chunk in view.pushes]
        self._tail = np.concatenate(chunks) if chunks else np.empty((0, len(PUSH_COLUMNS)), np.int64)

    @classmethod
    def of_moment(cls, history: History) -> PushTimes:
        """Those of the last look."""
        moment = history.recent()
        if history.push_times is None or history.push_times.moment is not moment:
            history.push_times = cls(history, moment)
        return history.push_times

    def of_table(self, table: pa.Table) -> pa.Array:
        """For each row of events the µs at which the message at `first_offset` was pushed; null when it is gone."""
        times = np.zeros(len(table), np.int64)
        queues = table["incarnation"].to_numpy()
        partitions = table["partition"].combine_chunks().dictionary_encode()
        codes, names = partitions.indices.to_numpy(), partitions.dictionary.to_pylist()
        offsets = table["first_offset"].to_numpy()
        places = queues.astype(np.int64) * (len(names) + 1) + codes
        order = np.argsort(places, kind="stable")
        cuts = np.flatnonzero(np.diff(places[order])) + 1
        for rows in np.split(order, cuts) if len(order) else ():
            view = self._ids.get(int(queues[rows[0]]), {}).get(names[codes[rows[0]]])
            if view is not None:
                times[rows] = self._of(int(queues[rows[0]]), view.id, offsets[rows])
        return pa.array(times, mask=times == 0)

    def _of(self, queue: int, partition: int, offsets: Int64s) -> Int64s:
        times = np.zeros(len(offsets), np.int64)
        self._fill_sealed(self._extents(queue, partition), offsets, times)
        if (times == 0).any():
            self._fill_tail(queue, partition, offsets, times)
        return times

    def _extents(self, queue: int, partition: int) -> list[Extent]:
        extents = self.moment.manifest.extents
        first = bisect_left(extents, (queue, partition), key=lambda extent: (extent.queue, extent.partition))
        end = bisect_left(extents, (queue, partition + 1), key=lambda extent: (extent.queue, extent.partition))
        return extents[first:end]

    def _fill_sealed(self, extents: list[Extent], offsets: Int64s, times: Int64s) -> None:
        if not extents:
            return
        firsts = np.array([extent.first_offset for extent in extents], np.int64)
        where = np.searchsorted(firsts, offsets, "right") - 1
        for index in np.unique(where[where >= 0]).tolist():
            extent = extents[index]
            rows = np.flatnonzero((where == index) & (offsets < extent.end_offset))
            if extent.pushed_first_at == extent.pushed_last_at:
                times[rows] = extent.pushed_first_at
            elif len(rows):
                times[rows] = self._column(extent)[extent.row + offsets[rows] - extent.first_offset]

    def _column(self, extent: Extent) -> Int64s:
        def load() -> tuple[Any, int]:
            file = self._history.segment_file(extent.file)
            column = read_column(self._history.segments, file, extent.row_group, "pushed_at")
            return column, column.nbytes

        return self._columns.get((extent.file, extent.row_group), load)

    def _fill_tail(self, queue: int, partition: int, offsets: Int64s, times: Int64s) -> None:
        rows: Rows = self._tail
        rows = rows[(rows[:, _PUSH["queue"]] == queue) & (rows[:, _PUSH["partition"]] == partition)]
        if not len(rows):
            return
        firsts = rows[:, _PUSH["first"]]
        where = np.searchsorted(firsts, offsets, "right") - 1
        found = (where >= 0) & (times == 0)
        found &= offsets < firsts[where] + rows[where, _PUSH["count"]]
        times[found] = rows[where[found], _PUSH["pushed_at"]]
