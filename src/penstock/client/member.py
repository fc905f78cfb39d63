"""The place of a member in its group, as the member knows it. No I/O: the blocking and the asyncio face drive it.

`membership` is the last reply that any thread received; None when the group has gone on without us.
`mine` is what the consumer has taken on and not released yet: it follows between two deliveries, never during one.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock import validation
from penstock.client.values import BaseDelivery
from penstock.model import Position, check_name
from penstock.replies import Membership
from penstock.requests import LeaseRequest, check_session_seconds

LABEL_LENGTH_MAX: Final = 115  # so that the whole of an id is a name, of up to 128


class MemberState:
    """The membership of one consumer in a group, as last received, and the partitions that it has taken on."""

    def __init__(
        self,
        queue: str,
        group: str,
        member: str | None,
        start: Position | None,
        batch: int,
        lease_seconds: float | None,
        session_seconds: float,
    ) -> None:
        self.queue = queue
        self.group = check_name(group, "group")
        self._label = "member" if member is None else check_name(member, "member")
        self.member = self._unique_id()
        self.session_seconds = check_session_seconds(session_seconds)
        self.start = (
            None if start is None else validation.wire_position(start, "start")
        )  # of the group, until it is joined
        self.membership: Membership | None = None
        self.seen: Membership | None = None  # the last that the consumer has followed
        self.mine: set[str] = set()
        self._request = validation.lease_request(batch, lease_seconds, None, None, False)

    def renew(self) -> None:
        """Become another member: the group has gone on without this one, and its place may be somebody else's."""
        self.member = self._unique_id()

    def _unique_id(self) -> str:
        # Two processes of one name must not be one member: each would take over from the other for ever.
        return check_name(f"{self._label[:LABEL_LENGTH_MAX]}-{uuid.uuid4().hex[:12]}", "member")

    def request(self) -> LeaseRequest:
        """A lease of what the consumer has taken on. Later changes follow between two deliveries."""
        seen = self.seen
        generation = seen.generation if seen else 0
        return msgspec.structs.replace(self._request, member=self.member, consumer=self.member, generation=generation)

    def is_behind(self) -> bool:
        """Whether there is something that the consumer has not followed."""
        return self.membership is None or self.membership is not self.seen

    def gone(self, membership: Membership | None) -> list[str]:
        """Partitions to release."""
        return sorted(self.mine.difference(membership.assigned if membership is not None else ()))

    def gained(self, membership: Membership) -> list[str]:
        """Partitions to take on."""
        return [partition for partition in membership.assigned if partition not in self.mine]

    def held(self) -> list[str]:
        """Partitions that are being revoked and not released yet."""
        membership = self.membership
        if membership is None:
            return []
        return [partition for partition in membership.revoking if partition in self.mine]


def drawn(pending: deque[BaseDelivery], partitions: Sequence[str]) -> list[BaseDelivery]:
    """Take the deliveries of some partitions out of those that wait for their turn."""
    leaving = set(partitions)
    deliveries = [delivery for delivery in pending if delivery.partition in leaving]
    if deliveries:
        staying = [delivery for delivery in pending if delivery.partition not in leaving]
        pending.clear()
        pending.extend(staying)
    return deliveries
