"""A session on a shard in this process: opening, closing, background roles, and executing operations.

Every method returns a result with a ticket. The result must not leave before the ticket is durable: `BlockingSession`,
`AsyncSession` and the broker each wait for it in their own way.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock import limits
from penstock import operations as ops
from penstock.access.encryption import KeyRing, has_live_keys, wrapper_of
from penstock.access.store import AccessStore
from penstock.backup.runner import Backups
from penstock.batch import Batch
from penstock.clock import Clock, SystemClock
from penstock.delivery import admin, namespaces
from penstock.delivery.entries import OperationSet, is_encrypted
from penstock.delivery.group import Group
from penstock.embedded import metrics
from penstock.embedded.audited import EMBEDDED, draft_of, ended_draft, is_recorded
from penstock.embedded.connections import Connections
from penstock.embedded.handlers import HANDLERS, Who
from penstock.embedded.pipeline_runs import PipelineRuns
from penstock.errors import PenstockError, Unavailable
from penstock.forks import refuse_in_forks
from penstock.model import (
    DEFAULT_GROUP,
    Durability,
    MessageId,
    Outcome,
    check_durability,
    check_mode,
    check_path,
    check_seconds,
    check_size,
    is_store_url,
)
from penstock.model_access import Quotas, Usage
from penstock.model_audit import Caller
from penstock.replies import LeaseReplies, LeaseReply, PushReply
from penstock.requests import ACK, RELEASE, LeaseRequest, Operation, PartitionChoice, Producer, QueueChoice, Settling
from penstock.rollups.files import DiskStore, MemoryStore
from penstock.rollups.recorder import Recorder
from penstock.seals import Wrapper
from penstock.shard import transactions
from penstock.shard.audit import AuditLog
from penstock.shard.engine import Ticket
from penstock.shard.opening import DirectoryStore, Store, close_shard, open_in_memory, open_shard
from penstock.shard.queue_leases import Require, ack_leases, lease_queues
from penstock.shard.queue_sets import SetKey, SetWaiter, set_key
from penstock.shard.shard import Shard
from penstock.shard.stored_files import StoredFiles
from penstock.shard.tasks.service import TaskService
from penstock.shard.timeline import Timelines
from penstock.shard.upkeep import Sleeper, Storekeeper, Timekeeper, Upkeep
from penstock.shard.waiters import Waiter
from penstock.storage.directory import (
    FORMAT_ENCRYPTED,
    FORMAT_OPERATIONS,
    MARKER,
    raise_format,
    read_marker,
)
from penstock.storage.disk import Disk, RealDisk
from penstock.storage.segment_files import KEPT, SegmentOptions
from penstock.storage.staged_quotas import StagedQuotas
from penstock.storage.staging import Staging
from penstock.telemetry.meter import Meter

R = TypeVar("R")
Reply = TypeVar("Reply", LeaseReply, LeaseReplies)
Watch = tuple[Waiter | SetWaiter, Group | None]  # a lease that waits; over several queues it has no one group

segments_at = SegmentOptions.of  # where a session keeps its segments
upkeep_of = Upkeep  # what a session does by itself


def store_of(
    path: Path | str | None, disk: Disk | None, mode: int | None, file_bytes: int | None, file_frames: int | None
) -> Store | None:
    """Where a shard is kept, by its path or URL; None when it is in memory."""
    if isinstance(path, str) and is_store_url(path):
        from penstock.postgres.store import PostgresStore  # late: most programs have a directory

        return PostgresStore(path, file_bytes=file_bytes, file_frames_max=file_frames)
    if path is None and disk is None:
        return None
    return DirectoryStore(disk or RealDisk(path or ".", mode=mode), file_bytes, file_frames)


class Session:
    """One open shard and its background roles. `path` is a directory, or the URL of a store; None: in memory."""

    takes_profiles = True  # of the process that it is in
    loop: asyncio.AbstractEventLoop | None = None  # of the broker that serves it

    def __init__(
        self,
        path: Path | str | None,
        *,
        durability: Durability = "fsync",
        sync_seconds: float = 0.05,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        disk: Disk | None = None,
        store: Store | None = None,
        access: AccessStore | None = None,
        background: bool = True,
        journal_file_bytes: int | None = None,
        upkeep: Upkeep = Upkeep(),  # noqa: B008 - it does not change
        task_retention_seconds: float = limits.task_retention_seconds,
        task_result_bytes_max: int = limits.task_result_bytes_max,
        data_mode: str | None = None,
        audit: bool = False,
        master_key: str | Path | bytes | None = None,
        kms_command: str | None = None,
        keys: Wrapper | None = None,
        segments: SegmentOptions = KEPT,
        history: bool = False,
    ) -> None:
        check_path(path, is_optional=True)
        check_durability(durability)
        sync_us = round(check_seconds(sync_seconds, "sync_seconds") * 1_000_000)
        check_seconds(task_retention_seconds, "task_retention_seconds")
        check_size(task_result_bytes_max, "task_result_bytes_max", *limits.task_result_bytes_range)
        mode = check_mode(data_mode)
        rng = rng or random.SystemRandom()
        self._wrapper = wrapper_of(master_key, kms_command, keys)
        self.key_ring: KeyRing | None = None  # None: there is no master key
        self._disk: Disk | None = None
        self.keeper: Storekeeper | None = None
        self._store = store or store_of(path, disk, mode, journal_file_bytes, upkeep.journal_file_frames)
        self._open(clock, rng, durability, segments)
        if self.keeper is not None:
            self.keeper.options = upkeep
        clock = self.clock
        self.access: AccessStore = access or AccessStore(self._disk, clock)
        self.files: StoredFiles = StoredFiles(self.shard, self._disk)
        self.staging = Staging(self._disk)
        self.audit: AuditLog = AuditLog(self.shard, self._disk, is_on=audit)
        self.access.before_change = self.audit.record_change
        self._keep_quotas()
        self._take_short_ways()
        self.shard.sync_us = sync_us
        self.shard.task_result_bytes_max = task_result_bytes_max
        self.timekeeper = Timekeeper(self.shard)
        own_disk = None if self._store is None else self._store.own_disk
        self.tasks: TaskService = TaskService(self.shard, own_disk, task_retention_seconds, background=background)
        self.timelines: Timelines = Timelines(self.shard)
        self.timekeeper.roles += [self.tasks.tick, self.timelines.tick]
        self._instruct_keeper(task_retention_seconds)
        self._measure(is_recording=history and background)
        self.backups: Backups = Backups(self.shard, self.keeper, self._disk)
        self._closing = threading.Lock()
        refuse_in_forks(self)
        self._begin(background)

    def _open(self, clock: Clock | None, rng: random.Random, durability: Durability, segments: SegmentOptions) -> None:
        if self._store is None:
            self.clock = clock or SystemClock()
            self.shard: Shard = open_in_memory(self.clock, rng)
            return
        shard_id = self._store.open()
        self.clock = self._store.clock(clock)
        self._disk = self._store.disk
        self.shard, self.keeper = open_shard(
            self._store,
            shard_id,
            self.clock,
            rng,
            durability=durability,
            open_keys=self._open_keys,
            segments=segments,
        )

    def _measure(self, *, is_recording: bool) -> None:
        """Count from here on; with `is_recording` keep the history of it."""
        self.opened_at = self.clock.now()
        self.baseline = metrics.baseline_of(self.shard)
        self.notices: list[Callable[[], Iterable[str]]] = []  # what else somebody should look at
        store = MemoryStore() if self._disk is None else DiskStore(self._disk)
        self.recorder = Recorder(self.shard, store)
        self._is_recording = is_recording
        self.set_meter(Meter(self.opened_at))

    @property
    def store(self) -> Store | None:
        """What the shard is in; None: in memory."""
        return self._store

    @property
    def location(self) -> str:
        """The directory; "" where there is none."""
        return "" if self._disk is None else str(self._disk.root)

    def set_meter(self, meter: Meter) -> None:
        """What latencies and refusals are read from."""
        self.meter = self.recorder.sampler.meter = meter
        metrics.measure_commits(self.shard, meter)

    def _instruct_keeper(self, task_retention_seconds: float) -> None:
        """Who must know before the storekeeper removes something, and when operations begin and end."""
        self._record_ends()
        if self.keeper is not None:
            self.keeper.before_removal = self.tasks.before_removal
            self.keeper.before_audit_removal = self.audit.before_removal
            self.keeper.identify_tasks = self.tasks.identify
        if self.shard.store is not None:
            self.shard.store.keep_tasks(self.clock, task_retention_seconds)

    def _keep_quotas(self) -> None:
        self.staged_quotas = StagedQuotas(self._disk, self.staging)
        self._quotas: dict[str, Quotas] = {}  # as declared to the shard
        self.pipeline_runs: PipelineRuns = PipelineRuns(self._disk, self.clock.now)
        self.connections: Connections = Connections(self.clock.now)  # those of a broker
        self.connections_of: Callable[[str], int] = lambda namespace: 0  # a broker counts them
        self._declare_namespaces()
        self.access.on_change.append(self._declare_namespaces)

    def _declare_namespaces(self) -> None:
        """Quotas are those of the access store, from the moment that they change."""
        with self.shard.locked():  # before the look: of two changes the later one counts
            quotas = {name: record.quotas for name, record in self.access.document.namespaces.items()}
            if quotas != self._quotas:
                namespaces.declare(self.shard.core, quotas, self.clock.now())
                self._quotas = quotas

    def usage(self) -> dict[str, Usage]:
        """What each namespace uses now. Looks without the lock: each number is one counter."""
        declared = self.shard.core.namespaces
        if declared is None:
            return {}
        now, staged = self.clock.now(), self.staged_quotas.used()
        return {
            name: Usage(**namespace.usage(now), connections=self.connections_of(name), staged_bytes=staged[name])
            for name, namespace in declared.by_name.items()
        }

    def _take_short_ways(self) -> None:
        """What is called most often goes straight to the shard."""
        self.confirm = self.shard.confirm
        self.push_one = self.shard.push_one
        store = self.shard.store
        self.reads_elsewhere = store is not None and bool(store.disk.book.locations)
        self.lease = self._lease_then_ack if self.reads_elsewhere else self.shard.lease
        self.loaded = partial(self.shard.loaded, only_kept=True)
        self.settle = self.shard.settle
        self.settle_lease = self.shard.settle_lease
        self.extend = self.shard.extend

    def _open_keys(self, disk: Disk, shard_id: bytes) -> KeyRing | None:
        """The data keys of the directory; refused when it needs a master key and none is configured."""
        if self._wrapper is None:
            if has_live_keys(disk):
                raise is_encrypted()
            return None
        first = partial(raise_format, disk, shard_id, FORMAT_ENCRYPTED)
        self.key_ring = KeyRing(disk, self._wrapper, self.clock, before_first=first)
        return self.key_ring

    def need_format(self, version: int) -> None:
        """Before something that older versions do not know: they must not open the directory from now on."""
        if self._disk is not None and self._disk.exists(MARKER):
            raise_format(self._disk, read_marker(self._disk), version)

    def _record_ends(self) -> None:
        """The end of an operation that runs in the background has a record too, with its counts."""
        self.tasks.bulk.before_first = partial(self.need_format, FORMAT_OPERATIONS)

        def record(operation: OperationSet, end: Callable[[], object]) -> None:
            if self.audit.is_on:
                self.audit.run(ended_draft(operation), lambda: (end(), 0))
            else:
                end()

        self.tasks.operations.on_end = record

    def _begin(self, background: bool) -> None:
        try:
            self.audit.check()
        except PenstockError:
            self.close()
            raise
        if background:
            self._start()
        else:
            self.shard.prefetcher = None  # no threads means none

    def _start(self) -> None:
        if self._store is not None:
            self._store.start()
        self.timekeeper.start()
        if self.keeper is not None:
            self.keeper.start()
        self.tasks.start()
        if self._is_recording:
            self.recorder.start()

    def sleepers(self) -> list[Sleeper]:
        """The threads of the background roles; none when it was opened without."""
        keeper = None if self.keeper is None else self.keeper.sleeper
        tasks = (self.tasks.clerk, self.tasks.operations.sleeper)
        candidates = [self.timekeeper.sleeper, keeper, *tasks, self.recorder.sleeper]
        return [sleeper for sleeper in candidates if sleeper is not None and sleeper.was_started]

    def close(self) -> None:
        """Stop cleanly; a second call does nothing."""
        with self._closing:
            if self.shard.is_closed:
                return
            self.backups.stop()
            self.timekeeper.stop()
            with suppress(PenstockError):  # a chart that ends a minute early is no reason to stay open
                self.recorder.stop()
            try:
                if self.keeper is not None and self._store is not None:
                    self.keeper.stop()
                    self.tasks.close()
                    close_shard(self.shard, self.keeper, self._store)
                else:
                    self.tasks.close()
                    self.shard.is_closed = True
                    self.shard.commit.close()
            finally:  # whoever waits is woken, however it went
                with self.shard.lock:
                    self.shard.waiters.wake_all()
                    self.shard.core.clear_leases()
                self.tasks.wake_all()

    # messages

    def push(
        self,
        queue: str,
        batch: Batch,
        partition: PartitionChoice,
        durability: Durability | None,
        skips: bool = False,
    ) -> tuple[PushReply, Ticket]:
        check_durability(durability)
        return self.shard.push(queue, batch, partition, durability, skips=skips)

    def loaded_reply(self, reply: Reply) -> Reply:
        """A reply with all its messages in memory. What cannot be read for now is released: that costs no attempt."""
        if isinstance(reply, LeaseReply):
            loaded = self.load_lease(reply)
            return msgspec.structs.replace(reply, nonce=loaded.nonce, pieces=loaded.pieces, count=loaded.count)
        try:
            leases = [lease for lease in map(self.load_lease, reply.leases) if lease.count]
            return msgspec.structs.replace(reply, leases=leases, count=sum(lease.count for lease in leases))
        except Unavailable:
            self.settle_leases([lease.nonce for lease in reply.leases], RELEASE)
            raise

    def load_lease(self, reply: LeaseReply) -> LeaseReply:
        """A reply with everything in memory. What cannot be read for now is released: that costs no attempt.

        What retention has removed meanwhile is left out.
        """
        try:
            pieces = self.loaded(reply.pieces)
            if len(pieces) == len(reply.pieces):
                return msgspec.structs.replace(reply, pieces=pieces)
            count = sum(len(piece.offsets) for piece in pieces)
            return msgspec.structs.replace(reply, pieces=pieces, count=count, nonce=reply.nonce if count else 0)
        except Unavailable:
            if reply.nonce:
                self.settle_lease(reply.nonce, RELEASE)
            raise

    def _lease_then_ack(self, queue: str, group: str, request: LeaseRequest) -> tuple[LeaseReply, Ticket]:
        """Lease where sealed messages cannot always be read: what is acknowledged on delivery is read before."""
        if not request.auto_ack:
            return self.shard.lease(queue, group, request)
        reply, ticket = self.shard.lease(queue, group, msgspec.structs.replace(request, auto_ack=False))
        if not reply.count:
            return reply, ticket
        reply = self.load_lease(reply)
        return reply, self.settle_lease(reply.nonce, ACK) or ticket

    def needs_files(self, queue: str, group: str) -> bool:
        """Whether the group has messages before it that lie in segments, so that a lease may read a file."""
        with self.shard.lock:
            self.shard.check()
            target = self.shard.core.by_name.get(queue)
            number = target.group_ids.get(group, 0) if target is not None else 0
            return target is not None and target.groups[number].reads_segments()

    def lease_waiting(self, queue: str, group: str, request: LeaseRequest, seconds: float) -> tuple[LeaseReply, Ticket]:
        """Lease, blocking until there is a message or `seconds` have passed. Nothing polls."""
        reply, ticket = self.lease(queue, group, request)
        if reply.count:
            return reply, ticket
        request = request.in_existing_group()
        return self._awaited(
            lambda: self.lease(queue, group, request), lambda wake: self.watch(queue, wake, group), seconds
        )

    def lease_queues(
        self, choice: QueueChoice, group: str, request: LeaseRequest, seconds: float = 0.0
    ) -> tuple[LeaseReplies, Ticket]:
        """Lease from several queues, blocking until one of them has a message or `seconds` have passed."""
        key = set_key(choice, group, request)

        def ask() -> tuple[LeaseReplies, Ticket]:
            answer = self.lease_set(key, request)
            assert answer is not None, "it may read files"
            return answer

        reply, ticket = ask()
        if reply.count or not seconds:
            return reply, ticket
        return self._awaited(ask, lambda wake: self.watch_queues(key, wake), seconds)

    def lease_set(
        self, key: SetKey, request: LeaseRequest, require: Require | None = None, *, may_read: bool = True
    ) -> tuple[LeaseReplies, Ticket] | None:
        """Lease from the queues of a set. None: it must read a file, and may not.

        Where sealed messages cannot always be read, what is acknowledged on delivery is read before.
        """
        if not (request.auto_ack and self.reads_elsewhere):
            return lease_queues(self.shard, key, request, require, may_read=may_read)
        request = msgspec.structs.replace(request, auto_ack=False)
        answer = lease_queues(self.shard, key, request, require, may_read=may_read)
        if answer is None or not answer[0].count:
            return answer
        reply = self.loaded_reply(answer[0])
        _, ticket = self.settle_leases([lease.nonce for lease in reply.leases], ACK)
        return reply, max(ticket, answer[1])

    def settle_leases(self, nonces: Iterable[int], how: Settling) -> tuple[PenstockError | None, Ticket]:
        """End all deliveries that some leases still hold; the first error, after all that can be settled is."""
        failure: PenstockError | None = None
        last, nonces = 0, list(nonces)
        if how.outcome is Outcome.ACKED and len(nonces) > 1:
            last, nonces = ack_leases(self.shard, nonces)
        for nonce in nonces:
            try:
                last = max(last, self.settle_lease(nonce, how))
            except PenstockError as error:
                failure = failure or error
        return failure, last

    def _awaited(
        self,
        ask: Callable[[], tuple[Reply, Ticket]],
        watch: Callable[[Callable[[], object]], Watch],
        seconds: float,
    ) -> tuple[Reply, Ticket]:
        """Ask whenever there may be something, until there is or `seconds` have passed."""
        clock = self.shard.clock
        deadline = clock.monotonic() + round(seconds * 1_000_000)
        turn = threading.Semaphore(0)
        while True:
            waiter = watch(turn.release)
            served = False
            try:
                reply, ticket = ask()
                left = deadline - clock.monotonic()
                if not reply.count and left > 0:
                    turn.acquire(timeout=left / 1e6)
                    reply, ticket = ask()
                served = reply.count > 0
            finally:
                self.unwatch(waiter, served=served)
            if served or clock.monotonic() >= deadline:
                return reply, ticket

    def watch(self, queue: str, wake: Callable[[], object], group: str = DEFAULT_GROUP) -> Watch:
        """Have `wake` called when the queue may have something to lease. The group is in use until `unwatch`."""
        with self.shard.lock:
            self.shard.check()
            target = admin.group_named(admin.queue_named(self.shard.core, queue), group)
            waiter = self.shard.waiters.add(target.queue.id, target.id, wake)
            target.waiting += 1
            return waiter, target

    def watch_queues(self, key: SetKey, wake: Callable[[], object]) -> Watch:
        """Have `wake` called when one of several queues may have something to lease."""
        with self.shard.lock:
            self.shard.check()
            return self.shard.waiters.add_to_set(key, wake, self.shard.clock.monotonic()), None

    def unwatch(self, watch: Watch, *, served: bool) -> None:
        waiter, group = watch
        with self.shard.lock:
            if self.shard.changing:  # it has stopped: nobody is served any more, and whoever waits is woken
                self.shard.abandon()
                return
            self.shard.changing = True  # a wake-up that is not passed on is lost
            if isinstance(waiter, SetWaiter):
                self.shard.waiters.sets.leave(waiter, served=served)
            else:
                self.shard.waiters.leave(waiter, served=served)
            if group is not None:
                group.waiting -= 1
                group.active_at = max(group.active_at, self.shard.clock.now())
            self.shard.changing = False

    def transact(
        self, operations: Sequence[Operation], producer: Producer | None = None, client: str = ""
    ) -> tuple[list[list[MessageId]], Ticket]:
        """Pushes and settles over any queues, all or nothing; the ids of each push."""
        return transactions.transact(self.shard, operations, producer, client)

    # everything else

    def run(
        self, operation: ops.Operation[R], client: str = "", caller: Caller = EMBEDDED, owner: str = ""
    ) -> tuple[R, Ticket]:
        """Execute an operation, and record what `caller` changes by it. It may block, since files may be read.

        Names of producers, sinks, members and workers are those of the principal `owner`, "" for the broker's own.
        """
        handler, who = HANDLERS[type(operation)], Who(client, owner, owner or caller.who)
        if self.audit.is_on and is_recorded(operation):
            return self.audit.run(draft_of(operation, caller), lambda: handler(self, operation, who))
        return handler(self, operation, who)

    def checkpoint(self) -> None:
        """Write a checkpoint now."""
        if self.keeper is not None:
            self.keeper.checkpoint()
