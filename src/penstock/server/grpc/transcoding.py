"""Protocol buffers from structs and back, by the names of fields; what a method needs of its own stands in its table.

    Python                               protocol buffers
    session_seconds: float               session_ms
    datetime                             Timestamp
    MessageId, Receipt, bytes of JSON    string
    a choice of words                    string, or the enum of these words
    a position in a queue                Position
    a struct or a named tuple            a message, by the same rules

A field that is not set, or is zero or empty, has the default of the struct. A struct for which a message has no field
of its own is spread over the message; so are single fields, such as the limit of a filter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf import message_factory
from google.protobuf.message import Message as ProtoMessage
from msgspec import NODEFAULT, UNSET, Raw, Struct

from penstock import refusals
from penstock.model import MessageId, Receipt, to_datetime, to_micros
from penstock.model_tasks import TaskView
from penstock.server.grpc.values import micros, position_of, timestamp
from penstock.validation import message_id
from penstock.wire.json_shapes import receipt_of

T = TypeVar("T")
M = TypeVar("M", bound=ProtoMessage)
Write = Callable[[Any], Any]
Read = Callable[[Any, str], Any]  # the value, and the name that errors give it

# Fields of messages, and what structs call them that have no field of that name.
SPELT: Final = {
    "payload": "payload_base64",
    "per_second": "rate",
    "queue": "name",
    "result_bytes": "result_base64",
    "since": "submitted_since",
    "state": "status",
    "until": "submitted_until",
}


def _without_other_result(task: TaskView) -> dict[str, Any]:
    return {"result": None} if task.result_error or task.result_bytes is not None else {}


# Values that are not those of the struct.
DIFFERENT: Final[dict[type, Callable[[Any], dict[str, Any]]]] = {TaskView: _without_other_result}


# writing


def write(kind: Callable[..., M], value: Any, **known: Any) -> M:
    """A message of this kind; `known` holds values that are not those of the struct."""
    struct: Any = type(value)
    different = DIFFERENT.get(struct)
    if different is not None:
        known = {**different(value), **known}
    fields = {}
    for name, attribute, convert in _writers(kind, struct):
        if name not in known:
            field = getattr(value, attribute)
            if field is not None and field is not UNSET:
                fields[name] = convert(field)
    return kind(**fields, **known)


def write_result(kind: Any, result: Any) -> Any:
    """The answer to a call; a result that is no struct is the only field of its message."""
    if not kind.DESCRIPTOR.fields:
        return kind()
    if isinstance(result, Struct) or hasattr(result, "__dataclass_fields__"):
        return write(kind, result)
    (field,) = kind.DESCRIPTOR.fields
    return kind(**{field.name: _writer(field, field.name)(result)})


@cache
def _writers(kind: Any, struct: Any) -> list[tuple[str, str, Write]]:
    """Name, attribute and conversion of each field of a message that the struct has."""
    writers = []
    for field in kind.DESCRIPTOR.fields:
        for attribute in (field.name, _in_seconds(field.name), SPELT.get(field.name, "")):
            if attribute in _hints(struct) or hasattr(struct, attribute):
                writers.append((field.name, attribute, _writer(field, attribute)))
                break
    return writers


def _writer(field: Any, attribute: str) -> Write:
    if _is_map(field):
        return dict
    one = _single_writer(field, attribute)
    if _is_repeated(field):
        return lambda values: [one(item) for item in (values.values() if isinstance(values, Mapping) else values)]
    return one


def _single_writer(field: Any, attribute: str) -> Write:
    if field.message_type is not None:
        if field.message_type.name == "Timestamp":
            return lambda at: timestamp(to_micros(at, attribute))
        kind = message_factory.GetMessageClass(field.message_type)
        return lambda value: write(kind, value)
    if field.enum_type is not None:
        numbers = {word: number for number, word in _words(field.enum_type).items()}
        return lambda value: value if isinstance(value, int) else numbers[value]
    if field.type == field.TYPE_STRING:
        return _text
    if attribute != field.name and attribute.endswith("_seconds"):
        return lambda seconds: round(seconds * 1000)
    return round if field.name.endswith("_ms") else _same


def _text(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, bytes | Raw) else str(value)


def _same(value: Any) -> Any:
    return value


# reading


def read(
    struct: type[T], message: Any, place: str = "", *, defaults: Mapping[str, Any] | None = None, **known: Any
) -> T:
    """The struct that a message stands for; errors about it begin with `place`.

    `defaults` are for fields that are not set, where they are not those of the struct; `known` are values of fields.
    """
    return struct(**_values(struct, (message,), place, defaults or {}), **known)


class Step(NamedTuple):
    """Where a field of a struct is read from."""

    name: str
    field: str  # of the message
    holder: int | None  # which of the messages has it; None: no message does
    is_required: bool
    struct: Any  # that is spread over messages, if it is one
    convert: Read


def _values(struct: Any, messages: tuple[Any, ...], place: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a struct. Those that the first message does not have may be in the ones around it."""
    values = {}
    given = [{field.name: value for field, value in message.ListFields()} for message in messages]
    for name, field, holder, is_required, inner, convert in _steps(struct, tuple(item.DESCRIPTOR for item in messages)):
        is_set = holder is not None and field in given[holder]
        if not is_set and name in defaults:
            values[name] = defaults[name]
        elif inner is not None:
            around = messages if holder is None else (getattr(messages[holder], field), *messages)
            values[name] = inner(**_values(inner, around, place if holder is None else f"{place}{field}.", defaults))
        elif holder is not None and (is_set or is_required):
            values[name] = convert(getattr(messages[holder], field), place + field)
    return values


