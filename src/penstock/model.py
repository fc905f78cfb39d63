"""The values that cross layers: ids, messages, queue options, statistics.

All of them are validated where they are made, so that the code behind them can trust them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from os import PathLike, fsencode
from typing import Any, Final, Literal, NamedTuple

import msgspec

from penstock import limits, refusals
from penstock.errors import BadReceipt, InvalidField, InvalidName, NotJson, UnknownOption, shown
from penstock.refusals import number, number_range, suggestion

DLQ_SUFFIX: Final = ".dlq"
ACCESS_DIRECTORY: Final = "access"  # in a data directory: principals and keys, for its owner alone
RESERVED_PREFIX: Final = "penstock."  # of queues that belong to the broker
AUDIT_QUEUE: Final = "penstock.audit"  # who did what; only the broker writes it
DEFAULT_GROUP: Final = "default"
ARCHIVE_GROUP: Final = "archive"  # its progress says how far a queue is archived
DEFAULT_PARTITION: Final = "0"

Durability = Literal["fsync", "interval", "os"]
# Where a group may start or go: earliest, latest, an offset, an instant, or an offset for each partition.
Position = str | int | datetime | Mapping[str, int]
DURABILITIES: Final = ("fsync", "interval", "os")

PRIORITY_NAMES: Final = {"background": 0, "low": 64, "normal": 128, "high": 192, "critical": 255}

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{1,2}")  # a `Path` has made one slash of two
STORE_SCHEMES: Final = ("postgresql://", "postgres://")
_MODE: Final = re.compile(r"0?7[0-7]0")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class Outcome(IntEnum):
    """How a delivery ended, or a message that was never delivered. The names are those in the events table."""

    ACKED = 1
    RETRIED = 2
    RELEASED = 3
    REJECTED = 4
    EXPIRED = 5
    INTERRUPTED = 6
    DEAD = 7
    EVICTED = 8
    PURGED = 9
    SNOOZED = 10
    TIMED_OUT = 11
    CANCELLED = 12
    OVERFLOWED = 13
    SKIPPED = 14
    DISCARDED = 15
    REDRIVEN = 16
    LOST = 17
    COMPACTED = 18


class ContentType(IntEnum):
    """The type of payload that the producer passed. `.payload` is bytes for every type."""

    BYTES = 0
    JSON = 1
    TEXT = 2
    TASK = 3
    TOMBSTONE = 4  # JSON null with a key, in a queue that keeps the latest message of each key


CONTENT_TYPE_NAMES: Final = {
    ContentType.BYTES: "application/octet-stream",
    ContentType.JSON: "application/json",
    ContentType.TEXT: "text/plain",
    ContentType.TASK: "application/vnd.penstock.task+json",
    ContentType.TOMBSTONE: "application/vnd.penstock.tombstone+json",
}


class MessageId(NamedTuple):
    """The location of a message. `str()` gives `queue/partition/offset`."""

    queue: str
    partition: str
    offset: int

    def __str__(self) -> str:
        return f"{self.queue}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        queue, _, rest = text.partition("/") if isinstance(text, str) else ("", "", "")
        partition, _, offset = rest.partition("/")
        if not (queue and partition and offset.isascii() and offset.isdigit()):
            raise InvalidField(f"id: {shown(text)} is not a message id", hint="an id looks like queue/partition/offset")
        return cls(queue, partition, int(offset))


class Receipt(NamedTuple):
    """Proof of one delivery. The nonce names the lease, which knows its group."""

    queue: str
    partition: str
    offset: int
    attempt: int
    nonce: int

    def __str__(self) -> str:
        return f"{self.queue}:{self.partition}:{self.offset}:{self.attempt}:{self.nonce:016x}"

    @classmethod
    def parse(cls, text: str) -> Receipt:
        parts = text.split(":", 5) if isinstance(text, str) and text.isascii() else []
        # `int` takes " 5", "+5" and "5_0" too.
        if len(parts) != 5 or not "".join(parts[2:]).isalnum():
            raise BadReceipt(f"{shown(text)} is not a receipt")
        queue, partition, offset, attempt, nonce = parts
        try:
            return cls(queue, partition, int(offset), int(attempt), int(nonce, 16))
        except ValueError:
            raise BadReceipt(f"{shown(text)} is not a receipt") from None


class Retry(NamedTuple):
    """The next attempt at a message in one group, and how the last one ended."""

    group: str
    attempt: int  # the number of the delivery that comes next
    due_at: datetime
    reason: str  # an outcome: retried, timed_out, interrupted, snoozed, redriven
    error: str = ""  # of the last attempt that failed; cut to `limits.retry_error_characters_max`
    failed_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to push, or one that was read. The last block is set only on messages that were read."""

    payload: bytes | str | Any
    key: str | None = None
    priority: int | str = limits.priority_default
    delay: float = 0.0
    deliver_at: datetime | None = None
    ttl: float | None = None
    headers: Mapping[str, str] | None = None
    dedup_key: str | None = None
    partition: int | str | None = None
    max_attempts: int | None = None
    trace: str | None = None
    content_type: ContentType | None = None

    id: MessageId | None = None
    pushed_at: datetime | None = None
    available_at: datetime | None = None
    expires_at: datetime | None = None
    retry: Retry | None = None  # set in a list of retries: the attempt that it waits for

    def json(self) -> Any:
        """Return the payload decoded as JSON. Raises `NotJson`, a `ValueError`, if it is not JSON."""
        return json_payload(self.payload)

    @property
    def is_tombstone(self) -> bool:
        """Whether the message says that its key has no value any more (docs/options.md, `compaction`)."""
        return self.content_type is ContentType.TOMBSTONE


