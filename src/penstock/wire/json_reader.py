"""Reading JSON from outside: what does not fit is refused with the place of the field that is wrong.

    messages[3].priority: expected `int` <= 255

The decoder works through its input in one go, and no other thread of Python runs meanwhile: not even the event loop. So
a large body is taken apart where its lists and objects are, and a list is decoded a slice at a time. Values and
refusals are those of the decoder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Generic, TypeVar, Union, get_args, get_origin

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import NODEFAULT, UNSET, Meta, Raw, Struct, ValidationError

from penstock import refusals
from penstock.errors import BadRequest, InputError, UnknownOption
from penstock.refusals import text_of

LARGE_BYTES: Final = 256 * 1024  # what is larger should not be decoded on an event loop
ECHOED_BYTES: Final = 64 * 1024  # a body whose values are repeated in errors
PIECE_BYTES: Final = 512 * 1024  # decoded in one go
PIECE_VALUES: Final = 10_000  # the same: large strings take little time
_SCAN_BYTES: Final = 256 * 1024
_AT_PLACE: Final = re.compile(r"(?P<what>.*) - at `(?P<key>(?:key in )?)\$(?P<place>.*)`", re.DOTALL)
_INDEX: Final = re.compile(r"\[(\d+)\]")
_QUOTE, _BACKSLASH, _COMMA = 34, 92, 44


def decode(kind: Any, body: bytes) -> Any:
    """What `msgspec.json.decode(body, type=kind)` answers, or raises."""
    return _decode(kind, body, "")


def check_utf8(body: bytes) -> None:
    """Raise `UnicodeDecodeError` for bytes that are not UTF-8; its `start` is right."""
    at = 0
    while at < len(body):
        end = min(at + _SCAN_BYTES, len(body))
        while end < len(body) and body[end] & 0xC0 == 0x80:
            end += 1
        try:
            body[at:end].decode()
        except UnicodeDecodeError as error:
            raise UnicodeDecodeError("utf-8", body, at + error.start, at + error.end, error.reason) from None
        at = end


def _decode(kind: Any, data: bytes, place: str) -> Any:
    if len(data) > PIECE_BYTES and data.count(b",") > PIECE_VALUES:
        bare, meta = _bare(kind, data)
        take_apart = _way_of(bare, data)
        if take_apart is not None:
            return take_apart(bare, meta, data, place)
    return _whole(kind, data, place)


def _whole(kind: Any, data: bytes, place: str, base: int = 0) -> Any:
    try:
        return _decoder(kind)(data)
    except ValidationError as error:
        raise _placed(error, place, base) from None


@cache
def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind).decode


def _bare(kind: Any, data: bytes) -> tuple[Any, Meta | None]:
    """A type without the alternatives that cannot be meant, and without what is noted beside it."""
    meta = None
    while get_origin(kind) is Annotated or _is_union(kind):
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
            lengths = [note for note in notes if isinstance(note, Meta) and _has_length(note)]
            meta = lengths[0] if lengths else meta
        else:
            fits = [each for each in get_args(kind) if _may_be(each, data)]
            if len(fits) != 1:
                return _tagged(fits, data) or kind, meta
            (kind,) = fits
    return kind, meta


def _has_length(note: Meta) -> bool:
    return note.max_length is not None or note.min_length is not None


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in {Union, UnionType}


def _may_be(kind: Any, data: bytes) -> bool:
    """Whether this alternative of a union may be what begins like that."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    first = data.lstrip()[:1] if data[:1].isspace() else data[:1]
    origin = get_origin(kind) or kind
    is_object = origin is dict or (isinstance(origin, type) and issubclass(origin, Struct))
    if first == b"{":
        return is_object or origin is Raw
    if first == b"[":
        return origin is list or origin is Raw
    return not is_object and origin is not list and kind is not NoneType


def _tagged(kinds: list[Any], data: bytes) -> Any:
    """Which of several structs is meant, by the tag that it carries; None when none is, or they carry none."""
    tags = {}
    field = None
    for kind in kinds:
        config = getattr(kind, "__struct_config__", None)
        if config is None or config.tag_field is None:
            return None
        field = config.tag_field
        tags[config.tag] = kind
    if field is None or data.lstrip()[:1] != b"{":
        return None
    look = msgspec.defstruct("Tag", [("tag", str)], rename={"tag": field})
    try:
        return tags.get(msgspec.json.decode(data, type=look).tag)  # type: ignore[attr-defined]
    except ValidationError:
        return None


Way = Callable[[Any, Meta | None, bytes, str], Any]


