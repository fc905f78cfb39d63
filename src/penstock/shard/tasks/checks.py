"""What is checked of tasks wherever they are told of."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.errors import InvalidField, TooLarge
from penstock.model import Durability

_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode


def id_bytes(task_id: str) -> bytes:
    """A task id as entries hold it."""
    try:
        found = bytes.fromhex(task_id.replace("-", ""))
    except (ValueError, AttributeError):
        found = b""
    if len(found) != 16:
        raise InvalidField(f"task_id: {task_id!r} is not a UUID", hint="leave it out, and one is made")
    return found


def check_json(data: bytes, field: str, bytes_max: int) -> None:
    """Refuse what is no JSON, or too much of it."""
    if len(data) > bytes_max:
        hint = "store it elsewhere and give its place"
        raise TooLarge(f"{field}: {len(data):,} bytes are over the limit of {bytes_max:,}", hint=hint)
    try:
        _raw(data)
        if not data.isascii():
            data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidField(f"{field}: it is not JSON: {error}") from None


def cut(text: str, bytes_max: int) -> str:
    """A message about an error is cut, not refused. Its end says most, so the beginning goes."""
    data = text.encode(errors="replace")
    return data.decode() if len(data) <= bytes_max else data[-bytes_max:].decode(errors="ignore")


def safest(levels: set[Durability]) -> Durability:
    """What a frame for several queues must be written with."""
    return "fsync" if "fsync" in levels else "interval" if "interval" in levels else "os"