def json_payload(payload: Any) -> Any:
    """A payload decoded as JSON."""
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        text = payload.decode(errors="replace") if isinstance(payload, bytes) else payload
        raise NotJson(f"payload: {shown(text)} is not JSON") from None


def _backoff(base_seconds: float, multiplier: float, max_seconds: float, jitter: float) -> dict[str, float]:
    names = ("backoff_base_seconds", "backoff_multiplier", "backoff_max_seconds", "backoff_jitter")
    return dict(zip(names, (base_seconds, multiplier, max_seconds, jitter), strict=True))


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """All options of a queue. Durations are seconds; `None` means unlimited or "as the shard says"."""

    partitions: int | Literal["named"] = 1
    ordering: Literal["none", "partition", "key"] = "none"
    service: Literal["strict", "weighted"] = "strict"
    starvation_seconds: float = limits.starvation_seconds_default
    lease_seconds: float = limits.lease_seconds_default
    max_attempts: int = limits.max_attempts_default
    backoff_base_seconds: float = 1.0
    backoff_multiplier: float = 2.0
    backoff_max_seconds: float = 60.0
    backoff_jitter: float = 0.1
    dead_letter: bool = True
    delay_seconds: float = 0.0
    window_seconds: float = 0.0
    ttl_seconds: float | None = None
    max_wait_seconds: float | None = None
    max_wait_action: Literal["dead", "drop"] = "dead"
    max_length: int | None = None
    overflow: Literal["reject_new", "drop_oldest"] = "reject_new"
    max_in_flight: int | None = None
    push_per_second: float | None = None
    push_burst: int | None = None
    lease_per_second: float | None = None
    lease_burst: int | None = None
    client_push_per_second: float | None = None
    client_push_burst: int | None = None
    client_lease_per_second: float | None = None
    client_lease_burst: int | None = None
    key_push_per_second: float | None = None
    key_push_burst: int | None = None
    key_lease_per_second: float | None = None
    key_lease_burst: int | None = None
    key_max_in_flight: int | None = None
    dedup_seconds: float = limits.dedup_seconds_default
    durability: Durability | None = None
    retention_seconds: float | None = limits.retention_seconds_default
    retention_bytes: int | None = limits.retention_bytes_default
    retention_messages: int | None = None
    retention_messages_min: int = 0
    retention_drops_unread: bool = False
    retention_until_archived: bool = False
    compaction: Literal["none", "latest"] = "none"
    compaction_ratio: float = limits.compaction_ratio_default
    compaction_seconds: float = limits.compaction_seconds_default
    compaction_drops_unread: bool = False
    tombstone_seconds: float = limits.tombstone_seconds_default
    group_expiry_seconds: float = limits.group_expiry_seconds_default
    encryption: bool = False
    masked_fields: tuple[str, ...] = ()

    def is_singly(self) -> bool:
        """Whether a consumer should take one message at a time: more in hand would hold others up or cost attempts."""
        rates = (self.lease_per_second, self.client_lease_per_second, self.key_lease_per_second)
        is_limited = any(limit is not None for limit in (*rates, self.max_in_flight, self.key_max_in_flight))
        return is_limited or self.ordering != "none" or self.max_attempts == 1


