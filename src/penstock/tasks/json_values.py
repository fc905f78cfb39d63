"""Values as JSON, and back as what an annotation says. Never pickled.

Whatever msgspec can write and read may travel: numbers, text, lists, dicts, dataclasses, Structs, datetime, UUID,
Decimal, Enum, paths, bytes (as base64), and models that know `model_validate` and `model_dump`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final, get_args, get_type_hints

import msgspec

from penstock.batch.payloads import refuse_not_finite
from penstock.errors import InvalidField
from penstock.tasks.endings import EarlyEnd

# What the encoder raises for values that have no JSON.
NOT_JSON: Final = (TypeError, ValueError, OverflowError, RecursionError)


def encode_more(value: Any) -> Any:
    """What msgspec does not know by itself."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _decode_more(kind: type, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    raise TypeError(f"{kind.__name__} cannot be made from JSON")


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


def written(value: Any, what: str) -> bytes:
    """JSON of any value; `InvalidField` when it has none."""
    try:
        return encode(value)
    except NOT_JSON as error:
        raise InvalidField(f"{what}: {error}", hint="use what JSON can hold, or None") from None


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
        hint = "define what it names in the module, or before the task"
        raise InvalidField(f"{function.__qualname__}: an annotation cannot be resolved: {error}", hint=hint) from None


def result_decoder(hints: Mapping[str, Any]) -> msgspec.json.Decoder[Any]:
    """What reads a function's result; any JSON where its annotation says nothing that JSON can be read as."""
    kind = hints.get("return", Any)
    kinds = [each for each in get_args(kind) if not (isinstance(each, type) and issubclass(each, EarlyEnd))]
    if len(kinds) < len(get_args(kind)):  # `int | Snooze`: only the int is ever stored
        kind = Any if not kinds else kinds[0] if len(kinds) == 1 else kind
    try:
        return decoder(kind)
    except TypeError:
        return decoder(Any)
