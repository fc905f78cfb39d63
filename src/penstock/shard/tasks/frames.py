"""What all operations on tasks share: the frame of one, and checks of what goes into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.delivery.entries import Entry, TaskHeld
from penstock.delivery.rate_limits import Bill, pay
from penstock.delivery.settle import Chosen
from penstock.errors import InvalidField, TooLarge
from penstock.model import Durability

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard

CANCELLED_ERROR: Final = "it was cancelled"
_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode


def commit(
    shard: Shard,
    entries: list[Entry],
    now: int,
    level: Durability,
    chosen: Sequence[Chosen] = (),
    bill: Bill | None = None,
) -> Ticket:
    """Apply and append one frame, with those that it frees. The lock is held."""
    if shard.joining is not None:
        entries = [*entries, *shard.joining(now)]
    if shard.core.tasks.awaited or any(isinstance(entry, TaskHeld) for entry in entries):
        ticket, entries = shard.commit_freeing(entries, now, level, chosen)
    else:
        ticket = shard.commit_frame(entries, level, chosen)
    if bill:
        pay(bill, now)
    shard.pushed(entries)
    shard.changed(entries)
    return ticket


def id_bytes(task_id: str) -> bytes:
    """A task id as entries hold it."""
    try:
        decoded = bytes.fromhex(task_id.replace("-", ""))
    except (ValueError, AttributeError):
        decoded = b""
    if len(decoded) != 16:
        raise InvalidField(f"task_id: {task_id!r} is not a UUID", hint="omit it to have one generated")
    return decoded


def check_json(data: bytes, field: str, bytes_max: int) -> None:
    """Refuse what is no JSON, or too much of it."""
    if len(data) > bytes_max:
        hint = "store it elsewhere and pass its address"
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