def _way_of(kind: Any, data: bytes) -> Way | None:
    data = data.lstrip() if data[:1].isspace() else data
    origin = get_origin(kind) or kind
    if origin is list and data[:1] == b"[":
        return _list
    if origin is dict and data[:1] == b"{":
        return _dict
    if isinstance(kind, type) and issubclass(kind, Struct) and data[:1] == b"{":
        return _struct
    return None


# structs


def _struct(kind: Any, meta: Meta | None, data: bytes, place: str) -> Any:
    """The fields that may be large one by one, all others together."""
    outline, large = _outline(kind)
    plain = _whole(outline, data, place)
    values = {}
    for field in msgspec.structs.fields(kind):
        value = getattr(plain, field.name)
        if value is UNSET and field.name in large:
            continue  # its default
        if field.name in large:
            value = _decode(large[field.name], bytes(value), f"{place}.{field.encode_name}")
        values[field.name] = value
    return kind(**values)


@cache
def _outline(kind: Any) -> tuple[Any, dict[str, Any]]:
    """A struct with bytes in place of the fields that may be large, and the types of those."""
    fields: list[Any] = []
    large = {}
    for field in msgspec.structs.fields(kind):
        is_large = _may_be_large(field.type)
        if is_large:
            large[field.name] = field.type
        if field.required:
            fields.append((field.name, Raw if is_large else field.type))
        elif is_large:
            fields.append((field.name, Raw | msgspec.UnsetType, UNSET))
        elif field.default_factory is not NODEFAULT:
            fields.append((field.name, field.type, msgspec.field(default_factory=field.default_factory)))
        else:
            fields.append((field.name, field.type, field.default))
    config = kind.__struct_config__
    names = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    outline = msgspec.defstruct(
        kind.__name__,
        fields,
        kw_only=True,
        rename=names,
        forbid_unknown_fields=config.forbid_unknown_fields,
        tag=config.tag,
        tag_field=config.tag_field,
    )
    return outline, large


def _may_be_large(kind: Any) -> bool:
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if _is_union(kind):
        return any(_may_be_large(part) for part in get_args(kind))
    origin = get_origin(kind) or kind
    return origin in {list, dict} or (isinstance(origin, type) and issubclass(origin, Struct))


# lists and mappings


def _list(kind: Any, meta: Meta | None, data: bytes, place: str) -> Any:
    _whole(Raw, data, place)  # refuses what is not JSON: from here on it is
    commas = _commas(data)
    _check_length(meta, len(commas) + 1, place)
    item: Any = get_args(kind)[0]
    found: list[Any] = []
    for piece, count in _slices(data, commas):
        if count == 1:
            found.append(_decode(item, piece, f"{place}[{len(found)}]"))
        else:
            found += _whole(kind, b"[%b]" % piece, place, len(found))
    return found


def _check_length(meta: Meta | None, length: int, place: str) -> None:
    if meta is not None and meta.max_length is not None and length > meta.max_length:
        raise ValidationError(f"Expected `array` of length <= {meta.max_length} - at `${place}`")


def _dict(kind: Any, meta: Meta | None, data: bytes, place: str) -> Any:
    _whole(Raw, data, place)
    found: dict[Any, Any] = {}
    for piece, _ in _slices(data, _commas(data)):
        found |= _whole(kind, b"{%b}" % piece, place)
    return found


def _slices(data: bytes, commas: npt.NDArray[np.int64]) -> Iterator[tuple[bytes, int]]:
    """Neighbouring items, as many together as may be decoded in one go; with their number."""
    start, end = _inside(data)
    if not len(commas) and not data[start:end].strip():
        return
    edges = np.concatenate(([start - 1], commas, [end]))  # an item lies between each two
    first, count = 0, len(edges) - 1
    while first < count:
        last = int(np.searchsorted(edges, edges[first] + PIECE_BYTES, side="right")) - 1
        last = min(max(last, first + 1), count)
        yield data[int(edges[first]) + 1 : int(edges[last])], last - first
        first = last


def _inside(data: bytes) -> tuple[int, int]:
    start = len(data) - len(data.lstrip()) if data[:1].isspace() else 0
    return start + 1, len(data.rstrip()) - 1


