"""Steps of operations on dead letters: sending them back, as they are or edited, and throwing them away.

A step looks at the next letters without the lock, and deals with those that match in one frame, which also says how
far the operation is. A letter that somebody has dealt with meanwhile is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from penstock.batch import Batch
from penstock.delivery import admin
from penstock.delivery.entries import Entry, OperationSet, Settled
from penstock.delivery.log import Queue
from penstock.delivery.phases import SETTLED
from penstock.delivery.progress import span_of
from penstock.delivery.push import decide_push
from penstock.delivery.settle import DeadLetter, decide_redrive, origin_of
from penstock.errors import InvalidField, MessageNotFound, PenstockError
from penstock.model import DLQ_SUFFIX, Message, Outcome
from penstock.model_letters import DEAD_HEADERS, LetterFilter, payload_bytes
from penstock.model_tasks import OperationAction
from penstock.shard import dead_letters
from penstock.shard.bulk.book import (
    BYTES_MAX,
    SAMPLES,
    SLICES_MAX,
    Counted,
    Plan,
    Stepped,
    frozen_until,
    plan_of,
    progressed,
    running_named,
)

if TYPE_CHECKING:
    from penstock.shard.shard import Shard

_parts: Final = msgspec.json.Decoder(dict[str, Raw]).decode
Failures = list[tuple[str, PenstockError]]


class LetterWork:
    """Works on operations on dead letters."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._seen: dict[str, int] = {}  # how far an operation has looked since its last step

    def count(self, operation: OperationSet, until: int | None = None) -> Counted:
        """How many letters match."""
        plan, filter, shard = plan_of(operation), frozen_filter(operation), self._shard
        matched = 0
        samples: list[str] = []
        position, end = filter.from_offset, operation.ends[0]
        while position < end and matched < filter.limit:
            if until is not None and shard.clock.monotonic() >= until:
                return Counted(matched, tuple(samples), is_exact=False)
            letters, position = dead_letters.some_letters(shard, plan.queue + DLQ_SUFFIX, position, end)
            for letter in letters:
                if filter.matches(letter):
                    matched += 1
                    if len(samples) < SAMPLES:
                        samples.append(str(letter.id))
        return Counted(min(matched, filter.limit), tuple(samples))

    def step(self, operation: OperationSet, room: int) -> Stepped:
        """Deal with the next letters that match."""
        filter = frozen_filter(operation)
        room = min(room, filter.limit - operation.done - operation.failed)
        if room <= 0:
            return Stepped(0, is_over=True)
        letters, position = self._next(operation, filter, room)
        is_last = position >= operation.ends[0]
        if not letters:
            self._seen[operation.operation_id] = position
            return Stepped(0, is_over=is_last)
        self._seen.pop(operation.operation_id, None)
        self._deal_with(operation, letters, position)
        return Stepped(len(letters), is_over=False)

    def _next(self, operation: OperationSet, filter: LetterFilter, room: int) -> tuple[list[Message], int]:
        """The next letters that match, and where to go on. Without an edit their payloads are not kept."""
        plan, end = plan_of(operation), operation.ends[0]
        start = filter.from_offset if operation.cursor is None else operation.cursor[1]
        position = max(start, self._seen.get(operation.operation_id, 0))
        chosen: list[Message] = []
        size = slices = 0
        while position < end and not chosen and slices < SLICES_MAX:
            letters, position = dead_letters.some_letters(self._shard, plan.queue + DLQ_SUFFIX, position, end)
            slices += 1
            for letter in letters:
                if not filter.matches(letter):
                    continue
                size += len(letter.payload) if plan.edit else 0
                chosen.append(letter if plan.edit else replace(letter, payload=b""))
                if len(chosen) == room or size >= BYTES_MAX:
                    assert letter.id is not None
                    return chosen, letter.id.offset + 1
        return chosen, position

    def _deal_with(self, operation: OperationSet, letters: Sequence[Message], position: int) -> None:
        plan, shard = plan_of(operation), self._shard
        failures: Failures = []
        edited = _edited(letters, plan.edit, failures) if plan.edit else {}
        if edited:
            shard.check_space()

        def decide(now: int) -> list[Entry]:
            known = running_named(shard, operation.operation_id)
            if known is None:
                return []
            dlq = admin.check_changeable(admin.queue_named(shard.core, plan.queue + DLQ_SUFFIX))
            open_letters = _open(dlq, letters)
            failed = list(failures)
            if operation.action == OperationAction.DISCARD:
                entries, done = _discarded(dlq, open_letters, now), len(open_letters)
            elif plan.edit:
                entries, done = _replaced(shard, plan, dlq, open_letters, edited, now)
            else:
                entries, done = _redriven(shard, dlq, open_letters, failed, now)
            return [*entries, progressed(known, now, done, failed, (0, position))]

        shard.change(decide)


