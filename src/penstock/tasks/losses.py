"""What of an argument would be lost on its way to a task: the value, compared with what the task would get.

An annotation may make one plain value of another: a list of a tuple, a dataclass of a dict, text of a time. Nothing is
lost by that, and without annotation whatever JSON gives is what was asked for. Lost are fields that the annotation does
not have, and the type of a record: a dataclass, a Struct or a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, is_typeddict

import msgspec


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
        pairs = ((f"[{key!r}]", each, back[key]) for key, each in value.items() if key in back)
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
