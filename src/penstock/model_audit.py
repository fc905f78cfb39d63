"""Records of the audit log, and the chain that they make.

A record is a JSON object. Its `hash` is the SHA-256 of the canonical JSON of all its other fields: keys sorted, no
spaces. One of these fields is `previous`, the hash of the record before it, so that each record vouches for all before
it: whoever knows the hash of one record notices any change, gap or reordering up to there. `sequence` is the offset of
the record in its queue.

When retention removes the oldest records, an anchor stays: the offset and the hash of the last one that was removed, or
is about to be. Records at or below the anchor may be missing at the start, and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from penstock.errors import InvalidField

ANCHOR_FILE: Final = "access/audit.json"


GENESIS: Final = "0" * 64  # in place of a hash before the first record
OK: Final = "ok"


class Caller(msgspec.Struct, frozen=True):
    """Who asked for something, and from where."""

    who: str  # the principal
    credential: str = ""  # what proved it: key, token, certificate, session; empty when nobody asked for one
    address: str = ""
    protocol: str = ""
    client: str = ""  # what the program calls itself
    request_id: str = ""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the audit log."""

    sequence: int
    at: str  # ISO 8601, UTC
    who: str
    credential: str = ""
    address: str = ""
    protocol: str = ""
    client: str = ""
    request_id: str = ""
    what: str  # the operation, or `login`, `failed_login`, `denied`
    queue: str = ""
    arguments: dict[str, Any] = {}
    outcome: str = OK  # or the code of an error
    count: int = 1  # of what happened alike, where it is gathered into one record
    until: str = ""  # when it happened last, if more than once
    previous: str
    hash: str = ""


class Anchor(msgspec.Struct, frozen=True):
    """The end of what retention has removed: the chain goes on from this hash."""

    offset: int = -1
    hash: str = GENESIS

    def first_of(self, start: int) -> int:
        """Where the chain begins in a queue kept from `start` on: behind messages that were there before the log."""
        return max(start, self.offset + 1) if self.hash == GENESIS else start


class AuditFilter(msgspec.Struct, frozen=True):
    """Which records to list; None: whatever it is."""

    who: str | None = None
    what: str | None = None
    outcome: str | None = None  # `ok`, `failed` for every error, or a code
    since: int | None = None  # µs UTC

    def matches(self, record: AuditRecord, pushed_at: int) -> bool:
        """Whether the record, which was written at that time, is one of them."""
        return (
            self.who in (None, record.who)
            and self.what in (None, record.what)
            and (self.outcome in (None, record.outcome) or (self.outcome == "failed" and record.outcome != OK))
            and (self.since is None or pushed_at >= self.since)
        )


class AuditVerification(msgspec.Struct, frozen=True):
    """The result of verifying the chain. The chain is intact if there are no problems."""

    count: int
    first: AuditRecord | None
    last: AuditRecord | None
    head: str  # the hash of the last record: the anchor's if there is none
    problems: list[str]  # the first few

    @property
    def is_whole(self) -> bool:
        return not self.problems


PROBLEMS_MAX: Final = 20
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def sealed(record: AuditRecord) -> AuditRecord:
    """The record with its hash."""
    return msgspec.structs.replace(record, hash=_digest(msgspec.structs.asdict(record)))


def encode_record(record: AuditRecord) -> bytes:
    """The bytes that are stored: canonical JSON."""
    return _ENCODER.encode(msgspec.structs.asdict(record))


def decode_record(payload: bytes) -> AuditRecord:
    """The record that is stored in these bytes; `InvalidField` when they are none."""
    try:
        return msgspec.json.decode(payload, type=AuditRecord)
    except msgspec.DecodeError as error:
        raise InvalidField(f"audit: not an audit record: {error}") from None


def verify_chain(messages: Iterable[tuple[int, bytes]], start: int, end: int, anchor: Anchor) -> AuditVerification:
    """Check the chain over the offsets and payloads of all messages that the log keeps, `start` to `end`."""
    check = _Check(anchor, start)
    first = last = None
    count = 0
    for offset, payload in messages:
        record = check.take(offset, payload)
        count += 1
        last = record or last
        first = first or record
    check.end(end)
    return AuditVerification(count, first, last, check.previous or anchor.hash, check.problems[:PROBLEMS_MAX])


class _Check:
    """The chain as far as it was followed."""

    def __init__(self, anchor: Anchor, start: int) -> None:
        self.problems: list[str] = []
        self.previous: str | None = None  # the hash that the next record must name; None: any
        self._anchor = anchor
        # A crash between writing the anchor and removing leaves records before it: they only must lead up to it.
        self._offset = min(start, anchor.offset + 1)  # that must come next
        if start > anchor.offset:
            self.previous = anchor.hash

    def take(self, offset: int, payload: bytes) -> AuditRecord | None:
        """Check one more; None if it is no record at all."""
        if offset != self._offset:
            self.problems.append(f"records {self._offset} to {offset - 1} are missing")
        self._offset = offset + 1
        try:
            record = decode_record(payload)
        except InvalidField as error:
            self.problems.append(f"record {offset} was changed: {error}")
            self.previous = None
            return None
        self.problems += self._wrong(offset, payload, record)
        self.previous = record.hash
        return record

    def _wrong(self, offset: int, payload: bytes, record: AuditRecord) -> Iterator[str]:
        if record.sequence != offset:
            yield f"record {offset} was moved: it was written as number {record.sequence}"
        fields = msgspec.json.decode(payload)
        if _digest(fields) != record.hash or _ENCODER.encode(fields) != payload:
            yield f"record {offset} was changed: its hash does not match"
        if self.previous is not None and record.previous != self.previous:
            yield f"record {offset} does not follow the one before it: the chain is broken"
        if offset == self._anchor.offset and record.hash != self._anchor.hash:
            yield f"record {offset} is not the one recorded in the anchor"

    def end(self, end: int) -> None:
        """All that there are were taken."""
        end = max(end, self._anchor.offset + 1)
        if self._offset < end:
            self.problems.append(f"records {self._offset} to {end - 1} are missing")


def _digest(fields: dict[str, Any]) -> str:
    body = {name: value for name, value in fields.items() if name != "hash"}
    return hashlib.sha256(_ENCODER.encode(body)).hexdigest()
