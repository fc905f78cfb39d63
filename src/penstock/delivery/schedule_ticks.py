"""Deciding the ticks of schedules.

A tick that nobody was there for is *missed*. Schedules that skip run the last tick if it is no older than a minute, so
that a restart at the wrong moment costs no run, and pass over the others. Schedules that catch up run every tick, in
order. The id of a tick's task follows from the schedule's name and the instant: the queue knows it when it comes again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from penstock import limits
from penstock.batch import Batch
from penstock.cron import next_tick
from penstock.delivery.admin import queue_to_push
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Entry, ScheduleFired
from penstock.delivery.push import decide_push
from penstock.delivery.tasks import Schedule, id_text
from penstock.envelopes import alike_batch, encode_envelope
from penstock.errors import InvalidField
from penstock.model import to_datetime
from penstock.model_tasks import ScheduleSpec, TaskSubmission

GRACE: Final = round(limits.schedule_grace_seconds * 1_000_000)
_decoder: Final = msgspec.json.Decoder(ScheduleSpec)


class Tick(NamedTuple):
    """One tick: whether it becomes a task, and when the next is due."""

    at: int
    next_at: int
    is_run: bool


def spec_of(schedule: Schedule) -> ScheduleSpec:
    """The schedule as it was set."""
    return _decoder.decode(schedule.spec)


def ticks(schedule: Schedule, now: int) -> Iterator[Tick]:
    """What to do about a schedule that is due, as far as the caller goes."""
    spec = spec_of(schedule)
    at = schedule.next_at
    if spec.missed == "catch_up":
        while 0 < at <= now:
            next_at = _after(spec, at)
            yield Tick(at, next_at, True)
            at = next_at
        return
    if at < now - GRACE:
        at = _after(spec, now - GRACE - 1)
    if not 0 < at <= now:
        yield Tick(schedule.next_at, at, False)
        return
    while 0 < (next_at := _after(spec, at)) <= now:
        at = next_at
    yield Tick(at, next_at, True)


def _after(spec: ScheduleSpec, at: int) -> int:
    """The next tick; 0 when there is none, as for one that is paused."""
    return _tick_after(spec.cron, spec.timezone, at)


@lru_cache(maxsize=1_000)  # many schedules share their times
def _tick_after(cron: str, timezone: str, at: int) -> int:
    try:
        return next_tick(cron, timezone, at)
    except InvalidField:
        return 0


def decide_tick(core: DeliveryState, name: str, tick: Tick, now: int) -> list[Entry]:
    """The frame of a tick, with its queue if that is new. May be refused like any push; `skipped_tick` is left then."""
    if not tick.is_run:
        return skipped_tick(name, tick)
    spec = spec_of(core.tasks.schedules.known[name])
    task_id = tick_id(name, tick.at)
    queue, created = queue_to_push(core, spec.queue, now)
    decided = decide_push(core, queue, _batch(spec, id_text(task_id), tick.at), now)
    return [*created, *decided.entries, ScheduleFired(name, tick.at, tick.next_at, task_id)]


def skipped_tick(name: str, tick: Tick) -> list[Entry]:
    """A tick without a task."""
    return [ScheduleFired(name, tick.at, tick.next_at, b"")]


def tick_id(name: str, at: int) -> bytes:
    """The id of a tick's task: a UUID of version 8."""
    digest = bytearray(hashlib.blake2b(f"{at} {name}".encode(), digest_size=16).digest())
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)


def _batch(spec: ScheduleSpec, task_id: str, at: int) -> Batch:
    task = TaskSubmission(
        task_id=task_id,
        task_type=spec.task_type,
        queue=spec.queue,
        is_named=True,
        args=spec.args,
        kwargs=spec.kwargs,
        timeout_seconds=spec.timeout_seconds,
        max_attempts=spec.max_attempts,
        priority=spec.priority,
        key=spec.key,
    )
    return alike_batch(task, [encode_envelope(task, spec.name, to_datetime(at).isoformat())])
