"""Operations on messages, and transactions."""

from __future__ import annotations

import msgspec

from penstock.validation import message_id
from penstock.wire.calls.arguments import Arguments
from penstock.wire.requests import PartitionOnWire


class Read(Arguments):
    """Browse a partition from an offset or an instant on."""

    queue: str
    partition: int | str = 0
    offset: int | None = None
    timestamp: str | None = None
    limit: int = 100


class Peek(Arguments):
    """The next messages of the default group, without effect."""

    queue: str
    limit: int = 1


class Delayed(Arguments):
    """Messages that are not due yet."""

    queue: str
    limit: int = 100


class OfMessage(Arguments):
    """Arguments that name a message."""

    id: str

    def check(self) -> None:
        message_id(self.id)


class Cancel(OfMessage):
    """Take a message back before anyone has it."""


class Why(OfMessage):
    """Why is this message not delivered?"""


class PushStep(msgspec.Struct, frozen=True, tag="push"):
    """Part of a transaction: messages for one queue, as a batch."""

    queue: str
    batch: bytes
    partition: PartitionOnWire = None


class SettleStep(msgspec.Struct, frozen=True, tag="settle"):
    """Part of a transaction: the end of one delivery."""

    receipt: str
    outcome: int
    delay_seconds: float | None = None
    error: str = ""


class Transact(Arguments):
    """Pushes and settles, all or nothing. `sequence` numbers it among the pushes of the connection's producer."""

    operations: list[PushStep | SettleStep]
    sequence: int = 0
