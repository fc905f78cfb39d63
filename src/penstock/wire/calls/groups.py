"""Operations on groups and their members."""

from __future__ import annotations

import msgspec

from penstock.arguments import partition, position
from penstock.requests import check_session_seconds
from penstock.wire.calls.arguments import Arguments
from penstock.wire.requests import PositionOnWire


class CreateGroup(Arguments):
    """An independent reader of a queue."""

    queue: str
    group: str
    start: PositionOnWire = "earliest"
    observes: bool = False

    def check(self) -> None:
        super().check()
        position(self.start, "start")


class DeleteGroup(Arguments):
    """Forget a group."""

    queue: str
    group: str


class Seek(Arguments):
    """Move a group."""

    queue: str
    group: str
    to: PositionOnWire
    partition: int | str | None = None

    def check(self) -> None:
        super().check()
        position(self.to, "to")
        if self.partition is not None:
            partition(self.partition)


class Groups(Arguments):
    """Where each group of a queue stands in each partition."""

    queue: str


class Join(Arguments):
    """Become a member of a group."""

    queue: str
    group: str
    member: str
    session_seconds: float = 10.0
    start: PositionOnWire | None = None

    def check(self) -> None:
        super().check()
        check_session_seconds(self.session_seconds)
        if self.start is not None:
            position(self.start, "start")


class Heartbeat(Arguments):
    """Stay a member; `held` names the partitions that the member still works on."""

    queue: str
    group: str
    member: str
    generation: int
    held: list[str] = msgspec.field(default_factory=list)


class Leave(Arguments):
    """Leave a group."""

    queue: str
    group: str
    member: str
    generation: int


class Members(Arguments):
    """Who is in a group."""

    queue: str
    group: str
