"""Whether a push that says it is sent again is the one that was stored: producers are named by whoever likes to.

What is compared is what is at hand. Messages that have left memory count as the same: nobody can tell any more, and a
client that sends again does so within seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.errors import StateError

if TYPE_CHECKING:
    from penstock.delivery.log import Queue
    from penstock.requests import Producer

COMPARED_MAX: Final = 1_000  # messages of one push: this happens with the lock held


def check_same(queue: Queue, producer: Producer, places: Sequence[tuple[int, int]], payloads: Sequence[bytes]) -> None:
    """Refuse a push whose messages are not those at `places`, which are (partition, offset) and in the same order."""
    if len(places) != len(payloads) or any(
        _is_other(queue, partition, offset, payload)
        for (partition, offset), payload in zip(places[:COMPARED_MAX], payloads, strict=False)
    ):
        raise used_otherwise(producer)


def used_otherwise(producer: Producer) -> StateError:
    """The refusal of a push that has the sequence of another one."""
    return StateError(
        f"producer {producer[0]:016x} has used sequence {producer[2]} for a push of other messages",
        hint="number every push of a producer anew, and give each program a producer of its own",
    )


def _is_other(queue: Queue, number: int, offset: int, payload: bytes) -> bool:
    if number >= len(queue.partitions):
        return False
    partition = queue.partitions[number]
    if not partition.start <= offset < partition.end or not partition.extents:
        return False
    extent = partition.extent_at(offset)
    batch = extent.batch if extent.first <= offset < extent.end else None
    return batch is not None and bytes(batch.payload(extent.row_of(offset))) != bytes(payload)
