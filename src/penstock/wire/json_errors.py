"""Reading JSON from outside: what does not fit is refused with the place of the field that is wrong.

messages[3].priority: expected `int` <= 255
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from penstock.errors import BadRequest, InputError, InvalidField, UnknownOption
from penstock.model import suggestion
from penstock.wire import json_pieces

T = TypeVar("T")
M = TypeVar("M")

_PLACED: Final = re.compile(r"(?P<what>.*) - at `(?:key in )?\$\.?(?P<place>.*)`", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_TEXT_LENGTH_MAX: Final = 1000
_ITEM: Final = re.compile(r"item (\d+): ")


class Reader(Generic[T]):
    """Decodes JSON of one type."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self._decode_whole = msgspec.json.Decoder(kind).decode
        self._holds_options = getattr(kind, "holds_queue_options", False)  # and nothing else that could be unknown
        self._names = tuple(dict.fromkeys(_field_names(inspect.type_info(kind), set())))

    def read(self, body: bytes) -> T:
        """The value; `InputError` when the bytes are not JSON, or not of this type."""
        try:
            # Strings that are only passed on are not looked into by the decoder.
            if not body.isascii():
                json_pieces.check_utf8(body)
            return self._decode(body)
        except msgspec.ValidationError as error:
            raise self.refusal(error) from None
        except UnicodeDecodeError as error:
            raise BadRequest(f"body: byte {error.start} is not UTF-8") from None
        except RecursionError:
            raise BadRequest("body: the JSON is nested too deeply") from None
        except msgspec.DecodeError as error:
            raise BadRequest(
                f"body: {_lower(str(error))}" if body else "body: it is empty, and JSON is wanted"
            ) from None

    def _decode(self, body: bytes) -> T:
        if len(body) <= json_pieces.PIECE_BYTES:
            return self._decode_whole(body)
        decoded: T = json_pieces.decode(self.kind, body)
        return decoded

    def refusal(self, error: msgspec.ValidationError) -> InputError:
        """The same error in our words, with its place."""
        text = str(error)
        if len(text) > _TEXT_LENGTH_MAX:  # it repeats a name of any length
            text = f"{text[: _TEXT_LENGTH_MAX // 2]}…{text[-_TEXT_LENGTH_MAX // 2 :]}"
        found = _PLACED.fullmatch(text)
        what, place = (found["what"], found["place"]) if found else (text, "")
        if unknown := _UNKNOWN.fullmatch(what):
            name = unknown["name"]
            # Python's names for durations are the likeliest mistake.
            meant = name.removesuffix("_seconds") + "_ms" if name.endswith("_seconds") else name
            if self._holds_options:
                return UnknownOption(f"{name!r} is not a queue option", hint=suggestion(meant, self._names))
            return InvalidField(f"{_joined(place, name)}: there is no such field", hint=suggestion(meant, self._names))
        if missing := _MISSING.fullmatch(what):
            return InvalidField(f"{_joined(place, missing['name'])}: it is required")
        return InvalidField(f"{place or 'body'}: {_lower(what)}")


class OneOrMany(Generic[T, M]):
    """Decodes one of something, or an object that holds many of it in a field."""

    def __init__(self, one: type[T], many: type[M], field: str) -> None:
        self.kinds = (one, many)
        self._one: Reader[T] = Reader(one)
        self._many: Reader[M] = Reader(many)
        self._look: Any = msgspec.json.Decoder(msgspec.defstruct("Look", [(field, msgspec.Raw)])).decode

    def read(self, body: bytes) -> T | M:
        """The value; errors as `Reader` has them."""
        try:
            self._look(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._one.read(body)
        return self._many.read(body)


def placed(error: InputError, within: str) -> InputError:
    """An error of one item of a batch, named by its place in the body: `item 3: key` is `messages[3].key`."""
    return type(error)(_ITEM.sub(rf"{within}[\1].", error.message, count=1), hint=error.hint)


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _lower(text: str) -> str:
    return text if text.startswith("JSON") else text[:1].lower() + text[1:]


def _field_names(kind: Any, seen: set[Any]) -> Iterator[str]:
    """Every field that occurs anywhere in a type."""
    if isinstance(kind, inspect.StructType):
        if kind.cls in seen:
            return
        seen.add(kind.cls)
        for field in kind.fields:
            yield field.encode_name
            yield from _field_names(field.type, seen)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _field_names(each, seen)
    elif isinstance(kind, inspect.ListType):
        yield from _field_names(kind.item_type, seen)
    elif isinstance(kind, inspect.Metadata):
        yield from _field_names(kind.type, seen)