@cache
def _steps(struct: Any, descriptors: tuple[Any, ...]) -> list[Step]:
    """How a struct is read from messages of these kinds, the first of them its own."""
    steps = []
    for info in msgspec.structs.fields(struct):
        hint, field = _hints(struct)[info.name], _field_name(struct, info.name)
        holder = next((index for index, kind in enumerate(descriptors) if field in kind.fields_by_name), None)
        is_required = info.default is NODEFAULT and info.default_factory is NODEFAULT
        inner = hint if _is_struct(hint) else None
        convert: Read = _unchanged
        if holder is not None and inner is None:
            convert = _reader(descriptors[holder].fields_by_name[field], hint)
        steps.append(Step(info.name, field, holder, is_required, inner, convert))
    return steps


def _field_name(struct: type, name: str) -> str:
    """What messages call a field of a struct."""
    if name.endswith("_seconds"):
        return name.removesuffix("_seconds") + "_ms"
    spelt = {python: field for field, python in SPELT.items() if field not in ("queue", "state")}
    return spelt.get(name, name)


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct) and hint is not Receipt


def _reader(field: Any, hint: Any) -> Read:
    if _is_map(field):
        return lambda value, name: dict(value)
    if not _is_repeated(field):
        return _single_reader(field, hint)
    container, item = get_origin(hint), _single_reader(field, get_args(hint)[0])
    make = container if container in (tuple, frozenset) else list
    return lambda values, name: make(item(value, name) for value in values)


def _single_reader(field: Any, hint: Any) -> Read:
    if field.message_type is not None:
        return _instant if field.message_type.name == "Timestamp" else position_of
    if field.enum_type is not None:
        return _one_of(_choices(hint), _words(field.enum_type).get)
    if get_origin(hint) is Literal:
        return _one_of(_choices(hint), _same)
    if hint is bytes and field.type == field.TYPE_STRING:
        return lambda value, name: value.encode()
    if hint is MessageId:
        return lambda value, name: message_id(value)
    if hint is Receipt:
        return lambda value, name: receipt_of(value, name.removesuffix("receipt"))
    if field.name.endswith("_ms"):
        return lambda value, name: value / 1000
    return _unchanged


def _unchanged(value: Any, name: str) -> Any:
    return value


def _instant(value: Any, name: str) -> datetime:
    return to_datetime(micros(value, name))


def _choices(hint: Any) -> dict[str, Any]:
    words = get_args(hint) if get_origin(hint) is Literal else list(hint)
    return {str(word): word for word in words}


def _one_of(choices: dict[str, Any], word_of: Callable[[Any], Any]) -> Read:
    def convert(value: Any, name: str) -> Any:
        if (word := word_of(value)) not in choices:
            raise refusals.choice(word if isinstance(word, str) else value, tuple(choices), name)
        return choices[word]

    return convert


# names and types


def _in_seconds(name: str) -> str:
    return name.removesuffix("_ms") + "_seconds" if name.endswith("_ms") else name


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_repeated(field: Any) -> bool:
    return isinstance(field.default_value, list)


@cache
def _words(enum: Any) -> dict[int, str]:
    """The words of an enum by their numbers: `TASK_STATE_DEAD` is "dead"."""
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
    return {value.number: value.name.removeprefix(prefix).lower() for value in enum.values}


@cache
def _hints(struct: type) -> dict[str, Any]:
    """The types of the fields of a struct, without their checks and without None."""
    return {name: _plain(hint) for name, hint in get_type_hints(struct, include_extras=True).items()}


def _plain(hint: Any) -> Any:
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    options = [option for option in get_args(hint) if option is not NoneType]
    return _plain(options[0]) if NoneType in get_args(hint) and len(options) == 1 else hint
