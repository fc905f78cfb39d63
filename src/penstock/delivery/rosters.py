"""The groups of a shard that have members, and what membership means for a lease.

While a group has members its partitions are theirs: a member leases from those it owns, and a lease by anybody else is
refused. A group without members is open to all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from penstock.delivery.group import Group
from penstock.delivery.log import FOREVER
from penstock.delivery.membership import Roster
from penstock.delivery.progress import Progress
from penstock.errors import MemberFenced
from penstock.requests import LeaseRequest


class Rosters:
    """All of them; `next_at` is on the monotonic clock, and may be earlier than need be, never later."""

    def __init__(self) -> None:
        self._groups: dict[Group, Roster] = {}
        self._generation = 0  # the highest that any of them had when its last member left
        self.next_at = FOREVER

    def of(self, group: Group, now: int) -> Roster:
        """The roster of a group, which is begun when there is none. `now` is wall time."""
        if group.roster is None:
            known = (roster.generation for roster in self._groups.values())
            group.roster = Roster(max(now, self._generation, *known), len(group.queue.partitions))
        self._groups[group] = group.roster
        return group.roster

    def groups(self) -> list[tuple[Group, Roster]]:
        """Groups with members. The others are not thought of again until somebody joins them."""
        for group, roster in list(self._groups.items()):
            if not roster.seats:
                self._generation = max(self._generation, roster.generation)
                del self._groups[group]
        return list(self._groups.items())

    def look(self) -> None:
        """Find out when there is something to do next."""
        instants = (roster.next_at() for _, roster in self.groups())
        self.next_at = min((instant for instant in instants if instant is not None), default=FOREVER)


class Owned(Collection[Progress]):
    """What a member owns, as a lease asks for it."""

    def __init__(self, group: Group, numbers: Collection[int]) -> None:
        self._group = group
        self._numbers = numbers

    def __contains__(self, progress: object) -> bool:
        return isinstance(progress, Progress) and progress.partition.id in self._numbers

    def __iter__(self) -> Iterator[Progress]:
        return (self._group.progress[number] for number in self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def within_membership(
    group: Group, request: LeaseRequest, chosen: Collection[Progress] | None
) -> Collection[Progress] | None:
    """The partitions that a lease may take from: the chosen ones, as far as membership allows."""
    roster = group.roster
    if not request.member:
        if roster is not None and roster.seats:
            raise MemberFenced(
                f"group {group.name!r} of queue {group.queue.name!r} has members, and its partitions are theirs",
                hint="join the group, or lease for a group of your own",
            )
        return chosen
    if roster is None:
        raise MemberFenced(f"group {group.name!r} of queue {group.queue.name!r} has no member {request.member!r}")
    owned = Owned(group, roster.owned_by(request.member, request.generation))
    if chosen is None:
        return owned
    foreign = [progress.partition.name for progress in chosen if progress not in owned]
    if foreign:
        raise MemberFenced(f"member {request.member!r} does not own partition {foreign[0]!r}")
    return chosen
