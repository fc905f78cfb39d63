"""Why messages of a queue wait, counted; and its keys with their backlog.

A survey (`delivery/backlog`) is taken slice by slice, with the lock free in between, and stops after
`survey_messages_max` messages. Names of keys are read from the messages, since the state knows their hashes only.
Limits and order go by hash too, so two keys with the same hash are one here as they are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from penstock import limits
from penstock.delivery import admin
from penstock.delivery.backlog import CODE, CODES, Columns, Keys, Place, Slice, Survey, Tally, survey_slice
from penstock.delivery.group import Group
from penstock.delivery.inspection import count_phases
from penstock.delivery.log import Queue
from penstock.delivery.pauses import explained as explained_pause
from penstock.delivery.phases import LEASABLE, SETTLED
from penstock.model import MessageId, QueueOptions, to_datetime
from penstock.model_backlog import (
    HOLDERS_SHOWN,
    KEYED,
    GroupAccount,
    GroupWait,
    Holder,
    KeyBacklog,
    KeyPage,
    QueueAccount,
    QueueWait,
    WaitReason,
    explained,
)
from penstock.replies import Piece
from penstock.shard import browse
from penstock.shard.payload_rows import pieces_of

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard

Rate = Callable[[int, int], float | None]  # messages that a group of a queue settles in a second
Knows = Callable[[str], bool]  # whether a worker that is there knows a task type
OFFSETS_MAX: Final = 100_000  # in leases whose keys are looked up


class Held(NamedTuple):
    """Messages of one key in flight, by lease: consumer, messages, since, until."""

    leases: list[tuple[str, int, int, int]]

    @property
    def messages(self) -> int:
        return sum(count for _, count, _, _ in self.leases)

    def holders(self) -> tuple[Holder, ...]:
        shown = sorted(self.leases, key=lambda lease: -lease[1])[:HOLDERS_SHOWN]
        return tuple(
            Holder(consumer=name, messages=count, since=to_datetime(since), expires_at=to_datetime(until))
            for name, count, since, until in shown
        )

    def since(self) -> int:
        return min((since for _, _, since, _ in self.leases), default=0)


class _About(NamedTuple):
    """What the state says about a group, beside the messages that wait."""

    open: int
    leased: int
    waiting: int
    pause: str
    consumerless: str
    unknown_types: list[tuple[str, int, int, int]]  # task type, messages, partition, offset
    blocked: int
    held: dict[int, Held]  # by the hash of the key


def why_queue(
    shard: Shard, name: str, group: str | None, limit: int, rate: Rate, knows: Knows
) -> tuple[QueueWait, Ticket]:
    """Why messages of a queue wait, for one group or for all."""

    def names(now: int) -> tuple[int, list[str]]:
        queue = admin.queue_named(shard.core, name)
        chosen = list(queue.groups.values()) if group is None else [admin.group_named(queue, group)]
        return now, [known.name for known in chosen[: limits.wait_groups_max]]

    (now, groups), ticket = shard.look(names)
    room = limits.survey_messages_max // max(1, len(groups))
    waits = [_why_group(shard, name, known, limit, room, rate, knows) for known in groups]
    return QueueWait(queue=name, at=to_datetime(now), groups=waits), ticket


def _why_group(shard: Shard, name: str, group: str, limit: int, room: int, rate: Rate, knows: Knows) -> GroupWait:
    survey, is_complete = _survey(shard, name, group, room, with_keys=False)
    tallies = survey.tallies(KEYED)
    keys = np.array([tally.key for tally in tallies[: limit + 1] if tally.key], np.uint32)

    def question(now: int) -> tuple[_About, QueueOptions, tuple[int, int], list[str]]:
        queue = admin.queue_named(shard.core, name)
        known = admin.group_named(queue, group)
        partitions = [partition.name for partition in queue.partitions]
        return _about(shard, queue, known, keys, knows, now), queue.options, (queue.id, known.id), partitions

    (about, options, ids, partitions), _ = shard.look(question)
    tallies = _with_workers(tallies, about)
    shown, rest = tallies[:limit], tallies[limit:]
    names = _key_names(shard, name, partitions, [tally for tally in shown if tally.key])
    reasons = [_reason(name, tally, survey, about, options, partitions, names) for tally in shown]
    if rest:
        reasons.append(explained(WaitReason(code="other", count=sum(tally.count for tally in rest))))
    per_second = rate(*ids)
    return GroupWait(
        group=group,
        open=about.open,
        leased=about.leased,
        waiting=about.waiting,
        settled_per_second=per_second,
        eta_seconds=about.open / per_second if per_second else None,
        examined=survey.examined,
        is_complete=is_complete,
        reasons=reasons,
    )


def _survey(shard: Shard, name: str, group: str, room: int, *, with_keys: bool) -> tuple[Survey, bool]:
    """Look at up to `room` messages of a group; whether that was all."""
    survey: Survey | None = None
    place: Place | None = Place()
    while place is not None:
        start = place

        def question(now: int, start: Place = start) -> tuple[bool, Slice]:
            queue = admin.queue_named(shard.core, name)
            known = admin.group_named(queue, group)
            part = survey_slice(shard.core, known, start, now, with_keys=with_keys)
            return queue.options.ordering == "key", part

        (is_key_ordered, part), _ = shard.look(question)
        survey = survey or Survey(is_key_ordered=is_key_ordered)
        survey.add(part)
        place = part.next
        if survey.examined >= room:
            break
    assert survey is not None
    return survey, place is None


def _about(shard: Shard, queue: Queue, group: Group, keys: Keys, knows: Knows, now: int) -> _About:
    pauses = [pause for pause in shard.core.pauses.holding(queue, group.id) if pause.delivery]
    blocked = 0
    if group.id == 0 and shard.core.tasks.held:
        blocked = sum(held.queue == queue.id for held in shard.core.tasks.held.values())
    return _About(
        open=sum(progress.unsettled() for progress in group.progress),
        leased=sum(progress.leased for progress in group.progress),
        waiting=sum(progress.waiting for progress in group.progress),
        pause=explained_pause(pauses[0]) if pauses else f"queue {queue.name!r} is paused",
        consumerless=_consumerless(group, now),
        unknown_types=_unknown_types(group, knows) if group.id == 0 else [],
        blocked=blocked,
        held=_held(group, keys, now - shard.clock.monotonic()),
    )


def _consumerless(group: Group, now: int) -> str:
    if not group.active_at or group.active_at <= group.queue.created_at:
        return f"no consumer has leased from group {group.name!r} yet"
    return f"nobody has leased from group {group.name!r} since {to_datetime(group.active_at).isoformat()}"


def _unknown_types(group: Group, knows: Knows) -> list[tuple[str, int, int, int]]:
    """Tasks that leases have passed over since no worker that is there knows their type."""
    counts: Counter[str] = Counter()
    samples: dict[str, tuple[int, int]] = {}
    for lane in group.lanes.values():
        for name, line in lane.passed.items():
            if not name or knows(name):
                continue
            for progress, what in line:
                offsets = [what] if isinstance(what, int) else what.tolist()
                ready = [offset for offset in offsets if progress.state_of(offset) in LEASABLE]
                counts[name] += len(ready)
                if ready:
                    samples.setdefault(name, (progress.partition.id, ready[0]))
    return [(name, count, *samples[name]) for name, count in counts.items() if count]


def _held(group: Group, wanted: Keys, wall_offset: int) -> dict[int, Held]:
    """What is in flight of some keys. May raise `ColumnNotLoaded`."""
    found: dict[int, Held] = {}
    room = OFFSETS_MAX if len(wanted) else 0
    for lease in group.leases.values():
        if room <= 0:
            break
        counts: Counter[int] = Counter()
        for take, indexes in lease.open_takes():
            offsets = [take.offsets[index] for index in indexes]
            room -= len(offsets)
            hashes = np.array(group.queue.key_hashes((take.progress.partition.id, at) for at in offsets), np.uint32)
            counts.update(hashes[np.isin(hashes, wanted)].tolist())
        for key, count in counts.items():
            row = (lease.consumer, count, lease.at, lease.deadline + wall_offset)
            found.setdefault(key, Held([])).leases.append(row)
    return found


def _with_workers(tallies: list[Tally], about: _About) -> list[Tally]:
    """Tasks in line that no worker knows are counted by themselves, and so are those that are blocked."""
    line = next((tally for tally in tallies if tally.code == "in_line"), None)
    for name, count, partition, offset in about.unknown_types:
        if line is not None and line.count > 0:
            count = min(count, line.count)
            line.count -= count
            tallies.append(Tally(f"no_worker:{name}", 0, count, partition, offset))
    if about.blocked:
        tallies.append(Tally("blocked", 0, about.blocked, 0, -1))
    kept = [tally for tally in tallies if tally.count]
    return sorted(kept, key=lambda tally: (-tally.count, tally.code, tally.key))


def _reason(
    queue: str,
    tally: Tally,
    survey: Survey,
    about: _About,
    options: QueueOptions,
    partitions: Sequence[str],
    names: dict[int, str],
) -> WaitReason:
    code, _, task_type = tally.code.partition(":")
    until = survey.until.get(code, 0)
    held = about.held.get(tally.key) if tally.key else None
    reason = WaitReason(
        code=code,
        count=tally.count,
        text=_own_text(code, tally.count, task_type, about),
        key=names.get(tally.key) if tally.key else None,
        in_flight=held.messages if held is not None else None,
        limit=_limit_of(code, options),
        since=to_datetime(held.since()) if held is not None else None,
        until=to_datetime(until) if until else None,
        eta_seconds=_eta(code, tally.count, options),
        holders=held.holders() if held is not None else (),
        sample=None if tally.sample < 0 else MessageId(queue, partitions[tally.partition], tally.sample),
    )
    return explained(reason)


def _own_text(code: str, count: int, task_type: str, about: _About) -> str:
    many = f"{count:,} wait" if count != 1 else "1 waits"
    if code == "paused":
        return f"{many}: {about.pause}"
    if code == "no_consumer":
        return f"{many}: {about.consumerless}"
    return f"{many}: no running worker knows the task type {task_type!r}" if task_type else ""


def _limit_of(code: str, options: QueueOptions) -> int | None:
    return options.key_max_in_flight if code == "limited_by_key" else 1 if code == "held_by_key" else None


def _eta(code: str, count: int, options: QueueOptions) -> float | None:
    """How long messages take that a rate holds up."""
    rate = {"queue_rate": options.lease_per_second, "key_rate": options.key_lease_per_second}.get(code)
    return count / rate if rate else None


# keys


def keys(shard: Shard, name: str, group: str, key: str | None, prefix: str, limit: int) -> tuple[KeyPage, Ticket]:
    """The keys with the largest backlog; only one of them, or those that begin with `prefix`."""
    _, ticket = shard.look(lambda now: admin.group_named(admin.queue_named(shard.core, name), group))
    survey, is_complete = _survey(shard, name, group, limits.survey_messages_max, with_keys=True)
    table = _KeyTable(survey.columns())
    count = limits.survey_keys_max if prefix else limit
    wanted = table.largest(count) if key is None else table.indexes_of(key)

    def question(now: int) -> tuple[dict[int, Held], list[str], QueueOptions, int]:
        queue = admin.queue_named(shard.core, name)
        hashes = table.hashes[wanted]
        held = _held(admin.group_named(queue, group), hashes, now - shard.clock.monotonic())
        return held, [partition.name for partition in queue.partitions], queue.options, now

    (held, partitions, options, now), _ = shard.look(question)
    tallies = [table.tally(index) for index in wanted]
    names = _key_names(shard, name, partitions, tallies)
    times = _pushed_times(shard, name, [(tally.partition, tally.sample) for tally in tallies])
    views = [
        _key_view(name, names[tally.key], tally, table, held, partitions, options, times[tally.partition, tally.sample])
        for tally in tallies
        if tally.key in names and (tally.partition, tally.sample) in times
    ]
    if key is not None:
        views = [view for view in views if view.key == key]
    views = [view for view in views if view.key.startswith(prefix)][:limit]
    page = KeyPage(
        queue=name,
        group=group,
        at=to_datetime(now),
        keys=views,
        distinct=len(table.hashes),
        without_key=table.without_key,
        examined=survey.examined,
        is_complete=is_complete,
    )
    return page, ticket


class _KeyTable:
    """Messages that are not settled, added up by the hash of their key."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        has_key = columns.keys != 0
        self.without_key = int((~has_key).sum())
        where = np.flatnonzero(has_key)
        self.hashes, firsts, inverse = np.unique(columns.keys[where], return_index=True, return_inverse=True)
        self._firsts = where[firsts]
        codes, count = columns.codes[where], len(self.hashes)
        self._backlog = np.bincount(inverse[codes != CODE["leased"]], minlength=count)
        self._waiting = np.bincount(inverse[columns.is_waiting[where]], minlength=count)
        self._codes = np.zeros(count, np.int64)
        pairs, counts = np.unique(inverse.astype(np.int64) * len(CODES) + codes, return_counts=True)
        order = np.argsort(counts, kind="stable")  # the most frequent of a key is written last
        pairs = pairs[order]
        pairs = pairs[~np.isin(pairs % len(CODES), [CODE["leased"], CODE["in_line"]])]
        self._codes[pairs // len(CODES)] = pairs % len(CODES)

    def largest(self, count: int) -> list[int]:
        """Indexes of the keys with the largest backlog."""
        order: list[int] = np.lexsort((self.hashes, -self._backlog))[:count].tolist()
        return order

    def indexes_of(self, key: str) -> list[int]:
        """The index of one key, if it is there."""
        found: list[int] = np.flatnonzero(self.hashes == (crc32c(key.encode()) or 1)).tolist()
        return found

    def tally(self, index: int) -> Tally:
        """One key: its backlog, what holds most of it up, and its oldest message."""
        first = self._firsts[index]
        where = int(self._columns.partitions[first]), int(self._columns.offsets[first])
        code = CODES[int(self._codes[index])]
        return Tally(code, int(self.hashes[index]), int(self._backlog[index]), *where)

    def waiting_of(self, key: int) -> int:
        """How many of a key wait for their next attempt."""
        return int(self._waiting[int(np.searchsorted(self.hashes, key))])


def _key_view(
    queue: str,
    key: str,
    tally: Tally,
    table: _KeyTable,
    held: dict[int, Held],
    partitions: Sequence[str],
    options: QueueOptions,
    pushed_at: int,
) -> KeyBacklog:
    in_flight = held.get(tally.key, Held([]))
    return KeyBacklog(
        key=key,
        backlog=tally.count,
        in_flight=in_flight.messages,
        waiting=table.waiting_of(tally.key),
        code=tally.code,
        oldest_at=to_datetime(pushed_at),
        oldest_id=MessageId(queue, partitions[tally.partition], tally.sample),
        in_flight_max=1 if options.ordering == "key" else options.key_max_in_flight,
        rate_per_second=options.key_lease_per_second,
        holders=in_flight.holders(),
    )


def _key_names(shard: Shard, name: str, partitions: Sequence[str], tallies: Iterable[Tally]) -> dict[int, str]:
    """Keys by their hash, read from a message of each. One that was removed meanwhile has none."""
    wanted: dict[tuple[int, int], int] = {(tally.partition, tally.sample): tally.key for tally in tallies}

    def question(now: int) -> list[Piece]:
        queue = admin.queue_named(shard.core, name)
        pieces: list[Piece] = []
        for number in sorted({partition for partition, _ in wanted}):
            partition = queue.partitions[number]
            offsets = sorted(offset for other, offset in wanted if other == number)
            pieces += pieces_of(partition, [offset for offset in offsets if offset in partition.kept_from(offset, 1)])
        return pieces

    pieces, _ = browse.look_and_load(shard, question)
    numbers = {known: number for number, known in enumerate(partitions)}
    found: dict[int, str] = {}
    for piece in pieces:
        for index, offset in enumerate(piece.offsets):
            key = piece.batch.key(piece.row(index))
            if key is not None:
                found[wanted[numbers[piece.partition(index)], offset]] = key
    return found


def _pushed_times(shard: Shard, name: str, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    def question(now: int) -> dict[tuple[int, int], int]:
        queue = admin.queue_named(shard.core, name)
        return {
            (number, offset): queue.partitions[number].pushed_time(offset)
            for number, offset in places
            if offset in queue.partitions[number].kept_from(offset, 1)
        }

    return shard.look(question)[0]


# the account


def account(shard: Shard, name: str) -> tuple[QueueAccount, Ticket]:
    """Whether every message that was accepted is accounted for, group by group, each in a hold of the lock."""
    (now, groups), ticket = shard.look(
        lambda now: (now, [group.name for group in admin.queue_named(shard.core, name).groups.values()])
    )

    def of_group(group: str) -> GroupAccount:
        def question(now: int) -> GroupAccount:
            known = admin.group_named(admin.queue_named(shard.core, name), group)
            phases = count_phases(known)
            progresses = known.progress
            return GroupAccount(
                group=group,
                accepted=sum(p.partition.end - p.start for p in progresses),
                acked=sum(p.acked for p in progresses),
                dead=sum(p.dead for p in progresses),
                dropped=sum(p.dropped_count() for p in progresses),
                open=sum(count for phase, count in phases.items() if phase != SETTLED),
            )

        return shard.look(question)[0]

    accounts = [of_group(group) for group in groups]
    is_balanced = all(not known.difference for known in accounts)
    return QueueAccount(queue=name, at=to_datetime(now), is_balanced=is_balanced, groups=accounts), ticket
