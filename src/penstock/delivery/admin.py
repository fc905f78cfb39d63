"""Deciding what operators do: queues, groups, seek, pause, purge, cancel, retention."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import msgspec

from penstock import limits
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import (
    Entry,
    GroupDeleted,
    GroupSet,
    PartitionsAdded,
    PauseSet,
    QueueDeleted,
    QueueSet,
    Settled,
    Trimmed,
)
from penstock.delivery.group import Group
from penstock.delivery.log import Partition, Queue, ask_each, create_queue_entries
from penstock.delivery.phases import LEASED, SETTLED
from penstock.delivery.progress import span_of
from penstock.errors import (
    GroupNotFound,
    InvalidField,
    InvalidName,
    LeaseLost,
    MessageNotFound,
    NotAuthorised,
    PenstockError,
    QueueExists,
    QueueNotFound,
)
from penstock.model import (
    AUDIT_QUEUE,
    DEFAULT_GROUP,
    DLQ_SUFFIX,
    RESERVED_PREFIX,
    MessageId,
    Outcome,
    Position,
    QueueOptions,
    check_name,
    queue_options,
    to_micros,
)
from penstock.refusals import likeness


class PauseChange(NamedTuple):
    """Pushes, delivery or both are to be paused, or resumed."""

    what: str  # push, delivery or all
    is_pause: bool
    reason: str = ""

    def applied(self, push: bool, delivery: bool) -> tuple[bool, bool]:
        """Whether pushes and delivery are paused after it, which were so before."""
        return (
            self.is_pause if self.what in ("push", "all") else push,
            self.is_pause if self.what in ("delivery", "all") else delivery,
        )

    def reason_after(self, before: PauseSet | None) -> str:
        return self.reason or ("" if before is None else before.reason)


GROUPS_COMPARED_MAX: Final = 100  # with a name that no group has
Start = Literal["earliest", "latest"] | Mapping[int, int]


def queue_named(core: DeliveryState, name: str) -> Queue:
    """The queue of this name, which must exist."""
    queue = core.by_name.get(check_name(name))
    if queue is None:
        raise QueueNotFound(f"there is no queue {name!r}")
    return queue


def group_named(queue: Queue, name: str) -> Group:
    """The group of this name, which must exist."""
    number = queue.group_ids.get(check_name(name, "group"))
    if number is None:
        raise GroupNotFound(f"queue {queue.name!r} has no group {name!r}", hint=_group_hint(queue, name))
    return queue.groups[number]


def _group_hint(queue: Queue, name: str) -> str:
    # Comparing names costs far more than the call that is refused, so only some are compared.
    close = likeness(name, tuple(islice(queue.group_ids, GROUPS_COMPARED_MAX)))
    return f"{close} {GroupNotFound.hint_default}" if close else GroupNotFound.hint_default


def partition_named(queue: Queue, name: int | str) -> Partition:
    """The partition of this name, which must exist."""
    partition = queue.by_name.get(str(name))
    if partition is None:
        known = f"0 to {len(queue.partitions) - 1}" if queue.options.partitions != "named" else "names seen in a push"
        raise InvalidField(f"partition: queue {queue.name!r} has no partition {name!r}", hint=f"it has {known}")
    return partition


def start_at(queue: Queue, to: Position, partition: int | str | None = None, field: str = "to") -> Start:
    """A position as offsets per partition; may raise `ColumnNotLoaded`."""
    chosen = queue.partitions if partition is None else [partition_named(queue, partition)]
    if isinstance(to, Mapping):
        return {partition_named(queue, name).id: _offset(offset, field) for name, offset in to.items()}
    if to in ("earliest", "begin"):
        return "earliest" if partition is None else {p.id: p.start for p in chosen}
    if to in ("latest", "end"):
        return "latest" if partition is None else {p.id: p.end for p in chosen}
    if isinstance(to, int) and not isinstance(to, bool):
        return {p.id: _offset(to, field) for p in chosen}
    instant = to_micros(to, field)
    offsets = ask_each(lambda p: p.offset_at(instant), chosen)
    return {p.id: offset for p, offset in zip(chosen, offsets, strict=True)}


def _offset(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidField(f"{field}: {value!r} is not an offset", hint="use earliest, latest, an offset or a time")
    return value


def decide_group_of_use(queue: Queue, name: str, start: Position | None, now: int) -> list[Entry]:
    """What makes a group that is used with a start; nothing when it is there, `GroupNotFound` without a start."""
    if start is None or name in queue.group_ids:
        group_named(queue, name)
        return []
    return decide_create_group(queue, name, start_at(queue, start, field="start"), now)


def partition_of(core: DeliveryState, id: MessageId) -> Partition:
    """The partition of a message that is still kept."""
    partition = queue_named(core, id.queue).by_name.get(check_name(id.partition, "partition"))
    if partition is None or not partition.start <= id.offset < partition.end:
        raise MessageNotFound(f"there is no message {id}")
    return partition


def queue_to_push(
    core: DeliveryState, name: str, now: int, id_next: int | None = None, made: DeliveryState | None = None
) -> tuple[Queue, list[Entry]]:
    """The queue of a push; one that is not there as it will be, with the entries that make it, for the same frame.
    `made` holds the others that the frame makes.
    """
    queue = core.by_name.get(name)
    if queue is not None:
        if queue.is_closed:
            raise reserved_name(name)
        if queue.is_shut:
            raise core.pauses.refuse(queue)
        return queue, []
    core.pauses.check_new(name)
    entries = decide_create_queue(core, name, QueueOptions(), now, id_next)
    imagined = DeliveryState(now) if made is None else made
    imagined.apply(entries, 0)
    return imagined.by_name[name], entries


def decide_create_queue(
    core: DeliveryState, name: str, options: QueueOptions, now: int, id_next: int | None = None
) -> list[Entry]:
    """A new queue; `id_next` is for one that is not the first of its frame."""
    check_name(name)
    if name.endswith(DLQ_SUFFIX) or name.startswith(RESERVED_PREFIX):
        raise reserved_name(name)
    if name in core.by_name:
        raise QueueExists(f"queue {name!r} already exists")
    names = [] if options.partitions == "named" else [str(number) for number in range(options.partitions)]
    return create_queue_entries(id_next or core.queue_id_next, name, options, names, now)


def reserved_name(name: str) -> PenstockError:
    """Refusal to push to a queue, or to make one, whose name is kept for dead letters or for the broker."""
    if name == AUDIT_QUEUE:
        return _audit_is_kept("is written only by the broker")
    if name.startswith(RESERVED_PREFIX):
        hint = f"names that begin with {RESERVED_PREFIX!r} belong to the broker; choose another name"
        return InvalidName(f"queue: {name!r} is reserved", hint=hint)
    hint = "dead letters are moved there automatically; choose another name"
    return InvalidName(f"queue: {name!r} ends in {DLQ_SUFFIX!r}, which is reserved for dead-letter queues", hint=hint)


def check_changeable(queue: Queue) -> Queue:
    """The queue itself; refused when it is the audit log, which nobody may change or empty."""
    # A queue of several partitions is somebody's own, from before the name was reserved: it is in the way of the log.
    if queue.name == AUDIT_QUEUE and queue.options.partitions == 1:
        raise _audit_is_kept("cannot be changed, paused, purged or deleted")
    return queue


def _audit_is_kept(why: str) -> NotAuthorised:
    hint = "read it with `penstock audit`; retention_seconds and retention_bytes set how long it is kept"
    return NotAuthorised(f"queue {AUDIT_QUEUE!r} {why}", hint=hint)


def _check_audit_options(changes: Mapping[str, Any], options: QueueOptions) -> None:
    """Of the audit log, only how long it is kept may be changed, and it may not be emptied that way."""
    if not changes.keys() <= {"retention_seconds", "retention_bytes"}:
        raise _audit_is_kept("has no options to change except retention_seconds and retention_bytes")
    least = {
        "retention_seconds": limits.audit_retention_seconds_min,
        "retention_bytes": limits.audit_retention_bytes_min,
    }
    for name, value_min in least.items():
        value = getattr(options, name)
        if value is not None and value < value_min:
            raise InvalidField(f"{name}: {value:g} would empty the audit log", hint=f"the minimum is {value_min:,.0f}")


def decide_update_queue(queue: Queue, changes: Mapping[str, Any], now: int) -> list[Entry]:
    """New options; partitions may only be added, and ordering may not change under messages in flight."""
    options = queue_options(changes, queue.options)
    if queue.name == AUDIT_QUEUE:
        _check_audit_options(changes, options)
    entries: list[Entry] = []
    if options.partitions != queue.options.partitions:
        have = len(queue.partitions)
        if options.partitions != "named" and (queue.options.partitions == "named" or options.partitions < have):
            raise InvalidField(f"partitions: {queue.name!r} has {have}; partitions can be added, not removed")
        if options.partitions != "named":
            entries.append(PartitionsAdded(queue.id, have, [str(n) for n in range(have, options.partitions)]))
        if queue.options.ordering == "key":
            _check_drained(queue, "partitions")  # a key would go to another partition, past its own messages
    if options.ordering != queue.options.ordering:
        _check_drained(queue, "ordering")
    if options.compaction != "none" and queue.is_closed:
        raise InvalidField(f"compaction: queue {queue.name!r} keeps all of its messages; it is written by the broker")
    if queue.options.encryption and not options.encryption:
        hint = "create another queue for messages that need no encryption"
        raise InvalidField("encryption: cannot be switched off, since the queue may hold encrypted messages", hint=hint)
    return [QueueSet(queue.id, queue.name, msgspec.json.encode(options), queue.paused, now), *entries]


def decide_encrypt_letters(core: DeliveryState, queue: Queue, now: int) -> list[Entry]:
    """The dead letters of a queue that is encrypted from now on are too."""
    dlq = core.by_name.get(queue.name + DLQ_SUFFIX)
    return [] if dlq is None or dlq.options.encryption else decide_update_queue(dlq, {"encryption": True}, now)


def _check_drained(queue: Queue, option: str) -> None:
    if any(group.backlog for group in queue.groups.values()):
        hint = "drain or purge the queue first"
        raise InvalidField(f"{option}: cannot change while messages are unsettled", hint=hint)


def decide_any_pause(
    core: DeliveryState, change: PauseChange, queue: str | None, group: str | None, namespace: str | None, now: int
) -> list[Entry]:
    """Pause or resume what is named: a queue, one of its groups, a namespace; the broker if nothing is."""
    if queue is None:
        return decide_pause_widely(core, namespace or "", change, now)
    if group is None:
        return decide_pause(core, queue_named(core, queue), change, now)
    if change.is_pause and change.what == "push":
        raise InvalidField("what: only delivery can be paused for a group", hint="pause pushes for the queue")
    return decide_pause_group(group_named(queue_named(core, queue), group), change, now)


def decide_pause(core: DeliveryState, queue: Queue, change: PauseChange, now: int) -> list[Entry]:
    """Pause or resume a queue. Of delivery alone, without a reason, older versions know too."""
    check_changeable(queue)
    before = core.pauses.known.get((queue.id, -1, ""))
    push, delivery = change.applied(before is not None and before.push, queue.paused)
    entries: list[Entry] = []
    if delivery != queue.paused:
        entries.append(QueueSet(queue.id, queue.name, msgspec.json.encode(queue.options), delivery, now))
    if before is not None or push or change.reason:
        entries.append(PauseSet(queue.id, -1, "", push, delivery, now, change.reason_after(before)))
    return entries


def decide_pause_group(group: Group, change: PauseChange, now: int) -> list[Entry]:
    """Pause or resume delivery to a group."""
    check_changeable(group.queue)
    return [PauseSet(group.queue.id, group.id, "", False, change.is_pause, now, change.reason)]


def decide_pause_widely(core: DeliveryState, namespace: str, change: PauseChange, now: int) -> list[Entry]:
    """Pause or resume a namespace, or the broker if none is named."""
    before = core.pauses.known.get((0, -1, namespace))
    push, delivery = change.applied(before is not None and before.push, before is not None and before.delivery)
    return [PauseSet(0, -1, namespace, push, delivery, now, change.reason_after(before))]


def decide_delete_queue(core: DeliveryState, queue: Queue) -> list[Entry]:
    """The queue and its dead letters go together."""
    check_changeable(queue)
    dlq = core.by_name.get(queue.name + DLQ_SUFFIX)
    return [QueueDeleted(queue.id), *([QueueDeleted(dlq.id)] if dlq is not None else [])]


def decide_create_group(queue: Queue, name: str, start: Start, now: int, *, observes: bool = False) -> list[Entry]:
    """`start` gives an offset for some or all partitions; the others begin at the oldest message kept."""
    check_name(name, "group")
    starts = dict(_starts(queue, "earliest")) | dict(_starts(queue, start))
    return [GroupSet(queue.id, queue.group_id_next, name, now, sorted(starts.items()), start == "latest", observes)]


def decide_seek(group: Group, start: Start, now: int) -> list[Entry]:
    """Move a group."""
    starts = _starts(group.queue, start)
    return [GroupSet(group.queue.id, group.id, group.name, now, starts, group.latest, group.observes)]


def decide_delete_group(queue: Queue, group: Group) -> list[Entry]:
    """Forget a group."""
    if group.name == DEFAULT_GROUP:
        raise InvalidField(f"group: {DEFAULT_GROUP!r} belongs to every queue and cannot be deleted")
    return [GroupDeleted(queue.id, group.id)]


def _starts(queue: Queue, start: Start) -> list[tuple[int, int]]:
    if start == "earliest":
        return [(partition.id, partition.start) for partition in queue.partitions]
    if start == "latest":
        return [(partition.id, partition.end) for partition in queue.partitions]
    return [
        (number, max(queue.partitions[number].start, min(offset, queue.partitions[number].end)))
        for number, offset in start.items()
    ]


def decide_purge(queue: Queue, now: int) -> list[Entry]:
    """Everything unsettled goes, in every group, leased messages too."""
    check_changeable(queue)
    entries: list[Entry] = []
    for group in queue.groups.values():
        spans = []
        for progress in group.progress:
            if progress.sparse:
                spans.append(span_of(progress.partition.id, sorted(progress.sparse)))
            if progress.base < progress.partition.end:
                spans.append(span_of(progress.partition.id, range(progress.base, progress.partition.end)))
        if spans:
            entries.append(Settled(queue.id, group.id, int(Outcome.PURGED), now, 0, "", "", spans))
    return entries


def decide_cancel(core: DeliveryState, id: MessageId, now: int) -> list[Entry]:
    """Take a message back before anyone has it; refused once a consumer holds it or every group is done with it."""
    partition = partition_of(core, id)
    check_changeable(partition.queue)
    entries: list[Entry] = []
    for group in partition.queue.groups.values():
        state = group.progress[partition.id].state_of(id.offset)
        if state == LEASED:
            raise LeaseLost(f"{id} is being delivered to group {group.name!r}", hint="cancel it before it is leased")
        if state != SETTLED:
            span = span_of(partition.id, range(id.offset, id.offset + 1))
            entries.append(Settled(partition.queue.id, group.id, int(Outcome.CANCELLED), now, 0, "", "", [span]))
    if not entries:
        raise MessageNotFound(f"{id} is already settled")
    return entries


def decide_trim(queue: Queue, starts: Mapping[int, int], now: int) -> list[Entry]:
    """Retention: drop what lies under the new starts; unread messages among it are evicted."""
    entries: list[Entry] = []
    for group in queue.groups.values():
        spans = []
        for number, start in starts.items():
            progress = group.progress[number]
            if brought_back := sorted(offset for offset in progress.sparse or () if offset < start):
                spans.append(span_of(number, brought_back))
            if progress.base < start:
                spans.append(span_of(number, range(progress.base, start)))
        if spans:
            entries.append(Settled(queue.id, group.id, int(Outcome.EVICTED), now, 0, "", "retention", spans))
    entries.append(Trimmed(queue.id, sorted(starts.items())))
    return entries
