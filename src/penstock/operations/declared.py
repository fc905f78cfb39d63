"""Validation of an operation's field by its declared type, for fields whose type has no `Check`.

So a field that is merely declared as `str | None` refuses numbers, and text that cannot be stored, with an error that
names the field. Types that are not in the table (structs, bytes) are left to whoever executes the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from penstock import refusals, validation
from penstock.errors import InvalidField, shown

INTEGER_MAX: Final = 2**63 - 1  # of MessagePack and of the journal
_Function = Callable[[Any, str], Any]


def check_of(hint: Any) -> _Function | None:
    """The check of values of a declared type; None for a type that has none."""
    if get_origin(hint) in (Union, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        inner = check_of(parts[0]) if len(parts) == 1 else None
        return None if inner is None else _optional(inner)
    if get_origin(hint) is Literal:
        return _choice(get_args(hint))
    if get_origin(hint) in (list, tuple, Sequence) and get_args(hint)[0] is str:
        return _texts
    return _CHECKS.get(hint)


def _optional(check: _Function) -> _Function:
    return lambda value, field: None if value is None else check(value, field)


def _choice(words: tuple[str, ...]) -> _Function:
    def check(value: Any, field: str) -> Any:
        if value not in words:
            raise refusals.choice(value, [word for word in words if word], field)
        return value

    return check


def _text(value: Any, field: str) -> Any:
    if refusals.is_secret(field) and not isinstance(value, str):
        raise InvalidField(f"{field}: it must be text")  # without the value
    validation.text(value, field)
    return value


def _texts(value: Any, field: str) -> Any:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidField(f"{field}: {shown(value)} is not a list of texts")
    for text in value:
        validation.text(text, field)
    return value


def _integer(value: Any, field: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or not -INTEGER_MAX <= value <= INTEGER_MAX:
        raise InvalidField(f"{field}: {shown(value)} is not a whole number of up to 63 bits")
    return value


_CHECKS: Final[dict[Any, _Function]] = {
    str: _text,
    int: _integer,
    bool: validation.flag,
    datetime: validation.instant,
}
