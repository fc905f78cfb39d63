"""The lives of tasks, from the sealed table and from the journal after it.

What settles a message in the journal names its place only. Which task that is, is read from the message itself, where
it lies by now; messages that are gone, or are no tasks, have no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.delivery import entries
from penstock.envelopes import parse_envelope
from penstock.errors import InvalidField
from penstock.history import rows
from penstock.history.moments import Moment, TailView
from penstock.history.planning import sealed_changes
from penstock.history.slices import Limits, Slice, Wanted
from penstock.history.tail import PUSH_COLUMNS, SETTLE_COLUMNS, Rows
from penstock.model import CONTENT_TYPE_NAMES, ContentType
from penstock.storage.schema import TASKS
from penstock.storage.task_changes import id_bytes
from penstock.storage.task_rows import Identity, Key, TaskRows

if TYPE_CHECKING:
    from penstock.history.history import History

_COLUMNS: Final = ("queue", "position", "end", "at", "sequence")  # of what the journal holds, for planning
_OF_PUSHES: Final = [PUSH_COLUMNS.index(name) for name in ("queue", "position", "end", "pushed_at", "sequence")]
_OF_SETTLES: Final = [SETTLE_COLUMNS.index(name) for name in _COLUMNS]


def plan(moment: Moment, queues: Sequence[str], limits: Limits) -> list[Slice]:
    """The files that may hold something of these queues: segments first, then the journal."""
    meant = {moment.queue(name).incarnation: name for name in queues}
    slices = sealed_changes(moment, TASKS, meant, limits)
    for view in moment.tail:
        slices += _unsealed(moment, view, meant, limits)
    return slices


def _unsealed(moment: Moment, view: TailView, meant: dict[int, str], limits: Limits) -> Iterator[Slice]:
    chunks: list[Rows] = [chunk[:, _OF_PUSHES] for chunk in view.pushes]
    chunks += [chunk[:, _OF_SETTLES] for chunk in (*view.settles, *view.notes)]
    if not chunks:
        return
    found = np.concatenate(chunks)
    queue, position, end, at, sequence = found.T
    found = found[(sequence > moment.manifest.sealed_sequence) & np.isin(queue, np.array(list(meant), np.int64))]
    if not len(found):
        return
    queue, position, end, at, sequence = found.T
    yield Slice(
        table=TASKS,
        file=view.file,
        rows=len(found),
        bytes=int(end.max() - position.min()),
        is_tail=True,
        # Should it be sealed before it is read, the file will hold more than this: the times tell what is meant.
        limits=limits.narrowed(int(at.min()), int(at.max())),
        queues=meant,
        start=int(position.min()),
        end=int(end.max()),
        sequences=(int(sequence.min()), int(sequence.max())),
    )


def read(history: History, each: Slice, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of one slice."""
    meant = pa.array(list(each.queues), pa.int64())
    needed = list(dict.fromkeys((*columns, "incarnation", "at")))
    for table in _journal(history, each) if each.is_tail else _segment(history, each, needed):
        found = table.filter(pc.is_in(table["incarnation"], meant))
        yield rows.bounded(found, "at", each.limits).select(list(columns)).combine_chunks()


def _segment(history: History, each: Slice, columns: list[str]) -> Iterator[pa.Table]:
    file = history.segment_file(each.file)
    for row_group in range(len(file.row_groups)):
        yield history.segments.read(file, row_group, columns)


def _journal(history: History, each: Slice) -> Iterator[pa.Table]:
    names = history.recent().names
    gathered = TaskRows(names, lambda keys: _identified(history, each, keys), each.queues, remembers=True)
    for frame in rows.frames(history, each):
        gathered.take(0, entries.decode(frame))
    gathered.finish()
    yield from gathered.tables()


def _identified(history: History, each: Slice, keys: Iterable[Key]) -> Mapping[Key, Identity]:
    """Which tasks the messages at some places are."""
    told: dict[Key, Identity] = {}
    moment = history.recent()
    places: list[tuple[int, int, int]] = []
    for key in keys:
        if isinstance(key, bytes):
            told[key] = Identity(key, "", 0)  # it waited for its parents: no message says what it was
        elif key[0] in each.queues:
            places.append(key)
    wanted = [
        Wanted(each.queues[queue], moment.names.partition(queue, partition), offsets[0], offsets[-1] + 1)
        for (queue, partition), run in groupby(sorted(set(places)), key=lambda place: place[:2])
        for offsets in _runs([place[2] for place in run])
    ]
    ids = {name: id for id, name in each.queues.items()}
    columns = ("queue", "partition_id", "offset", "content_type", "payload")
    for batch in history.read(history.plan(moment, wanted), columns) if wanted else ():
        tasks = batch.filter(pc.equal(batch["content_type"], CONTENT_TYPE_NAMES[ContentType.TASK]))
        for queue, partition, offset, _, payload in zip(*(c.to_pylist() for c in tasks.columns), strict=True):
            try:
                envelope = parse_envelope(payload)
                told[ids[queue], partition, offset] = Identity(id_bytes(envelope.task_id), envelope.task_type, 0)
            except InvalidField:
                continue
    return told


def _runs(offsets: Sequence[int]) -> list[list[int]]:
    """Offsets that follow each other, together."""
    found: list[list[int]] = []
    for offset in offsets:
        if found and found[-1][-1] + 1 == offset:
            found[-1].append(offset)
        else:
            found.append([offset])
    return found
