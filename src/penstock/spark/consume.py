"""The mode `consume`: messages are leased from the broker, read by the tasks, and acknowledged when they are done.

So a query can share a work queue with ordinary consumers: what it has leased nobody else gets. The process that plans
leases, extends the leases from a thread while a batch runs, and acknowledges a batch when Spark asks for the next one.
A query that fails or stops lets its leases expire, and others get the messages.

The offset of a query is the leases of its last batch, and which messages each of them holds. At least once: a batch
that Spark repeats after a failure has the same messages, even when their leases expired meanwhile and another consumer
has had them.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from penstock import limits, validation
from penstock import operations as ops
from penstock.errors import InvalidField, LeaseLost, PenstockError
from penstock.history import Moment, OffsetRange, QueueView, Slice, is_directory
from penstock.history import lost as removed
from penstock.history.broker_files import PATIENCE_SECONDS
from penstock.model import DEFAULT_GROUP, check_name, check_seconds
from penstock.remote.settings import session as dial
from penstock.remote.settings import settings
from penstock.replies import LeaseReply
from penstock.requests import ACK
from penstock.spark import failures, stream_offsets
from penstock.spark.batch_reader import Lot, lots
from penstock.spark.location import CLIENT
from penstock.spark.options import SourceOptions
from penstock.spark.stream_offsets import Loss, parsed
from penstock.spark.stream_reader import PATTERN, PAUSE_SECONDS, StreamReader, count_max_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


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
        offset: dict[str, Any] = msgspec.to_builtins(self)
        return offset


def offset_of(offset: Mapping[str, Any]) -> LeaseOffset:
    """An offset from a checkpoint."""
    return parsed(offset, LeaseOffset, "consumes")


def lease_of(reply: LeaseReply, incarnation: int) -> Lease:
    """The lease of a reply, as runs of offsets."""
    offsets: dict[str, list[int]] = {}
    for piece in reply.pieces:
        if isinstance(piece.partitions, str):
            offsets.setdefault(piece.partitions, []).extend(piece.offsets)
        else:
            for partition, offset in zip(piece.partitions, piece.offsets, strict=True):
                offsets.setdefault(partition, []).append(offset)
    runs = [(name, *run) for name in sorted(offsets) for run in runs_in(offsets[name])]
    return Lease(reply.queue, incarnation, f"{reply.nonce:016x}", runs)


def runs_in(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Offsets as runs of consecutive ones."""
    ordered = np.unique(np.fromiter(offsets, np.int64))
    if len(ordered):
        cuts = np.flatnonzero(np.diff(ordered) != 1) + 1
        for run in np.split(ordered, cuts):
            yield int(run[0]), len(run)


def runs_by_queue(leases: Sequence[Lease]) -> dict[tuple[str, int], Runs]:
    """Everything that some leases hold, by queue (its name and incarnation) and partition."""
    by_queue: dict[tuple[str, int], Runs] = {}
    for lease in leases:
        for partition, first, count in lease.runs:
            by_queue.setdefault((lease.queue, lease.incarnation), {}).setdefault(partition, []).append((first, count))
    for runs in by_queue.values():
        for partition_runs in runs.values():
            partition_runs.sort()
    return by_queue


def ranges_of(queue: str, runs: Runs) -> list[OffsetRange]:
    """Ranges to read: they cover the runs, with what lies between those that are close together."""
    return [OffsetRange(queue, name, *cluster) for name in runs for cluster in _clusters(runs[name])]


