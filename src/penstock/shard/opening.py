"""Opening a shard on a store, and closing it.

A store is a data directory, or PostgreSQL (`postgres/store.py`). Checkpoint, then the extents of sealed segments, then
the frames after the checkpoint; then the indexes are made and whatever was leased is closed as interrupted. The same
`apply` that ran live does all of it.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import groupby
from typing import Final, Protocol

from penstock.batch import layout
from penstock.batch.layout import DUE
from penstock.clock import Clock, SystemClock
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Closing, Entry, decode, decode_push_one, decode_pushes
from penstock.delivery.log import Extent
from penstock.delivery.recovery import attach_sealed, gaps, rebuild
from penstock.delivery.upkeep import decide_interrupted
from penstock.errors import Damaged, StoreRefused, StoreUnavailable
from penstock.journal import Journal, OpenFrame, as_it_is
from penstock.journal.file import FileJournal
from penstock.journal.memory import MemoryJournal
from penstock.model import Durability
from penstock.seals import DataKeys, Seals
from penstock.shard.checkpoints import Checkpointer, restore
from penstock.shard.delays import fetch_delays
from penstock.shard.shard import Shard
from penstock.shard.upkeep import Storekeeper
from penstock.storage.checkpoint import Checkpoint, CheckpointStore
from penstock.storage.directory import FORMAT_LOCATED, open_directory, raise_format, read_identity
from penstock.storage.disk import Disk
from penstock.storage.extents import Extent as SealedExtent
from penstock.storage.manifest import CurrentManifest, Manifest
from penstock.storage.sealed_frames import FrameSeals
from penstock.storage.sealed_rows import RowSeals
from penstock.storage.segment_files import KEPT, SegmentFiles, SegmentOptions, cache_of
from penstock.storage.segments import SegmentStore
from penstock.storage.staging import Staging

logger: Final = logging.getLogger("penstock.shard")

OpenKeys = Callable[[Disk, bytes], DataKeys | None]  # of a directory and its shard's id
Replay = Callable[[int], Iterator[tuple[int, memoryview]]]  # frames after a sequence


class Store(Protocol):
    """Where a shard is kept: its files, and its journal among them."""

    disk: Disk  # the files of the shard, once it is open
    own_disk: Disk | None  # where this process keeps what can be rebuilt; None: in memory
    term: int  # of the owner, which names of segment files carry; 0 where one process at a time has the files

    def open(self) -> bytes:
        """Take the shard for this process; its id."""

    def clock(self, clock: Clock | None) -> Clock:
        """The clock of the shard; `clock` is one that the caller brings."""

    def open_journal(self, shard_id: bytes, known_durable: int, unseal: OpenFrame) -> Journal:
        """The journal, refused when it ends before a sequence that was durable."""

    def opened(self, latest: int) -> list[Entry]:
        """What must be durable before anything is served. `latest` is when the newest message was pushed."""

    def start(self) -> None:
        """The shard is served from now on."""

    def close(self) -> None:
        """Give the shard back."""


class DirectoryStore:
    """A data directory, locked while it is open."""

    def __init__(self, disk: Disk, file_bytes: int | None = None, file_frames_max: int | None = None) -> None:
        self.disk = disk
        self.own_disk: Disk | None = disk
        self.term = 0
        sizes = {"file_bytes": file_bytes, "file_frames_max": file_frames_max}
        self._sizes = {name: size for name, size in sizes.items() if size is not None}

    def open(self) -> bytes:
        return open_directory(self.disk)

    def clock(self, clock: Clock | None) -> Clock:
        return clock or SystemClock()

    def open_journal(self, shard_id: bytes, known_durable: int, unseal: OpenFrame) -> Journal:
        return FileJournal(self.disk, shard_id, known_durable=known_durable, unseal=unseal, **self._sizes)

    def opened(self, latest: int) -> list[Entry]:
        return []

    def start(self) -> None:
        """The lock says already that it is at work."""

    def close(self) -> None:
        self.disk.close()


def open_in_memory(clock: Clock, rng: random.Random) -> Shard:
    """A shard that forgets everything when it is closed."""
    core = DeliveryState(clock.now())
    return Shard(MemoryJournal(), core, clock, rng, durability="os")


def open_on_disk(
    disk: Disk,
    clock: Clock,
    rng: random.Random,
    *,
    durability: Durability = "fsync",
    journal_file_bytes: int | None = None,
    open_keys: OpenKeys = lambda disk, shard_id: None,
) -> tuple[Shard, Storekeeper]:
    """A shard on a data directory, which is locked until `close_shard`."""
    store = DirectoryStore(disk, journal_file_bytes)
    return open_shard(store, store.open(), clock, rng, durability=durability, open_keys=open_keys)


def open_shard(
    store: Store,
    shard_id: bytes,
    clock: Clock,
    rng: random.Random,
    *,
    durability: Durability = "fsync",
    open_keys: OpenKeys = lambda disk, shard_id: None,
    segments: SegmentOptions = KEPT,
) -> tuple[Shard, Storekeeper]:
    """A shard on a store that is open; it is closed when this fails."""
    disk = store.disk
    try:
        keys = open_keys(disk, shard_id)
        seals = None if keys is None else Seals(keys, shard_id)
        frame_seals = None if seals is None else FrameSeals(seals)
        row_seals = None if seals is None else RowSeals(seals)
        unseal = as_it_is if frame_seals is None else frame_seals.open
        files = open_segment_files(store, shard_id, clock, segments)
        sealed = SegmentStore(files, row_seals=row_seals)
        checkpoints = CheckpointStore(disk)
        checkpoint = checkpoints.load()
        sequence = checkpoint.sequence if checkpoint else 0
        journal = store.open_journal(shard_id, max(sequence, sealed.sealed_sequence), unseal)
        core = recover(journal.replay, sealed.manifest, checkpoint, clock.now(), seals)
        if row_seals is not None:
            row_seals.encrypted = core.encrypted
        _require_whole(core)
        shard = Shard(journal, core, clock, rng, store=sealed, durability=durability, frame_seals=frame_seals)
        _rebuild(shard)
        _write_opened(shard, store)
        _close_interrupted(shard, rng)
    except BaseException:
        store.close()
        raise
    return shard, Storekeeper(shard, Checkpointer(shard, checkpoints), Staging(disk))


def open_segment_files(store: Store, shard_id: bytes, clock: Clock, options: SegmentOptions) -> SegmentFiles:
    """The files of segments, with new ones at the location that the options name."""
    disk = store.disk
    files = SegmentFiles(disk, clock=clock, term=store.term)

    def before_first() -> None:
        CurrentManifest(files, clock)  # a manifest that is missing later was lost
        raise_format(disk, shard_id, FORMAT_LOCATED)

    if options.url is not None:
        files.use(options.url, read_identity(disk), before_first, secrets.token_hex(8))
    if files.book.locations and store.own_disk is not None:
        files.keep_cache(cache_of(store.own_disk, options.cache_bytes))
    files.begin(claims=options.claims)
    return files


def close_on_disk(shard: Shard, keeper: Storekeeper, disk: Disk) -> None:
    """`close_shard` for a data directory."""
    close_shard(shard, keeper, DirectoryStore(disk))


def close_shard(shard: Shard, keeper: Storekeeper, store: Store) -> None:
    """A clean stop: checkpoint, a closing frame that vouches for all before it, and the store given back."""
    with ExitStack() as last:  # all of it, whatever fails; from below upwards
        last.callback(store.close)
        last.callback(shard.throttle.set)  # whoever waited to push is notified
        last.callback(shard.journal.close)
        last.callback(shard.commit.close)
        if shard.prefetcher is not None:
            last.callback(shard.prefetcher.close)
        last.callback(setattr, shard, "is_closed", True)
        shard.notice()  # what was left half done is not written down
        shard.journal.finish()
        try:
            keeper.finish()
        except (StoreUnavailable, StoreRefused) as error:
            # Everything that was confirmed is stored. Without the checkpoint the next opening reads more frames.
            logger.warning("the store went away before the last checkpoint: %s", error)
            shard.journal.fail(error)
        if shard.journal.failed is None:
            with shard.locked():
                shard.upkeep_commit([Closing(shard.clock.now())])
                shard.is_closed = True


def recover(
    replay: Replay, manifest: Manifest, checkpoint: Checkpoint | None, now: int, seals: Seals | None = None
) -> DeliveryState:
    """The state that a data directory holds, without its indexes. Changes nothing."""
    core = DeliveryState(now)
    core.replaying = True
    if checkpoint is not None:
        restore(core, checkpoint, seals)
    sealed = by_partition(manifest.extents)
    for (queue_id, number), extents in sealed.items():
        queue = core.queues.get(queue_id)
        if queue is not None and number < len(queue.partitions):
            attach_sealed(queue.partitions[number], extents)
    known = core.sequence
    for sequence, data in replay(min(known, manifest.sealed_sequence)):
        one = decode_push_one(data)
        if one is not None:
            core.replay_one(*one, sequence)
        elif sequence > known:
            core.apply(decode(data), sequence)
        else:
            # The checkpoint has the state; what it does not have is the messages that no segment holds yet.
            core.replay_pushes(decode_pushes(data), sequence)
    _prefer_sealed(core, sealed, manifest.sealed_sequence)
    return core


def by_partition(extents: list[SealedExtent]) -> dict[tuple[int, int], list[Extent]]:
    """Sealed extents as the delivery core knows them, by queue and partition, in order."""
    ordered = sorted(extents)
    grouped = groupby(ordered, key=lambda extent: (extent.queue, extent.partition))
    return {position: [Extent.of_sealed(extent) for extent in run] for position, run in grouped}


def _prefer_sealed(core: DeliveryState, sealed: dict[tuple[int, int], list[Extent]], sequence: int) -> None:
    """Partitions that only replay brought to light: release batches that segments hold too."""
    for (queue_id, number), extents in sealed.items():
        queue = core.queues.get(queue_id)
        partition = queue.partitions[number] if queue is not None else None
        if partition is not None:
            partition.trim(partition.start)
            if all(extent.sealed is None for extent in partition.extents):
                partition.reseal(extents, sequence)


def _require_whole(core: DeliveryState) -> None:
    """Every message must be somewhere: what is missing here would be skipped in silence later."""
    for queue in core.queues.values():
        for partition in queue.partitions:
            for first, end in gaps(partition):
                where = f"queue {queue.name!r}, partition {partition.name!r}"
                raise Damaged(f"{where}: no file holds offsets {first} to {end - 1}")


def _rebuild(shard: Shard) -> None:
    core = shard.core
    for queue in core.queues.values():
        for partition in queue.partitions:
            if partition.flags & layout.PRIORITY:
                for extent in partition.extents:
                    if extent.sealed is not None and extent.flags & layout.PRIORITY:
                        extent.load("priority", shard.column(extent, "priority"))
    rebuild(core)
    for queue in core.queues.values():
        if any(partition.flags & DUE for partition in queue.partitions):
            fetch_delays(shard, queue, core.wheel.reached, opening=True)


def _write_opened(shard: Shard, store: Store) -> None:
    """Say who serves from here on. It is durable with what `_close_interrupted` waits for."""
    entries = store.opened(_latest(shard.core))
    if entries:
        with shard.locked():
            shard.upkeep_commit(entries)


def _latest(core: DeliveryState) -> int:
    """When the newest message was pushed that is still known; 0 when there is none."""
    partitions = (partition for queue in core.queues.values() for partition in queue.partitions)
    return max((partition.extents[-1].pushed_last_at() for partition in partitions if partition.extents), default=0)


def _close_interrupted(shard: Shard, rng: random.Random) -> None:
    """Leases do not outlive the process: their messages are ready again, the attempt counted."""

    def close_some() -> bool:
        for entries in decide_interrupted(shard.core, shard.clock.now(), rng):
            shard.upkeep_commit(entries)
            return True
        return False

    while shard.run(close_some):
        pass
    shard.journal.sync()
