"""Questions about the state, answered without altering it.

`group_stats`: every number comes from the state, and the account of each group adds up. `preview`: what a lease would
hand out next; the selection of a lease runs on copies of the indexes that it consumes, and the originals are put back.
`why`: why a message is waiting, per group. `made_ready`: how many messages an entry may have made ready, and in which
group; as many waiting consumers are woken, and no more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import datetime
from typing import Any, Final

from penstock.batch.layout import DUE
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import (
    AttemptsLost,
    Compacted,
    Entry,
    Leased,
    OperationSet,
    PauseSet,
    Push,
    Revived,
    Settled,
    Span,
)
from penstock.delivery.group import Group, Lane, Lease
from penstock.delivery.keys import KeyGate, rebuild_keys
from penstock.delivery.lease import serve
from penstock.delivery.log import Extent, Partition, Queue, ask_each, dues_of, priority_of
from penstock.delivery.membership import State
from penstock.delivery.pauses import explained
from penstock.delivery.phases import AFTER, FRESH, LEASABLE, LEASED, READY, SETTLED, WAITING
from penstock.delivery.progress import Progress
from penstock.delivery.rate_limits import QUEUE
from penstock.delivery.selection import Selection, cursor_of
from penstock.model import GroupStats, Outcome, PartitionLag, Reason, Retry, to_datetime

GROUP_INDEXES = ("lanes", "order", "deficits", "served_at", "turn", "gate")
PROGRESS_INDEXES = ("cursor", "cursors", "offered", "keys", "parked", "parked_count")
EVERYONE: Final = 1 << 30
NOTHING: Final = (0, None)


def group_stats(group: Group, reached: int) -> GroupStats:
    """One group's account: `ready` is what remains, so `verify` counts it again from the states.

    Delays up to `reached` have ended. May raise `ColumnNotLoaded`.
    """
    progresses = group.progress
    messages = sum(p.partition.end - p.start for p in progresses)
    leased = sum(p.leased for p in progresses)
    waiting = sum(p.waiting for p in progresses) + sum(ask_each(lambda p: delayed(p, reached), progresses))
    acked, dead = sum(p.acked for p in progresses), sum(p.dead for p in progresses)
    dropped: Counter[str] = Counter()
    for progress in progresses:
        for outcome, count in (progress.dropped or {}).items():
            dropped[Outcome(outcome).name.lower()] += count
    return GroupStats(
        name=group.name,
        paused=group.is_held,
        messages=messages,
        ready=messages - leased - waiting - acked - dead - dropped.total(),
        leased=leased,
        waiting=waiting,
        acked=acked,
        dead=dead,
        dropped=dropped.total(),
        dropped_by=dict(dropped),
        lag=sum(p.unsettled() for p in progresses),
        oldest_unsettled_at=_oldest(group),
    )


def delayed(progress: Progress, reached: int) -> int:
    """Messages of a partition that are not due yet and that this group has not read. May raise `ColumnNotLoaded`."""
    partition = progress.partition
    if not partition.delayed:
        return 0
    if not (progress.start or partition.start or progress.dropped or progress.dead):
        return partition.delayed  # the group has them all before it
    first = max(progress.base, partition.start)
    return sum(ask_each(lambda e: _delayed_in(progress, e, first, reached), partition.extents_from(first)))


def _delayed_in(progress: Progress, extent: Extent, first: int, reached: int) -> int:
    if not extent.flags & DUE or (extent.sealed is not None and extent.sealed.due_last <= reached):
        return 0
    dues = extent.dues()
    assert dues is not None
    low = max(first, extent.first)
    return int((progress.fresh_mask(low, extent.end) & (dues[low - extent.first :] > reached)).sum())


def lags(group: Group) -> list[PartitionLag]:
    """How far the group is in each partition."""
    return [
        PartitionLag(p.partition.name, p.partition.start, p.base, p.partition.end, p.unsettled())
        for p in group.progress
    ]


def count_phases(group: Group) -> Counter[int]:
    """Every offset of the group's account by phase, counted again from the states: what `verify` compares with."""
    counts: Counter[int] = Counter()
    for progress in group.progress:
        known = len(progress.states)
        for phase in range(SETTLED + 1):
            counts[phase] += progress.states.count(phase)
        for state in (progress.sparse or {}).values():
            counts[state] += 1
        counts[SETTLED] += progress.base - progress.start - len(progress.sparse or ())
        counts[FRESH] += progress.partition.end - progress.base - known
    return counts


