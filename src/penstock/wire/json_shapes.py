"""The JSON of the structs that cross layers, derived from the structs themselves.

A `Shape` is made from a struct: a second struct with the names and the types of JSON, from which requests are decoded
and OpenAPI is made, and a function each way. The rules go by type and by name:

    Python                               JSON
    session_seconds: float               session_ms, milliseconds
    datetime                             RFC 3339 with a zone
    MessageId, Receipt                   their text
    bytes (args, result, progress, …)    the JSON that they hold, byte for byte
    state, states                        status
    a struct or a named tuple            an object, by the same rules

A field of a request has the default of the struct, and its range in `RANGES`; a field of a reply is always there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, UNSET, Raw, Struct, UnsetType

from penstock.errors import BadReceipt, InvalidField
from penstock.model import MessageId, Receipt, check_priority
from penstock.wire.json_models import RANGES, Instant, JsonArray, JsonObject, Priority

T = TypeVar("T")
Convert = Callable[[Any], Any]

NAMES: Final = {"state": "status", "states": "status", "submitted_since": "since", "submitted_until": "until"}
_SECONDS: Final = "_seconds"


class Kind(NamedTuple):
    """A type in JSON, and how its values are made from those of Python and back; None: they are the same."""

    type: Any
    write: Convert | None = None
    read: Convert | None = None


class Field(NamedTuple):
    """A field of a shape. `owner` names the field whose struct it belongs to; "": the struct of the shape itself."""

    owner: str
    name: str
    json_name: str
    kind: Kind
    default: Any  # in JSON; NODEFAULT: it is required


class Shape(Generic[T]):
    """The JSON of one struct: `type` is the struct that JSON is decoded into and encoded from.

    `flat` names fields whose structs have no object of their own; `without` those that JSON does not have; `absent`
    those that are left out while they are None; `kinds`, `names` and `defaults` what differs from the rules.
    """

    def __init__(
        self,
        struct: type[T],
        name: str,
        *,
        is_request: bool = False,
        omit_defaults: bool = False,
        flat: Sequence[str] = (),
        without: Iterable[str] = (),
        absent: Sequence[str] = (),
        kinds: Mapping[str, Kind] | None = None,
        names: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        more: Sequence[tuple[str, Any, Any]] = (),
    ) -> None:
        self.struct = struct
        self._owners = {owner: _hint(struct, owner) for owner in flat}
        every = [("", struct), *self._owners.items()]
        left_out = {*without, *flat}
        self.fields = [
            _field(owner, kind, field, is_request, absent, kinds or {}, names or {}, defaults or {})
            for owner, kind in every
            for field in _names(kind)
            if field not in left_out
        ]
        self.type = new_struct(
            name,
            json_doc(struct.__doc__ or ""),
            [*map(_declared, self.fields), *more],
            kw_only=True,
            forbid_unknown_fields=is_request,
            omit_defaults=omit_defaults,
        )

    def write(self, value: T) -> Any:
        """The JSON of a value."""
        return self.type(**{field.json_name: self._written(value, field) for field in self.fields})

    @staticmethod
    def _written(value: Any, field: Field) -> Any:
        value = getattr(getattr(value, field.owner) if field.owner else value, field.name)
        if value is None and field.default is UNSET:
            return UNSET
        return value if field.kind.write is None else field.kind.write(value)

    def read(self, json: Any, known: Mapping[str, Any] | None = None) -> T:
        """The value that JSON stands for; `known` holds the values of fields that JSON does not have."""
        values: dict[str, dict[str, Any]] = {owner: {} for owner in ("", *self._owners)}
        for field in self.fields:
            value = getattr(json, field.json_name)
            if value is not UNSET:
                values[field.owner][field.name] = value if field.kind.read is None else field.kind.read(value)
        for name, value in (known or {}).items():
            values[self._owner_of(name)][name] = value
        own = values.pop("")
        return self.struct(**own, **{owner: self._owners[owner](**parts) for owner, parts in values.items()})

    def _owner_of(self, name: str) -> str:
        if name in _names(self.struct):
            return ""
        return next(owner for owner, struct in self._owners.items() if name in _names(struct))


def kind_of(hint: Any, name: str = "") -> Kind:
    """The JSON of a type; `name` is that of the field that has it."""
    if get_origin(hint) is Annotated:
        return kind_of(get_args(hint)[0], name)
    if get_origin(hint) in (Union, UnionType):
        some = [part for part in get_args(hint) if part is not NoneType]
        return _optional(kind_of(some[0], name)) if len(some) == 1 else Kind(hint)
    if name.endswith(_SECONDS):
        return MILLISECONDS
    if hint is bytes:
        return JSON_TEXTS.get(name, JSON_TEXT)
    if hint in KINDS:
        return KINDS[hint]
    if get_origin(hint) in (list, tuple, frozenset, Sequence):
        return _many(hint, name)
    if get_origin(hint) is dict and _has_fields(get_args(hint)[1]):
        values = shape_of(get_args(hint)[1])
        return Kind(dict[str, values.type], lambda found: {key: values.write(value) for key, value in found.items()})  # type: ignore[name-defined]
    if _has_fields(hint):
        shape = shape_of(hint)
        return Kind(shape.type, shape.write, shape.read)
    return Kind(hint)


def _has_fields(hint: Any) -> bool:
    return isinstance(hint, type) and (issubclass(hint, Struct) or hasattr(hint, "_fields"))


@cache
def shape_of(struct: Any) -> Shape[Any]:
    """The JSON of a struct in a reply to which the rules apply."""
    return Shape(struct, struct.__name__.removesuffix("View"))


def new_struct(name: str, doc: str | None, fields: Sequence[Any], **settings: Any) -> Any:
    """A struct that is made of other derived ones."""
    struct = msgspec.defstruct(name, fields, **settings)
    struct.__doc__ = doc
    return struct


def json_doc(doc: str) -> str:
    """A docstring in the words of JSON: `wait_ms` for `wait_seconds`, null for None."""
    return re.sub(r"\bNone\b", "null", re.sub(r"`(\w+)_seconds`", r"`\1_ms`", inspect.cleandoc(doc)))


def list_of(kind: Any) -> Any:
    """The type of a list of what is derived."""
    return list[kind]


def milliseconds(seconds: float | None) -> float | None:
    """Seconds as milliseconds, with no more digits than a clock has."""
    return None if seconds is None else round(seconds * 1000, 3)


def seconds(ms: float | None) -> float | None:
    """Milliseconds as seconds."""
    return None if ms is None else ms / 1000


def json_name(name: str) -> str:
    """What a field is called in JSON: `lease_seconds` is `lease_ms`."""
    return name.removesuffix(_SECONDS) + "_ms" if name.endswith(_SECONDS) else NAMES.get(name, name)


def receipt_of(text: str, place: str = "") -> Receipt:
    """A receipt from its text; an error begins with `place`."""
    try:
        return Receipt.parse(text)
    except BadReceipt as error:
        raise BadReceipt(f"{place}receipt: {error.message}") from None


MILLISECONDS: Final = Kind(float, milliseconds, seconds)
KINDS: Final[dict[Any, Kind]] = {
    datetime: Kind(Instant),
    MessageId: Kind(str, str, MessageId.parse),
    Receipt: Kind(str, str, receipt_of),
}


def _array(json: Raw) -> bytes:
    text = bytes(json)
    if not text.startswith(b"["):
        raise InvalidField("args: not an array", hint='positional arguments are an array: [1, "two"]')
    return text


def _object(json: Raw) -> bytes:
    text = bytes(json)
    if not text.startswith(b"{"):
        raise InvalidField("kwargs: not an object", hint='named arguments are an object: {"to": "ann"}')
    return text


JSON_TEXT: Final = Kind(Raw, Raw, bytes)
JSON_TEXTS: Final = {"args": Kind(JsonArray, Raw, _array), "kwargs": Kind(JsonObject, Raw, _object)}


def _optional(kind: Kind) -> Kind:
    return Kind(kind.type | None, _unless_none(kind.write), _unless_none(kind.read))


def _without_none(kind: Any) -> Any:
    some = [part for part in get_args(kind) if part is not NoneType]
    return some[0] if NoneType in get_args(kind) and len(some) == 1 else kind


def _unless_none(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _many(hint: Any, name: str) -> Kind:
    """A list of anything. In Python it may be a tuple or a set."""
    item, container = kind_of(get_args(hint)[0], name), get_origin(hint)
    make: Convert = list if container is Sequence else container
    if item.write is None and item.read is None:
        return Kind(list_of(item.type), list, make)
    write, read = item.write or _same, item.read or _same
    return Kind(
        list_of(item.type), lambda values: [write(value) for value in values], lambda values: make(map(read, values))
    )


def _same(value: Any) -> Any:
    return value


def _field(
    owner: str,
    struct: type[Any],
    name: str,
    is_request: bool,
    absent: Sequence[str],
    kinds: Mapping[str, Kind],
    names: Mapping[str, str],
    defaults: Mapping[str, Any],
) -> Field:
    hint = _hint(struct, name)
    kind = kinds.get(name) or kind_of(hint, name)
    if is_request and name not in kinds:
        if name in RANGES:
            kind = kind._replace(type=RANGES[name] | None if NoneType in get_args(hint) else RANGES[name])
        if name == "priority":  # which may be given by its name
            kind = Kind(Priority, None, check_priority)
    default: Any = NODEFAULT
    if is_request:
        default = defaults[name] if name in defaults else _default(struct, name, kind)
        if default is not NODEFAULT and kind.write is Raw:
            default = UNSET
    if name in absent:
        kind, default = kind._replace(type=_without_none(kind.type)), UNSET
    if default is UNSET:
        kind = kind._replace(type=kind.type | UnsetType)
    return Field(owner, name, names.get(name) or json_name(name), kind, default)


def _default(struct: type[Any], name: str, kind: Kind) -> Any:
    """What a request holds where the field is left out."""
    field = next(field for field in msgspec.structs.fields(struct) if field.name == name)
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    if field.default is NODEFAULT or kind.write is None:
        return field.default
    return kind.write(field.default)


def _declared(field: Field) -> Any:
    if field.default is NODEFAULT:
        return field.json_name, field.kind.type
    return field.json_name, field.kind.type, field.default


def _names(struct: type[Any]) -> Iterator[str]:
    return iter(struct.__struct_fields__ if issubclass(struct, Struct) else struct._fields)


@cache
def _hints(struct: Any) -> dict[str, Any]:
    return get_type_hints(struct, include_extras=True)


def _hint(struct: Any, name: str) -> Any:
    hint = _hints(struct)[name]
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint
