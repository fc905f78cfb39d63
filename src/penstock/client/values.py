"""What the faces hand out, without I/O: deliveries of a lease, made when they are read, and the result of a push."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Final, Generic, TypeVar, overload

import msgspec

from penstock.batch import Batch
from penstock.limits import priority_default
from penstock.model import ContentType, MessageId, Outcome, Receipt, to_datetime
from penstock.replies import LeaseReply, Piece, PushReply
from penstock.requests import Settling

_receipt_of: Final[Callable[[tuple[str, str, int, int, int]], Receipt]] = partial(tuple.__new__, Receipt)  # hot
ACK: Final = Settling(Outcome.ACKED)
RELEASE: Final = Settling(Outcome.RELEASED)
LEFT: Final = Settling(Outcome.RETRIED, None, "the consumer left its loop before this delivery was acknowledged")


class PushResult:
    """Ids are made when asked for. A duplicate has the id of the message that came first."""

    def __init__(self, reply: PushReply) -> None:
        self._reply = reply

    def __len__(self) -> int:
        return self._reply.count

    @cached_property
    def ids(self) -> list[MessageId]:
        """One id per item, in order."""
        return self._reply.ids()

    @property
    def duplicates(self) -> list[int]:
        """Which items were duplicates: their places in the list that was pushed."""
        return sorted(self._reply.duplicates)

    @property
    def statuses(self) -> list[str]:
        """`queued` or `duplicate` for each item."""
        return ["duplicate" if row in self._reply.duplicates else "queued" for row in range(self._reply.count)]

    def __repr__(self) -> str:
        return f"<PushResult {len(self)} items, {len(self._reply.duplicates)} duplicates>"


D = TypeVar("D", bound="BaseDelivery")


class BaseDelivery:
    """One handing of one message to one consumer; how to settle it is up to the face."""

    __slots__ = ("_index", "_leased", "_piece", "payload", "settled")

    payload: bytes

    def __init__(self, leased: BaseLeased[Any], piece: Piece, index: int, payload: bytes) -> None:
        self._leased: Any = leased
        self._piece = piece
        self._index = index
        self.payload = payload
        self.settled = False

    def json(self) -> Any:
        """The payload, decoded as JSON."""
        return msgspec.json.decode(self.payload)

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
    def priority(self) -> int:
        column = self._batch.priority
        return priority_default if column is None else int(column[self._row])

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return self._piece.attempt(self._index)

    @property
    def receipt(self) -> str:
        """Proof of this delivery, as text that travels."""
        return str(self.proof)

    @property
    def proof(self) -> Receipt:
        """Proof of this delivery."""
        leased, piece = self._leased, self._piece
        index = self._index
        fields = (leased.queue, piece.partition(index), piece.offsets[index], piece.attempt(index), leased.nonce)
        return _receipt_of(fields)

    @property
    def pushed_at(self) -> datetime:
        return to_datetime(self._piece.pushed(self._index))

    @property
    def expires_at(self) -> datetime:
        """When the lease ends; `extend` moves it."""
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


class BaseLeased(Sequence[D], Generic[D]):
    """The deliveries of one lease; payloads are cut out of their batches on the way through."""

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
        """The rows behind the deliveries; those in segments are fetched when first looked at."""
        if not self._pieces_loaded:
            self._pieces = self.session.loaded(self._pieces)
            self._pieces_loaded = True
        return self._pieces

    @property
    def lease_id(self) -> str:
        """The name of the lease; empty when nothing was leased."""
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
        """All payloads, in order: the quickest way through a large lease."""
        return [payload for piece in self.pieces for payload in piece.payloads()]

    def __repr__(self) -> str:
        return f"<Leased {len(self)} of {self.queue!r} for group {self.group!r}>"
