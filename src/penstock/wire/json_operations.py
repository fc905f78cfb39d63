"""The JSON of every operation that has an HTTP route, derived from its declaration (`penstock/operations`).

Arguments that the path names come from there, the others from the query of a GET or DELETE and from the body of
anything else; a struct among the arguments has no object of its own. The result is an object, or the value of the field
that the declaration names in `reply`. What differs from these rules is in `ARGUMENTS` and `REPLIES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from penstock import operations as ops
from penstock.model import Message, MessageId, PartitionLag
from penstock.model_letters import MessageFilter
from penstock.model_metrics import SERIES_DEFAULT, HistorySeries
from penstock.model_tasks import TaskFilter, TaskState
from penstock.replies import LeaseView, MessageDetails, MessageState
from penstock.wire import json_models as models
from penstock.wire.json_messages import message_view
from penstock.wire.json_options import QueueView, view_of
from penstock.wire.json_shapes import KINDS, Kind, Shape, kind_of, list_of, new_struct, shape_of
from penstock.wire.json_tasks import DEFAULT_QUEUE, PAGE_MAX, TASK_PAGE, tasks_view

_STATES: Final = "|".join(TaskState)
_STATES_WORDS: Final = f"One or more of {', '.join(TaskState)}, separated by commas."
_IN_QUERY: Final = ("GET", "DELETE")
_ID: Final = ("queue", "partition", "offset")  # what a path has of a message's id

LETTERS: Final = Kind(Annotated[int, Meta(ge=1, le=2**62)])
PAST: Final = Shape(MessageFilter, "MessageFilter", names={"since": "from", "until": "to"})
KINDS[MessageFilter] = Kind(PAST.type, PAST.write, PAST.read)
# What the JSON of arguments differs in from the rules; see `Shape`.
ARGUMENTS: Final[dict[type[ops.Operation[Any]], dict[str, Any]]] = {
    ops.CreateGroup: {"names": {"group": "name"}},
    ops.InitProducer: {"names": {"producer": "name"}},
    ops.Read: {"kinds": {"partition": Kind(str)}, "defaults": {"partition": "0"}},
    ops.DeadLetters: {"without": ("ids",), "defaults": {"limit": 100}},
    ops.RedriveLetters: {"kinds": {"limit": LETTERS}, "without": ("from_offset",)},
    ops.DiscardLetters: {"kinds": {"limit": LETTERS}, "without": ("from_offset",)},
    ops.ReplayMessages: {"names": {"since": "from", "until": "to"}},
    ops.SearchMessages: {"names": {"since": "from", "until": "to"}},
    ops.PutPipelineRun: {"names": {"queues_read": "queues"}},
    ops.SetSchedule: {"defaults": {"queue": DEFAULT_QUEUE}},
    ops.BeginOperation: {
        "without": ("limit", "cursor"),
        "kinds": {"task_type": Kind(str | None), "action": Kind(Literal["purge", "cancel", "retry"])},
    },
    ops.SuggestTasks: {
        "kinds": {"field": Kind(Literal["task_type", "queue", "worker", "status", "workflow", "schedule", "kwargs"])},
    },
    ops.GetSeries: {
        "names": {"metrics": "metric", "since": "from", "until": "to"},
        "kinds": {"metrics": Kind(str, ",".join, lambda text: tuple(text.split(",")))},  # several with commas
        "defaults": {"metrics": ",".join(SERIES_DEFAULT)},
    },
    ops.ListTasks: {
        "kinds": {
            "task_type": Kind(str | None),
            "limit": Kind(Annotated[int, Meta(ge=1, le=PAGE_MAX)]),
            "states": Kind(  # several with commas
                Annotated[str, Meta(pattern=f"^({_STATES})(,({_STATES}))*$", description=_STATES_WORDS)] | None,
                lambda states: ",".join(states) or None,
                lambda text: tuple(map(TaskState, text.split(","))) if text else (),
            ),
        },
    },
}
HELD_LEASE: Final = Shape(LeaseView, "HeldLease")
SERIES: Final = Shape(HistorySeries, "HistorySeries", names={"since": "from", "until": "to"})
KINDS[LeaseView] = Kind(HELD_LEASE.type, HELD_LEASE.write)
KINDS[Message] = Kind(models.MessageView, message_view)
# A search for dead letters that has them in its body, where `ids` fit too.
LETTER_SEARCH: Final = Shape(
    ops.DeadLetters, "LetterSearch", is_request=True, flat=("filter",), without=("queue",), defaults={"limit": 100}
)


# An operation on tasks whose action the path names.
TASK_OPERATION: Final = Shape(
    ops.BeginOperation,
    "TaskOperation",
    is_request=True,
    flat=("filter", "options"),
    without=("action", "limit", "cursor"),
    kinds={"task_type": Kind(str | None)},
)


# The same on the tasks of a workflow, which the path names too; of all queues, or of one.
WORKFLOW_OPERATION: Final = Shape(
    ops.BeginOperation,
    "WorkflowOperation",
    is_request=True,
    flat=("filter", "options"),
    without=("action", *(name for name in TaskFilter.__struct_fields__ if name != "queue")),
)


# A seek, or with `dry_run` what it would do.
SEEK: Final = Shape(ops.PreviewSeek, "SeekBody", is_request=True, without=("queue", "group"))
SEEK_BODY: Final = new_struct(
    "Seek",
    "The position to move a group to. With `dry_run`, the reply shows the effect, and nothing changes.",
    [("dry_run", bool, False)],
    bases=(SEEK.type,),
    kw_only=True,
    forbid_unknown_fields=True,
)
LAG: Final = shape_of(PartitionLag)
GROUP: Final = new_struct(
    "Group", "A group and its position in each partition.", [("name", str), ("partitions", list_of(LAG.type))]
)
GROUPS: Final = new_struct("Groups", "All groups of a queue.", [("groups", list_of(GROUP))])


def groups_view(groups: Mapping[str, Sequence[PartitionLag]]) -> Any:
    """Groups by their names."""
    return GROUPS([GROUP(name, list(map(LAG.write, lags))) for name, lags in groups.items()])


STATE: Final = shape_of(MessageState)
MESSAGE: Final = new_struct(
    "MessageDetails",
    "A message and its state in each group.",
    [("groups", list_of(STATE.type))],
    bases=(models.MessageView,),
    kw_only=True,
)


def details_view(details: MessageDetails) -> Any:
    """A message with its groups beside its own fields."""
    fields = msgspec.structs.asdict(message_view(details.message))
    return MESSAGE(groups=list(map(STATE.write, details.groups)), **fields)


class Reply(NamedTuple):
    """The type of a reply in JSON, and what makes it of an operation and its result. No type: there is no content."""

    type: Any
    write: Callable[[Any, Any], Any]


# Replies that differ from the rules.
REPLIES: Final[dict[type[ops.Operation[Any]], Reply]] = {
    ops.Queues: Reply(
        models.QueuesView, lambda operation, names: models.QueuesView(list(map(models.ListedQueue, names)))
    ),
    ops.GetOptions: Reply(QueueView, lambda operation, options: view_of(operation.queue, options)),
    ops.Groups: Reply(GROUPS, lambda operation, groups: groups_view(groups)),
    ops.GetMessage: Reply(MESSAGE, lambda operation, details: details_view(details)),
    ops.CreateGroup: Reply(models.QueueName, lambda operation, result: models.QueueName(operation.group)),
    ops.InitProducer: Reply(models.ProducerView, lambda operation, result: models.producer_view(*result)),
    ops.GetSeries: Reply(SERIES.type, lambda operation, found: SERIES.write(found)),
    ops.ListTasks: Reply(TASK_PAGE, lambda operation, page: tasks_view(page)),
}


class OperationJson:
    """The JSON of one operation: `query` and `body` are the types of its arguments, None where it has none there."""

    def __init__(self, operation: type[ops.Operation[Any]]) -> None:
        spec, hints = operation.spec, get_type_hints(operation, include_extras=True)
        self.operation = operation
        self._in_path = re.findall(r"{(\w+)}", spec.path)
        self._id = next((name for name in operation.__struct_fields__ if _bare(hints[name]) is MessageId), None)
        flat = [name for name in operation.__struct_fields__ if _is_struct(hints[name])]
        settings = {**ARGUMENTS.get(operation, {})}
        without = {*settings.pop("without", ()), *self._in_path} | ({self._id} if self._id else set())
        in_query = spec.method in _IN_QUERY
        name = f"{operation.__name__}Query" if in_query else operation.__name__
        self._shape = Shape(operation, name, is_request=True, flat=flat, without=without, **settings)
        has_fields = bool(self._shape.fields)
        self.query: Any = self._shape.type if has_fields and in_query else None
        self.body: Any = self._shape.type if has_fields and not in_query else None
        self.reply = REPLIES.get(operation) or _reply(spec)

    @property
    def is_body_optional(self) -> bool:
        return all(field.default is not msgspec.NODEFAULT for field in self._shape.fields)

    def read(self, path: Mapping[str, str], arguments: Any) -> ops.Operation[Any]:
        """The operation that a request asks for; `arguments` is its query or its body, decoded."""
        known: dict[str, Any] = {name: path[name] for name in self._in_path}
        if self._id:
            known = {self._id: MessageId.parse("/".join(path[name] for name in _ID))}
        return self._shape.read(arguments, known)


@cache
def json_of(operation: type[ops.Operation[Any]]) -> OperationJson:
    """The JSON of an operation."""
    return OperationJson(operation)


def _reply(spec: ops.Spec) -> Reply:
    if spec.result is type(None) or spec.result is None:
        return Reply(None, lambda operation, result: None)
    kind = kind_of(spec.result)
    write = kind.write or (lambda result: result)
    if not spec.reply:
        return Reply(kind.type, lambda operation, result: write(result))
    holder = _holder(_holder_name(spec), spec.reply, kind.type, _holder_doc(spec))
    return Reply(holder, lambda operation, result: holder(write(result)))


def _holder_name(spec: ops.Spec) -> str:
    """`DataKeys` for the `keys` of `list_data_keys`: other routes have keys too."""
    words = spec.route.split("_")[1:]
    is_list_of_them = get_origin(spec.result) is list and words[-1:] == [spec.reply]
    return "".join(map(str.capitalize, words)) if is_list_of_them else spec.reply.capitalize()


def _holder_doc(spec: ops.Spec) -> str:
    return f"A list of {spec.reply}." if get_origin(spec.result) is list else f"The reply to `{spec.route}`."


@cache
def _holder(type_name: str, name: str, kind: Any, doc: str) -> Any:
    """`{"messages": […]}`: an object for a result that is not an object."""
    return new_struct(type_name, doc, [(name, kind)])


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _is_struct(hint: Any) -> bool:
    bare = _bare(hint)
    return isinstance(bare, type) and issubclass(bare, Struct)