OPTION_NAMES: Final = QueueOptions.__struct_fields__
RATES: Final = tuple(name.removesuffix("_per_second") for name in OPTION_NAMES if name.endswith("_per_second"))

# field: (least, greatest); both ends belong to the range
OPTION_RANGES: Final[dict[str, tuple[float, float]]] = {
    "starvation_seconds": (0, 86_400),
    "lease_seconds": (limits.lease_seconds_min, limits.lease_seconds_max),
    "max_attempts": (1, limits.attempts_max),
    "backoff_base_seconds": (0, 86_400),
    "backoff_multiplier": (1, 100),
    "backoff_max_seconds": (0, 30 * 86_400),
    "backoff_jitter": (0, 1),
    "delay_seconds": (0, limits.delay_seconds_max),
    "window_seconds": (0, 86_400),
    "ttl_seconds": (0.001, limits.delay_seconds_max),
    "max_wait_seconds": (0.001, limits.delay_seconds_max),
    "max_length": (1, 2**62),
    "max_in_flight": (1, 2**62),
    "dedup_seconds": (0, 366 * 86_400),
    "retention_seconds": (0, limits.delay_seconds_max),
    "retention_bytes": (0, 2**62),
    "retention_messages": (0, 2**62),
    "retention_messages_min": (0, 2**62),
    "group_expiry_seconds": (1, limits.delay_seconds_max),
    "compaction_ratio": (0.01, 1),
    "compaction_seconds": (0, limits.delay_seconds_max),
    "tombstone_seconds": (0, limits.delay_seconds_max),
    "key_max_in_flight": (1, 2**62),
    **{f"{rate}_per_second": (limits.per_second_min, limits.per_second_max) for rate in RATES},
    **{f"{rate}_burst": (1, limits.burst_max) for rate in RATES},
}


# Backoffs of other systems, by name: what `backoff=` stands for.
BACKOFFS: Final[dict[str, dict[str, float]]] = {
    "rivetq": _backoff(0.1, 2.0, 60.0, 0.1),
    "taskqueue": _backoff(5.0, 2.0, 3_600.0, 0.1),
    "goqueue": _backoff(1.0, 2.0, 60.0, 0.0),
}