def _oldest(group: Group) -> datetime | None:
    oldest = ask_each(_oldest_of, group.progress)
    instants = [instant for instant in oldest if instant is not None]
    return to_datetime(min(instants)) if instants else None


def _oldest_of(progress: Progress) -> int | None:
    offset = progress.oldest_offset()
    return None if offset is None else progress.partition.pushed_time(offset)


# what a lease would hand out next


def preview(core: DeliveryState, group: Group, count_max: int, now: int) -> Selection:
    """The messages of one lease, in its order. Rates, and what one consumer may hold, are not looked at.

    May raise `ColumnNotLoaded`.
    """
    selection = Selection(group, now, core.wheel.reached, None)
    with _on_copies(group):
        if group.gate is not None:
            group.gate.count_in_flight()
            group.gate.tick(now)
        serve(selection, count_max)
    return selection


@contextmanager
def _on_copies(group: Group) -> Iterator[None]:
    owners: list[tuple[object, Sequence[str]]] = [(group, GROUP_INDEXES)]
    owners += [(progress, PROGRESS_INDEXES) for progress in group.progress]
    kept = [(owner, name, getattr(owner, name)) for owner, names in owners for name in names]
    for owner, name, value in kept:
        setattr(owner, name, _copied(value))
    try:
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


def _copied(index: Any) -> Any:
    if isinstance(index, dict):
        return {key: _copied(item) if isinstance(item, Lane | deque) else item for key, item in index.items()}
    return index.copied() if isinstance(index, Lane | KeyGate) else copy(index)


# why a message waits


def why(core: DeliveryState, partition: Partition, offset: int, now: int) -> list[Reason]:
    """One reason per group; may raise `ColumnNotLoaded`."""
    return [_reason(core, group, partition, offset, now) for group in partition.queue.groups.values()]


def _reason(core: DeliveryState, group: Group, partition: Partition, offset: int, now: int) -> Reason:
    code, text = _why(core, group, partition, offset, now)
    waits = next_attempt(group.progress[partition.id], offset)
    if waits is None:
        return Reason(group.name, code, text)
    return Reason(group.name, code, text, waits.reason, waits.error, waits.due_at)


def next_attempt(progress: Progress, offset: int) -> Retry | None:
    """The attempt that a message waits for; None when it does not wait for one."""
    due = (progress.dues or {}).get(offset)
    if due is None:
        return None
    tried = (progress.attempts or {}).get(offset)
    name, attempt, due_at = progress.group.name, progress.attempt_next(offset), to_datetime(due)
    if tried is None:  # its attempts were reset
        return Retry(name, attempt, due_at, Outcome.REDRIVEN.name.lower())
    reason = Outcome(tried.outcome or Outcome.RETRIED).name.lower()
    return Retry(name, attempt, due_at, reason, tried.error, to_datetime(tried.at) if tried.at else None)


def _why(core: DeliveryState, group: Group, partition: Partition, offset: int, now: int) -> tuple[str, str]:
    progress = group.progress[partition.id]
    state = progress.state_of(offset)
    if state == SETTLED:
        return _settled(progress, offset)
    if state == LEASED:
        return _leased(group, progress, offset)
    if group.is_held:
        pauses = [pause for pause in core.pauses.holding(group.queue, group.id) if pause.delivery]
        return "paused", explained(pauses[0]) if pauses else f"queue {group.queue.name!r} is paused"
    if state == WAITING:
        waits = next_attempt(progress, offset)
        assert waits is not None
        how = f"the last delivery ended as {waits.reason}" if waits.reason != "redriven" else "it was redriven"
        return "retry", f"attempt {waits.attempt} is due at {waits.due_at.isoformat()}; {how}"
    return (
        _gated(core, progress, offset, state, now)
        or _held(progress, offset)
        or _limited(group, progress, offset, now)
        or _owned(group, progress)
        or _in_line(group, progress, offset, state)
    )


