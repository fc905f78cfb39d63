"""JSON objects of the command line, whose names stay: messages, statistics, tasks, workers, schedules.

Payloads that were pushed as JSON or text are `payload`; all others are `payload_base64`. Instants are RFC 3339. What
these print, `penstock push --json-lines` takes.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.model import CONTENT_TYPE_NAMES, ContentType, Message, QueueStats
from penstock.model_tasks import ScheduleView, TaskView, WorkerView

if TYPE_CHECKING:
    from penstock import Delivery


# What `requests` calls DEAD_ORIGIN and so on, spelt here because that module loads NumPy.
DEATH_PREFIX = "penstock-"


def payload(content: bytes, kind: ContentType | None) -> dict[str, Any]:
    """A payload under the name that tells how to read it."""
    if kind in (ContentType.JSON, ContentType.TASK, ContentType.TOMBSTONE):
        try:
            # On one line: white space between JSON tokens means nothing.
            return {"payload": msgspec.Raw(msgspec.json.format(content, indent=-1))}
        except msgspec.DecodeError:
            return {"payload_base64": b64encode(content).decode()}
    if kind == ContentType.TEXT:
        return {"payload": content.decode(errors="replace")}
    return {"payload_base64": b64encode(content).decode()}


def content(read: Message) -> bytes:
    """The payload of a message that was read, which is always bytes."""
    assert isinstance(read.payload, bytes)
    return read.payload


def message(read: Message) -> dict[str, Any]:
    """A message that was read."""
    kind = read.content_type or ContentType.BYTES
    return {
        "id": None if read.id is None else str(read.id),
        **payload(content(read), kind),
        "content_type": CONTENT_TYPE_NAMES[kind],
        **_fields(read, "key", "priority"),
        "headers": dict(read.headers or {}),
        **_fields(read, "dedup_key", "max_attempts", "trace", "pushed_at", "available_at", "expires_at"),
        **({} if read.retry is None else {"retry": read.retry._asdict()}),
    }


def delivery(leased: Delivery, group: str) -> dict[str, Any]:
    """A message that was leased."""
    return {
        "id": str(leased.id),
        **payload(leased.payload, leased.content_type),
        "content_type": CONTENT_TYPE_NAMES[leased.content_type],
        **_fields(leased, "key", "priority", "headers", "dedup_key", "trace", "pushed_at"),
        "group": group,
        **_fields(leased, "attempt", "receipt", "expires_at"),
    }


def queue(stats: QueueStats) -> dict[str, Any]:
    """A queue's account, and its groups'."""
    counts = _fields(stats, "name", "messages", "partitions", "bytes_stored", "paused", "push_paused")
    return {**counts, "groups": list(stats.groups.values())}


def _fields(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def letter(dead: Message) -> dict[str, Any]:
    """A dead letter: the message as it was, and why it died."""
    return {**message(dead), "headers": own_headers(dead), "dead": death(dead)}


def death(dead: Message) -> dict[str, Any]:
    """Where a dead letter comes from, and why it died."""
    headers = dead.headers or {}
    attempts = headers.get(f"{DEATH_PREFIX}attempts", "")
    return {
        "origin": headers.get(f"{DEATH_PREFIX}origin"),
        "group": headers.get(f"{DEATH_PREFIX}group"),
        "reason": headers.get(f"{DEATH_PREFIX}reason"),
        "error": headers.get(f"{DEATH_PREFIX}error", ""),
        "attempts": int(attempts) if attempts.isdigit() else None,
        "last_consumer": headers.get(f"{DEATH_PREFIX}last-consumer"),
        "first_delivered_at": headers.get(f"{DEATH_PREFIX}first-delivered-at"),
        "last_delivered_at": headers.get(f"{DEATH_PREFIX}last-delivered-at"),
        "pushed_at": headers.get(f"{DEATH_PREFIX}pushed-at"),
    }


def own_headers(dead: Message) -> dict[str, str]:
    """The headers that the producer gave."""
    return {name: value for name, value in (dead.headers or {}).items() if not name.startswith(DEATH_PREFIX)}


def task(view: TaskView) -> dict[str, Any]:
    """A task; its arguments, result and progress as they are. It has no result when that could not be stored; one of
    bytes is `result_base64`.
    """
    shown = msgspec.structs.asdict(view) | {"result_error": view.result_error, "attempts_lost": view.attempts_lost}
    if view.result_error:
        shown["result"] = None
    if view.result_bytes is not None:
        shown["result"], shown["result_base64"] = None, view.result_bytes
    for name in ("args", "kwargs", "result", "progress"):
        shown[name] = raw(shown[name])
    return shown


def worker(view: WorkerView) -> dict[str, Any]:
    """A worker, in one level."""
    names = ("first_seen_at", "last_heartbeat_at", "requested", "requested_at")
    times = {name: getattr(view, name) for name in names}
    return {"state": view.state, **msgspec.structs.asdict(view.info), **times}


def schedule(view: ScheduleView) -> dict[str, Any]:
    """A schedule, in one level."""
    spec = msgspec.structs.asdict(view.spec)
    spec |= {"args": raw(view.spec.args), "kwargs": raw(view.spec.kwargs)}
    return {**spec, "next_at": view.next_at, "last_at": view.last_at, "last_task_id": view.last_task_id}


def raw(json: bytes | None) -> msgspec.Raw | None:
    """JSON text that goes into JSON as it is."""
    return None if json is None else msgspec.Raw(json)
