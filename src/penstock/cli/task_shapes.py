"""Tasks, workers and schedules as JSON objects, and arguments read from a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.cli.exits import CommandError
from penstock.model_tasks import ScheduleView, TaskView, WorkerView


def task(view: TaskView) -> dict[str, Any]:
    """A task; its arguments, result and progress as they are. It has no result when that could not be stored."""
    shown = msgspec.structs.asdict(view) | {"result_error": view.result_error, "attempts_lost": view.attempts_lost}
    if view.result_error:
        shown["result"] = None
    for name in ("args", "kwargs", "result", "progress"):
        shown[name] = raw(shown[name])
    return shown


def worker(view: WorkerView) -> dict[str, Any]:
    """A worker, in one level."""
    times = {"first_seen_at": view.first_seen_at, "last_heartbeat_at": view.last_heartbeat_at}
    return {"state": view.state, **msgspec.structs.asdict(view.info), **times}


def schedule(view: ScheduleView) -> dict[str, Any]:
    """A schedule, in one level."""
    spec = msgspec.structs.asdict(view.spec)
    spec |= {"args": raw(view.spec.args), "kwargs": raw(view.spec.kwargs)}
    return {**spec, "next_at": view.next_at, "last_at": view.last_at, "last_task_id": view.last_task_id}


def raw(json: bytes | None) -> msgspec.Raw | None:
    """JSON text that goes into JSON as it is."""
    return None if json is None else msgspec.Raw(json)


def arguments(values: Sequence[str], named: Sequence[str], args: str | None, kwargs: str | None) -> tuple[bytes, bytes]:
    """The arguments of a task: words and name=word, or whole JSON."""
    if args is not None and values:
        raise CommandError("arguments are given twice", hint="give them as words or by --args, not both")
    if kwargs is not None and named:
        raise CommandError("named arguments are given twice", hint="give them by --arg or by --kwargs, not both")
    return (
        _whole(args, list, "--args", "an array", """'[1, "a"]'""") or _encode([value(word) for word in values]),
        _whole(kwargs, dict, "--kwargs", "an object", """'{"to": "a@b.c"}'""") or _encode(_pairs(named)),
    )


def value(word: str) -> Any:
    """What a word means: JSON if it is that, otherwise its text."""
    try:
        return msgspec.json.decode(word)
    except msgspec.DecodeError:
        return word


def _pairs(named: Sequence[str]) -> dict[str, Any]:
    found = {}
    for each in named:
        name, equals, word = each.partition("=")
        if not name or not equals:
            raise CommandError(f"--arg: {each!r} is not name=value", hint="such as --arg to=a@b.c")
        found[name] = value(word)
    return found


def _whole(text: str | None, kind: type, flag: str, wanted: str, example: str) -> bytes | None:
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise CommandError(f"{flag}: {text!r} is not JSON: {error}", hint=f"such as {example}") from None
    if not isinstance(found, kind):
        raise CommandError(f"{flag}: {text!r} is JSON, but not {wanted}", hint=f"such as {example}")
    return text.encode()


def _encode(found: Any) -> bytes:
    return msgspec.json.encode(found)