def lease_of(group: Group, progress: Progress, offset: int) -> Lease | None:
    """The lease that holds a message; None when nobody in this process has one."""
    for lease in group.leases.values():
        if any(take.progress is progress and take.index_of(offset) >= 0 for take in lease.takes):
            return lease
    return None


STATES: Final = {FRESH: "ready", LEASED: "leased", WAITING: "waiting", READY: "ready", SETTLED: "settled"}
ENDS: Final = ("dead", "lost", "skipped")  # codes of settled messages that are states of their own


def state_name(core: DeliveryState, progress: Progress, offset: int, now: int) -> str:
    """The state of a message in a group, for people. May raise `ColumnNotLoaded`."""
    phase = progress.state_of(offset)
    if phase == SETTLED:
        code, _ = _settled(progress, offset)
        return code if code in ENDS else "settled"
    is_delayed = phase == FRESH and _gated(core, progress, offset, phase, now) is not None
    return "delayed" if is_delayed else STATES[phase]


def _settled(progress: Progress, offset: int) -> tuple[str, str]:
    if progress.dead_offsets is not None and offset in progress.dead_offsets:
        return "dead", "it is in the dead-letter queue; redrive it to deliver it again"
    if any(first <= offset < end for first, end in progress.partition.lost):
        return "lost", "it was in a damaged file and could not be repaired"
    if offset in progress.partition.removed:
        return "compacted", "compaction removed it: a later message of its key replaced it"
    if offset < progress.start:
        return "skipped", f"the group started reading at offset {progress.start}"
    return "settled", "it is settled: acknowledged, cancelled or dropped"


def _leased(group: Group, progress: Progress, offset: int) -> tuple[str, str]:
    lease = lease_of(group, progress, offset)
    if lease is None:
        return "leased", "a consumer holds it"
    who = lease.consumer or "unnamed"
    return "leased", f"consumer {who!r} holds it, attempt {progress.attempt_next(offset)}"


def _gated(core: DeliveryState, progress: Progress, offset: int, state: int, now: int) -> tuple[str, str] | None:
    partition = progress.partition
    options = partition.queue.options
    extent = partition.extent_at(offset)
    dues = extent.dues() if state == FRESH else None
    due = 0 if dues is None else int(dues[offset - extent.first])
    if _is_past_the_gate(progress, offset, state):
        return ("not_due", f"it is due at {to_datetime(due).isoformat()}") if due > core.wheel.reached else None
    if options.delay_seconds:
        due = max(due, partition.pushed_time(offset) + round(options.delay_seconds * 1_000_000))
    if due > max(now, core.wheel.reached):
        return "not_due", f"it is due at {to_datetime(due).isoformat()}"
    quiet_at = partition.pushed_at + round(options.window_seconds * 1_000_000)
    if options.window_seconds and quiet_at > now:
        return "window", f"partition {partition.name!r} must be quiet until {to_datetime(quiet_at).isoformat()}"
    return None


def _is_past_the_gate(progress: Progress, offset: int, state: int) -> bool:
    """Whether the delay and the window of the queue hold this message back no more: they do so once.

    In partition order they hold back all messages of the partition, also what came back.
    """
    if progress.partition.queue.options.ordering == "partition":
        return False
    return state == READY or offset < cursor_of(progress, priority_of(progress.partition, offset))


def _held(progress: Progress, offset: int) -> tuple[str, str] | None:
    ordering = progress.partition.queue.options.ordering
    if ordering == "partition" and (progress.leased or any(waiting < offset for waiting in progress.dues or ())):
        return "held_by_order", f"an earlier message of partition {progress.partition.name!r} is not settled yet"
    if ordering == "key":
        rebuild_keys(progress)
        key = progress.partition.key_hash(offset)
        is_behind = key in (progress.parked or ()) or (key and _is_fresh_ahead(progress, offset, key))
        if offset not in (progress.keys or ()) and is_behind:
            return "held_by_key", "an earlier message of the same key is not settled yet"
    return None


