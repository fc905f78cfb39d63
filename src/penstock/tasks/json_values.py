"""Values as JSON, and back as what an annotation says. Never pickled.

What would not come back equal is refused: the value is compared with what the task would receive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from types import UnionType
from typing import Any, ClassVar, Final, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from penstock.batch.fields import refuse_not_finite
from penstock.errors import InvalidField
from penstock.tasks.endings import EarlyEnd

# What the encoder raises for values that have no JSON.
_PYDANTIC: Final = "__get_pydantic_core_schema__"
NOT_JSON: Final = (TypeError, ValueError, OverflowError, RecursionError)


def encode_more(value: Any) -> Any:
    """What msgspec does not know by itself."""
    if hasattr(value, "model_dump"):
        return _dumped(value)
    if (adapter := _adapter_of(type(value))) is not None:
        data = adapter.dump_python(value, mode="json")
        if adapter.validate_python(data) == value:
            return data
        raise TypeError(f"{type(value).__name__} does not survive a JSON round trip")
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain.__str__(value) if plain is str else plain(value)
    if isinstance(value, PurePath):
        return str(value)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        item = value.item()
        if item == value:
            return item
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _dumped(value: Any) -> Any:
    """A model as JSON that it can be read back from, by its aliases or by its names."""
    kind = type(value)
    if not hasattr(kind, "model_fields"):
        return value.model_dump(mode="json")
    problem = ""
    for by_alias in (True, False):
        data = value.model_dump(mode="json", by_alias=by_alias, round_trip=True)
        try:
            back = kind.model_validate_json(msgspec.json.encode(data))
        except ValueError as error:
            problem = problem or str(error)
            continue
        if back == value:
            return data
        names = [*kind.model_fields, *(value.model_extra or ())]
        changed = [name for name in names if getattr(back, name, None) != getattr(value, name, None)]
        problem = f"what is in {', '.join(changed) or 'its private attributes'} would be lost"
    raise TypeError(
        f"{kind.__name__} does not survive a JSON round trip: {problem}; pass secret or excluded fields separately"
    )


def _decode_more(kind: type, value: Any) -> Any:
    if issubclass(kind, _Adapted):
        return kind.read(value)
    if hasattr(kind, "model_fields") and hasattr(kind, "model_validate_json"):
        return kind.model_validate_json(msgspec.json.encode(value))
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if (adapter := _adapter_of(kind)) is not None:
        return adapter.validate_json(msgspec.json.encode(value))
    raise TypeError(f"{kind.__name__} cannot be built from JSON")


def _adapter_of(kind: type) -> Any:
    """What reads and writes a type that only pydantic knows: a URL, say."""
    pydantic = sys.modules.get("pydantic")
    return pydantic.TypeAdapter(kind) if pydantic is not None and hasattr(kind, _PYDANTIC) else None


class _AnyInstance(type):
    """msgspec asks whether what a hook made is an instance of what it was to make."""

    def __instancecheck__(cls, value: object) -> bool:
        return True


class _Adapted(metaclass=_AnyInstance):
    """An annotation that pydantic can read and msgspec cannot, in the place of one that msgspec can."""

    adapter: ClassVar[Any]

    @classmethod
    def read(cls, value: Any) -> Any:
        return cls.adapter.validate_json(msgspec.json.encode(value))


_encode: Final = msgspec.json.Encoder(enc_hook=encode_more).encode


def encode(value: Any) -> bytes:
    """JSON of a value; one of the errors of `NOT_JSON` when it has none."""
    data = _encode(value)
    if b"null" in data:
        refuse_not_finite(msgspec.to_builtins(value, enc_hook=encode_more))
    return data


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """What reads JSON as `kind`."""
    return msgspec.json.Decoder(kind, dec_hook=_decode_more)


def readable(kind: Any) -> Any:
    """An annotation that `decoder` takes: `kind`, or a stand-in where it has a union of models; else TypeError."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and _has_union_of_models(kind):
        try:
            adapter = pydantic.TypeAdapter(kind)
        except pydantic.PydanticUserError as error:
            raise TypeError(str(error)) from None
        return _AnyInstance(str(kind), (_Adapted,), {"adapter": adapter})
    decoder(kind)
    return kind


def _has_union_of_models(kind: Any) -> bool:
    parts = get_args(kind)
    if get_origin(kind) in (Union, UnionType) and any(hasattr(part, "model_fields") for part in parts):
        return True
    return any(map(_has_union_of_models, parts))


def written(value: Any, what: str) -> bytes:
    """JSON of any value; `InvalidField` when it has none."""
    try:
        return encode(value)
    except NOT_JSON as error:
        raise InvalidField(f"{what}: {error}", hint="use a JSON value, or None") from None


