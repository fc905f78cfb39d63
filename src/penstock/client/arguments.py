"""Validation of arguments that no operation carries: functions, events, deliveries and the pace of a consumer.

What an operation carries is validated by its declaration (`penstock.operations`).
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

import msgspec

from penstock import limits
from penstock.errors import InvalidField, shown
from penstock.model import check_seconds


def check_function(value: object, name: str) -> None:
    """A function, or None for none."""
    if value is not None and not callable(value):
        raise InvalidField(f"{name}: {shown(value)} is not a function")


def check_stop(stop: object) -> None:
    """An event that ends a loop, or None for none."""
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        hint = "pass a threading.Event, or an asyncio.Event to the asyncio client"
        raise InvalidField(f"stop: {shown(stop)} is not an event", hint=hint)


def check_batch(batch: object) -> None:
    """How many messages a consumer leases at a time."""
    greatest = limits.lease_messages_max
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= greatest:
        raise InvalidField(f"batch: {shown(batch)} is not a whole number from 1 to {greatest:,}")


def check_consumer(batch: int | None, idle_seconds: float | None, stop: object) -> None:
    """How a loop over deliveries leases and when it ends."""
    if batch is not None:
        check_batch(batch)
    if idle_seconds is not None:
        check_seconds(idle_seconds, "idle_seconds")
    check_stop(stop)


def path_text(value: str | PathLike[str], name: str) -> str:
    """A path or URL as text."""
    if not isinstance(value, str | PathLike):
        raise InvalidField(f"{name}: {shown(value)} is not a path or a URL")
    return fspath(value)


def merge_patch(edit: Mapping[str, Any]) -> bytes:
    """A JSON merge patch as JSON; whether it changes something is checked by the operation."""
    try:
        return msgspec.json.encode(edit)
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError):
        raise InvalidField(f"edit: {shown(edit)} cannot be written as JSON") from None
