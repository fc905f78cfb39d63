"""What happened, as the clients saw it: the only evidence that checkers look at.

A row is one operation. Its effect, if it has one, happens in the order of `number`; whether the client was told is
its outcome: `ok`, `failed` (it was refused and changed nothing) or `unknown` (the power was cut, the disk failed, or
the process died before it was confirmed). Deaths of the process are rows too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"


class Place(NamedTuple):
    """Where a message is."""

    queue: str
    partition: str
    offset: int


class Sent(NamedTuple):
    """A message as a client pushed it; payloads are unique."""

    payload: bytes
    key: str | None = None
    priority: int = 128
    delay_us: int = 0
    ttl_us: int = 0
    dedup_key: str | None = None
    max_attempts: int | None = None

    def __repr__(self) -> str:
        return f"Sent({', '.join(map(repr, (self.payload[:10], *self[1:])))})"


class Got(NamedTuple):
    """A message as a lease handed it out."""

    place: Place
    attempt: int
    payload: bytes
    nonce: int
    expires_at: int
    key: str | None = None

    def __repr__(self) -> str:
        return f"Got({'/'.join(map(str, self.place))} attempt {self.attempt} {self.payload[:10]!r} {self.nonce:x})"


class Settle(NamedTuple):
    """One delivery that a client ended."""

    got: Got
    group: str
    how: str
    delay_us: int | None = None


@dataclass(slots=True)
class Row:
    """One operation of one client."""

    number: int
    at: int
    client: str
    op: str
    args: dict[str, Any]
    outcome: str = UNKNOWN
    result: Any = None
    error: str = ""
    notified_at: int = 0  # when the client was told, if it was

    def __str__(self) -> str:
        what = " ".join(f"{name}={value!r}" for name, value in self.args.items())
        ending = self.error or ("" if self.result is None else repr(self.result))
        return f"#{self.number} t={self.at} {self.client} {self.op} {what} → {self.outcome} {ending}"[:600]


@dataclass(slots=True)
class History:
    """All rows, and the rules of the queues that they are about."""

    queues: dict[str, dict[str, Any]]
    rows: list[Row] = field(default_factory=list)
    lines: Any = None  # timelines, once somebody has asked for them

    def add(self, at: int, client: str, op: str, **args: Any) -> Row:
        row = Row(len(self.rows), at, client, op, args)
        self.rows.append(row)
        return row

    def of(self, *ops: str, outcomes: tuple[str, ...] = (OK,)) -> Iterator[Row]:
        return (row for row in self.rows if row.op in ops and row.outcome in outcomes)

    def pushed(self, *outcomes: str) -> Iterator[tuple[Row, str, Sent]]:
        """(row, queue, message) of every message in a push or transaction with one of these outcomes."""
        for row in self.of("push", "transact", outcomes=outcomes):
            for queue, messages in row.args["pushes"]:
                yield from ((row, queue, message) for message in messages)

    def placed(self) -> Iterator[tuple[Row, Place, Sent]]:
        """Where each message went, as replies of confirmed pushes say; duplicates stand at their original's place."""
        for row in self.of("push", "transact"):
            for (_, messages), places in zip(row.args["pushes"], row.result, strict=True):
                yield from ((row, place, message) for place, message in zip(places, messages, strict=True))

    def deliveries(self) -> Iterator[tuple[Row, str, Got]]:
        """(row, group, delivery) of every lease that a client was told of."""
        for row in self.of("lease"):
            yield from ((row, row.args["group"], got) for got in row.result)

    def settles(self, *outcomes: str) -> Iterator[tuple[Row, Settle]]:
        for row in self.of("settle", "transact", outcomes=outcomes or (OK,)):
            yield from ((row, settle) for settle in row.args["settles"])

    def deaths(self) -> list[Row]:
        return list(self.of("death"))
