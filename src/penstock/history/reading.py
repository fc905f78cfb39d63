"""Reading slices: rows as Arrow record batches, in the columns and types of the tables.

Files of a segment are read through the checksums that the manifest has of them, frames of the journal through their
own. A file that is gone was sealed, rewritten or removed by retention: the same rows are looked for where they are now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock import limits as bounds
from penstock.errors import Damaged, HistoryLost
from penstock.history import events, planning, tasks
from penstock.history.journal_rows import read_journal
from penstock.history.segment_rows import read_segment
from penstock.history.slices import Slice, Wanted
from penstock.storage.schema import EVENTS, TASKS

if TYPE_CHECKING:
    from penstock.history.history import History

PIN_SECONDS: Final = bounds.segment_pin_seconds / 4  # between renewals
TRIES: Final = 3


def read(history: History, slices: Sequence[Slice], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of some slices, while their files are pinned."""
    if not slices:
        return
    files = [each.file for each in slices if not each.is_tail]
    renewed = -1.0
    try:
        for each in slices:
            for batch in _read_one(history, each, columns, TRIES):
                now = history.clock.monotonic() / 1e6
                if files and (renewed < 0 or now - renewed > PIN_SECONDS):
                    history.files.pin(history.pin_name, history.clock.now(), files)
                    renewed = now
                yield batch
    finally:
        if renewed >= 0:
            history.files.unpin(history.pin_name)


def _read_one(history: History, each: Slice, columns: Sequence[str], tries: int) -> Iterator[pa.RecordBatch]:
    read_rows = 0
    try:
        for table in _tables(history, each, columns):
            read_rows += len(table)
            yield from table.to_batches()
    except FileNotFoundError:
        if read_rows or tries == 0:
            raise Damaged(f"{each.file} went away while it was read") from None
        for again in _again(history, each):
            yield from _read_one(history, again, columns, tries - 1)


def _tables(history: History, each: Slice, columns: Sequence[str]) -> Iterator[pa.Table]:
    history.opened.add(each.file)
    if each.table == EVENTS:
        yield from events.read(history, each, columns)
    elif each.table == TASKS:
        yield from tasks.read(history, each, columns)
    elif each.is_tail:
        yield from read_journal(history, each, columns)
    else:
        yield from read_segment(history, each, columns)


def _again(history: History, each: Slice) -> list[Slice]:
    """The same rows where they are now."""
    moment = history.look(fresh=True)
    if each.table in (EVENTS, TASKS):
        return planning.changes_again(moment, each)
    ((incarnation, queue),) = each.queues.items()
    ranges = _ranges(each)
    view = moment.queues.get(queue)
    if view is None or view.incarnation != incarnation:
        raise HistoryLost(f"queue {queue!r} was deleted while it was read")
    wanted = [Wanted(queue, name, first, end) for name, first, end in ranges]
    gone = planning.lost(moment, wanted)
    if gone and not history.skips_lost:
        first = gone[0]
        raise HistoryLost(
            f"offsets {first.first} to {first.end - 1} of queue {queue!r}, partition {first.partition!r} were removed"
        )
    history.lost += gone
    return planning.plan(moment, wanted, each.limits)


def _ranges(each: Slice) -> list[tuple[str, int, int]]:
    """The offsets of a slice; those of a segment may have gaps, where rows of another slice are."""
    if each.is_tail:
        return list(each.partitions.values())
    return [(each.partitions[run.partition][0], run.first, run.first + run.count) for run in each.runs]