def with_backoff(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options with the numbers that a named backoff stands for; numbers beside the name count more."""
    if "backoff" not in changes:
        return changes
    rest = dict(changes)
    name = rest.pop("backoff")
    preset = BACKOFFS.get(name) if isinstance(name, str) else None
    if preset is None:
        raise refusals.choice(name, tuple(BACKOFFS), "backoff")
    return {**preset, **rest}


def queue_options(changes: Mapping[str, Any], base: QueueOptions | None = None) -> QueueOptions:
    """Options from keyword arguments, over `base`; every refusal names the option."""
    options = check_option_values(_with_implied(changes, base), base)
    _check_limits(options)
    return options


def _with_implied(changes: Mapping[str, Any], base: QueueOptions | None) -> Mapping[str, Any]:
    """A queue that begins to keep the latest message of each key keeps it for good, unless options say otherwise."""
    begins = changes.get("compaction") == "latest" and (base is None or base.compaction == "none")
    return {"retention_seconds": None, "retention_bytes": None, **changes} if begins else changes


def check_option_values(changes: Mapping[str, Any], base: QueueOptions | None = None) -> QueueOptions:
    """Every value that is given is one for its option; whether they go together, `queue_options` knows."""
    changes = with_backoff(changes)
    for name in changes:
        if name not in OPTION_NAMES:
            raise UnknownOption(f"{name!r} is not a queue option", hint=suggestion(str(name), OPTION_NAMES))
    known = msgspec.structs.asdict(base or QueueOptions())
    options = refusals.converted({**known, **changes}, QueueOptions, whole="queue options")
    for name, (least, greatest) in OPTION_RANGES.items():
        value = getattr(options, name)
        if value is not None and not least <= value <= greatest:
            raise InvalidField(f"{name}: {number(value)} is outside {number_range(least, greatest)}")
    if options.partitions != "named" and not 1 <= options.partitions <= limits.partitions_max:
        raise InvalidField(f"partitions: {options.partitions!r} is outside 1 to {limits.partitions_max}, or 'named'")
    _check_masked_fields(options.masked_fields)
    return options


def _check_masked_fields(fields: tuple[str, ...]) -> None:
    if len(fields) > limits.masked_fields_max:
        raise InvalidField(f"masked_fields: {len(fields)} fields are over the limit of {limits.masked_fields_max}")
    for path in fields:
        if not all(path.split(".")) or len(path) > limits.masked_field_length_max:
            raise InvalidField(
                f"masked_fields: {shown(path)} is not a path into JSON",
                hint="use names, positions and * joined by dots, such as card.number or customer.*.email",
            )


def _check_limits(options: QueueOptions) -> None:
    for rate in RATES:
        if getattr(options, f"{rate}_burst") is not None and getattr(options, f"{rate}_per_second") is None:
            raise InvalidField(f"{rate}_burst: needs {rate}_per_second, which is not set")
    if options.ordering == "partition":
        for name in ("key_lease_per_second", "key_max_in_flight"):
            if getattr(options, name) is not None:
                hint = "use ordering='key' or 'none', or limit the whole queue"
                raise InvalidField(
                    f"{name}: not possible with partition order, where no message may be passed over", hint=hint
                )


def queue_options_decode(data: bytes) -> QueueOptions:
    """Options as the journal holds them. Unknown ones are a newer version's: refuse rather than ignore them."""
    return msgspec.json.decode(data, type=QueueOptions)


def check_name(name: Any, what: str = "queue") -> str:
    """`name` itself when it is a legal name; `InvalidName` otherwise."""
    # The dead letters of a queue with the longest of names have a longer one.
    if not isinstance(name, str) or not _NAME.match(name.removesuffix(DLQ_SUFFIX) if what == "queue" else name):
        raise InvalidName(f"{what}: {shown(name)} is not a valid name")
    return name


OWNER_SEPARATOR: Final = "\0"  # no name can contain it


def owned(owner: str, name: str) -> str:
    """The name under which something of a principal is kept: nobody else's name can be the same.

    What belongs to the owner of the broker has its plain name, as everything had before there were principals: so
    nothing that is stored changes, and what was there before belongs to the owner.
    """
    return f"{owner}{OWNER_SEPARATOR}{name}" if owner else name


def bare_name(name: str) -> str:
    """The inverse of `owned`: the name as its owner knows it."""
    return name.rpartition(OWNER_SEPARATOR)[2]


def as_run(offsets: list[int]) -> list[int] | range:
    """`offsets` as a range when they are consecutive, else unchanged. Every offset is checked, not the ends alone."""
    run = range(offsets[0], offsets[0] + len(offsets))
    return run if offsets[-1] == run[-1] and offsets == list(run) else offsets


def check_priority(value: Any) -> int:
    """A priority from its number or its name."""
    if isinstance(value, str):
        if value not in PRIORITY_NAMES:
            raise refusals.choice(value, tuple(PRIORITY_NAMES), "priority")
        return PRIORITY_NAMES[value]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limits.priority_max:
        raise InvalidField(f"priority: {value!r} is not a whole number from 0 to 255")
    return value


def check_durability(value: Any) -> None:
    """A level of durability, or None for the default."""
    if value is not None and value not in DURABILITIES:
        raise InvalidField(
            f"durability: {value!r} is not a durability level", hint=suggestion(str(value), DURABILITIES)
        )


def check_path(path: Any, *, is_optional: bool = False) -> Any:
    """A data directory, or the URL of a store in PostgreSQL; what has another scheme is somewhere else."""
    if path is None and is_optional:
        return None
    if not isinstance(path, str | PathLike) or not str(path):
        hint = "name a directory; penstock.open_in_memory() stores nothing on disk"
        raise InvalidField(f"path: {shown(path)} is not a path", hint=hint)
    if not is_file_name(path):
        raise InvalidField(f"path: {shown(str(path))} cannot be the name of a directory")
    scheme = _SCHEME.match(str(path))
    if scheme and scheme[0] not in STORE_SCHEMES:
        hint = "use a directory or postgresql://…; for a broker, use penstock.connect('penstock://localhost:7710')"
        raise InvalidField(f"path: {scheme[0]}… is a URL, not a directory", hint=hint)
    return path


def is_file_name(path: str | PathLike[str]) -> bool:
    """Whether the operating system could have a file of that name."""
    try:
        return b"\0" not in fsencode(path)
    except UnicodeEncodeError:
        return False


def is_store_url(path: object) -> bool:
    """Whether a path is the URL of a store rather than a directory."""
    return isinstance(path, str) and path.startswith(STORE_SCHEMES)


def is_mode(text: str) -> bool:
    """Whether it names a mode that leaves the owner all and others nothing."""
    return _MODE.fullmatch(text) is not None


def check_mode(value: object) -> int | None:
    """The number that a text such as "0750" stands for; None for None."""
    if value is None:
        return None
    if not isinstance(value, str) or not is_mode(value):
        raise InvalidField(
            f'data_mode: {value!r} is not a mode such as "0700" or "0750"', hint="other users must have no access"
        )
    return int(value, 8)


def check_seconds(value: Any, name: str, greatest: float = limits.delay_seconds_max) -> float:
    """A duration in seconds, or a timedelta, not negative and not absurd."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= greatest:
        raise InvalidField(f"{name}: {value!r} is not a number of seconds from {number_range(0, greatest)}")
    return float(value)


def check_size(value: Any, name: str, least: int, greatest: int) -> int | None:
    """A whole number within a range, or None for the default."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= greatest):
        raise InvalidField(f"{name}: {value!r} is not a whole number from {least} to {greatest}")
    return value


def to_micros(value: Any, name: str) -> int:
    """An instant as µs UTC, from an aware datetime or RFC 3339 text; anything else is refused, never guessed."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            hint = "write it like 2030-01-31T12:00:00Z"
            raise InvalidField(f"{name}: {value!r} is not a time", hint=hint) from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        hint = "use datetime.now(timezone.utc) or RFC 3339 text"
        raise InvalidField(f"{name}: {value!r} is not a time with a zone", hint=hint)
    delta = value - _EPOCH
    micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    if not _FIRST <= micros <= limits.instant_us_max:  # its zone moves it out of the years 1 to 9999
        raise InvalidField(f"{name}: {value.isoformat()} is not a time", hint="use a year from 1 to 9999 in UTC")
    return micros


def to_datetime(micros: int) -> datetime:
    """µs UTC as an aware datetime."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Counters of one group. Always: end − start = ready + leased + waiting + acked + dead + dropped."""

    name: str
    messages: int
    ready: int
    leased: int
    waiting: int
    acked: int
    dead: int
    dropped: int
    dropped_by: Mapping[str, int] = field(default_factory=dict)
    lag: int = 0
    oldest_unsettled_at: datetime | None = None
    paused: bool = False  # delivery to it, whatever it is paused by


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counters of a queue and of each of its groups. The top-level numbers are those of the default group."""

    name: str
    messages: int
    partitions: int
    bytes_stored: int
    paused: bool  # delivery to all groups, be it by its namespace or the broker
    groups: Mapping[str, GroupStats]
    push_paused: bool = False

    @property
    def ready(self) -> int:
        return self.groups[DEFAULT_GROUP].ready

    @property
    def leased(self) -> int:
        return self.groups[DEFAULT_GROUP].leased

    @property
    def waiting(self) -> int:
        return self.groups[DEFAULT_GROUP].waiting

    @property
    def acked(self) -> int:
        return self.groups[DEFAULT_GROUP].acked

    @property
    def dead(self) -> int:
        return self.groups[DEFAULT_GROUP].dead


class Freed(msgspec.Struct, frozen=True):
    """What retention or compaction has freed."""

    files_removed: int = 0
    files_rewritten: int = 0
    bytes_freed: int = 0
    messages_removed: int = 0

    def __add__(self, other: Freed) -> Freed:
        return Freed(*map(sum, zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)))


class Reason(NamedTuple):
    """Why a message waits in one group: a short code, and a sentence for people.

    If the message was tried before, also how the last attempt ended and when the next one is due.
    """

    group: str
    code: str
    text: str
    outcome: str = ""  # retried, timed_out, interrupted, snoozed or redriven; empty when it was never tried
    error: str = ""
    due_at: datetime | None = None


class PauseState(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is paused."""

    scope: str  # broker, namespace, queue or group
    namespace: str = ""
    queue: str = ""
    group: str = ""
    push: bool
    delivery: bool
    since: datetime | None = None  # None: it was paused by a version that did not keep it
    reason: str = ""


class PartitionLag(NamedTuple):
    """The position of one group in one partition."""

    partition: str
    start_offset: int
    committed_offset: int
    end_offset: int
    lag: int
