"""Refusals in words: what a field takes, from the type that its value was checked against.

    messages[0].priority: 'hihg' is not one of background, low, normal, high, critical
    max: 0 is not a whole number from 1 to 10,000

The decoder's own words name types of Python and regular expressions; people who send JSON know neither. So a refusal is
written from the place of the value and the type that is declared there. A type that cannot be put into words by itself
carries them: `Meta(pattern=…, description="16 hexadecimal digits")`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from penstock.errors import InputError, InvalidField, shown

T = TypeVar("T")
SUGGESTION_LENGTH_MAX: Final = 64  # comparing longer names costs more than a suggestion is worth
TEXT_LENGTH_MAX: Final = 1000  # of an error of the decoder
INSTANT: Final = "a time with a zone, such as 2030-01-31T12:00:00Z"

_PLACED: Final = re.compile(r"(?P<what>.*) - at `(?P<key>(?:key in )?)\$\.?(?P<place>.*)`", re.DOTALL)
_UNKNOWN_FIELD: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\.?(?P<name>[^.\[\]]+)|\[(?P<index>\d+|\.\.\.)\]")
_LARGE: Final = 1e24
_SECRET: Final = re.compile(r"password|passphrase|token|secret|master_key", re.IGNORECASE)
UNKNOWN: Final = object()  # a document, or a value, that nobody has seen


def is_secret(field: str) -> bool:
    """Whether the values of a field must not be repeated."""
    return _SECRET.search(field) is not None


def number(value: float) -> str:
    """A number as people write it: 3,162,240,000 and 0.001, never 3.16224e+09."""
    if abs(value) >= _LARGE and not isinstance(value, int):
        return repr(value)  # nobody counts that many digits
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:,.9f}".rstrip("0")


def number_range(least: float, greatest: float) -> str:
    """The numbers from `least` to `greatest`."""
    return f"{number(least)} to {number(greatest)}"


def suggestion(name: str, known: Sequence[str]) -> str:
    """A hint for a misspelt name: the closest known one, or all of them."""
    return likeness(name, known) or f"known: {', '.join(known)}"


def likeness(name: str, known: Sequence[str]) -> str:
    """A hint that names the closest known name; empty when none is close."""
    close = difflib.get_close_matches(name, known, n=1) if len(name) <= SUGGESTION_LENGTH_MAX else []
    return f"did you mean {close[0]!r}?" if close else ""


def choice(value: Any, known: Sequence[str], field: str) -> InvalidField:
    """The refusal of a word that is none of the known ones."""
    hint = likeness(value, known) if isinstance(value, str) else ""
    return InvalidField(f"{field}: {shown(value)} is not one of {', '.join(known)}", hint=hint)


def text_of(error: msgspec.ValidationError) -> str:
    """The text of an error of the decoder, cut where it repeats a name of any length."""
    text = str(error)
    half = TEXT_LENGTH_MAX // 2
    return text if len(text) <= TEXT_LENGTH_MAX else f"{text[:half]}…{text[-half:]}"


def refusal(error: msgspec.ValidationError, kind: Any, document: Any = UNKNOWN, *, whole: str = "body") -> InputError:
    """An error of the decoder in our words.

    `kind` is the type of the document; `document` is its content, if that is known; `whole` names it.
    """
    text = text_of(error)
    match = _PLACED.fullmatch(text)
    what, place = (match["what"], match["place"]) if match else (text, "")
    if unknown := _UNKNOWN_FIELD.fullmatch(what):
        return _unknown_field(unknown["name"], place, kind)
    if missing := _MISSING.fullmatch(what):
        owner = _type_at(kind, place)
        field = next((part for part in _fields(owner) if part.encode_name == missing["name"]), None)
        takes = described(field.type) if field is not None else "a value"
        return InvalidField(f"{joined(place, missing['name'])}: it is required", hint=f"it is {takes}")
    if match and match["key"]:
        return InvalidField(f"{place or whole}: a name in it is not accepted: {_plain(what)}")
    return _bad_value(what, place, kind, document, whole)


def converted(values: Mapping[str, Any], kind: type[T], *, whole: str) -> T:
    """A struct of these fields; `InvalidField` names the one that is wrong. `whole` names them all."""
    for name, value in values.items():
        if not _is_writable(value):
            raise InvalidField(f"{name}: {shown(value)} is not valid text")
    try:
        return msgspec.convert(dict(values), kind)
    except msgspec.ValidationError as error:
        raise refusal(error, kind, dict(values), whole=whole) from None


def _is_writable(value: Any) -> bool:
    """Whether text can be stored: half a surrogate pair cannot."""
    try:
        msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        return False
    except (TypeError, ValueError, OverflowError):
        return True  # of the wrong type, which is another error
    return True


def joined(place: str, name: str) -> str:
    """The place of a field."""
    return f"{place}.{name}" if place else name


def _bad_value(what: str, place: str, kind: Any, document: Any, whole: str) -> InputError:
    declared = _type_at(kind, place)
    words = _choices(declared)
    value = _value_at(document, place)
    invalid = re.fullmatch(r"Invalid enum value '?(.*?)'?", what, re.DOTALL)
    if value is UNKNOWN and invalid:
        value = invalid[1]
    takes = _plain(what) if declared is None else described(declared)
    hint = likeness(value, words) if isinstance(value, str) else ""
    if is_secret(place) or not _is_shown(value):
        return InvalidField(f"{place or whole}: it must be {takes}", hint=hint)
    return InvalidField(f"{place or whole}: {shown(value)} is not {takes}", hint=hint)


def _is_shown(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _unknown_field(name: str, place: str, kind: Any) -> InvalidField:
    owner = _type_at(kind, place)
    own = [field.encode_name for field in _fields(owner)]
    # Python's names for durations are the likeliest mistake.
    meant = name.removesuffix("_seconds") + "_ms" if name.endswith("_seconds") else name
    below = _path_to(meant, owner, set())
    if meant not in own and below:
        hint = f"{meant!r} belongs in {below[0]!r}: {_example(below, meant)}"
    else:
        hint = suggestion(meant, own) if own else "this object takes no fields"
    return InvalidField(f"{joined(place, name)}: there is no such field", hint=hint)


def _path_to(name: str, kind: Any, seen: set[Any]) -> list[str]:
    """The fields that lead to an object with a field of this name; `[]` after a list."""
    for field in _fields(kind, seen):
        steps = [field.encode_name]
        inner = _unwrapped(field.type)
        for part in inner.types if isinstance(inner, inspect.UnionType) else (inner,):
            part = _unwrapped(part)
            is_list = isinstance(part, inspect.ListType)
            item = _unwrapped(part.item_type) if is_list else part
            if any(below.encode_name == name for below in _fields(item)):
                return [*steps, "[]"] if is_list else steps
            deeper = _path_to(name, item, seen)
            if deeper:
                return [*steps, *(["[]"] if is_list else []), *deeper]
    return []


def example(kind: Any) -> str:
    """How a document of a type begins, with its required fields, or the first of those that it may have."""
    info = _unwrapped(_type_info(kind))
    return _skeleton(info) if isinstance(info, inspect.StructType) else described(info)


def _skeleton(kind: Any) -> str:
    kind = _unwrapped(kind)
    if isinstance(kind, inspect.ListType):
        return f"[{_skeleton(kind.item_type)}]"
    fields = list(_fields(kind))
    some = [field for field in fields if field.required] or fields[:1]
    if not some:
        return "{}" if isinstance(kind, inspect.StructType) else "…"
    parts = [f'"{field.encode_name}": {_skeleton(field.type)}' for field in some]
    return f"{{{', '.join(parts)}}}"


def _example(path: Sequence[str], name: str) -> str:
    text = f'{{"{name}": …}}'
    for step in reversed(path):
        text = f"[{text}]" if step == "[]" else f'{{"{step}": {text}}}'
    return text


# types in words


def described(kind: Any) -> str:
    """What values of a type look like, in words."""
    kind, words = _description(kind)
    if words and getattr(kind, "pattern", None):  # nobody reads a regular expression
        return words
    if isinstance(kind, inspect.UnionType):
        parts = [part for part in kind.types if not isinstance(part, inspect.NoneType) and not _is_unset(part)]
        return " or ".join(dict.fromkeys(map(described, parts)))
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return _number_words(kind)
    if choices := _choices(kind):
        return f"one of {', '.join(choices)}"
    if isinstance(kind, inspect.StrType | inspect.ListType | inspect.DictType):
        return _sized(kind)
    return _NAMES.get(type(kind), "of the expected type")


_NAMES: Final[dict[type, str]] = {
    inspect.BoolType: "true or false",
    inspect.BytesType: "bytes in base64",
    inspect.DateTimeType: INSTANT,
    inspect.RawType: "JSON",
    inspect.AnyType: "JSON",
    inspect.StructType: "a JSON object",
    inspect.NoneType: "null",
    inspect.VarTupleType: "a JSON array",
    inspect.TupleType: "a JSON array",
    inspect.SetType: "a JSON array",
    inspect.FrozenSetType: "a JSON array",
}


def _number_words(kind: inspect.IntType | inspect.FloatType) -> str:
    noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
    if kind.ge is not None and kind.le is not None:
        return f"{noun} from {number_range(kind.ge, kind.le)}"
    if kind.ge is not None:
        return f"{noun} of {number(kind.ge)} or more"
    if kind.gt is not None:
        return f"{noun} above {number(kind.gt)}"
    return noun if kind.le is None else f"{noun} of {number(kind.le)} or less"


_SIZED: Final[dict[type, tuple[str, str]]] = {
    inspect.StrType: ("text", "characters"),
    inspect.ListType: ("a JSON array", "items"),
    inspect.DictType: ("a JSON object", "fields"),
}


def _sized(kind: Any) -> str:
    noun, unit = _SIZED[type(kind)]
    least, greatest = kind.min_length, kind.max_length
    if greatest is None:
        return f"{noun} of {number(least)} {unit} or more" if least else noun
    return f"{noun} of {number(least or 0)} to {number(greatest)} {unit}"


def _choices(kind: Any) -> list[str]:
    """The words that a type takes."""
    kind = _unwrapped(kind)
    if isinstance(kind, inspect.UnionType):
        return [word for part in kind.types for word in _choices(part)]
    if isinstance(kind, inspect.LiteralType):
        return [str(value) for value in kind.values]
    return [str(member.value) for member in kind.cls] if isinstance(kind, inspect.EnumType) else []


def _description(kind: Any) -> tuple[Any, str]:
    words = ""
    while isinstance(kind, inspect.Metadata):
        description = (kind.extra_json_schema or {}).get("description", "")
        words = words or f"{description[:1].lower()}{description[1:]}".rstrip(".")
        kind = kind.type
    return kind, words


def _unwrapped(kind: Any) -> Any:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    return kind


def _is_unset(kind: Any) -> bool:
    return isinstance(kind, inspect.CustomType) and kind.cls is msgspec.UnsetType


def _plain(what: str) -> str:
    """The decoder's words without the marks of code."""
    text = what.partition(", got ")[0].replace("`", "")
    return text[:1].lower() + text[1:]


