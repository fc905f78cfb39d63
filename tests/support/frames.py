"""Journal frames as a shard writes them, with an account of what they say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.batch import Batch
from penstock.delivery.entries import Entry, Push, Settled, Span, encode
from penstock.model import Message, Outcome
from penstock.storage.schema import Names
from penstock.storage.segments import SegmentStore

START = 1_750_000_000_000_000
SECOND = 1_000_000


class FrameMaker:
    """Counts offsets and remembers payloads; each push comes one second after the last."""

    def __init__(self) -> None:
        self.now = START
        self.frames: list[tuple[int, memoryview]] = []
        self.accepted: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)

    @property
    def end_sequence(self) -> int:
        return len(self.frames) + 1

    def add(self, *entries: Entry) -> None:
        self.frames.append((self.end_sequence, memoryview(encode(entries))))

    def push(
        self,
        queue: int,
        items: Any,
        *,
        partition: int = 0,
        rows: Sequence[int] | None = None,
        producer: int = 0,
        compress: bool = False,
    ) -> Batch:
        """Push to one partition, or spread by `rows`, where −1 refuses a row."""
        self.now += SECOND
        batch = Batch.build(items, compress=compress)
        payloads = batch.payloads()
        to = [partition] * batch.count if rows is None else list(rows)
        parts = []
        for part in sorted(set(to) - {-1}):
            first = len(self.accepted[queue, part])
            self.accepted[queue, part] += [data for data, row in zip(payloads, to, strict=True) if row == part]
            parts.append((part, len(self.accepted[queue, part]) - first, first))
        column = None if rows is None else np.array(rows, np.int32)
        self.add(Push(queue, self.now, parts, batch.data, column, (producer, 0, 0)))
        return batch

    def settle(
        self, queue: int, *spans: Span, outcome: Outcome = Outcome.ACKED, group: int = 1, error: str = ""
    ) -> None:
        self.now += SECOND
        self.add(Settled(queue, group, int(outcome), self.now, self.now - SECOND, "worker-1", error, list(spans)))

    def names(self) -> Names:
        """Queue 7 is called queue-7, its partition 3 is called 3, its group 1 default."""
        queues = sorted({queue for queue, _ in self.accepted})
        return Names({queue: (f"queue-{queue}", {}) for queue in queues}, {(queue, 1): "default" for queue in queues})

    def seal(self, store: SegmentStore, keep: int = 0) -> None:
        store.seal(self.frames, self.end_sequence, self.names(), lambda queue, partition: keep)


def sealed_payloads(store: SegmentStore) -> dict[tuple[int, int], dict[int, bytes]]:
    """Every sealed message, by partition and offset, read through the store."""
    found: defaultdict[tuple[int, int], dict[int, bytes]] = defaultdict(dict)
    for extent in store.extents:
        batch = store.load(extent)
        for offset in range(extent.first_offset, extent.end_offset):
            assert offset not in found[extent.queue, extent.partition], "an offset is sealed twice"
            found[extent.queue, extent.partition][offset] = batch.payload(extent.row_of(offset))
    return dict(found)


def expected_payloads(frames: FrameMaker, keep: int = 0) -> dict[tuple[int, int], dict[int, bytes]]:
    """What `sealed_payloads` should find."""
    kept = {
        place: {offset: data for offset, data in enumerate(payloads) if offset >= keep}
        for place, payloads in frames.accepted.items()
    }
    return {place: payloads for place, payloads in kept.items() if payloads}


def history() -> FrameMaker:
    """Two queues, two partitions, 12 pushes of 10, some settled."""
    frames = FrameMaker()
    for n in range(12):
        messages = [
            Message(
                payload=b"%d-%d" % (n, row), key=f"k{row}" if row % 2 else None, priority=row, headers={"n": str(n)}
            )
            for row in range(10)
        ]
        frames.push(1 + n % 2, messages, rows=[row % 2 for row in range(10)])
        frames.settle(1 + n % 2, Span(0, n, 2))
    return frames