def frozen_filter(operation: OperationSet) -> LetterFilter:
    """Which letters are meant: none that died after the moment at which the filter is meant."""
    filter = plan_of(operation).letters
    assert filter is not None
    return msgspec.structs.replace(filter, until=frozen_until(operation, filter.until, "until"))


def _open(dlq: Queue, letters: Iterable[Message]) -> list[Message]:
    """Those that nobody has dealt with meanwhile."""
    progress = dlq.groups[0].progress[0]
    return [letter for letter in letters if progress.state_of(_offset(letter)) != SETTLED]


def _offset(letter: Message) -> int:
    assert letter.id is not None
    return letter.id.offset


def _discarded(dlq: Queue, letters: Sequence[Message], now: int) -> list[Entry]:
    """Settled in every group of the dead letters that has not done so itself."""
    entries: list[Entry] = []
    for group in dlq.groups.values():
        progress = group.progress[0]
        offsets = [offset for offset in map(_offset, letters) if progress.state_of(offset) != SETTLED]
        if offsets:
            entries.append(Settled(dlq.id, group.id, int(Outcome.PURGED), now, 0, "", "", [span_of(0, offsets)]))
    return entries


def _redriven(
    shard: Shard, dlq: Queue, letters: Sequence[Message], failures: Failures, now: int
) -> tuple[list[Entry], int]:
    """Originals that are ready again; those that cannot go back are added to `failures`."""
    movable: list[DeadLetter] = []
    for message in letters:
        letter = dead_letters.letter_of(message)
        try:
            origin_of(shard.core, letter)
        except MessageNotFound as error:
            failures.append((str(message.id), error))
        else:
            movable.append(letter)
    return (decide_redrive(shard.core, dlq, movable, now, 0.0, 0.0) if movable else []), len(movable)


def _replaced(
    shard: Shard, plan: Plan, dlq: Queue, letters: Sequence[Message], edited: dict[int, Message], now: int
) -> tuple[list[Entry], int]:
    """New messages in place of letters."""
    chosen = [letter for letter in letters if _offset(letter) in edited]
    if not chosen:
        return [], 0
    target = admin.queue_named(shard.core, plan.queue)
    if target.is_shut:
        raise shard.core.pauses.refuse(target)
    batch = Batch.build([edited[_offset(letter)] for letter in chosen])
    is_named = target.options.partitions == "named"
    origins = [dead_letters.letter_of(letter).origin.partition for letter in chosen] if is_named else None
    decided = decide_push(shard.core, target, batch, now, origins)
    offsets = [_offset(letter) for letter in chosen]
    settled = Settled(dlq.id, 0, int(Outcome.REDRIVEN), now, 0, "", "", [span_of(0, offsets)])
    return [*decided.entries, settled], len(chosen)


def _edited(letters: Iterable[Message], edit: str, failures: Failures) -> dict[int, Message]:
    """By their offsets the messages that take the place of letters; those that cannot be edited are `failures`."""
    edited: dict[int, Message] = {}
    for letter in letters:
        try:
            payload = merged(payload_bytes(letter), edit.encode())
        except InvalidField as error:
            failures.append((str(letter.id), error))
            continue
        headers = {name: value for name, value in (letter.headers or {}).items() if name not in DEAD_HEADERS}
        edited[_offset(letter)] = Message(
            payload=payload,
            key=letter.key,
            priority=letter.priority,
            headers=headers or None,
            max_attempts=letter.max_attempts,
            trace=letter.trace,
            content_type=letter.content_type,
        )
    return edited


def merged(payload: bytes, patch: bytes) -> bytes:
    """A JSON object with a merge patch applied (RFC 7396). What the patch does not name stays byte for byte."""
    try:
        return bytes(_merged(Raw(payload), _parts(patch)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidField("payload: not a JSON object, so it cannot be edited") from None


def _merged(value: Raw, patch: dict[str, Raw]) -> Raw:
    members = _parts(value)
    for name, change in patch.items():
        text = bytes(change).strip()
        if text == b"null":
            members.pop(name, None)
        elif text.startswith(b"{"):
            before = members.get(name, Raw(b"{}"))
            is_object = bytes(before).lstrip().startswith(b"{")
            members[name] = _merged(before if is_object else Raw(b"{}"), _parts(change))
        else:
            members[name] = change
    return Raw(msgspec.json.encode(members))
