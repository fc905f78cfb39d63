"""The mode `consume`: messages are leased from the broker, read by the tasks, and acknowledged when they are done.

So a query can share a work queue with ordinary consumers: what it holds nobody else gets. The process that plans
leases, extends the leases from a thread while a batch runs, and acknowledges a batch when Spark asks for the next one.
A query that fails or stops lets its leases run out, and others get the messages.

At least once: a batch that is played again after a restart has the same messages, even when their leases ran out
meanwhile and somebody else has had them.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from penstock import limits, validation
from penstock import operations as ops
from penstock.errors import InvalidField, LeaseLost, PenstockError
from penstock.history import Moment, QueueView, Slice, Wanted, is_directory
from penstock.history import lost as removed
from penstock.history.broker_files import PATIENCE_SECONDS
from penstock.model import DEFAULT_GROUP, Outcome, check_name, check_seconds
from penstock.remote.dialling import session as dial
from penstock.remote.settings import settings
from penstock.requests import Settling
from penstock.spark import failures, lease_offsets, stream_offsets
from penstock.spark.batch_reader import Lot, lots
from penstock.spark.lease_offsets import Lease, LeaseOffset, Runs, offset_of
from penstock.spark.options import SourceOptions
from penstock.spark.places import CLIENT
from penstock.spark.stream_offsets import Loss
from penstock.spark.stream_reader import PATTERN, PAUSE_SECONDS, StreamReader, count_max_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

LEASE_COUNT_MAX: Final = 10_000  # in one answer: what does not fit into it is handed back one by one
EXTENSIONS: Final = 3  # of a lease while it lasts
_ACK: Final = Settling(Outcome.ACKED)

_log = logging.getLogger(__name__)


class Keeper:
    """Extends leases from a thread until they are let go of."""

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

    def let_go(self, nonce: int) -> None:
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
                self.let_go(nonce)
                _log.warning("a lease ran out before its batch was done: its messages may be delivered to others too")
            except PenstockError as error:
                _log.warning("a lease could not be extended for now: %s", error)
        return len(self._held)

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds / EXTENSIONS):
            self.tick()


class ConsumingReader(StreamReader):
    """See the module's rules."""

    count_default = 10_000

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if is_directory(options.url):
            raise InvalidField(
                "mode: consume takes messages from a broker, and url names a directory",
                hint="start one with `penstock serve` and give its url, or read the directory with mode=observe",
            )
        self._group = check_name(options.group, "group") if options.group else DEFAULT_GROUP
        if not check_seconds(options.lease_seconds, "leaseSeconds", limits.lease_seconds_max):
            raise InvalidField("leaseSeconds: 0 would end a lease before it begins")
        self._session_or_none: Any = None
        self._keeper: Keeper | None = None
        self._given: tuple[LeaseOffset, LeaseOffset] | None = None  # the last start and the end that it was given
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
        if self._given is not None and self._given[0] == begun:
            return self._given[1].as_dict()  # asked again before that batch has run
        self.let_go()
        self._acknowledge(begun.leases)
        count_max = count_max_of(limit) or self.options.messages_per_trigger_max or self.count_default
        leases = self._lease(begun, count_max if self._left is None else min(count_max, self._left))
        if not leases:
            return start if start is not None else begun.as_dict()
        if self._left is not None:
            self._left -= sum(each.count for each in leases)
        end = LeaseOffset(self.shard, begun.query, begun.batch + 1, leases)
        self._given = (begun, end)
        return end.as_dict()

    @failures.shown_plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = offset_of(start), offset_of(end)
        if first == last:
            return []
        self._check(last)
        self._given = (first, last)
        self.keeper.hold([each.nonce for each in last.leases])
        moment = self.history.look()
        work: list[tuple[list[Slice], Runs]] = []
        for (queue, incarnation), runs in lease_offsets.runs_by_queue(last.leases).items():
            slices = self.history.plan(moment, self._wanted(moment, queue, incarnation, runs))
            work += [(lot, runs) for lot in lots(slices, self.options.partition_bytes_max)]
        self.hold([each for lot, _ in work for each in lot])
        return [Lot(each, self.shard) for each in work]

    def read_lot(self, lot: Any) -> Iterator[pa.RecordBatch]:
        slices, runs = lot
        for batch, shaper in self.rows(slices, ("partition", "offset")):
            rows = lease_offsets.held(batch, runs)
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
        return self._given[1] if self._given is not None else offset_of(self.initialOffset())

    def _check(self, offset: LeaseOffset) -> LeaseOffset:
        known = stream_offsets.StreamOffset(offset.shard, offset.query, {})
        stream_offsets.check(known, self.shard, {})
        return offset

    def _queues(self) -> list[QueueView]:
        return list(self.queues(self.history.look()).values())

    def _lease(self, begun: LeaseOffset, count_max: int) -> list[Lease]:
        """Messages of every queue in turn, until there are enough or no more; a moment is waited for the first."""
        found: list[Lease] = []
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
                reply, _ = self.session.lease(
                    queue.name, self._group, request, 0.0 if found else wait_seconds / len(queues)
                )
                if not reply.count:
                    break
                lease = lease_offsets.lease_of(reply, queue.incarnation)
                found.append(lease)
                self.keeper.hold([lease.nonce])
                count_max -= lease.count
        return found

    def _acknowledge(self, leases: Sequence[Lease]) -> None:
        """Settle what is done; leases that ran out meanwhile are for others by now."""
        for lease in leases:
            if lease.nonce in self._acked:
                continue
            self.keeper.let_go(lease.nonce)
            try:
                self.session.settle_lease(lease.nonce, _ACK)
            except LeaseLost:
                _log.warning("%s messages of %s were done too late: they are delivered again", lease.count, lease.queue)
        if leases:
            self._acked = {lease.nonce for lease in leases}

    def _wanted(self, moment: Moment, queue: str, incarnation: int, runs: Runs) -> list[Wanted]:
        """What to read of a queue, unless it is gone."""
        view = moment.queues.get(queue)
        if view is None or view.incarnation != incarnation:
            self._bear([f"queue {queue!r} was deleted while this query held messages of it"])
            return []
        found = lease_offsets.wanted(queue, runs)
        gone = removed(moment, found)
        self._bear(
            [f"offsets {each.first} to {each.end - 1} of {queue}/{each.partition} were removed" for each in gone]
        )
        return found

    def _bear(self, lost: Sequence[str]) -> None:
        """Fail for what is gone, or say so and go on."""
        if self.options.fail_on_data_loss:
            stream_offsets.refuse([Loss(text, None) for text in lost])
        for text in lost:
            _log.warning("%s; skipped", text)
