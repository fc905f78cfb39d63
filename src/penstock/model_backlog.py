"""What waits in a queue, and why, as it is shown: counted reasons, keys with their backlog, the account of a queue."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from penstock.model import MessageId, Reason
from penstock.model_tasks import TaskState

HOLDERS_SHOWN: Final = 10


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer that holds messages."""

    consumer: str
    messages: int
    since: datetime
    expires_at: datetime


class WaitReason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why messages of a group are not delivered, and how many messages it applies to.

    The codes are those of `why` for a message. In addition, `blocked` counts tasks that wait for their parents, and
    `other` sums up the reasons that are not listed. `until` is when the first of the messages can continue without
    intervention; `since` is when the current holders leased theirs.
    """

    code: str
    count: int
    text: str = ""
    key: str | None = None
    in_flight: int | None = None
    limit: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    eta_seconds: float | None = None
    holders: tuple[Holder, ...] = ()
    sample: MessageId | None = None  # one of the messages


class GroupWait(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting messages of one group. `open` counts all unsettled messages, including leased ones.

    `examined` messages were looked at, oldest first. `is_complete` says whether that is all of them.
    """

    group: str
    open: int
    leased: int
    waiting: int
    settled_per_second: float | None = None  # over the last minute
    eta_seconds: float | None = None  # until what is open now is settled at this rate
    examined: int
    is_complete: bool
    reasons: list[WaitReason]


class QueueWait(msgspec.Struct, frozen=True, kw_only=True):
    """Why the messages of a queue are waiting, for each group."""

    queue: str
    at: datetime
    groups: list[GroupWait]

    def without_keys(self) -> QueueWait:
        """For who may monitor the queue and not read it."""
        groups = [
            msgspec.structs.replace(group, reasons=[_without_key(reason) for reason in group.reasons])
            for group in self.groups
        ]
        return msgspec.structs.replace(self, groups=groups)


class KeyBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """One key in one group. `backlog` counts its messages that are neither settled nor in flight.

    `waiting` of them wait for their next attempt. `code` says what blocks the others; it is empty if nothing does.
    """

    key: str
    backlog: int
    in_flight: int
    waiting: int
    code: str
    oldest_at: datetime
    oldest_id: MessageId
    in_flight_max: int | None = None
    rate_per_second: float | None = None
    holders: tuple[Holder, ...] = ()


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of unsettled messages, those with the largest backlog first.

    `distinct` is the number of keys among the `examined` messages; `without_key` is the number of messages without a
    key.
    """

    queue: str
    group: str
    at: datetime
    keys: list[KeyBacklog]
    distinct: int
    without_key: int
    examined: int
    is_complete: bool


class ParentView(msgspec.Struct, frozen=True, kw_only=True):
    """A task that another task waits for."""

    task_id: str
    task_type: str
    state: TaskState


class TaskWait(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task is not running, and the parents that it waits for."""

    task_id: str
    state: TaskState
    queue: str
    message_id: str
    reasons: list[Reason]
    parents: list[ParentView] = []


class GroupAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one group: accepted = acked + dead + dropped + open. `difference` is what is missing."""

    group: str
    accepted: int
    acked: int
    dead: int
    dropped: int
    open: int

    @property
    def difference(self) -> int:
        return self.accepted - self.acked - self.dead - self.dropped - self.open


class QueueAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Whether every accepted message is accounted for.

    `open` is counted from the state of each message; the others are counters.
    """

    queue: str
    at: datetime
    is_balanced: bool
    groups: list[GroupAccount]


# the sentences


def explained(reason: WaitReason) -> WaitReason:
    """A reason with its sentence, where it has none yet."""
    return reason if reason.text else msgspec.structs.replace(reason, text=_sentence(reason))


def _sentence(reason: WaitReason) -> str:
    many = f"{reason.count:,} wait" if reason.count != 1 else "1 waits"
    sentence = _SENTENCES.get(reason.code, "")
    key = "a key" if reason.key is None else f"key {reason.key!r}"
    until = "" if reason.until is None else f"; the first continues at {reason.until.isoformat()}"
    if reason.code not in KEYED:
        return f"{many} {sentence}{until}"
    if reason.code == "key_rate":
        return f"{many} for {key}, which has used up its rate{until}"
    held = "" if not reason.in_flight else f": {reason.in_flight:,} in flight"
    if reason.in_flight and reason.limit is not None:
        held = f": {reason.in_flight:,} of {reason.limit:,} in flight"
    since = "" if reason.since is None else f" since {reason.since.isoformat()}"
    names = ", ".join(sorted({holder.consumer or "an unnamed consumer" for holder in reason.holders})[:3])
    return f"{many} for {key}{held}{since}" + (f", held by {names}" if names else "") + until


KEYED: Final = frozenset({"held_by_key", "limited_by_key", "key_rate"})  # reasons that are counted for each key
_SENTENCES: Final = {
    "not_due": "until they are due",
    "window": "until their partition is quiet",
    "retry": "for their next attempt",
    "held_by_order": "for an earlier message of their partition",
    "queue_rate": "because the group has used up its rate",
    "rebalancing": "while their partition moves to another member",
    "owned": "for the member that owns their partition",
    "in_line": "ready for a consumer",
    "blocked": "for their parents",
    "leased": "while a consumer holds them",
    "other": "for other reasons",
}


def _without_key(reason: WaitReason) -> WaitReason:
    if reason.key is None:
        return reason
    return explained(msgspec.structs.replace(reason, key=None, text=""))
