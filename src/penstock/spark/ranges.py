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
from penstock.model import suggestion
from penstock.spark.options import Offsets, SourceOptions

_PATTERN: Final = frozenset("*?[")

_log = logging.getLogger(__name__)


def chosen(moment: Moment, names: Sequence[str]) -> tuple[QueueView, ...]:
    """The queues that names and patterns mean, each once."""
    found: dict[str, QueueView] = {}
    for name in names:
        if not _PATTERN.intersection(name):
            found[name] = moment.queue(name)
            continue
        matching = {each: view for each, view in sorted(moment.queues.items()) if fnmatchcase(each, name)}
        if not matching:
            known = f"there are {', '.join(sorted(moment.queues))}" if moment.queues else "there are no queues yet"
            raise QueueNotFound(f"no queue is like {name!r}", hint=known)
        found |= matching
    return tuple(found.values())


def wanted(moment: Moment, options: SourceOptions) -> list[OffsetRange]:
    """The offsets to read of each partition."""
    views = chosen(moment, options.queues)
    _check_names("startingOffsets", options.starting_offsets, views)
    _check_names("endingOffsets", options.ending_offsets, views)
    found = []
    for queue in views:
        for partition in queue.partitions.values():
            first = offset_at(options.starting_offsets, queue, partition, partition.start)
            end = min(offset_at(options.ending_offsets, queue, partition, partition.end), partition.end)
            if first < end:
                found.append(OffsetRange(queue.name, partition.name, first, end))
    _check_kept(moment, found, options)
    return found


def offset_at(offsets: Offsets, queue: QueueView, partition: PartitionView, default: int) -> int:
    """Where offsets say that a partition begins or ends; `default` when they say nothing of it."""
    if isinstance(offsets, str):
        return partition.start if offsets == "earliest" else partition.end
    said = offsets.get(queue.name, offsets)
    found = said.get(partition.name, default) if isinstance(said, dict) else default
    return found if isinstance(found, int) else default


def _check_names(option: str, offsets: Offsets, views: Sequence[QueueView]) -> None:
    """A partition or queue that is not there is a misspelt one."""
    if isinstance(offsets, str):
        return
    queues = {view.name: view for view in views}
    for name, said in offsets.items():
        if isinstance(said, dict) and name not in queues:
            raise InvalidField(f"{option}: {name!r} is none of the queues", hint=suggestion(name, tuple(queues)))
        within = [queues[name]] if isinstance(said, dict) else views
        known = tuple(dict.fromkeys(each for view in within for each in view.partitions))
        for partition in said if isinstance(said, dict) else [name]:
            if partition not in known:
                raise InvalidField(f"{option}: there is no partition {partition!r}", hint=suggestion(partition, known))


def _check_kept(moment: Moment, found: Sequence[OffsetRange], options: SourceOptions) -> None:
    for gone in lost(moment, found):
        what = f"offsets {gone.first} to {gone.end - 1} of {gone.queue}/{gone.partition} were removed by retention"
        if options.fail_on_data_loss:
            hint = "start later, or skip them with option('failOnDataLoss', 'false')"
            raise HistoryLost(what, hint=hint)
        _log.warning("%s, and are skipped", what)
