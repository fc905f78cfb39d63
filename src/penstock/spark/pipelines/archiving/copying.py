"""Copying the log: what is new since the last time, in rounds, each of which is complete in itself.

A round is a share of the new offsets: its messages are written to the stage by the executors, then taken in by the
archive in one step. A run that dies has archived the rounds before it; the next goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock import limits
from penstock.errors import StorageError
from penstock.history import History, Moment, Slice, Wanted, pack
from penstock.spark.pipelines.archiving import manifest as manifests
from penstock.spark.pipelines.archiving.manifest import File, Manifest, Part, Range
from penstock.spark.pipelines.archiving.spread import Spread
from penstock.spark.pipelines.archiving.storing import Archive
from penstock.spark.pipelines.archiving.writing import COLUMNS, write_files
from penstock.spark.tasks import open_planned

ROUND_BYTES: Final = 4 * limits.GIB
LOT_BYTES: Final = 128 * limits.MIB  # of a task
LOT_BYTES_MIN: Final = 8 * limits.MIB  # smaller lots would make small files


class New(NamedTuple):
    """What is to be archived."""

    wanted: list[Wanted]
    lost: list[Wanted]  # removed by retention before it could be

    @property
    def messages(self) -> int:
        return sum(each.end - each.first for each in self.wanted)


def new_messages(moment: Moment, manifest: Manifest, queues: Sequence[str]) -> New:
    """The offsets of some queues that the log has and the archive has not."""
    found = New([], [])
    for name in queues:
        queue = moment.queue(name)
        for partition in queue.partitions.values():
            end = manifests.end_of(manifest, name, queue.incarnation, partition.name)
            if end and end < partition.start:
                found.lost.append(Wanted(name, partition.name, end, partition.start))
            first = max(end, partition.start)
            if first < partition.end:
                found.wanted.append(Wanted(name, partition.name, first, partition.end))
    return found


def rounds(wanted: Sequence[Wanted], messages_max: int) -> Iterator[list[Wanted]]:
    """Shares of what is wanted, in order, each of at most so many messages."""
    share: list[Wanted] = []
    room = messages_max
    for each in wanted:
        first = each.first
        while first < each.end:
            if room == 0:
                yield share
                share, room = [], messages_max
            end = min(each.end, first + room)
            share.append(Wanted(each.queue, each.partition, first, end))
            room -= end - first
            first = end
    if share:
        yield share


class Copier:
    """Copies messages of one place to an archive."""

    def __init__(
        self, archive: Archive, url: str, history: History, spread: Spread[Sequence[Slice]], tasks: int
    ) -> None:
        self._archive = archive
        self._url = url
        self._history = history
        self._spread = spread
        self._tasks = tasks  # that run at once

    def rounds(self, moment: Moment, wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
        """How the work is divided: by bytes, as far as the log tells them."""
        slices = self._history.plan(moment, wanted)
        bytes_each = max(1, sum(each.bytes for each in slices)) / max(1, sum(each.rows for each in slices))
        return rounds(wanted, max(1, int(ROUND_BYTES / bytes_each)))

    def copy(self, moment: Moment, share: Sequence[Wanted]) -> list[File]:
        """Archive one share."""
        slices = self._history.plan(moment, share)
        size = sum(each.bytes for each in slices) // self._tasks
        lots = pack(slices, max(LOT_BYTES_MIN, min(LOT_BYTES, size)))
        url, stage = self._url, self._archive.stage
        staged = self._spread(lots, lambda lot: stage_messages(url, lot, stage))
        files = [msgspec.json.decode(each, type=File) for each in staged]
        covered = {(each.queue, moment.queue(each.queue).incarnation, each.partition): _range(each) for each in share}
        _check(files, sum(each.rows for each in slices), covered)
        return self._archive.add(sorted(files, key=_order), covered)


def stage_messages(url: str, slices: Sequence[Slice], stage: Path) -> Iterator[bytes]:
    """On an executor: write the messages of some slices to the stage; an account of each file."""
    history = open_planned(url)
    try:
        for file in write_files(history.read(slices, COLUMNS), stage):
            yield msgspec.json.encode(file)
    finally:
        history.close()


def _range(each: Wanted) -> Range:
    return each.first, each.end


def _order(file: File) -> tuple[str, str, list[tuple[str, int]]]:
    return file.queue, file.date, [(part.partition, part.first) for part in file.parts]


def _check(files: Sequence[File], rows: int, covered: Mapping[tuple[str, int, str], Range]) -> None:
    """Exactly what was planned is in the files: as many rows, and no offset that was not asked for."""
    stray = [
        (file.queue, part)
        for file in files
        for part in file.parts
        if not _within(part, covered.get((file.queue, file.incarnation, part.partition), (0, 0)))
    ]
    if stray or sum(file.rows for file in files) != rows:
        hint = "nothing of this round was archived: run it again, and `penstock verify` if it happens again"
        raise StorageError(f"the log gave other messages than planned ({rows}) {stray[:1] or ''}".strip(), hint=hint)


def _within(part: Part, bounds: Range) -> bool:
    return bounds[0] <= part.first and part.end <= bounds[1]
