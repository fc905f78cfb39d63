"""Depth, leases and lag of queues at an instant in the past, from what the history has since then.

It is counted backwards from the present: what is open now, less what was pushed since then, plus what was settled since
then. So only the history from that instant on is needed. Two queries in the process that reads history count it.

A seek of a group is not in the history, and neither is what a group that was deleted since had open: across these the
numbers are off. A purge ends leases without saying so: what it took from somebody shows as not leased.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.broker.history_queries import ROWS_MAX
from penstock.delivery.admin import queue_named
from penstock.delivery.phases import AFTER, SETTLED
from penstock.errors import BadQuery, InvalidField
from penstock.model import DEFAULT_GROUP, DLQ_SUFFIX, Outcome, to_datetime, to_micros
from penstock.operations import Action
from penstock.replies import PastGroup, PastQueue, PastState

if TYPE_CHECKING:
    from penstock.broker.access import Client
    from penstock.broker.broker import Broker
    from penstock.delivery.log import Queue
    from penstock.shard.shard import Shard

QUEUES_MAX: Final = 1_000
_FINAL: Final = frozenset(outcome.name.lower() for outcome in Outcome if AFTER[outcome] == SETTLED)
_PUSHED: Final = """select queue, "partition", min("offset") from messages where pushed_at > {at} group by 1, 2"""
_SETTLED: Final = """select queue, "group", outcome, sum("count"),
    sum(case when leased_at <= {at} then "count" else 0 end)
    from events where settled_at > {at} and settled_at <= {now} group by 1, 2, 3"""


class Present(NamedTuple):
    """A queue as it is now."""

    name: str
    ends: dict[str, int]  # by partition
    begins_at: int  # what was pushed before this instant is not kept; 0: everything is
    groups: dict[str, tuple[int, int]]  # by name: what is open, and what of it was leased by that instant and still is


class _Rows(msgspec.Struct):
    rows: list[list[Any]]
    is_cut: bool = False


async def state_at(broker: Broker, client: Client, at: datetime, queue: str | None) -> PastState:
    """The queues that the client may monitor, or one of them, at an instant."""
    queries, instant = broker.require_history(), to_micros(at, "at")
    if instant > broker.clock.now():
        raise InvalidField(f"at: {at.isoformat()} is in the future", hint="use a time in the past")
    broker.flush()
    (present, now), ticket = await asyncio.to_thread(
        broker.shard.look, lambda now: (list(_present(broker.shard, client, instant, queue)), now)
    )
    await broker.confirmer.confirmed(ticket)
    names = sorted({name for known in present for name in (known.name, known.name + DLQ_SUFFIX)})
    times = {"at": _literal(instant), "now": _literal(now)}
    since = to_datetime(instant)
    pushed = msgspec.json.decode(await queries.run(_PUSHED.format(**times), names, ROWS_MAX, since), type=_Rows)
    settled = msgspec.json.decode(await queries.run(_SETTLED.format(**times), names, ROWS_MAX, since), type=_Rows)
    if pushed.is_cut or settled.is_cut:
        raise BadQuery("too many queues and groups for one reply", hint="choose a queue")
    first = {(row[0], row[1]): row[2] for row in pushed.rows}
    ended = _ended(settled.rows)
    queues = [_past(known, instant, first, ended) for known in present]
    begins_at = max((known.begins_at for known in present), default=0)
    return PastState(
        at=to_datetime(instant),
        begins_at=to_datetime(begins_at) if begins_at else None,
        is_cut=any(known.is_cut for known in queues),
        queues=queues,
    )


def _present(shard: Shard, client: Client, instant: int, name: str | None) -> Iterable[Present]:
    if name is not None:
        queues = [queue_named(shard.core, name)]
    else:
        may = client.principal.may
        queues = [queue for _, queue in sorted(shard.core.by_name.items()) if may(Action.MONITOR, queue.name)]
    for queue in queues[:QUEUES_MAX]:
        if queue.created_at <= instant:
            yield _as_it_is(queue, instant)


def _as_it_is(queue: Queue, instant: int) -> Present:
    """May raise `ColumnNotLoaded`."""
    begins = [
        partition.pushed_time(partition.start) if partition.start < partition.end else partition.pushed_at
        for partition in queue.partitions
        if partition.start
    ]
    groups = {
        group.name: (
            sum(progress.unsettled() for progress in group.progress),
            sum(lease.count for lease in group.leases.values() if lease.at <= instant),
        )
        for group in queue.groups.values()
    }
    return Present(queue.name, {p.name: p.end for p in queue.partitions}, max(begins, default=0), groups)


Ended = dict[tuple[str, str], tuple[int, int, int]]  # by queue and group: settled, redriven, in flight at that instant


def _ended(rows: Iterable[list[Any]]) -> Ended:
    settled: Counter[tuple[str, str]] = Counter()
    redriven: Counter[tuple[str, str]] = Counter()
    held: Counter[tuple[str, str]] = Counter()
    for queue, group, outcome, count, leased in rows:
        where = (queue, group or DEFAULT_GROUP)
        held[where] += leased
        if outcome in _FINAL:
            settled[where] += count
        if outcome == Outcome.REDRIVEN.name.lower():  # a row of the dead letter: its message is open again
            redriven[queue.removesuffix(DLQ_SUFFIX), DEFAULT_GROUP] += count
    keys = settled.keys() | redriven.keys() | held.keys()
    return {where: (settled[where], redriven[where], held[where]) for where in keys}


def _past(present: Present, instant: int, first: Mapping[tuple[str, str], int], ended: Ended) -> PastQueue:
    begins_at = to_datetime(present.begins_at) if present.begins_at else None
    if instant < present.begins_at:
        return PastQueue(
            queue=present.name, depth=None, leased=None, lag=None, begins_at=begins_at, is_cut=True, groups=[]
        )
    pushed = sum(end - first.get((present.name, name), end) for name, end in present.ends.items())
    groups = []
    for name, (open_now, leased_since) in present.groups.items():
        settled, redriven, held = ended.get((present.name, name), (0, 0, 0))
        lag = max(0, open_now - pushed + settled - redriven)
        leased = min(lag, leased_since + held)
        groups.append(PastGroup(group=name, depth=lag - leased, leased=leased, lag=lag))
    return PastQueue(
        queue=present.name,
        depth=max((group.depth for group in groups), default=0),
        leased=sum(group.leased for group in groups),
        lag=max((group.lag for group in groups), default=0),
        begins_at=begins_at,
        is_cut=False,
        groups=groups,
    )


def _literal(instant: int) -> str:
    return f"timestamptz '{to_datetime(instant).isoformat()}'"