def _commas(data: bytes) -> npt.NDArray[np.int64]:
    """Where the commas are between the items of a list or an object. `data` is JSON."""
    commas = []
    depth = parity = backslashes = 0
    for start in range(0, len(data), _SCAN_BYTES):
        chunk = np.frombuffer(data, np.uint8, min(_SCAN_BYTES, len(data) - start), start)
        quotes = chunk == _QUOTE
        if backslashes or data.find(b"\\", start, start + len(chunk)) >= 0:
            escaped, backslashes = _escaped(chunk, backslashes)
            quotes &= ~escaped
        is_inside = (np.cumsum(quotes, dtype=np.int32) + parity) & 1
        parity = int(is_inside[-1])
        is_outside = is_inside == 0
        # With the sixth bit set, [ is { and ] is }.
        brackets = chunk | 0x20
        steps = ((brackets == 0x7B) & is_outside).astype(np.int8) - ((brackets == 0x7D) & is_outside).astype(np.int8)
        depths = np.cumsum(steps, dtype=np.int32) + depth
        depth = int(depths[-1])
        commas.append(np.flatnonzero((chunk == _COMMA) & is_outside & (depths == 1)) + start)
    return np.concatenate(commas) if commas else np.empty(0, np.int64)


def _escaped(chunk: npt.NDArray[np.uint8], before: int) -> tuple[npt.NDArray[np.bool_], int]:
    """Which bytes follow an odd number of backslashes, `before` of them before the chunk; and how many end it."""
    places = np.arange(len(chunk), dtype=np.int32)
    others = np.where(chunk == _BACKSLASH, np.int32(-1 - before), places)
    runs = places - np.maximum.accumulate(others)  # of backslashes, up to and with each place
    escaped = np.empty(len(chunk), np.bool_)
    escaped[0] = before & 1
    escaped[1:] = runs[:-1] & 1
    return escaped, int(runs[-1])


def _placed(error: ValidationError, place: str, base: int) -> ValidationError:
    """The error with its path in the whole document; its first index counts from `base`."""
    text = text_of(error)
    found = _AT_PLACE.fullmatch(text)
    if found is None:
        return ValidationError(f"{text} - at `${place}`" if place else text)
    within = _INDEX.sub(lambda index: f"[{int(index[1]) + base}]", found["place"], count=1) if base else found["place"]
    return ValidationError(f"{found['what']} - at `{found['key']}${place}{within}`")


T = TypeVar("T")
M = TypeVar("M")

_UNKNOWN: Final = re.compile(r"(.*): there is no such field", re.DOTALL)
_ITEM: Final = re.compile(r"item (\d+): ")


class Reader(Generic[T]):
    """Decodes JSON of one type."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self._decode_whole = msgspec.json.Decoder(kind).decode
        refusals.prepare(kind)
        self._holds_options = getattr(kind, "holds_queue_options", False)  # and nothing else that could be unknown

    def read(self, body: bytes) -> T:
        """The value; `InputError` when the bytes are not JSON, or not of this type."""
        try:
            # Strings that are only passed on are not looked into by the decoder.
            if not body.isascii():
                check_utf8(body)
            return self._decode(body)
        except msgspec.ValidationError as error:
            raise self.refusal(error, _plain(body)) from None
        except UnicodeDecodeError as error:
            raise BadRequest(f"body: byte {error.start} is not UTF-8", hint="send JSON in UTF-8") from None
        except RecursionError:
            raise BadRequest("body: the JSON is nested too deeply", hint="send the payload as text or bytes") from None
        except msgspec.DecodeError as error:
            what = f"body: {_lower(str(error))}" if body else "body: empty; JSON is expected"
            raise BadRequest(what, hint=f"send JSON, such as {refusals.example(self.kind)}") from None

    def _decode(self, body: bytes) -> T:
        if len(body) <= PIECE_BYTES:
            return self._decode_whole(body)
        decoded: T = decode(self.kind, body)
        return decoded

    def refusal(self, error: msgspec.ValidationError, document: Any) -> InputError:
        """The error of msgspec as an `InputError` in our words; `document` is what was read, as plain values."""
        refused = refusals.refusal(error, self.kind, document)
        unknown = _UNKNOWN.fullmatch(refused.message) if self._holds_options else None
        return UnknownOption(f"{unknown[1]!r} is not a queue option", hint=refused.hint) if unknown else refused


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


def _plain(body: bytes) -> Any:
    """What a body holds, so that an error can repeat a value of it; a large one is not read a second time."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(body) if len(body) <= ECHOED_BYTES else refusals.UNKNOWN
    return refusals.UNKNOWN


def placed(error: InputError, within: str) -> InputError:
    """An error of one item of a batch, named by its place in the body: `item 3: key` is `messages[3].key`."""
    return type(error)(_ITEM.sub(rf"{within}[\1].", error.message, count=1), hint=error.hint)


def _lower(text: str) -> str:
    return text if text.startswith("JSON") else text[:1].lower() + text[1:]
