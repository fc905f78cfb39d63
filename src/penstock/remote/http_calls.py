"""Operations other than pushing, leasing and settling, as requests over HTTP: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from penstock.batch import Batch
from penstock.errors import InvalidField
from penstock.model import Freed, MessageId, PartitionLag, QueueOptions, QueueStats, Reason
from penstock.remote.http_request import HttpRequest, Shape, path_of
from penstock.remote.http_tasks import TASK_SHAPES
from penstock.remote.request import REPEATABLE, Again
from penstock.replies import Membership
from penstock.requests import LetterFilter, check_session_seconds
from penstock.wire import calls
from penstock.wire import json_views as views
from penstock.wire.json_client import message_of, messages_of
from penstock.wire.json_options import QueueView, changes_of, json_name

_QUEUES: Final = "/api/v1/queues"


def call(given: calls.Arguments) -> HttpRequest:
    """The request that asks for an operation."""
    given.check()
    shape = SHAPES.get(type(given))
    if shape is None:
        raise InvalidField(
            f"url: {calls.NAMES[type(given)]} is not offered over HTTP", hint="give the broker's penstock:// url"
        )
    path = shape.path(given)
    if shape.query is not None:
        path += "?" + urlencode({name: value for name, value in shape.query(given).items() if value is not None})
    body = shape.body
    is_repeatable = calls.NAMES[type(given)] in REPEATABLE or getattr(given, "exist_ok", False)
    return HttpRequest(
        shape.method,
        path,
        None if body is None else lambda _: body(given),
        None if shape.kind is None else lambda answer: shape.result(msgspec.json.decode(answer, type=shape.kind)),
        Again.ALWAYS if is_repeatable else Again.NEVER,
        wait_seconds=given.seconds if isinstance(given, calls.WaitTask | calls.AwaitNews) else 0.0,
    )


# what is asked


def _in_queue(*parts: str) -> Callable[[Any], str]:
    return lambda given: path_of(given.name if hasattr(given, "name") else given.queue, *parts)


def _in_group(*parts: str) -> Callable[[Any], str]:
    return lambda given: path_of(given.queue, "groups", given.group, *parts)


def _of_member(*parts: str) -> Callable[[Any], str]:
    return lambda given: path_of(given.queue, "groups", given.group, "members", given.member, *parts)


def _message(*more: str) -> Callable[[Any], str]:
    def path(given: Any) -> str:
        id = MessageId.parse(given.id)
        return path_of(id.queue, "messages", id.partition, id.offset, *more)

    return path


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        json_name(name): value * 1000 if name.endswith("_seconds") and value is not None else value
        for name, value in options.items()
    }


def _letters(wanted: LetterFilter) -> dict[str, Any]:
    ids = None if wanted.ids is None else sorted(map(str, wanted.ids))
    fields = msgspec.structs.asdict(wanted) | {"ids": ids}
    return {name: value for name, value in fields.items() if value is not None}


def _read_query(given: calls.Read) -> dict[str, Any]:
    return {
        "partition": given.partition,
        "offset": given.offset,
        "timestamp": given.timestamp,
        "limit": given.limit,
    }


# what is answered


def _messages(view: views.MessagesView) -> Any:
    return [message_of(each) for each in view.messages]


def _queue_options(view: Any) -> QueueOptions:
    # Milliseconds and back may be off by the last bit.
    options = changes_of(view)
    for name, value in options.items():
        options[name] = round(value, 9) if isinstance(value, float) else value
    return QueueOptions(**options)


def _groups(view: views.GroupsView) -> dict[str, list[PartitionLag]]:
    return {group.name: [_lag(each) for each in group.partitions] for group in view.groups}


def _lag(view: views.LagView) -> PartitionLag:
    return PartitionLag(*msgspec.structs.astuple(view))


def _membership(view: views.MembershipView) -> Membership:
    return Membership(view.member, view.generation, view.assigned, view.revoking, view.heartbeat_ms / 1000)


def _joining(given: calls.Join) -> dict[str, Any]:
    session_ms = check_session_seconds(given.session_seconds) * 1000
    return {"member": given.member, "session_ms": session_ms, **({} if given.start is None else {"start": given.start})}


def _get(path: Callable[[Any], str], kind: Any, result: Callable[[Any], Any], query: Any = None) -> Shape:
    return Shape("GET", path, None, query, kind, result)


def _limit(given: Any) -> dict[str, int]:
    return {"limit": given.limit}


def _replacement(given: calls.ReplaceLetters) -> dict[str, Any]:
    return {"ids": given.ids, "messages": messages_of(Batch(given.batch), None)}


SHAPES: Final[dict[type[calls.Arguments], Shape]] = {
    calls.Queues: _get(lambda given: _QUEUES, views.QueuesView, lambda view: [each.name for each in view.queues]),
    calls.CreateQueue: Shape(
        "POST",
        lambda given: _QUEUES,
        lambda given: {"name": given.name, **_options(given.options)},
        lambda given: {"exist_ok": str(given.exist_ok).lower()},
    ),
    calls.UpdateQueue: Shape("PATCH", _in_queue(), lambda given: _options(given.changes)),
    calls.DeleteQueue: Shape("DELETE", _in_queue()),
    calls.Options: _get(_in_queue(), QueueView, _queue_options),
    calls.Stats: _get(_in_queue("stats"), QueueStats, lambda view: view),
    calls.Pause: Shape("POST", lambda given: path_of(given.name, "pause" if given.paused else "resume")),
    calls.Purge: Shape("POST", _in_queue("purge")),
    calls.Read: _get(_in_queue("messages"), views.MessagesView, _messages, _read_query),
    calls.Peek: _get(_in_queue("peek"), views.MessagesView, _messages, _limit),
    calls.Delayed: _get(_in_queue("delayed"), views.MessagesView, _messages, _limit),
    calls.Cancel: Shape("DELETE", _message()),
    calls.Why: _get(
        _message("why"),
        views.ReasonsView,
        lambda view: [Reason(each.group, each.code, each.text) for each in view.reasons],
    ),
    calls.CreateGroup: Shape(
        "POST",
        _in_queue("groups"),
        lambda given: {"name": given.group, "start": given.start, "observes": given.observes},
    ),
    calls.DeleteGroup: Shape("DELETE", _in_group()),
    calls.Seek: Shape(
        "POST",
        _in_group("seek"),
        lambda given: {"to": given.to, "partition": given.partition},
    ),
    calls.Groups: _get(_in_queue("groups"), views.GroupsView, _groups),
    calls.Join: Shape(
        "POST",
        _in_group("members"),
        _joining,
        None,
        views.MembershipView,
        _membership,
    ),
    calls.Heartbeat: Shape(
        "POST",
        _of_member("heartbeat"),
        lambda given: {"generation": given.generation, "held": given.held},
        None,
        views.MembershipView,
        _membership,
    ),
    calls.Leave: Shape(
        "DELETE",
        _of_member(),
        None,
        lambda given: {"generation": given.generation},
    ),
    calls.Members: _get(_in_group("members"), views.MembersView, lambda view: view.members),
    calls.DeadLetters: Shape(
        "POST", _in_queue("dlq", "search"), lambda given: _letters(given.filter), None, views.MessagesView, _messages
    ),
    calls.Redrive: Shape(
        "POST",
        _in_queue("dlq", "redrive"),
        lambda given: _letters(given.filter) | ({} if given.rate is None else {"rate": given.rate}),
        None,
        views.RedriveView,
        lambda view: view.redriven,
    ),
    calls.ReplaceLetters: Shape("POST", _in_queue("dlq", "replace"), _replacement),
    calls.PurgeDeadLetters: Shape("DELETE", _in_queue("dlq")),
    calls.Seal: Shape("POST", lambda given: "/api/v1/seal", None, None, views.SealView, lambda view: view.sealed),
    calls.Compact: Shape("POST", lambda given: "/api/v1/compact", kind=Freed),
    calls.InitProducer: Shape(
        "POST",
        lambda given: "/api/v1/producers",
        lambda given: {"name": given.name},
        None,
        views.ProducerView,
        lambda view: (int(view.id, 16), view.epoch),
    ),
    calls.Info: Shape("GET", lambda given: "/api/v1/info", kind=calls.ServerInfo),
    **TASK_SHAPES,
}
