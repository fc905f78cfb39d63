"""How far a queue is archived, noted as its group `archive`: for people to see, and for retention to wait for."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.history import Moment, QueueView
from penstock.model import ARCHIVE_GROUP, DLQ_SUFFIX
from penstock.spark.pipelines.archiving import manifest as manifests
from penstock.spark.pipelines.archiving.manifest import Manifest
from penstock.spark.places import Place, move_group


def commit(url: str, moment: Moment, manifest: Manifest, queues: Sequence[str]) -> list[str]:
    """Move the group of each queue to where the archive ends; what could not be done, in words."""
    offsets = {name: ends(moment.queue(name), manifest) for name in queues if not name.endswith(DLQ_SUFFIX)}
    harmed = [name for name in offsets if is_harmed(moment.queue(name))]
    moved = {name: each for name, each in offsets.items() if each and name not in harmed}
    notes = [
        f"progress in queue {name!r} is not noted: a group that waits would count towards its max_length or "
        "max_wait_seconds; with retention_until_archived=True it does not"
        for name in harmed
    ]
    if not moved:
        return notes
    try:
        with Place(url).handle() as handle:
            for name, each in moved.items():
                move_group(handle, name, ARCHIVE_GROUP, each)
    except PenstockError as error:
        notes.append(f"progress is not noted: {error}")
    return notes


def ends(queue: QueueView, manifest: Manifest) -> dict[str, int]:
    """Where the archive ends in each partition that it covers."""
    found = {name: manifests.end_of(manifest, queue.name, queue.incarnation, name) for name in queue.partitions}
    return {name: end for name, end in found.items() if end}


def is_harmed(queue: QueueView) -> bool:
    """Whether a group that is behind would get in the way of producers or consumers."""
    options = queue.options
    if options.retention_until_archived:
        return False
    return options.max_length is not None or options.max_wait_seconds is not None
