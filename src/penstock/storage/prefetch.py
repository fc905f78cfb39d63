"""Reading ahead: while a consumer works through one row group, the next is loaded by a thread of its own.

One row group ahead per partition; what is loaded lands in the store's cache, whose byte budget bounds it.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress

from penstock.storage.extent import Extent
from penstock.storage.segments import SegmentStore

_STOP = None


class Prefetcher:
    """Loads the row group after a given extent. The thread starts with the first request."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._wanted: queue.SimpleQueue[Extent | None] = queue.SimpleQueue()
        self._asked: dict[tuple[int, int], tuple[str, int]] = {}  # the last row group seen, by queue and partition
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def after(self, extent: Extent) -> None:
        """A consumer has come to this extent: have the next one ready."""
        place = extent.file, extent.row_group
        if self._asked.get((extent.queue, extent.partition)) == place:
            return
        self._asked[extent.queue, extent.partition] = place
        with self._lock:
            if self._is_closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-prefetch", daemon=True)
                self._thread.start()
        self._wanted.put(extent)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        if self._thread is not None:
            self._wanted.put(_STOP)
            self._thread.join()

    def _run(self) -> None:
        while (extent := self._wanted.get()) is not _STOP:
            # Whoever needs it will meet the same error, and be told.
            with suppress(Exception):
                following = self._store.find(extent.queue, extent.partition, extent.end_offset)
                if following is not None:
                    self._store.load(following)
