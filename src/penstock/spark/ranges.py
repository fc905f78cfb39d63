"""Which messages a read is about: queues by name and pattern, offsets by partition, within one moment of the history.

Offsets that retention has removed are an error, unless the read allows to skip them; then what is skipped is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from penstock.errors import HistoryLost, InvalidField, QueueNotFound
from penstock.history import Moment, OffsetRange, PartitionView, QueueView, lost
from penstock.refusals import suggestion
from penstock.spark.options import Offsets, SourceOptions

_PATTERN: Final = frozenset("*?[")

logger: Final = logging.getLogger("penstock.spark")


def chosen(moment: Moment, names: Sequence[str]) -> tuple[QueueView, ...]:
    """The queues that match names and patterns, each once."""
    views: dict[str, QueueView] = {}
    for name in names:
        if not _PATTERN.intersection(name):
            views[name] = moment.queue(name)
            continue
        matching = {queue: view for queue, view in sorted(moment.queues.items()) if fnmatchcase(queue, name)}
        if not matching:
            known = f"known queues: {', '.join(sorted(moment.queues))}" if moment.queues else "there are no queues yet"
            raise QueueNotFound(f"no queue matches {name!r}", hint=known)
        views |= matching
    return tuple(views.values())


def requested(moment: Moment, options: SourceOptions) -> list[OffsetRange]:
    """The offsets to read of each partition."""
    views = chosen(moment, options.queues)
    _check_names("startingOffsets", options.starting_offsets, views)
    _check_names("endingOffsets", options.ending_offsets, views)
    ranges = []
    for queue in views:
        for partition in queue.partitions.values():
            first = offset_at(options.starting_offsets, queue, partition, partition.start)
            end = min(offset_at(options.ending_offsets, queue, partition, partition.end), partition.end)
            if first < end:
                ranges.append(OffsetRange(queue.name, partition.name, first, end))
    _check_kept(moment, ranges, options)
    return ranges


def offset_at(offsets: Offsets, queue: QueueView, partition: PartitionView, default: int) -> int:
    """The offset of a partition that an option gives; `default` when it does not name the partition."""
    if isinstance(offsets, str):
        return partition.start if offsets == "earliest" else partition.end
    said = offsets.get(queue.name, offsets)
    offset = said.get(partition.name, default) if isinstance(said, dict) else default
    return offset if isinstance(offset, int) else default


def _check_names(option: str, offsets: Offsets, views: Sequence[QueueView]) -> None:
    """Refuse names of partitions or queues that do not exist."""
    if isinstance(offsets, str):
        return
    queues = {view.name: view for view in views}
    for name, said in offsets.items():
        if isinstance(said, dict) and name not in queues:
            raise InvalidField(f"{option}: {name!r} is not one of the queues", hint=suggestion(name, tuple(queues)))
        within = [queues[name]] if isinstance(said, dict) else views
        known = tuple(dict.fromkeys(partition for view in within for partition in view.partitions))
        for partition in said if isinstance(said, dict) else [name]:
            if partition not in known:
                raise InvalidField(f"{option}: there is no partition {partition!r}", hint=suggestion(partition, known))


def _check_kept(moment: Moment, ranges: Sequence[OffsetRange], options: SourceOptions) -> None:
    for gone in lost(moment, ranges):
        what = f"offsets {gone.first} to {gone.end - 1} of {gone.queue}/{gone.partition} were removed by retention"
        if options.fail_on_data_loss:
            hint = "start later, or skip them with option('failOnDataLoss', 'false')"
            raise HistoryLost(what, hint=hint)
        logger.warning("%s, and are skipped", what)
