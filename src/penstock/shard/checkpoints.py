"""Checkpoints of a shard: taking its state apart into parts, and putting it back.

Parts: `shard` with a spare of every queue, `queue-<id>` for each queue, `dedup-<id>-<run>` for each frozen run of its
dedup window and `dedup-<id>-hot` for the rest, `endings-<id>` with the last errors of its messages that were tried
before (those of encrypted queues end in `-sealed`), `producers`, `sinks` and `tasks`. A queue is taken in slices, each
at a sequence of its own, so that the shard is never held for long; so are producers. Sinks and tasks are each taken at
one sequence, as references, and encoded when the shard goes on. A part that has not changed since the last one is kept
as it is. Runs are merged here, before they are written, and mapped from their files afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.delivery import snapshot
from penstock.delivery.core import DeliveryState
from penstock.delivery.dedup import ENTRY, DedupWindow, Records, Run, merged, run_of
from penstock.delivery.log import Queue
from penstock.delivery.snapshot import Taken, encode_tasks, restore_sinks, restore_tasks, take_sinks, take_tasks
from penstock.shard.sealed_tasks import open_tasks, seal_tasks
from penstock.shard.shard import Shard
from penstock.storage.checkpoint import Checkpoint, CheckpointStore
from penstock.storage.disk import Bytes

if TYPE_CHECKING:
    from penstock.seals import Seals


SHARD_PART: Final = "shard"
QUEUE_PART: Final = "queue-"
DEDUP_PART: Final = "dedup-"
ENDINGS_PART: Final = "endings-"
HOT: Final = "hot"
SEALED: Final = "-sealed"
PRODUCERS_PART: Final = "producers"
SINKS_PART: Final = "sinks"
TASKS_PART: Final = "tasks"
PRODUCERS_SLICE: Final = 200  # producers taken while the shard is held
MAPPED_MIN: Final = 4_096  # keys of a run below which a mapping is not worth its page table


class Checkpointer:
    """Writes checkpoints of one shard; one thread at a time."""

    def __init__(self, shard: Shard, store: CheckpointStore) -> None:
        self._shard = shard
        self._store = store
        self._forget()

    def _forget(self) -> None:
        """Nothing is known of the last checkpoint: the next is written whole."""
        self._is_known = False
        self._saved: dict[int, int] = {}  # queue id → sequence up to which its part is current
        # Parts in the last checkpoint that this process wrote, by the queue that they belong to.
        self._written: dict[int, set[str]] = {}
        self._spares: dict[int, snapshot.QueuePart] = {}
        self._parts_saved: dict[str, int] = {}  # part of the shard itself → sequence up to which it is current

    def save(self) -> None:
        """Write what has changed since the last one."""
        if not self._is_known:  # none yet, or somebody was interrupted in here
            self._forget()
        self._is_known = False
        self._save()
        self._is_known = True

    def _save(self) -> None:
        shard = self._shard
        with shard.locked():
            base = shard.core.sequence
            queue_id_next = shard.core.queue_id_next
            pauses = shard.core.pauses.kept(shard.core)
            queues = list(shard.core.queues.values())
        parts: dict[str, bytes] = {}
        keep: set[str] = set()
        runs: dict[str, Run] = {}
        kept: set[int] = set()
        for queue in queues:
            if queue.touched <= self._saved.get(queue.id, -1):
                keep |= self._written[queue.id]
                kept.add(queue.id)
            else:
                self._take(queue, parts, keep, runs)
        self._take_producers(parts, keep)
        self._take_sinks(parts, keep)
        self._take_tasks(parts, keep)
        self._spares = {queue.id: self._spares[queue.id] for queue in queues}
        parts[SHARD_PART] = snapshot.encode_part(snapshot.ShardPart(queue_id_next, list(self._spares.values()), pauses))
        with shard.locked():
            highest = shard.core.sequence
        # A part may hold what came after `base`: it must not know of frames that a crash could undo.
        shard.commit.wait(highest)
        self._store.save(base, parts, keep)
        self._saved = {queue.id: self._saved[queue.id] if queue.id in kept else base for queue in queues}
        self._parts_saved |= {name: base for name in (PRODUCERS_PART, SINKS_PART, TASKS_PART) if name in parts}
        self._written = by_queue((*parts, *keep))
        self._map(runs)

    def _map(self, runs: dict[str, Run]) -> None:
        """What was written need not be in memory any more."""
        for name, run in runs.items():
            run.part = name
            if len(run) >= MAPPED_MIN and not name.endswith(SEALED):
                run.records = np.frombuffer(self._store.mapped(name), ENTRY)

    def _take(self, queue: Queue, parts: dict[str, bytes], keep: set[str], new: dict[str, Run]) -> None:
        shard = self._shard
        self._merge_runs(queue)
        slices, endings = [], []
        first = 0
        while first < len(queue.partitions):
            with shard.locked():
                slices.append(snapshot.take_slice(shard.core, queue, first))
                endings += snapshot.take_endings(queue, first)
            first += snapshot.SLICE
        with shard.locked():
            head = snapshot.take_head(queue)
            runs = dict(queue.dedup.runs) if queue.dedup is not None else {}
            hot = dict(queue.dedup.hot) if queue.dedup is not None else {}
            seals = self._seals_of(queue.id)
        part = snapshot.QueuePart(head, slices)
        self._spares[queue.id] = snapshot.spare_of(part)
        parts[f"{QUEUE_PART}{queue.id}"] = snapshot.encode_part(part)
        if endings:
            parts |= endings_part(queue.id, endings, seals)
        for number, run in runs.items():
            name = dedup_part(queue.id, number, is_sealed=seals is not None)
            if run.part == name:
                keep.add(name)
            else:
                parts[name], new[name] = encode_run(run.records, name, queue.id, seals), run
        if hot:
            name = dedup_part(queue.id, HOT, is_sealed=seals is not None)
            parts[name] = encode_run(run_of(hot), name, queue.id, seals)

    def _seals_of(self, queue: int) -> Seals | None:
        """What seals the parts of a queue; None when it is not encrypted."""
        frame_seals = self._shard.frame_seals
        return frame_seals.seals if frame_seals is not None and queue in self._shard.core.encrypted else None

    def _merge_runs(self, queue: Queue) -> None:
        """So that there are few. The shard goes on meanwhile, and may forget some of them."""
        window = queue.dedup
        while window is not None:
            with self._shard.locked():
                pair = window.mergeable()
                if pair is None:
                    return
                older, newer = window.runs[pair[0]], window.runs[pair[1]]
                left_behind_at = self._shard.clock.now() - window.window
            run = merged(older, newer, left_behind_at)
            with self._shard.locked():
                if window.runs.get(pair[0]) is older and window.runs.get(pair[1]) is newer:
                    window.merge(pair, run)

    def _is_current(self, name: str, touched: int, keep: set[str]) -> bool:
        """Whether a part is kept as it is, since nothing has changed after it was written."""
        is_current = touched <= self._parts_saved.get(name, -1) and name in self._written.get(0, ())
        if is_current:
            keep.add(name)
        return is_current

    def _take_producers(self, parts: dict[str, bytes], keep: set[str]) -> None:
        shard = self._shard
        known = shard.core.producers
        with shard.locked():
            ids = list(known.known)
            touched, look_at = known.touched, known.look_at
        if self._is_current(PRODUCERS_PART, touched, keep):
            return
        slices = []
        for first in range(0, len(ids), PRODUCERS_SLICE):
            with shard.locked():
                slices.append(snapshot.take_producers(known, ids[first : first + PRODUCERS_SLICE], shard.core.sequence))
        if slices:
            parts[PRODUCERS_PART] = snapshot.encode_part(snapshot.ProducersPart(look_at, slices))

    def _take_sinks(self, parts: dict[str, bytes], keep: set[str]) -> None:
        core = self._shard.core
        with self._shard.locked():
            if self._is_current(SINKS_PART, core.sinks.touched, keep):
                return
            taken = take_sinks(core.sinks, core.sequence)
        if taken.known:
            parts[SINKS_PART] = snapshot.encode_part(taken)

    def _take_tasks(self, parts: dict[str, bytes], keep: set[str]) -> None:
        core = self._shard.core
        with self._shard.locked():
            if self._is_current(TASKS_PART, core.tasks.touched_last(), keep):
                return
            if not core.tasks:
                return
            taken = take_tasks(core.tasks, core.sequence)
        try:
            parts[TASKS_PART] = encode_tasks(self._sealed(taken))
        finally:
            with self._shard.locked():
                core.tasks.take_back()

    def _sealed(self, taken: Taken) -> Taken:
        shard = self._shard
        if shard.frame_seals is None or not shard.core.encrypted:
            return taken
        return seal_tasks(taken, shard.frame_seals.seals, shard.core.encrypted, shard.number_of)


def restore(core: DeliveryState, checkpoint: Checkpoint, seals: Seals | None = None) -> None:
    """Put the state of a checkpoint into an empty core."""
    core.sequence = core.swept = checkpoint.sequence
    for name in checkpoint.parts:
        if name == SHARD_PART:
            spare = snapshot.decode_shard(checkpoint.parts[name])
            core.queue_id_next = max(core.queue_id_next, spare.queue_id_next)
            core.pauses.restore(spare.pauses)
        elif name.startswith(QUEUE_PART):
            snapshot.restore(core, snapshot.decode_queue(checkpoint.parts[name]))
        elif name == PRODUCERS_PART:
            snapshot.restore_producers(core.producers, checkpoint.parts[name])
        elif name == SINKS_PART:
            restore_sinks(core.sinks, checkpoint.parts[name])
        elif name == TASKS_PART:
            opened = {} if seals is None else {"opened": partial(open_tasks, seals=seals)}
            restore_tasks(core.tasks, checkpoint.parts[name], **opened)
    core.pauses.cover_all(core.queues.values())
    for name in [name for name in checkpoint.parts if name.startswith(ENDINGS_PART)]:
        ended = opened_part(checkpoint, name, seals)
        if ended is not None:  # else the errors are gone with their key
            snapshot.restore_endings(core.queues[_queue_of(name)], bytes(ended))
    dedup = [name for name in checkpoint.parts if name.startswith(DEDUP_PART)]
    for number, names in by_queue(dedup).items():
        queue = core.queues[number]
        queue.dedup = DedupWindow(queue.options.dedup_seconds)
        restore_dedup(queue.dedup, {name.split("-")[2]: name for name in names}, checkpoint, seals)


def restore_dedup(
    window: DedupWindow, names: dict[str, str], checkpoint: Checkpoint, seals: Seals | None = None
) -> None:
    """Runs under their numbers, oldest first; what was still in the dictionary becomes one more.

    Without the key of an encrypted one nothing can be known of it, so it is left out.
    """
    hot = names.pop(HOT, None)
    for number in sorted(map(int, names)):
        name = names[str(number)]
        data = opened_part(checkpoint, name, seals)
        if data is not None:
            window.add_run(Run(np.frombuffer(data, ENTRY), part=name), number)
    data = None if hot is None else opened_part(checkpoint, hot, seals)
    if data is not None:
        window.add_run(Run(np.frombuffer(data, ENTRY)))


def dedup_part(queue: int, run: int | str, *, is_sealed: bool) -> str:
    """The name of the part that holds a run."""
    return f"{DEDUP_PART}{queue}-{run}{SEALED if is_sealed else ''}"


def encode_run(records: Records, name: str, queue: int, seals: Seals | None) -> bytes:
    """A run as its part holds it. Anybody can try keys on their hashes, so those of encrypted queues are sealed."""
    return sealed_part(records.tobytes(), name, queue, seals)


def endings_part(queue: int, endings: Iterable[snapshot.Ended], seals: Seals | None) -> dict[str, bytes]:
    """The part of how the last deliveries of messages ended. Errors may quote payloads."""
    name = f"{ENDINGS_PART}{queue}{SEALED if seals is not None else ''}"
    return {name: sealed_part(snapshot.encode_endings(endings), name, queue, seals)}


def sealed_part(data: bytes, name: str, queue: int, seals: Seals | None) -> bytes:
    """A part of a queue as it is stored."""
    return data if seals is None else seals.seal(queue, data, name.encode())


def opened_part(checkpoint: Checkpoint, name: str, seals: Seals | None) -> Bytes | None:
    """The inverse; None when the data key was erased or is not at hand."""
    if not name.endswith(SEALED):
        return checkpoint.view(name)
    return None if seals is None else seals.open(checkpoint.parts[name], name.encode())


def _queue_of(name: str) -> int:
    """The queue that a part belongs to; 0 for the shard itself."""
    return 0 if name in {SHARD_PART, PRODUCERS_PART, SINKS_PART, TASKS_PART} else int(name.split("-")[1])


def by_queue(names: Iterable[str]) -> dict[int, set[str]]:
    """Parts by the queue that they belong to."""
    names_by_queue: dict[int, set[str]] = {}
    for name in names:
        names_by_queue.setdefault(_queue_of(name), set()).add(name)
    return names_by_queue