# places


@cache
def _type_info(kind: Any) -> Any:
    return inspect.type_info(kind)


def prepare(kind: Any) -> None:
    """Look at a type once, which takes long, before the first refusal."""
    _type_info(kind)


def _type_at(kind: Any, place: str) -> Any:
    """The type that is declared at a place; None if there is none, or several."""
    current: Any = _type_info(kind)
    for step in _STEP.finditer(place):
        current = _below(current, step["name"])
        if current is None:
            return None
    return current


def _below(kind: Any, name: str | None) -> Any:
    kind = _unwrapped(kind)
    if isinstance(kind, inspect.UnionType):
        parts = [found for part in kind.types if (found := _below(part, name)) is not None]
        return parts[0] if parts else None
    if name is not None:
        return next((field.type for field in _fields(kind) if field.encode_name == name), None)
    if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType):
        return kind.item_type
    return kind.value_type if isinstance(kind, inspect.DictType) else None


def _fields(kind: Any, seen: set[Any] | None = None) -> Iterator[inspect.Field]:
    """The fields of an object; with `seen`, those of each struct once."""
    kind = _unwrapped(kind)
    if isinstance(kind, inspect.UnionType):
        for part in kind.types:
            yield from _fields(part, seen)
    elif isinstance(kind, inspect.StructType) and (seen is None or kind.cls not in seen):
        if seen is not None:
            seen.add(kind.cls)
        yield from kind.fields


def _value_at(document: Any, place: str) -> Any:
    """The value at a place of a document; `UNKNOWN` when it cannot be found."""
    for step in _STEP.finditer(place):
        if step["name"] is not None:
            is_there = isinstance(document, Mapping) and step["name"] in document
            document = document[step["name"]] if is_there else UNKNOWN
        elif step["index"].isdigit():
            at = int(step["index"])
            document = document[at] if isinstance(document, list) and at < len(document) else UNKNOWN
        else:
            return UNKNOWN  # the value of some key
        if document is UNKNOWN:
            return UNKNOWN
    return document
