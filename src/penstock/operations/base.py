"""What an operation is: one declaration from which every way in is derived.

An operation is a frozen struct of its arguments. Constructing one validates it, whoever does it: a method of a client,
the decoder of a frame, a JSON request, a gRPC message. So a bad argument is refused with the same error everywhere.

    @operation(Action.READ, http="GET /queues/{queue}/peek")
    class Peek(Operation[list[Message]], frozen=True):
        "The next messages of the default group; changes nothing."

        queue: QueueName
        limit: Limit = 1

The decorator adds the rest of the declaration (`Spec`): the action that access control asks about, the HTTP route, and
whether the request may be sent again when its reply was lost. The name, the result type and the summary come from the
class itself. `embedded/handlers.py` holds the function that executes it. Its JSON over HTTP, OpenAPI and the page at
/docs are derived (`wire/json_operations.py`, `server/http/routes.py`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, StrEnum
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from penstock.errors import BadRequest
from penstock.operations.declared import check_of

SOME_QUEUE: Final = "?"  # in place of a queue: any of them, whichever it is; no queue can be called so
R_co = TypeVar("R_co", covariant=True)
Declared = TypeVar("Declared", bound="type[Operation[Any]]")


class Action(StrEnum):
    """What somebody wants to do, as access control sees it."""

    PUSH = "push"
    CONSUME = "consume"  # lease and settle
    READ = "read"  # payloads
    UNMASK = "unmask"  # the masked fields in them
    MONITOR = "monitor"  # counters and names
    MANAGE = "manage"  # a queue, its groups, its messages and tasks
    OPERATE = "operate"  # the broker itself
    EXPORT = "export"  # stored files, which hold every queue


class Repeat(Enum):
    """Whether a request may be sent again after its reply was lost."""

    ALWAYS = "a second execution changes nothing"
    NEVER = "the caller receives an error: the outcome is unknown"


class Check(msgspec.Struct, frozen=True):
    """Validation of a field, as part of its type: `function(value, field)` returns the value to keep, or raises."""

    function: Callable[[Any, str], Any]


class Spec(msgspec.Struct, frozen=True):
    """The declaration of an operation, apart from its arguments."""

    name: str  # of the call on the wire, in metrics and in logs: `create_queue`
    summary: str  # the first line of the docstring
    description: str  # the rest of it
    action: Action
    repeat: Repeat
    result: Any  # the type of the reply
    method: str | None = None  # of its HTTP route; None: it has no JSON route of its own
    path: str = ""
    route: str = ""  # what OpenAPI calls the route, a verb and a noun: `peek_messages`
    reply: str = ""  # the field that holds the result in JSON, where the result is no object: `messages`
    status: int = 200  # of the response
    example: Mapping[str, Any] = {}  # arguments in JSON, apart from those in the path
    errors: tuple[str, ...] = ()  # codes that the documentation of the route lists
    queues: tuple[str, ...] | None = None  # that it touches; None: that of its field `queue` or `id`
    is_for_leases: bool = False  # goes to the broker that gave the leases, as long as it listens
    checks: tuple[tuple[str, Callable[[Any, str], Any]], ...] = ()


class Operation(msgspec.Struct, Generic[R_co], frozen=True, forbid_unknown_fields=True):
    """Arguments of an operation whose reply is `R_co`; validated when constructed."""

    spec: ClassVar[Spec]

    def __post_init__(self) -> None:
        for field, check in self.spec.checks:
            value = getattr(self, field)
            checked = check(value, field)
            if checked is not value:
                msgspec.structs.force_setattr(self, field, checked)

    def queues(self) -> Iterable[str]:
        """The queues it touches; empty text is the broker as a whole, `SOME_QUEUE` any of them."""
        if self.spec.queues is not None:
            return self.spec.queues
        named = getattr(self, "id", self)  # the id of a message has its queue
        return (getattr(named, "queue", None) or "",)

    def needs(self) -> Iterable[tuple[Action, str]]:
        """What whoever asks must be allowed to do, and on which queues: its action on each queue, and whatever else.

        Operations on something that has an id touch the queue that it is in. The broker looks that up, and asks for it.
        """
        return [(self.spec.action, queue) for queue in self.queues()]

    def visible(self, reply: Any, may: Callable[[str], bool]) -> Any:
        """The part of the reply that somebody may see, who may see the queues for which `may` is true.

        Operations that list things over all queues touch none of them and narrow their reply here.
        """
        return reply

    @property
    def wait_seconds(self) -> float:
        """How long the broker may take before it replies."""
        return 0.0

    @property
    def is_repeatable(self) -> bool:
        """Whether this request may be sent again after its reply was lost."""
        return self.spec.repeat is Repeat.ALWAYS


TABLE: Final[dict[str, type[Operation[Any]]]] = {}


def operation(
    action: Action,
    *,
    http: str = "",
    route: str = "",
    reply: str = "",
    status: int = 200,
    example: Mapping[str, Any] | None = None,
    repeat: Repeat = Repeat.ALWAYS,
    errors: Iterable[str] = (),
    queues: tuple[str, ...] | None = None,
    is_for_leases: bool = False,
) -> Callable[[Declared], Declared]:
    """Declare the class below as an operation: add its `Spec`, and the class to `TABLE`."""

    def declare(cls: Declared) -> Declared:
        method, _, path = http.partition(" ")
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        summary, _, description = inspect.cleandoc(cls.__doc__ or "").partition("\n")
        cls.spec = Spec(
            name=name,
            summary=summary.removesuffix("."),
            description=description.strip(),
            action=action,
            repeat=repeat,
            result=_result_of(cls),
            method=method or None,
            path=path,
            route=route or name,
            reply=reply,
            status=status,
            example=example or {},
            errors=tuple(errors),
            queues=queues,
            is_for_leases=is_for_leases,
            checks=tuple(_checks_of(cls)),
        )
        TABLE[name] = cls
        return cls

    return declare


def named(name: str) -> type[Operation[Any]]:
    """The operation of this name; `BadRequest` when there is none."""
    operation = TABLE.get(name)
    if operation is None:
        raise BadRequest(f"call: there is no operation {name!r}")
    return operation


def _result_of(cls: type[Operation[Any]]) -> Any:
    bases = (base for kind in cls.__mro__ for base in getattr(kind, "__orig_bases__", ()))
    return next(get_args(base)[0] for base in bases if get_origin(base) is Operation)


def _checks_of(cls: type[Operation[Any]]) -> Iterable[tuple[str, Callable[[Any, str], Any]]]:
    hints: Mapping[str, Any] = get_type_hints(cls, include_extras=True)
    for field in cls.__struct_fields__:
        hint = hints[field]
        checks = list(_annotated_checks(hint))
        if not checks and (declared := check_of(hint)) is not None:
            checks = [declared]
        for check in checks:
            yield field, check


def _annotated_checks(hint: Any) -> Iterable[Callable[[Any, str], Any]]:
    for part in (hint, *get_args(hint)):  # `T | None` holds its check within
        if get_origin(part) is Annotated:
            for extra in part.__metadata__:
                if isinstance(extra, Check):
                    optional = part is not hint
                    yield _optional(extra.function) if optional else extra.function


def _optional(check: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, field: None if value is None else check(value, field)
