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
    try:
        with Place(url).handle() as handle:
            for name, each in offsets.items():
                if each:
                    move_group(handle, name, ARCHIVE_GROUP, each)
    except PenstockError as error:
        return [f"progress is not noted: {error}"]
    return []


def ends(queue: QueueView, manifest: Manifest) -> dict[str, int]:
    """Where the archive ends in each partition that it covers."""
    found = {name: manifests.end_of(manifest, queue.name, queue.incarnation, name) for name in queue.partitions}
    return {name: end for name, end in found.items() if end}