def _clusters(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges [first, end) that cover the runs, cut at their widest gaps."""
    gaps = [(after - first - count, after) for (first, count), (after, _) in pairwise(runs)]
    wide = sorted((gap for gap in gaps if gap[0] >= GAP_MIN), reverse=True)[: CLUSTERS_MAX - 1]
    cuts = {after for _, after in wide}
    clusters: list[tuple[int, int]] = []
    for first, count in runs:
        if not clusters or first in cuts:
            clusters.append((first, first + count))
        else:
            clusters[-1] = (clusters[-1][0], first + count)
    return clusters


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
    is_within: NDArray[np.bool_] = (index >= 0) & (offsets < ends[np.maximum(index, 0)])
    return is_within


LEASE_COUNT_MAX: Final = 10_000  # in one answer: what does not fit into it is handed back one by one
EXTENSIONS: Final = 3  # of a lease while it lasts

logger: Final = logging.getLogger("penstock.spark")


class Keeper:
    """Extends leases from a thread until they are released."""

    def __init__(self, extend: Callable[[int, float], object], seconds: float) -> None:
        self._extend = extend
        self._seconds = seconds
        self._lock = threading.Lock()
        self._held: set[int] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, nonces: Sequence[int]) -> None:
        with self._lock:
            self._held.update(nonces)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-spark-leases", daemon=True)
            self._thread.start()

    def release(self, nonce: int) -> None:
        with self._lock:
            self._held.discard(nonce)

    def tick(self) -> int:
        """Extend everything that is held; how many are left."""
        with self._lock:
            held = list(self._held)
        for nonce in held:
            try:
                self._extend(nonce, self._seconds)
            except LeaseLost:
                self.release(nonce)
                logger.warning("a lease expired before its batch was done: its messages may be delivered to others too")
            except PenstockError as error:
                logger.warning("a lease could not be extended yet: %s", error)
        return len(self._held)

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds / EXTENSIONS):
            self.tick()


class ConsumingReader(StreamReader):
    """Reader of the mode `consume`."""

    count_default = 10_000

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if is_directory(options.url):
            raise InvalidField(
                "mode: consume needs a broker, but url is a directory",
                hint="start one with `penstock serve` and use its url, or read the directory with mode=observe",
            )
        self._group = check_name(options.group, "group") if options.group else DEFAULT_GROUP
        if not check_seconds(options.lease_seconds, "leaseSeconds", limits.lease_seconds_max):
            raise InvalidField("leaseSeconds: must be above 0")
        self._session_or_none: Any = None
        self._keeper: Keeper | None = None
        self._planned: tuple[LeaseOffset, LeaseOffset] | None = None  # the start and the end of the last batch
        self._acked: set[int] = set()  # of the batch before
        self._left: int | None = None  # of availableNow: how many messages may still be taken

    @failures.shown_plainly
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        moment = self.history.look()
        for name in self.options.queues:
            if not PATTERN.intersection(name):
                moment.queue(name)
        return LeaseOffset(self.shard, secrets.token_hex(4), 0, []).as_dict()

    @failures.shown_plainly
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        begun = self._begun(start)
        if self._planned is not None and self._planned[0] == begun:
            return self._planned[1].as_dict()  # requested again before that batch has run
        self.release()
        self._acknowledge(begun.leases)
        count_max = count_max_of(limit) or self.options.messages_per_trigger_max or self.count_default
        leases = self._lease(begun, count_max if self._left is None else min(count_max, self._left))
        if not leases:
            return start if start is not None else begun.as_dict()
        if self._left is not None:
            self._left -= sum(lease.count for lease in leases)
        end = LeaseOffset(self.shard, begun.query, begun.batch + 1, leases)
        self._planned = (begun, end)
        return end.as_dict()

    @failures.shown_plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = offset_of(start), offset_of(end)
        if first == last:
            return []
        self._check(last)
        self._planned = (first, last)
        self.keeper.hold([item.nonce for item in last.leases])
        moment = self.history.look()
        work: list[tuple[list[Slice], Runs]] = []
        for (queue, incarnation), runs in runs_by_queue(last.leases).items():
            slices = self.history.plan(moment, self._ranges(moment, queue, incarnation, runs))
            work += [(lot, runs) for lot in lots(slices, self.options.partition_bytes_max)]
        self.hold([item for lot, _ in work for item in lot])
        return [Lot(item, self.shard) for item in work]

    def read_lot(self, lot: Any) -> Iterator[pa.RecordBatch]:
        slices, runs = lot
        for batch, shaper in self.rows(slices, ("partition", "offset")):
            rows = held(batch, runs)
            if rows.num_rows:
                yield shaper.shaped(rows)

    @failures.shown_plainly
    def commit(self, end: dict[str, Any]) -> None:
        self._acknowledge(offset_of(end).leases)

    @failures.shown_plainly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._left = 0
        for queue in self._queues():
            stats = self.session.execute(ops.Stats(queue.name))
            group = stats.groups.get(self._group)
            self._left += group.ready if group is not None else stats.messages

    def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper = None
        if self._session_or_none is not None:
            self._session_or_none.close()
            self._session_or_none = None
        super().stop()

    # leases

    @property
    def session(self) -> Any:
        if self._session_or_none is None:
            self._session_or_none = dial(settings(self.options.url, client=CLIENT, timeout=PATIENCE_SECONDS))
        return self._session_or_none

    @property
    def keeper(self) -> Keeper:
        if self._keeper is None:
            self._keeper = Keeper(self.session.extend, self.options.lease_seconds)
        return self._keeper

    def _begun(self, start: dict[str, Any] | None) -> LeaseOffset:
        if start is not None:
            return self._check(offset_of(start))
        # Spark before 4.2 does not say where it is; it asks for the next batch when it is done with the last.
        return self._planned[1] if self._planned is not None else offset_of(self.initialOffset())

    def _check(self, offset: LeaseOffset) -> LeaseOffset:
        known = stream_offsets.StreamOffset(offset.shard, offset.query, {})
        stream_offsets.check(known, self.shard, {})
        return offset

    def _queues(self) -> list[QueueView]:
        return list(self.queues(self.history.look()).values())

    def _lease(self, begun: LeaseOffset, count_max: int) -> list[Lease]:
        """Lease from every queue in turn, up to `count_max` messages; wait a moment for the first."""
        leases: list[Lease] = []
        queues = self._queues()
        wait_seconds = PAUSE_SECONDS if self._left is None else 0.0
        for queue in queues:
            while count_max > 0:
                request = validation.lease_request(
                    min(count_max, LEASE_COUNT_MAX),
                    self.options.lease_seconds,
                    f"spark-{begun.query}",
                    None,
                    False,
                    start="earliest",
                )
                reply = self.session.lease(
                    queue.name, self._group, request, 0.0 if leases else wait_seconds / len(queues)
                )
                if not reply.count:
                    break
                lease = lease_of(reply, queue.incarnation)
                leases.append(lease)
                self.keeper.hold([lease.nonce])
                count_max -= lease.count
        return leases

    def _acknowledge(self, leases: Sequence[Lease]) -> None:
        """Acknowledge what is done; the messages of leases that expired meanwhile are delivered again."""
        for lease in leases:
            if lease.nonce in self._acked:
                continue
            self.keeper.release(lease.nonce)
            try:
                self.session.settle_lease(lease.nonce, ACK)
            except LeaseLost:
                logger.warning(
                    "%s messages of %s were finished too late and will be delivered again", lease.count, lease.queue
                )
        if leases:
            self._acked = {lease.nonce for lease in leases}

    def _ranges(self, moment: Moment, queue: str, incarnation: int, runs: Runs) -> list[OffsetRange]:
        """The ranges to read of a queue; none if it was deleted."""
        view = moment.queues.get(queue)
        if view is None or view.incarnation != incarnation:
            self._report_loss([f"queue {queue!r} was deleted while this query held messages of it"])
            return []
        ranges = ranges_of(queue, runs)
        lost = removed(moment, ranges)
        self._report_loss(
            [f"offsets {item.first} to {item.end - 1} of {queue}/{item.partition} were removed" for item in lost]
        )
        return ranges

    def _report_loss(self, lost: Sequence[str]) -> None:
        """Fail because of lost messages, or log them and go on."""
        if self.options.fail_on_data_loss:
            stream_offsets.refuse([Loss(text, None) for text in lost])
        for text in lost:
            logger.warning("%s; skipped", text)
