"""Planning: which slices of which files hold what is wanted. No file is read for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock import limits as bounds
from penstock.batch import layout
from penstock.history.catalogue import QueueView
from penstock.history.moments import Moment, TailView
from penstock.history.slices import Limits, Run, Slice, Wanted
from penstock.history.tail import PUSH_COLUMNS, SETTLE_COLUMNS, Rows
from penstock.storage.extents import Extent
from penstock.storage.manifest import SegmentFile
from penstock.storage.schema import EVENTS, MESSAGES

SLICE_BYTES: Final = 16 * bounds.MIB  # of segments
STRETCH_BYTES: Final = 4 * bounds.MIB  # of the journal: one file of it is work for several tasks, in equal shares
ROW_BYTES: Final = 48  # what a message takes beside its payload, about
EVENT_BYTES: Final = 120

Mask = NDArray[np.bool_]
Ranges = Mapping[int, tuple[int, int]]  # partition id → offsets [first, end)
_PUSH: Final = {name: index for index, name in enumerate(PUSH_COLUMNS)}
_SETTLE: Final = {name: index for index, name in enumerate(SETTLE_COLUMNS)}


def lost(moment: Moment, wanted: Sequence[Wanted]) -> list[Wanted]:
    """What of it retention has removed already."""
    gone = []
    for each in wanted:
        partition = moment.queue(each.queue).partitions.get(each.partition)
        start = partition.start if partition is not None else each.end
        if each.first < min(start, each.end):
            gone.append(Wanted(each.queue, each.partition, each.first, min(start, each.end)))
    return gone


def plan(moment: Moment, wanted: Sequence[Wanted], limits: Limits) -> list[Slice]:
    """Slices of segments in the order of the files, then of the journal. What is not kept is left out."""
    slices: list[Slice] = []
    for name, ranges in _layers(moment, wanted):
        queue = moment.queue(name)
        slices += _sealed(moment, queue, ranges, limits)
        for view in moment.tail:
            slices += _unsealed(moment, view, queue, ranges, limits)
    return slices


def _layers(moment: Moment, wanted: Sequence[Wanted]) -> Iterator[tuple[str, Ranges]]:
    """What is wanted and kept, as ranges of each queue, one range of a partition at a time."""
    by_place: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for each in sorted(wanted, key=lambda each: each.first):
        partition = moment.queue(each.queue).partitions.get(each.partition)
        if partition is None:
            continue
        first, end = max(each.first, partition.start), min(each.end, partition.end)
        found = by_place.setdefault((each.queue, partition.id), [])
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif first < end:
            found.append((first, end))
    for layer in range(max(map(len, by_place.values()), default=0)):
        by_queue: dict[str, dict[int, tuple[int, int]]] = {}
        for (queue, id), found in by_place.items():
            if layer < len(found):
                by_queue.setdefault(queue, {})[id] = found[layer]
        yield from by_queue.items()


def plan_events(moment: Moment, queues: Sequence[str], limits: Limits) -> list[Slice]:
    """Slices of the lifecycle: the files that may hold something of these queues."""
    meant = {moment.queue(name).incarnation: name for name in queues}
    slices = sealed_changes(moment, EVENTS, meant, limits)
    for view in moment.tail:
        slices += _unsealed_events(moment, view, meant, limits)
    return slices


def sealed_changes(moment: Moment, table: str, meant: dict[int, str], limits: Limits) -> list[Slice]:
    """The segments of a table of changes that may hold something of these queues."""
    slices = []
    for file in moment.manifest.files.values():
        rows = sum(
            each.rows
            for each in file.events
            if each.queue in meant and (limits.since is None or each.settled_last_at >= limits.since)
        )
        if file.table == table and rows:
            slices.append(_changes_slice(file, rows, meant, limits))
    return slices


def changes_again(moment: Moment, gone: Slice) -> list[Slice]:
    """Where the changes of a slice are now whose file is gone: in the segments of the same frames."""
    first, last = gone.sequences
    return [
        _changes_slice(file, gone.rows, gone.queues, gone.limits)
        for file in moment.manifest.files.values()
        if file.table == gone.table and file.first_sequence <= last and first < file.end_sequence
    ]


def _changes_slice(file: SegmentFile, rows: int, meant: dict[int, str], limits: Limits) -> Slice:
    return Slice(
        table=file.table,
        file=file.name,
        rows=rows,
        bytes=file.bytes * rows // max(1, file.rows),
        is_tail=False,
        limits=limits,
        queues=meant,
        sequences=(file.first_sequence, file.end_sequence - 1),
    )


def _sealed(moment: Moment, queue: QueueView, ranges: Ranges, limits: Limits) -> Iterator[Slice]:
    extents = moment.manifest.extents
    first = bisect_left(extents, queue.incarnation, key=lambda extent: extent.queue)
    end = bisect_left(extents, queue.incarnation + 1, key=lambda extent: extent.queue)
    by_file: dict[str, list[tuple[Run, int]]] = {}
    for extent in extents[first:end]:
        run = _run_in(extent, ranges, limits)
        if run is not None:
            size = extent.bytes * run.count // extent.count + ROW_BYTES * run.count
            by_file.setdefault(extent.file, []).append((run, size))
    names = {id: name for name, view in queue.partitions.items() if (id := view.id) in ranges}
    for file in sorted(by_file):
        rows = sorted(by_file[file], key=lambda row: (row[0].row_group, row[0].row))
        for runs, size in _portions(rows):
            yield _segment_slice(queue, file, runs, size, names, limits)


def _run_in(extent: Extent, ranges: Ranges, limits: Limits) -> Run | None:
    """The rows of an extent that are wanted."""
    first, end = ranges.get(extent.partition, (0, 0))
    first, end = max(first, extent.first_offset), min(end, extent.end_offset)
    if first >= end or not limits.meets(extent.pushed_first_at, extent.pushed_last_at):
        return None
    if not extent.flags & layout.PRIORITY and not limits.meets_priority(
        bounds.priority_default, bounds.priority_default
    ):
        return None
    return Run(extent.row_group, extent.row_of(first), extent.partition, first, end - first)


def _portions(rows: list[tuple[Run, int]]) -> Iterator[tuple[list[Run], int]]:
    """Runs in portions of about `SLICE_BYTES`; a row group is never divided."""
    runs: list[Run] = []
    filled = 0
    for run, size in rows:
        if runs and filled >= SLICE_BYTES and run.row_group != runs[-1].row_group:
            yield runs, filled
            runs, filled = [], 0
        runs.append(run)
        filled += size
    if runs:
        yield runs, filled


def _segment_slice(
    queue: QueueView, file: str, runs: list[Run], size: int, names: Mapping[int, str], limits: Limits
) -> Slice:
    partitions: dict[int, tuple[str, int, int]] = {}
    for run in runs:
        name, first, end = partitions.get(run.partition, (names[run.partition], run.first, run.first))
        partitions[run.partition] = (name, min(first, run.first), max(end, run.first + run.count))
    return Slice(
        table=MESSAGES,
        file=file,
        rows=sum(run.count for run in runs),
        bytes=size,
        is_tail=False,
        limits=limits,
        queues={queue.incarnation: queue.name},
        partitions=partitions,
        runs=tuple(runs),
    )


def _unsealed(moment: Moment, view: TailView, queue: QueueView, ranges: Ranges, limits: Limits) -> Iterator[Slice]:
    rows = _rows(view.pushes, moment.manifest.sealed_sequence, _PUSH["sequence"])
    rows = rows[rows[:, _PUSH["queue"]] == queue.incarnation]
    rows = rows[_overlapping(rows, ranges)]
    times = rows[:, _PUSH["pushed_at"]]
    rows = rows[_within(times, limits)]
    names = {view.id: name for name, view in queue.partitions.items()} if len(rows) else {}
    for part in _stretches(rows, _PUSH["position"], _PUSH["position"]):
        partitions = _partitions(part, ranges, names)
        yield Slice(
            table=MESSAGES,
            file=view.file,
            rows=sum(end - first for _, first, end in partitions.values()),
            bytes=_bytes(part, _PUSH["position"], _PUSH["end"]),
            is_tail=True,
            limits=limits,
            queues={queue.incarnation: queue.name},
            partitions=partitions,
            start=int(part[0, _PUSH["position"]]),
            end=int(part[-1, _PUSH["end"]]),
        )


def _unsealed_events(moment: Moment, view: TailView, meant: dict[int, str], limits: Limits) -> Iterator[Slice]:
    rows = _rows(view.settles, moment.manifest.sealed_sequence, _SETTLE["sequence"])
    rows = rows[np.isin(rows[:, _SETTLE["queue"]], np.array(list(meant), np.int64))]
    rows = rows[_within(rows[:, _SETTLE["at"]], limits)]
    for part in _stretches(rows, _SETTLE["position"], _SETTLE["at"]):
        times, sequences = part[:, _SETTLE["at"]], part[:, _SETTLE["sequence"]]
        yield Slice(
            table=EVENTS,
            file=view.file,
            rows=len(part),
            bytes=len(part) * EVENT_BYTES,
            is_tail=True,
            # Should it be sealed before it is read, the file will hold more than this: the times tell what is meant.
            limits=limits.narrowed(int(times.min()), int(times.max())),
            queues=meant,
            start=int(part[0, _SETTLE["position"]]),
            end=int(part[-1, _SETTLE["end"]]),
            sequences=(int(sequences.min()), int(sequences.max())),
        )


def _rows(chunks: list[Rows], sealed_sequence: int, column: int) -> Rows:
    """All rows of frames that no segment holds, in the order of the file."""
    if not chunks:
        return np.empty((0, max(len(_PUSH), len(_SETTLE))), np.int64)
    rows = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    return rows[rows[:, column] > sealed_sequence]


def _overlapping(rows: Rows, ranges: Ranges) -> Mask:
    """Which rows hold offsets that are wanted."""
    if not len(rows):
        return np.zeros(0, np.bool_)
    partitions = rows[:, _PUSH["partition"]]
    lows, highs = (np.zeros(int(partitions.max()) + 1, np.int64) for _ in range(2))
    for id, (first, end) in ranges.items():
        if id < len(lows):
            lows[id], highs[id] = first, end
    firsts = rows[:, _PUSH["first"]]
    mask: Mask = (firsts < highs[partitions]) & (firsts + rows[:, _PUSH["count"]] > lows[partitions])
    return mask


def _within(times: Rows, limits: Limits) -> Mask:
    mask = np.ones(len(times), np.bool_)
    if limits.since is not None:
        mask &= times >= limits.since
    if limits.until is not None:
        mask &= times < limits.until
    return mask


def _stretches(rows: Rows, position: int, whole: int) -> Iterator[Rows]:
    """Rows of frames that lie together, in portions of about `STRETCH_BYTES` of the file.

    Neighbours with the same value in the column `whole` stay together: the rows of one frame, or of one instant.
    """
    if not len(rows):
        return
    lot = (rows[:, position] - rows[0, position]) // STRETCH_BYTES
    cuts = np.flatnonzero((np.diff(lot) != 0) & (np.diff(rows[:, whole]) != 0)) + 1
    yield from np.split(rows, cuts)


def _bytes(rows: Rows, position: int, end: int) -> int:
    _, firsts = np.unique(rows[:, position], return_index=True)
    return int((rows[firsts, end] - rows[firsts, position]).sum())


def _partitions(rows: Rows, ranges: Ranges, names: Mapping[int, str]) -> dict[int, tuple[str, int, int]]:
    """The offsets of each partition that these frames hold: one range each, since offsets grow with the journal."""
    found = {}
    ids = rows[:, _PUSH["partition"]]
    firsts, ends = rows[:, _PUSH["first"]], rows[:, _PUSH["first"]] + rows[:, _PUSH["count"]]
    order = np.argsort(ids, kind="stable")
    bounds_of = np.flatnonzero(np.diff(ids[order], prepend=-1))
    for start, stop in zip(bounds_of.tolist(), [*bounds_of[1:].tolist(), len(order)], strict=True):
        group = order[start:stop]
        id = int(ids[group[0]])
        low, high = ranges[id]
        found[id] = (names[id], max(low, int(firsts[group].min())), min(high, int(ends[group].max())))
    return found