def local_hints_of(function: Any, names: Mapping[str, Any]) -> dict[str, Any] | None:
    """Annotations of a function that stands inside another, among these names; None where they are for later."""
    if "<locals>" not in getattr(function, "__qualname__", ""):
        return None
    try:
        return get_type_hints(function, localns=dict(names), include_extras=True)
    except (NameError, TypeError):
        return None


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of a function."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        hint = "define the name in the module, before the task"
        raise InvalidField(f"{function.__qualname__}: an annotation cannot be resolved: {error}", hint=hint) from None


def result_decoder(hints: Mapping[str, Any]) -> msgspec.json.Decoder[Any]:
    """What reads a function's result; any JSON where its annotation says nothing that JSON can be read as."""
    kind = hints.get("return", Any)
    kinds = [member for member in get_args(kind) if not (isinstance(member, type) and issubclass(member, EarlyEnd))]
    if len(kinds) < len(get_args(kind)):  # `int | Snooze`: only the int is ever stored
        kind = Any if not kinds else kinds[0] if len(kinds) == 1 else kind
    try:
        return decoder(readable(kind))
    except TypeError:
        return decoder(Any)


def loss_of(value: Any, back: Any, kind: Any = None) -> str:
    """What is lost, and where, in words; empty when nothing is. `kind` is the annotation."""
    return "" if value == back else _loss(value, back, "", is_ambiguous=_is_ambiguous(kind))


_PLAIN: Final = (str, int, float, bool, bytes, type(None), Any, list, dict, tuple, set, frozenset, ...)


def may_lose(kind: Any) -> bool:
    """Whether an annotation names anything but plain values and what holds them."""
    origin = get_origin(kind)
    if origin is None:
        return not any(kind is plain for plain in _PLAIN)
    return not (origin in _PLAIN or origin in (Union, UnionType)) or any(map(may_lose, get_args(kind)))


def _loss(value: Any, back: Any, where: str, *, is_ambiguous: bool) -> str:
    if type(value) is type(back) and value == back:
        return ""
    is_record = _is_record(value)
    if _is_record(back) != is_record:
        if is_ambiguous or (is_record and not isinstance(back, Mapping)):
            return _as_another(value, back, where)
        if not isinstance(value, Mapping):
            return ""
        return _lost_keys(value, _names_of(back), where) if not is_record else ""
    if is_record:
        if type(value) is not type(back) or hasattr(value, "model_dump"):
            return _as_another(value, back, where)
        pairs: Iterable[tuple[str, Any, Any]] = (
            (f".{name}", getattr(value, name), getattr(back, name)) for name in _names_of(value) or ()
        )
    elif isinstance(value, Mapping) and isinstance(back, Mapping):
        if len(back) < len(value):
            return _lost_keys(value, back, where)
        pairs = ((f"[{key!r}]", item, back[key]) for key, item in value.items() if key in back)
    elif isinstance(value, list | tuple) and isinstance(back, list | tuple):
        pairs = ((f"[{index}]", *both) for index, both in enumerate(zip(value, back, strict=False)))
    else:
        return ""
    losses = (_loss(mine, its, where + place, is_ambiguous=is_ambiguous) for place, mine, its in pairs)
    return next(filter(None, losses), "")


def _as_another(value: Any, back: Any, where: str) -> str:
    place = f"{where}: " if where else ""
    return f"{place}{type(value).__name__} would come back as {type(back).__name__}, which is not equal"


def _lost_keys(value: Mapping[Any, Any], known: Any, where: str) -> str:
    lost = [f"{where}[{key!r}]" for key in value if known is not None and key not in known]
    return f"{lost[0]} would be lost" if lost else ""


def _is_record(value: Any) -> bool:
    return hasattr(value, "model_dump") or isinstance(value, msgspec.Struct) or is_dataclass(value)


def _names_of(record: Any) -> tuple[str, ...] | None:
    """The names of a record's fields, also those that it has in JSON; None where only it knows."""
    if isinstance(record, msgspec.Struct):
        return (*record.__struct_fields__, *record.__struct_encode_fields__)
    return tuple(field.name for field in fields(record)) if is_dataclass(record) else None


def _is_ambiguous(kind: Any) -> bool:
    """Whether an annotation takes both a model and a dict, so that one could come back as the other."""
    parts = get_args(kind)
    if get_origin(kind) in (Union, UnionType) and any(hasattr(part, "model_fields") for part in parts):
        plain = [get_origin(part) or part for part in parts]
        if any(is_typeddict(part) or (isinstance(part, type) and issubclass(part, Mapping)) for part in plain):
            return True
    return any(map(_is_ambiguous, parts))
