"""Why is this message waiting? Answered from state, per group."""

from __future__ import annotations

from penstock.delivery.core import DeliveryState
from penstock.delivery.fresh import cursor_of
from penstock.delivery.group import Group
from penstock.delivery.indexes import priority_of
from penstock.delivery.keys import key_of, recall
from penstock.delivery.log import Partition
from penstock.delivery.membership import State
from penstock.delivery.phases import FRESH, LEASED, READY, SETTLED, WAITING
from penstock.delivery.progress import Progress
from penstock.delivery.rates import QUEUE
from penstock.model import Reason, to_datetime


def why(core: DeliveryState, partition: Partition, offset: int, now: int) -> list[Reason]:
    """One reason per group; may raise `ColumnNotLoaded`."""
    return [Reason(group.name, *_why(core, group, partition, offset, now)) for group in partition.queue.groups.values()]


def _why(core: DeliveryState, group: Group, partition: Partition, offset: int, now: int) -> tuple[str, str]:
    progress = group.progress[partition.id]
    state = progress.state_of(offset)
    if state == SETTLED:
        return _settled(progress, offset)
    if state == LEASED:
        return _leased(group, progress, offset)
    if group.queue.paused:
        return "paused", f"queue {group.queue.name!r} is paused until it is resumed"
    if state == WAITING:
        due = to_datetime((progress.dues or {})[offset]).isoformat()
        return "retry", f"attempt {progress.attempt_next(offset)} is due at {due}"
    return (
        _gated(core, progress, offset, state, now)
        or _held(progress, offset)
        or _limited(group, progress, offset, now)
        or _owned(group, progress)
        or _in_line(group, progress, offset, state)
    )


def _settled(progress: Progress, offset: int) -> tuple[str, str]:
    if progress.dead_offsets is not None and offset in progress.dead_offsets:
        return "dead", "it is in the dead-letter queue; redrive brings it back"
    if any(first <= offset < end for first, end in progress.partition.lost):
        return "lost", "it was in a damaged file, and a repair gave it up"
    if offset < progress.start:
        return "skipped", f"the group started reading at offset {progress.start}"
    return "settled", "it is done with: acknowledged, cancelled or dropped by rule"


def _leased(group: Group, progress: Progress, offset: int) -> tuple[str, str]:
    for lease in group.leases.values():
        if any(take.progress is progress and take.index_of(offset) >= 0 for take in lease.takes):
            who = lease.consumer or "unnamed"
            return "leased", f"consumer {who!r} holds it, attempt {progress.attempt_next(offset)}"
    return "leased", "a consumer holds it"


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

    In partition order they hold back whatever is to be had of the partition, also what came back.
    """
    if progress.partition.queue.options.ordering == "partition":
        return False
    return state == READY or offset < cursor_of(progress, priority_of(progress.partition, offset))


def _held(progress: Progress, offset: int) -> tuple[str, str] | None:
    ordering = progress.partition.queue.options.ordering
    if ordering == "partition" and (progress.leased or any(waiting < offset for waiting in progress.dues or ())):
        return "held_by_order", f"an earlier message of partition {progress.partition.name!r} is not settled yet"
    if ordering == "key":
        recall(progress)
        key = key_of(progress.partition, offset)
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
        limits.gate.recall()
        key = key_of(progress.partition, offset)
        if key and not limits.gate.has_room(key):
            held = limits.gate.held[key]
            return "limited_by_key", f"{held} of its key in flight, the most there may be (key_max_in_flight)"
        wait = limits.gate.wait(key, now) if key else 0
        if wait:
            when = to_datetime(now + wait).isoformat()
            return "key_rate", f"its key has had {options.key_lease_per_second:g} messages a second; more at {when}"
    wait = 0 if limits.queue is None else limits.queue.wait(QUEUE, 1, now)
    if wait:
        when = to_datetime(now + wait).isoformat()
        return "queue_rate", f"the group has had {options.lease_per_second:g} messages a second; more at {when}"
    return None


def _owned(group: Group, progress: Progress) -> tuple[str, str] | None:
    if group.roster is None or not group.roster.seats:
        return None
    slot = group.roster.slots[progress.partition.id]
    if slot.state is State.REVOKING:
        return "rebalancing", f"its partition is on its way from member {slot.owner!r} to member {slot.heir!r}"
    return "owned", f"member {slot.owner!r} owns its partition and has not come to it yet"


def _in_line(group: Group, progress: Progress, offset: int, state: int) -> tuple[str, str]:
    if not group.active_at or group.active_at <= group.queue.created_at:
        return "no_consumer", f"no consumer has asked for messages in group {group.name!r} yet"
    priority = priority_of(progress.partition, offset)
    cursor = cursor_of(progress, priority)
    ahead = int(progress.fresh_mask(cursor, offset).sum()) if state == FRESH and offset > cursor else 0
    assert state in (FRESH, READY)
    return "in_line", f"it is ready at priority {priority}; {ahead} messages of its partition stand before it"
