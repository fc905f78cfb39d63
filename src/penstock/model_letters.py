"""Dead letters and messages of the past, as filters describe them; and the headers that a dead letter carries."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from penstock.model import Message, MessageId, to_datetime, to_micros
from penstock.signatures import signature_id, signature_of

# Headers that a dead letter carries beside those of the message.
DEAD_ORIGIN: Final = "penstock-origin"
DEAD_GROUP: Final = "penstock-group"
DEAD_REASON: Final = "penstock-reason"
DEAD_ERROR: Final = "penstock-error"
DEAD_ATTEMPTS: Final = "penstock-attempts"
DEAD_FIRST_AT: Final = "penstock-first-delivered-at"
DEAD_LAST_AT: Final = "penstock-last-delivered-at"
DEAD_CONSUMER: Final = "penstock-last-consumer"
DEAD_AT: Final = "penstock-dead-at"
DEAD_PUSHED_AT: Final = "penstock-pushed-at"  # when the message was pushed that died
DEAD_HEADERS: Final = frozenset({
    DEAD_ORIGIN, DEAD_GROUP, DEAD_REASON, DEAD_ERROR, DEAD_ATTEMPTS, DEAD_FIRST_AT, DEAD_LAST_AT, DEAD_CONSUMER,
    DEAD_AT, DEAD_PUSHED_AT,
})  # fmt: skip
REPLAYED_FROM: Final = "penstock-replayed-from"  # header of a copy: the id of the message that was replayed


class LetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for dead letters. A letter must match every field that is set. Header names are as in `dead_letter`."""

    group: str | None = None
    reason: str | None = None
    error_contains: str | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ids: frozenset[MessageId] | None = None  # of the dead letters themselves
    limit: int = 1_000_000
    from_offset: int = 0  # of the dead letters themselves: where a listing in pages goes on
    signature: str | None = None  # the id of a signature, as a listing of signatures has it

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            value = getattr(self, name)
            if value is not None:
                msgspec.structs.force_setattr(self, name, to_datetime(to_micros(value, name)))

    @property
    def looks_inside(self) -> bool:
        """Whether it asks about errors, which may repeat what a message holds."""
        return self.error_contains is not None or self.signature is not None

    @property
    def needs_read(self) -> bool:
        """Whether a count of those that match tells what only readers see."""
        return self.looks_inside or self.key is not None

    def matches(self, letter: Message) -> bool:
        """Whether a dead letter is meant."""
        headers = letter.headers or {}
        assert letter.pushed_at is not None
        return (
            (self.group is None or headers.get(DEAD_GROUP) == self.group)
            and (self.reason is None or headers.get(DEAD_REASON) == self.reason)
            and (self.error_contains is None or self.error_contains in headers.get(DEAD_ERROR, ""))
            and (self.key is None or letter.key == self.key)
            and (self.since is None or letter.pushed_at >= self.since)
            and (self.until is None or letter.pushed_at < self.until)
            and (self.ids is None or letter.id in self.ids)
            and (self.signature is None or letter_signature(letter)[0] == self.signature)
        )


def letter_signature(letter: Message) -> tuple[str, str]:
    """The id and the text of the signature of a dead letter."""
    headers = letter.headers or {}
    text = signature_of(headers.get(DEAD_ERROR, ""), headers.get(DEAD_REASON, ""))
    return signature_id(text), text


def payload_bytes(message: Message) -> bytes:
    """The payload of a message that was read."""
    assert isinstance(message.payload, bytes)
    return message.payload


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A filter for the messages of a queue, settled or not. A message must match every field that is set."""

    since: datetime | None = None
    until: datetime | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    text: str | None = None  # in the payload, in UTF-8
    trace: str | None = None

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            value = getattr(self, name)
            if value is not None:
                msgspec.structs.force_setattr(self, name, to_datetime(to_micros(value, name)))
        if isinstance(self.headers, Mapping):
            msgspec.structs.force_setattr(self, "headers", dict(self.headers))

    @property
    def looks_inside(self) -> bool:
        """Whether it asks about payloads, or errors of dead letters, which may repeat what a message holds."""
        return self.text is not None or DEAD_ERROR in (self.headers or {})

    def matches(self, message: Message) -> bool:
        """Whether a message is meant."""
        headers = message.headers or {}
        assert message.pushed_at is not None
        return (
            (self.key is None or message.key == self.key)
            and (self.since is None or message.pushed_at >= self.since)
            and (self.until is None or message.pushed_at < self.until)
            and (self.headers is None or all(headers.get(name) == value for name, value in self.headers.items()))
            and (self.text is None or self.text.encode() in payload_bytes(message))
            and (self.trace is None or message.trace == self.trace)
        )


class Share(msgspec.Struct, frozen=True):
    """A value that the letters of a signature have in common and healthy messages do not."""

    field: str  # a path in the payload, `key`, or `header:NAME`
    value: str  # JSON; "(absent)" or "(present)"
    failed_percent: float
    healthy_percent: float


class SignatureView(msgspec.Struct, frozen=True):
    """The dead letters of one queue whose errors have the same signature."""

    signature: str  # eight hexadecimal digits, for filters
    text: str
    queue: str
    count: int  # of those that were looked at
    trend: list[int]  # by the hour, the oldest first
    first_seen_at: datetime
    last_seen_at: datetime
    reasons: dict[str, int]
    samples: list[str]  # ids of the newest
    shares: list[Share]


class SampledQueue(msgspec.Struct, frozen=True):
    """How much of a queue was examined."""

    queue: str
    letters: int  # that wait
    looked_at: int  # the newest of them
    healthy: int  # acknowledged messages that they were compared with
    is_sampled: bool


class SignatureReport(msgspec.Struct, frozen=True):
    """Dead letters by signature, the most frequent first."""

    signatures: list[SignatureView]
    queues: list[SampledQueue]
    trend_from: datetime
    trend_step_seconds: float
