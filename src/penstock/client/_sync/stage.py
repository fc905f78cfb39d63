# Generated from penstock/client/_async/stage.py by `make generate`. Do not edit.
"""Runs a stage: lease, fold, and one transaction that acknowledges, emits and stores the state.

An instance is a member of the group of the stage. It owns partitions of the source, and the partitions with the same
names in the queue that stores the state, which it reads when it gets them. An instance that loses a partition also
loses its leases: a transaction of an instance that was removed is refused as a whole, because it acknowledges what it
no longer holds. The instance then drops its state, joins again and reads the state again. Closing the windows of a
silent partition acknowledges nothing, so that transaction states that the partition must belong to this member.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

from penstock import limits
from penstock import operations as ops
from penstock.batch import Batch
from penstock.client._sync.consumer import Subscription
from penstock.client._sync.delivery import Leased
from penstock.client.member import MemberState
from penstock.client.session import Session
from penstock.client.thread_runtime import Event
from penstock.errors import InvalidField, LeaseLost, MemberFenced, QueueExists
from penstock.model import DEFAULT_GROUP, Message, Outcome, Position, Receipt
from penstock.replies import Piece
from penstock.requests import ACK, RELEASE, Operation, OwnOperation, PushOperation, SettleOperation, Settling
from penstock.streams import Element, Output, PartitionFold, Stage, StageReport, messages_of, value_of

READ_MESSAGES: Final = 1_000  # of a queue of states, at a time
ERROR_LENGTH_MAX: Final = 1_000
LOOK_SECONDS_MAX: Final = 5.0
STATE_OPTIONS: Final[dict[str, Any]] = {"compaction": "latest", "compaction_drops_unread": True}


class StageRunner:
    """One instance of a stage."""

    def __init__(self, session: Session, stage: Stage[Any]) -> None:
        self._session = session
        self._stage = stage
        self._folds: dict[str, PartitionFold] = {}  # by partition
        self._report = StageReport()

    def run(
        self,
        *,
        member: str | None = None,
        batch: int = 1_000,
        start: Position = "earliest",
        lease_seconds: float | None = None,
        session_seconds: float = limits.session_seconds_default,
        idle_seconds: float | None = None,
        stop: Event | None = None,
    ) -> StageReport:
        """Process messages until `stop` is set or none has arrived for `idle_seconds`. Returns a report.

        A transaction contains at most `batch` messages. `start` is the starting position if the group is new. Run the
        stage in several processes to share the partitions of the source among them.
        """
        self._prepare()
        stage = self._stage
        while True:
            position = MemberState(
                stage.stream.source, stage.name, member, start, batch, lease_seconds, session_seconds
            )
            subscription = Subscription(self._session, position, self._assigned, self._revoked, stop)
            try:
                with closing(subscription.leases(idle_seconds, self._look_seconds)) as leases:
                    for leased in leases:
                        if leased:
                            self._process(leased)
                        self._close_silent(position)
            except (LeaseLost, MemberFenced):
                self._report.restarts += 1
            else:
                return self._report
            finally:
                self._folds.clear()

    @property
    def _look_seconds(self) -> float | None:
        """How often to look for partitions that have fallen silent; None when their windows wait."""
        window = self._stage.stream.window
        return None if window is None or not window.idle_us else min(LOOK_SECONDS_MAX, window.idle_us / 4e6)

    def _close_silent(self, position: MemberState) -> None:
        """Close the windows of partitions that have fallen silent, while they are this instance's."""
        window, seen = self._stage.stream.window, position.seen
        if window is None or not window.idle_us or seen is None:
            return
        now = self._session.clock.now()
        for partition, fold in list(self._folds.items()):
            outputs = fold.close_silent(window, now)
            if not outputs:
                continue
            own = OwnOperation(position.queue, position.group, position.member, seen.generation, (partition,))
            pushes = _pushes(self._stage.sink, messages_of(self._stage, outputs))
            states = _pushes(self._stage.state_queue, fold.changes(), partition)
            self._session.transact([own, *pushes, *states])
            self._report.outputs += len(outputs)
            self._report.transactions += 1

    def _prepare(self) -> None:
        """The queue of states has the partitions of the source."""
        stage = self._stage
        if stage.stream.fold is None:
            return
        source = self._session.execute(ops.GetOptions(stage.stream.source))
        if stage.stream.key is not None and source.partitions != 1:
            raise InvalidField(
                f"key_by: queue {stage.stream.source!r} has several partitions, so a key may be in more than one",
                hint="first run a stage with key_by(…).to(…), then one that starts from the queue it writes to",
            )
        options = {**STATE_OPTIONS, "partitions": source.partitions}
        try:
            self._session.execute(ops.CreateQueue(stage.state_queue, options))
        except QueueExists:
            known = self._session.execute(ops.GetOptions(stage.state_queue))
            if known.partitions != source.partitions:
                raise InvalidField(
                    f"name: stage {stage.name!r} was started when its source had {known.partitions} partitions",
                    hint="keys have since moved to other partitions: run it under another name",
                ) from None

    # state

    def _assigned(self, partitions: list[str]) -> None:
        for partition in partitions:
            self._folds[partition] = self._restored(partition)

    def _revoked(self, partitions: list[str]) -> None:
        for partition in partitions:
            self._folds.pop(partition, None)

    def _restored(self, partition: str) -> PartitionFold:
        """What is stored of a partition."""
        fold, stage, offset = PartitionFold(self._stage), self._stage, 0
        if stage.stream.fold is None:
            return fold
        if partition in self._state_partitions():
            while messages := self._session.execute(
                ops.Read(stage.state_queue, partition, offset, None, READ_MESSAGES)
            ):
                for message in messages:
                    fold.restore(message.key, message.json())
                assert messages[-1].id is not None
                offset = messages[-1].id.offset + 1
            # Nobody consumes states: what is read here need not wait for a consumer.
            self._session.execute(ops.Seek(stage.state_queue, DEFAULT_GROUP, "latest", partition))
        return fold

    def _state_partitions(self) -> set[str]:
        groups = self._session.execute(ops.Groups(self._stage.state_queue))
        return {lag.partition for lag in groups[DEFAULT_GROUP]}

    # messages

    def _process(self, leased: Leased) -> None:
        """One lease in one transaction."""
        operations: list[Operation] = []
        outputs: list[Output] = []
        dropped: list[str] = []
        done = 0
        for partition, deliveries in by_partition(leased).items():
            fold = self._folds.get(partition)
            if fold is None:
                fold = self._folds[partition] = self._restored(partition)
            try:
                reader = Elements(deliveries)
                late = fold.late
                new = fold.feed(reader)
                messages = messages_of(self._stage, new)
            except Exception as error:  # noqa: BLE001 - of a function of the user: the message is retried, and may die
                del self._folds[partition]  # a function may have changed a state before it failed
                operations += _failed(leased, deliveries, max(0, reader.position), error)
                self._report.failed += 1
                continue
            outputs += new
            dropped.append(partition)
            done += len(deliveries)
            self._report.late += fold.late - late
            operations += [SettleOperation(_receipt(leased, delivery), ACK) for delivery in deliveries]
            operations += _pushes(self._stage.sink, messages)
            operations += _pushes(self._stage.state_queue, fold.changes(), partition)
        self._session.transact(operations)
        self._report.messages += done
        self._report.outputs += len(outputs)
        self._report.transactions += 1