def _is_fresh_ahead(progress: Progress, offset: int, key: int) -> bool:
    """Whether a message of the same key that nobody has looked at yet is ahead of this one."""
    for extent in progress.partition.extents_from(progress.cursor):
        low, high = max(progress.cursor, extent.first), min(extent.end, offset)
        if high <= low:
            break
        hashes = extent.key_hashes()
        if hashes is not None:
            same = hashes[low - extent.first : high - extent.first] == key
            if bool((progress.fresh_mask(low, high) & same).any()):
                return True
    return False


def _limited(group: Group, progress: Progress, offset: int, now: int) -> tuple[str, str] | None:
    limits, options = group.limits, group.queue.options
    if limits is None:
        return None
    if limits.gate is not None:
        limits.gate.count_in_flight()
        key = progress.partition.key_hash(offset)
        if key and not limits.gate.has_room(key):
            held = limits.gate.held[key]
            return "limited_by_key", f"{held} of its key are in flight, the limit (key_max_in_flight)"
        wait = limits.gate.wait(key, now) if key else 0
        if wait:
            when = to_datetime(now + wait).isoformat()
            return (
                "key_rate",
                f"its key is limited to {options.key_lease_per_second:g} messages a second; more at {when}",
            )
    wait = 0 if limits.queue is None else limits.queue.wait(QUEUE, 1, now)
    if wait:
        when = to_datetime(now + wait).isoformat()
        return "queue_rate", f"the group is limited to {options.lease_per_second:g} messages a second; more at {when}"
    return None


def _owned(group: Group, progress: Progress) -> tuple[str, str] | None:
    if group.roster is None or not group.roster.seats:
        return None
    slot = group.roster.slots[progress.partition.id]
    if slot.state is State.REVOKING:
        return "rebalancing", f"its partition moves from member {slot.owner!r} to member {slot.heir!r}"
    return "owned", f"member {slot.owner!r} owns its partition and has not leased it yet"


def _in_line(group: Group, progress: Progress, offset: int, state: int) -> tuple[str, str]:
    if not group.active_at or group.active_at <= group.queue.created_at:
        return "no_consumer", f"no consumer has leased from group {group.name!r} yet"
    priority = priority_of(progress.partition, offset)
    cursor = cursor_of(progress, priority)
    ahead = int(progress.fresh_mask(cursor, offset).sum()) if state == FRESH and offset > cursor else 0
    assert state in LEASABLE
    return "in_line", f"it is ready at priority {priority}; {ahead} messages of its partition are ahead of it"


# what an entry made ready


def made_ready(core: DeliveryState, entry: Entry) -> tuple[int, int | None]:
    """How many messages, or more, an entry that was applied has made ready, and in which group; None: in all."""
    queue = core.queues.get(entry.queue)
    if isinstance(entry, Leased | AttemptsLost | OperationSet) or (isinstance(entry, PauseSet) and not entry.queue):
        return NOTHING
    if queue is None:  # it was deleted: all who wait for it are woken
        return EVERYONE, None
    if isinstance(entry, Push):
        return ready_of_push(queue, entry), None
    if isinstance(entry, Revived):
        return sum(_due_by(span, entry.at) for span in entry.spans), entry.group
    if isinstance(entry, Compacted):
        return (EVERYONE, None) if _frees_others(queue) else NOTHING
    if not isinstance(entry, Settled):
        return EVERYONE, None
    if _frees_others(queue):
        return EVERYONE, entry.group
    after = AFTER[entry.outcome]
    if after == WAITING:
        return sum(_due_by(span, entry.at) for span in entry.spans), entry.group
    return sum(span.count for span in entry.spans) if after == READY else 0, entry.group


def ready_of_push(queue: Queue, push: Push) -> int:
    """How many messages of a push are available at once; of a queue that holds all back, the most there may be."""
    count = sum(count for _, count, _ in push.parts)
    batch = push.columns
    if batch is None or queue.gated or not batch.flags & DUE:
        return count
    return min(count, int((dues_of(batch, push.pushed_at) <= push.pushed_at).sum()))


def _frees_others(queue: Queue) -> bool:
    """Whether the end of a delivery makes other messages available: those behind it, or those for which there was no
    room. How many is not known.
    """
    options = queue.options
    return queue.ordered or options.max_in_flight is not None or options.key_max_in_flight is not None


def _due_by(span: Span, now: int) -> int:
    return int((span.due_array() <= now).sum())
