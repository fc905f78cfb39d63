"""What the asyncio and the blocking API share, without I/O: deliveries, transactions, lease sizes, edits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from secrets import token_hex
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, overload

import msgspec

from penstock import limits, validation
from penstock.batch import Batch
from penstock.clock import Clock
from penstock.envelopes import push_ranges
from penstock.errors import Closed, InvalidField, PenstockError, UnknownOption, shown
from penstock.limits import priority_default
from penstock.model import (
    ContentType,
    Message,
    MessageId,
    Outcome,
    Receipt,
    check_name,
    check_seconds,
    json_payload,
    to_datetime,
)
from penstock.model_letters import LetterFilter
from penstock.model_tasks import BulkOptions
from penstock.refusals import suggestion
from penstock.replies import LeaseReply, Piece, PushFailure, PushReply
from penstock.requests import Operation, PushOperation, SettleOperation, Settling
from penstock.wire.errors import ErrorReply, to_error

_receipt_of: Final[Callable[[tuple[str, str, int, int, int]], Receipt]] = partial(tuple.__new__, Receipt)  # hot
LEFT: Final = Settling(Outcome.RETRIED, None, "the consumer left its loop before this delivery was acknowledged")


class PushItem(NamedTuple):
    """The outcome of one item of a push."""

    status: Literal["queued", "duplicate", "failed"]
    id: MessageId | None  # a duplicate has the id of the message that came first
    error: PenstockError | None


class PushResult:
    """The outcome of a push. A duplicate has the id of the message that was stored first."""

    def __init__(self, reply: PushReply) -> None:
        self._reply = reply

    def __len__(self) -> int:
        return self._reply.count

    @cached_property
    def ids(self) -> list[MessageId]:
        """One id per stored item, in order; failed items are omitted."""
        return self._reply.ids()

    @cached_property
    def failures(self) -> dict[int, PenstockError]:
        """Errors of failed items, by their index in the pushed list. Empty unless `on_error="skip"`."""
        return {row: _error_of(failure) for row, failure in sorted(self._reply.failures.items())}

    @property
    def items(self) -> list[PushItem]:
        """The outcome of each item, in order."""
        failures = self.failures
        return [
            PushItem(status, id, failures.get(row))  # type: ignore[arg-type]
            for row, (status, id) in enumerate(zip(self.statuses, self._reply.places(), strict=True))
        ]

    @property
    def duplicates(self) -> list[int]:
        """The indexes of duplicates in the pushed list."""
        return sorted(self._reply.duplicates)

    @property
    def statuses(self) -> list[str]:
        """`queued`, `duplicate` or `failed` for each item."""
        statuses = ["queued"] * self._reply.count
        for row in self._reply.duplicates:
            statuses[row] = "duplicate"
        for row in self._reply.failures:
            statuses[row] = "failed"
        return statuses

    def __repr__(self) -> str:
        failed = f", {len(self._reply.failures)} failed" if self._reply.failures else ""
        return f"<PushResult {len(self)} items, {len(self._reply.duplicates)} duplicates{failed}>"


def _error_of(failure: PushFailure) -> PenstockError:
    return to_error(ErrorReply(failure.code, failure.message, failure.hint))


D = TypeVar("D", bound="BaseDelivery")


class BaseDelivery:
    """One delivery of a message to a consumer. The methods that settle it are in the subclasses."""

    __slots__ = ("_index", "_leased", "_piece", "payload", "settled")

    payload: bytes

    def __init__(self, leased: BaseLeased[Any], piece: Piece, index: int, payload: bytes) -> None:
        self._leased: Any = leased
        self._piece = piece
        self._index = index
        self.payload = payload
        self.settled = False

    def json(self) -> Any:
        """Return the payload decoded as JSON. Raises `NotJson`, a `ValueError`, if it is not JSON."""
        return json_payload(self.payload)

    @property
    def id(self) -> MessageId:
        return MessageId(self._leased.queue, self._piece.partition(self._index), self._piece.offsets[self._index])

    @property
    def partition(self) -> str:
        return self._piece.partition(self._index)

    @property
    def offset(self) -> int:
        return self._piece.offsets[self._index]

    @property
    def key(self) -> str | None:
        return self._batch.key(self._row)

    @property
    def headers(self) -> dict[str, str]:
        return self._batch.headers(self._row) or {}

    @property
    def trace(self) -> str | None:
        return self._batch.trace(self._row)

    @property
    def dedup_key(self) -> str | None:
        return self._batch.dedup_key(self._row)

    @property
    def content_type(self) -> ContentType:
        return self._batch.content_type_of(self._row)

    @property
    def is_tombstone(self) -> bool:
        """Whether the message marks its key as deleted (docs/options.md, `compaction`)."""
        return self.content_type is ContentType.TOMBSTONE

    @property
    def priority(self) -> int:
        column = self._batch.priority
        return priority_default if column is None else int(column[self._row])

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return self._piece.attempt(self._index)

    @property
    def receipt(self) -> str:
        """The receipt that proves this delivery, as text."""
        return str(self.proof)

    @property
    def proof(self) -> Receipt:
        """The receipt that proves this delivery."""
        leased, piece = self._leased, self._piece
        index = self._index
        fields = (leased.queue, piece.partition(index), piece.offsets[index], piece.attempt(index), leased.nonce)
        return _receipt_of(fields)

    @property
    def pushed_at(self) -> datetime:
        return to_datetime(self._piece.pushed(self._index))

    @property
    def expires_at(self) -> datetime:
        """When the lease ends; `extend` changes it."""
        return to_datetime(self._leased.expires_micros)

    @property
    def _row(self) -> int:
        return self._piece.row(self._index)

    @property
    def _batch(self) -> Batch:
        batch: Batch = self._piece.batch
        return batch

    def __repr__(self) -> str:
        return f"<Delivery {self.id} attempt {self.attempt}, {len(self.payload)} bytes>"


L = TypeVar("L", bound="BaseLeased[Any]")


class BaseLeasedQueues(Sequence[D], Generic[D, L]):
    """The deliveries of a lease over several queues. `leases` has one lease for each queue that had messages."""

    __slots__ = ("leases", "session")

    def __init__(self, session: Any, leases: Sequence[L]) -> None:
        self.session = session
        self.leases = leases

    def __len__(self) -> int:
        return sum(map(len, self.leases))

    def __iter__(self) -> Iterator[D]:
        for lease in self.leases:
            yield from lease

    @overload
    def __getitem__(self, index: int) -> D: ...

    @overload
    def __getitem__(self, index: slice) -> list[D]: ...

    def __getitem__(self, index: int | slice) -> D | list[D]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        for lease in self.leases:
            if 0 <= place < len(lease):
                delivery: D = lease[place]
                return delivery
            place -= len(lease)
        raise IndexError(f"delivery {index} of {len(self)}")

    def payloads(self) -> list[bytes]:
        """All payloads, in order."""
        return [payload for lease in self.leases for payload in lease.payloads()]

    @property
    def batch_max(self) -> int:
        """The number of messages to lease at a time, from the options of the queues; 0 means any number."""
        return min((lease.batch_max for lease in self.leases if lease.batch_max), default=0)

    def __repr__(self) -> str:
        return f"<LeasedQueues {len(self)} of {len(self.leases)} queues>"


class BaseLeased(Sequence[D], Generic[D]):
    """The deliveries of one lease. Payloads are read from their batches during iteration."""

    __slots__ = (
        "_count", "_pieces", "_pieces_loaded", "batch_max", "expires_micros", "group", "lease_seconds", "nonce",
        "queue", "session",
    )  # fmt: skip

    _delivery: type[D]

    def __init__(self, session: Any, reply: LeaseReply) -> None:
        self.session = session
        self.queue = reply.queue
        self.group = reply.group
        self.nonce = reply.nonce
        self.expires_micros = reply.expires_at
        self.lease_seconds = reply.lease_seconds
        self.batch_max = reply.batch_max
        self._count = reply.count
        self._pieces = reply.pieces
        self._pieces_loaded = False

    @property
    def pieces(self) -> Sequence[Piece]:
        """The rows behind the deliveries. Rows in segments are loaded on first access."""
        if not self._pieces_loaded:
            loaded = self.session.loaded(self._pieces)
            if loaded is not self._pieces:  # retention may have been quicker with some
                self._count = sum(len(piece.offsets) for piece in loaded)
            self._pieces = loaded
            self._pieces_loaded = True
        return self._pieces

    @property
    def lease_id(self) -> str:
        """The id of the lease; empty if nothing was leased."""
        return f"{self.nonce:016x}" if self.nonce else ""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[D]:
        make = self._delivery
        for piece in self.pieces:
            for index, payload in enumerate(piece.payloads()):
                yield make(self, piece, index, payload)

    @overload
    def __getitem__(self, index: int) -> D: ...

    @overload
    def __getitem__(self, index: slice) -> list[D]: ...

    def __getitem__(self, index: int | slice) -> D | list[D]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        for piece in self.pieces:
            if 0 <= place < len(piece.offsets):
                return self._delivery(self, piece, place, piece.batch.payload(piece.row(place)))
            place -= len(piece.offsets)
        raise IndexError(f"delivery {index} of {len(self)}")

    def payloads(self) -> list[bytes]:
        """All payloads, in order: the fastest way through a large lease."""
        return [payload for piece in self.pieces for payload in piece.payloads()]

    def __repr__(self) -> str:
        return f"<Leased {len(self)} of {self.queue!r} for group {self.group!r}>"


BATCH_MAX: Final = 64
WORKED_OFF_US: Final = 1_000_000


class BatchSize:
    """How many messages a consumer takes at a time: `batch`, or as many as suit it when that is None.

    It begins with one and takes twice as many while a lease is worked off within a second: then the way to the broker
    counts, not the work. A lease that takes longer brings it back to one, so that slow work is shared among consumers.
    Where order, limits or a single attempt make every message count by itself, it is always one: the reply of a lease
    says so.
    """

    def __init__(self, batch: int | None, clock: Clock) -> None:
        self._adapts = batch is None
        self._clock = clock
        self._since = 0
        self.size = 1 if batch is None else batch

    def begin(self) -> None:
        """A lease is about to be worked off."""
        if self._adapts:
            self._since = self._clock.monotonic()

    def end(self, leased: BaseLeased[Any] | BaseLeasedQueues[Any, Any]) -> None:
        """It is."""
        if self._adapts:
            is_quick = self._clock.monotonic() - self._since <= WORKED_OFF_US
            self.size = min(self.size * 2, leased.batch_max or BATCH_MAX) if is_quick else 1


PAGE: Final = 1_000
Edit = Callable[[Message], Message]
Chunk = tuple[list[MessageId], Batch]


def next_page(filter: LetterFilter, letters: list[Message]) -> LetterFilter | None:
    """What to list next, after `letters`; None at the limit. A reply holds what fits: only an empty one is last."""
    left = filter.limit - len(letters)
    if left <= 0:
        return None
    start = letters[-1].id.offset + 1 if letters and letters[-1].id is not None else filter.from_offset
    return msgspec.structs.replace(filter, limit=min(PAGE, left), from_offset=start)


def edited(letters: list[Message], edit: Edit, per_second: float | None) -> list[Chunk]:
    """The messages that take the place of dead letters, in chunks of one frame each.

    All of them are edited before any is replaced, so an edit that fails changes nothing.
    """
    gap_seconds = 0.0 if per_second is None else 1 / per_second
    changed = [
        replace(edit(letter), id=None, partition=None, dedup_key=None, delay=index * gap_seconds)
        for index, letter in enumerate(letters)
    ]
    ids = [letter.id for letter in letters if letter.id is not None]
    sizes = [len(message.payload) if isinstance(message.payload, bytes | str) else 0 for message in changed]
    return [(ids[first:end], Batch.build(changed[first:end])) for first, end in push_ranges(sizes, PAGE)]


OPTIONS: Final = ("dry_run", "rate", "canary", "as_of", "operation_id")


def bulk_options(given: Mapping[str, Any]) -> tuple[str, BulkOptions]:
    """The id and the options of an operation on many things. It has an id, so that the request may be sent again."""
    for name in given:
        if name not in OPTIONS:
            raise UnknownOption(f"{name!r} is not an option of an operation", hint=suggestion(name, OPTIONS))
    options = {name: value for name, value in given.items() if name != "operation_id"}
    id = given.get("operation_id")
    return token_hex(6) if id is None or id == "" else id, BulkOptions(**options)


FILTERS: Final = ("ids", "group", "reason", "error_contains", "key", "since", "until", "signature")


def split(given: Mapping[str, Any], limit: int) -> tuple[LetterFilter, str, BulkOptions]:
    """A filter of dead letters, and the id and the options of an operation on them."""
    filters = {name: value for name, value in given.items() if name in FILTERS}
    id, options = bulk_options({name: value for name, value in given.items() if name not in FILTERS})
    return validation.letter_filter(validation.redrive_limit(limit), **filters), id, options


class Deadline:
    """How long to wait for a result, in all and at a time: one request waits a limited time."""

    def __init__(self, clock: Clock, timeout: float | None) -> None:
        self._clock = clock
        self._at = None
        if timeout is not None:
            self._at = clock.monotonic() + round(check_seconds(timeout, "timeout") * 1_000_000)

    def left(self) -> float | None:
        return None if self._at is None else max(0.0, (self._at - self._clock.monotonic()) / 1e6)

    def slice(self) -> float:
        left = self.left()
        return limits.wait_seconds_max if left is None else min(limits.wait_seconds_max, left)

    def is_over(self) -> bool:
        return self.left() == 0


PUSH_OPTIONS: Final = (
    "key", "priority", "delay", "deliver_at", "ttl", "headers", "dedup_key", "partition", "max_attempts", "trace",
    "content_type",
)  # fmt: skip


class BaseTransaction:
    """Operations that are gathered, then done in one frame when they are committed.

    An error in the block means that nothing happens at all.
    """

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._over = False
        self.ids: list[list[MessageId]] = []  # of each push, once committed

    def push(self, queue: str, payload: Any, **options: Any) -> None:
        """Push one message when the transaction commits; options as in `Queue.push`."""
        for name in options:
            if name not in PUSH_OPTIONS:
                raise UnknownOption(f"{name!r} is not an option of a push", hint=suggestion(name, PUSH_OPTIONS))
        self.push_many(queue, [Message(payload=payload, **options)])

    def push_many(self, queue: str, items: Any) -> None:
        """Push several messages to one queue when the transaction commits."""
        batch = Batch.build(items)
        self._add(PushOperation(check_name(queue), batch, batch.partitions))

    def ack(self, delivery: BaseDelivery) -> None:
        """Acknowledge a delivery when the transaction commits."""
        self._settle(delivery, validation.settling(Outcome.ACKED))

    def nack(self, delivery: BaseDelivery, delay: float | None = None, error: str = "") -> None:
        """Report failure of a delivery when the transaction commits."""
        self._settle(delivery, validation.settling(Outcome.RETRIED, delay, error))

    def reject(self, delivery: BaseDelivery, reason: str = "") -> None:
        """Move the message to the dead-letter queue when the transaction commits."""
        self._settle(delivery, validation.settling(Outcome.REJECTED, error=reason))

    def release(self, delivery: BaseDelivery) -> None:
        """Return the message to the queue, uncounted, when the transaction commits."""
        self._settle(delivery, validation.settling(Outcome.RELEASED))

    def _settle(self, delivery: BaseDelivery, how: Settling) -> None:
        proof = getattr(delivery, "proof", None)
        if not isinstance(proof, Receipt):
            raise InvalidField(f"delivery: {shown(delivery)} is not a delivery", hint="pass what lease() returned")
        self._add(SettleOperation(proof, how))

    def _add(self, operation: Operation) -> None:
        if self._over:
            raise Closed("this transaction has ended", hint="start a new one with transaction()")
        self._operations.append(operation)
