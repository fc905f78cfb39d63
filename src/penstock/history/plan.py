"""Which slices of which files hold the requested messages, events or tasks. Planning reads no file."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock import limits as bounds
from penstock.batch import layout
from penstock.history.moment import CHANGE, PUSH, Moment, QueueView, Rows, TailView
from penstock.history.slices import Limits, OffsetRange, Run, Slice
from penstock.storage.extents import Extent
from penstock.storage.manifest import SegmentFile
from penstock.storage.schema import MESSAGES, TASKS

SLICE_BYTES: Final = 16 * bounds.MIB  # of segments
STRETCH_BYTES: Final = 4 * bounds.MIB  # of the journal: one file of it is work for several tasks, in equal shares
ROW_BYTES: Final = 48  # what a message takes beside its payload, about
EVENT_BYTES: Final = 120

Mask = NDArray[np.bool_]
Ranges = Mapping[int, tuple[int, int]]  # partition id → offsets [first, end)
_PUSH_AS_CHANGE: Final = [PUSH[name] for name in ("queue", "position", "end", "pushed_at", "sequence")]


def lost(moment: Moment, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """The parts of some ranges that retention has removed."""
    removed = []
    for item in ranges:
        partition = moment.queue(item.queue).partitions.get(item.partition)
        start = min(partition.start if partition is not None else item.end, item.end)
        if item.first < start:
            removed.append(OffsetRange(item.queue, item.partition, item.first, start))
    return removed


def plan(moment: Moment, requested: Sequence[OffsetRange], limits: Limits) -> list[Slice]:
    """Slices of segments in the order of the files, then of the journal. What is not kept is left out."""
    slices: list[Slice] = []
    for name, ranges in _layers(moment, requested):
        queue = moment.queue(name)
        slices += _sealed(moment, queue, ranges, limits)
        for view in moment.tail:
            slices += _unsealed(moment, view, queue, ranges, limits)
    return slices


def _layers(moment: Moment, requested: Sequence[OffsetRange]) -> Iterator[tuple[str, Ranges]]:
    """What is requested and kept, as ranges of each queue, one range of a partition at a time."""
    by_partition: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for item in sorted(requested, key=lambda item: item.first):
        partition = moment.queue(item.queue).partitions.get(item.partition)
        if partition is None:
            continue
        first, end = max(item.first, partition.start), min(item.end, partition.end)
        ranges = by_partition.setdefault((item.queue, partition.id), [])
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        elif first < end:
            ranges.append((first, end))
    for layer in range(max(map(len, by_partition.values()), default=0)):
        by_queue: dict[str, dict[int, tuple[int, int]]] = {}
        for (queue, id), ranges in by_partition.items():
            if layer < len(ranges):
                by_queue.setdefault(queue, {})[id] = ranges[layer]
        yield from by_queue.items()


def plan_changes(moment: Moment, table: str, queues: Sequence[str], limits: Limits) -> list[Slice]:
    """Slices of events or of tasks: the files that may hold some of these queues, segments first, then the journal."""
    names = {moment.queue(name).incarnation: name for name in queues}
    slices = []
    for file in moment.manifest.files.values():
        rows = sum(
            summary.rows
            for summary in file.events
            if summary.queue in names and (limits.since is None or summary.settled_last_at >= limits.since)
        )
        if file.table == table and rows:
            slices.append(_changes_slice(file, rows, names, limits))
    for view in moment.tail:
        slices += _unsealed_changes(moment, view, table, names, limits)
    return slices


def changes_again(moment: Moment, gone: Slice) -> list[Slice]:
    """Where the changes of a slice whose file is gone are now: in the segments of the same frames."""
    first, last = gone.sequences
    return [
        _changes_slice(file, gone.rows, gone.queues, gone.limits)
        for file in moment.manifest.files.values()
        if file.table == gone.table and file.first_sequence <= last and first < file.end_sequence
    ]


def _changes_slice(file: SegmentFile, rows: int, names: dict[int, str], limits: Limits) -> Slice:
    return Slice(
        table=file.table,
        file=file.name,
        rows=rows,
        bytes=file.bytes * rows // max(1, file.rows),
        is_tail=False,
        limits=limits,
        queues=names,
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
            size = extent.bytes * run.count // extent.count + ROW_BYTES * run.rows
            by_file.setdefault(extent.file, []).append((run, size))
    names = {id: name for name, view in queue.partitions.items() if (id := view.id) in ranges}
    for file in sorted(by_file):
        rows = sorted(by_file[file], key=lambda row: (row[0].row_group, row[0].row))
        for runs, size in _portions(rows):
            yield _segment_slice(queue, file, runs, size, names, limits)


def _run_in(extent: Extent, ranges: Ranges, limits: Limits) -> Run | None:
    """The rows of an extent that are within the ranges and limits."""
    first, end = ranges.get(extent.partition, (0, 0))
    first, end = max(first, extent.first_offset), min(end, extent.end_offset)
    if first >= end or not limits.meets(extent.pushed_first_at, extent.pushed_last_at):
        return None
    if not extent.flags & layout.PRIORITY and not limits.meets_priority(
        bounds.priority_default, bounds.priority_default
    ):
        return None
    if extent.rows:
        return Run(extent.row_group, extent.row, extent.partition, first, end - first, extent.rows)
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
        rows=sum(run.rows for run in runs),
        bytes=size,
        is_tail=False,
        limits=limits,
        queues={queue.incarnation: queue.name},
        partitions=partitions,
        runs=tuple(runs),
    )


def _unsealed(moment: Moment, view: TailView, queue: QueueView, ranges: Ranges, limits: Limits) -> Iterator[Slice]:
    rows = _rows(view.pushes, moment.manifest.sealed_sequence, PUSH["sequence"])
    rows = rows[rows[:, PUSH["queue"]] == queue.incarnation]
    rows = rows[_overlapping(rows, ranges)]
    times = rows[:, PUSH["pushed_at"]]
    rows = rows[_within(times, limits)]
    names = {view.id: name for name, view in queue.partitions.items()} if len(rows) else {}
    for part in _stretches(rows, PUSH["position"], PUSH["position"]):
        partitions = _partitions(part, ranges, names)
        yield Slice(
            table=MESSAGES,
            file=view.file,
            rows=sum(end - first for _, first, end in partitions.values()),
            bytes=_bytes(part, PUSH["position"], PUSH["end"]),
            is_tail=True,
            limits=limits,
            queues={queue.incarnation: queue.name},
            partitions=partitions,
            start=int(part[0, PUSH["position"]]),
            end=int(part[-1, PUSH["end"]]),
        )


def _unsealed_changes(
    moment: Moment, view: TailView, table: str, names: dict[int, str], limits: Limits
) -> Iterator[Slice]:
    chunks = view.settles
    if table == TASKS:
        chunks = [*(chunk[:, _PUSH_AS_CHANGE] for chunk in view.pushes), *view.settles, *view.notes]
    rows = _rows(chunks, moment.manifest.sealed_sequence, CHANGE["sequence"])
    rows = rows[np.isin(rows[:, CHANGE["queue"]], np.array(list(names), np.int64))]
    if table == TASKS:
        parts = [rows] if len(rows) else []  # not in the order of the file
    else:
        parts = list(_stretches(rows[_within(rows[:, CHANGE["at"]], limits)], CHANGE["position"], CHANGE["at"]))
    for part in parts:
        _, position, end, at, sequence = part.T
        start, stop = int(position.min()), int(end.max())
        yield Slice(
            table=table,
            file=view.file,
            rows=len(part),
            bytes=stop - start if table == TASKS else len(part) * EVENT_BYTES,
            is_tail=True,
            # If it is sealed before it is read, the file holds more than this: the times say which rows are meant.
            limits=limits.narrowed(int(at.min()), int(at.max())),
            queues=names,
            start=start,
            end=stop,
            sequences=(int(sequence.min()), int(sequence.max())),
        )


def _rows(chunks: list[Rows], sealed_sequence: int, column: int) -> Rows:
    """All rows of frames that no segment holds, in the order of the file."""
    if not chunks:
        return np.empty((0, max(len(PUSH), len(CHANGE))), np.int64)
    rows = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    return rows[rows[:, column] > sealed_sequence]


def _overlapping(rows: Rows, ranges: Ranges) -> Mask:
    """Which rows hold offsets of the ranges."""
    if not len(rows):
        return np.zeros(0, np.bool_)
    partitions = rows[:, PUSH["partition"]]
    lows, highs = (np.zeros(int(partitions.max()) + 1, np.int64) for _ in range(2))
    for id, (first, end) in ranges.items():
        if id < len(lows):
            lows[id], highs[id] = first, end
    firsts = rows[:, PUSH["first"]]
    mask: Mask = (firsts < highs[partitions]) & (firsts + rows[:, PUSH["count"]] > lows[partitions])
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
    partitions = {}
    ids = rows[:, PUSH["partition"]]
    firsts, ends = rows[:, PUSH["first"]], rows[:, PUSH["first"]] + rows[:, PUSH["count"]]
    order = np.argsort(ids, kind="stable")
    bounds_of = np.flatnonzero(np.diff(ids[order], prepend=-1))
    for start, stop in zip(bounds_of.tolist(), [*bounds_of[1:].tolist(), len(order)], strict=True):
        group = order[start:stop]
        id = int(ids[group[0]])
        low, high = ranges[id]
        partitions[id] = (names[id], max(low, int(firsts[group].min())), min(high, int(ends[group].max())))
    return partitions