Delivery = tuple[Piece, int, bytes]  # a piece of a lease, the place in it, and the payload


class Elements:
    """The messages of some deliveries; `position` is the one that is at work."""

    def __init__(self, deliveries: list[Delivery]) -> None:
        self._deliveries = deliveries
        self.position = -1

    def __iter__(self) -> Any:
        for position, (piece, index, payload) in enumerate(self._deliveries):
            self.position = position
            row, batch = piece.row(index), piece.batch
            yield Element(value_of(payload, batch.content_type_of(row)), batch.key(row), piece.pushed(index))


def by_partition(leased: Leased) -> dict[str, list[Delivery]]:
    """The deliveries of each partition, in order of offset."""
    found: dict[str, list[Delivery]] = {}
    for piece in leased.pieces:
        for index, payload in enumerate(piece.payloads()):
            found.setdefault(piece.partition(index), []).append((piece, index, payload))
    for deliveries in found.values():
        deliveries.sort(key=_offset)
    return found


def _offset(delivery: Delivery) -> int:
    piece, index, _ = delivery
    return piece.offsets[index]


def _receipt(leased: Leased, delivery: Delivery) -> Receipt:
    piece, index, _ = delivery
    return Receipt(leased.queue, piece.partition(index), piece.offsets[index], piece.attempt(index), leased.nonce)


def _failed(leased: Leased, deliveries: list[Delivery], position: int, error: Exception) -> list[Operation]:
    """The message that failed is retried; the others of its partition are given back, uncounted."""
    text = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]
    nack = Settling(Outcome.RETRIED, None, text)
    return [
        SettleOperation(_receipt(leased, delivery), nack if number == position else RELEASE)
        for number, delivery in enumerate(deliveries)
    ]


def _pushes(queue: str, messages: list[Message], partition: str | None = None) -> list[Operation]:
    return [PushOperation(queue, Batch.build(messages), partition)] if messages else []
