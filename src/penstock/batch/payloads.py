"""What a producer hands over, as bytes and a content type.

bytes stay as they are, text becomes UTF-8, anything else becomes JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Final

import msgspec
import numpy as np

from penstock.batch.columns import Bytes
from penstock.batch.rules import located
from penstock.errors import InvalidField
from penstock.model import ContentType

_json: Final = msgspec.json.Encoder().encode
_NULL: Final = b"null"


def refuse_not_finite(value: Any) -> None:
    """Refuse NaN and infinity anywhere in a value: msgspec writes them as null, and another value would come back.

    Whoever finds no `null` in the JSON need not ask.
    """
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} has no JSON")
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return
    for each in value:
        refuse_not_finite(each)


def payload_of(item: Any) -> tuple[bytes, ContentType]:
    """One payload."""
    if isinstance(item, bytes):
        return item, ContentType.BYTES
    try:
        if isinstance(item, str):
            return item.encode(), ContentType.TEXT
        if isinstance(item, bytearray | memoryview):
            return bytes(item), ContentType.BYTES
        data = _json(item)
        if data.find(_NULL) >= 0:  # half of what `in` costs
            refuse_not_finite(msgspec.to_builtins(item))
        return data, ContentType.JSON
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        kind = type(item).__name__
        hint = "a payload is bytes, text, or what JSON can hold"
        raise InvalidField(f"payload: this {kind} cannot be stored: {error}", hint=hint) from None


def payloads_of(items: Sequence[Any]) -> tuple[Sequence[bytes], Bytes | None]:
    """All payloads and their content types; None when all are bytes."""
    kinds = set(map(type, items))
    if kinds == {bytes} or not items:
        return items, None
    try:
        if kinds == {str}:
            return [item.encode() for item in items], _all(items, ContentType.TEXT)
        if kinds <= {dict, list}:
            contents = [_json(item) for item in items]
            if b"".join(contents).find(_NULL) < 0:
                return contents, _all(items, ContentType.JSON)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # the walk below finds out which item it was
    return _one_by_one(items)


def _all(items: Sequence[Any], kind: ContentType) -> Bytes:
    return np.full(len(items), kind, np.uint8)


def _one_by_one(items: Sequence[Any]) -> tuple[list[bytes], Bytes | None]:
    contents: list[bytes] = []
    kinds = bytearray()
    for row, item in enumerate(items):
        try:
            content, kind = payload_of(item)
        except InvalidField as error:
            raise located(error, row) from None
        contents.append(content)
        kinds.append(kind)
    return contents, np.frombuffer(kinds, np.uint8) if any(kinds) else None
