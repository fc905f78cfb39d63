"""The offset of a query that consumes: the leases of its last batch, and which messages each of them holds.

Nothing here reads anything. A batch is what the leases listed in its end offset hold; so a batch that Spark plays again
after a failure has the same messages, whoever holds them by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.errors import InvalidField
from penstock.history import Wanted
from penstock.replies import LeaseReply
from penstock.spark.stream_offsets import CHECKPOINT_HINT

GAP_MIN: Final = 1_000  # offsets between two runs: fewer are read and thrown away
CLUSTERS_MAX: Final = 8  # of a partition

Run = tuple[str, int, int]  # partition, first offset, how many
Runs = dict[str, list[tuple[int, int]]]  # partition → (first, how many), in order


class Lease(msgspec.Struct, frozen=True):
    """One lease: its number as hexadecimal digits, and what it holds."""

    queue: str
    incarnation: int  # of the queue: a batch must not be played again from another one of its name
    lease: str
    runs: list[Run]

    @property
    def nonce(self) -> int:
        return int(self.lease, 16)

    @property
    def count(self) -> int:
        return sum(count for _, _, count in self.runs)


class LeaseOffset(msgspec.Struct, frozen=True):
    """The end of a batch. `batch` counts them, so that no two are alike."""

    shard: str
    query: str
    batch: int
    leases: list[Lease]

    def as_dict(self) -> dict[str, Any]:
        """As Spark keeps it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def offset_of(given: Mapping[str, Any]) -> LeaseOffset:
    """An offset from a checkpoint."""
    try:
        return msgspec.convert(given, LeaseOffset)
    except msgspec.ValidationError:
        raise InvalidField(
            "checkpointLocation: the checkpoint is not of a query that consumes", hint=CHECKPOINT_HINT
        ) from None


def lease_of(reply: LeaseReply, incarnation: int) -> Lease:
    """What a broker has handed out."""
    offsets: dict[str, list[int]] = {}
    for piece in reply.pieces:
        if isinstance(piece.partitions, str):
            offsets.setdefault(piece.partitions, []).extend(piece.offsets)
        else:
            for partition, offset in zip(piece.partitions, piece.offsets, strict=True):
                offsets.setdefault(partition, []).append(offset)
    runs = [(name, first, count) for name, each in sorted(offsets.items()) for first, count in runs_in(each)]
    return Lease(reply.queue, incarnation, f"{reply.nonce:016x}", runs)


def runs_in(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Offsets as runs of consecutive ones."""
    ordered = np.unique(np.fromiter(offsets, np.int64))
    if len(ordered):
        cuts = np.flatnonzero(np.diff(ordered) != 1) + 1
        for each in np.split(ordered, cuts):
            yield int(each[0]), len(each)


def runs_by_queue(leases: Sequence[Lease]) -> dict[tuple[str, int], Runs]:
    """Everything that some leases hold, by queue (its name and incarnation) and partition."""
    found: dict[tuple[str, int], Runs] = {}
    for lease in leases:
        for partition, first, count in lease.runs:
            found.setdefault((lease.queue, lease.incarnation), {}).setdefault(partition, []).append((first, count))
    for runs in found.values():
        for each in runs.values():
            each.sort()
    return found


def wanted(queue: str, runs: Runs) -> list[Wanted]:
    """What to plan: ranges that hold the runs, with what lies between those that are close together."""
    return [Wanted(queue, name, *each) for name, found in runs.items() for each in _clusters(found)]


def _clusters(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges [first, end) that cover the runs, cut at their widest gaps."""
    gaps = [(after - first - count, after) for (first, count), (after, _) in pairwise(runs)]
    wide = sorted((gap for gap in gaps if gap[0] >= GAP_MIN), reverse=True)[: CLUSTERS_MAX - 1]
    cuts = {after for _, after in wide}
    found: list[tuple[int, int]] = []
    for first, count in runs:
        if not found or first in cuts:
            found.append((first, first + count))
        else:
            found[-1] = (found[-1][0], first + count)
    return found


def held(batch: pa.RecordBatch, runs: Runs) -> pa.RecordBatch:
    """The rows of a batch that belong to the runs; it has the columns `partition` and `offset`."""
    offsets = batch.column("offset").to_numpy()
    names = batch.column("partition")
    mask = np.zeros(len(offsets), np.bool_)
    for name in names.unique().to_pylist():
        mask |= np.asarray(pc.equal(names, name)) & _within(offsets, runs.get(name, []))
    return batch if mask.all() else batch.filter(pa.array(mask))


def _within(offsets: NDArray[np.int64], runs: list[tuple[int, int]]) -> NDArray[np.bool_]:
    if not runs:
        return np.zeros(len(offsets), np.bool_)
    firsts = np.array([first for first, _ in runs], np.int64)
    ends = firsts + np.array([count for _, count in runs], np.int64)
    index = np.searchsorted(firsts, offsets, side="right") - 1
    found: NDArray[np.bool_] = (index >= 0) & (offsets < ends[np.maximum(index, 0)])
    return found
