"""Membership of groups: join, heartbeat, leave, and who is in. See docs/groups.md.

Membership itself is volatile and is not journaled; the deliveries that a member loses with a partition are. Names of
members are those of `model.owned`: a principal cannot take over, or end, the member of another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from penstock import limits
from penstock.delivery import admin
from penstock.delivery.group import Group
from penstock.delivery.inspection import EVERYONE
from penstock.delivery.membership import Roster
from penstock.errors import InvalidField, MemberFenced
from penstock.model import OWNER_SEPARATOR, Position, bare_name, check_name, to_datetime
from penstock.replies import Member, Membership
from penstock.requests import RELEASE, check_session_seconds

if TYPE_CHECKING:
    from penstock.shard.engine import Ticket
    from penstock.shard.shard import Shard


def join(
    shard: Shard, queue: str, group: str, member: str, session_seconds: float, start: Position | None = None
) -> tuple[Membership, Ticket]:
    """Become a member, or take over an id; what the one before held is released, uncounted. With `start`, a group that
    is not there is made.
    """
    check_name(bare_name(member), "member")
    session_us = round(check_session_seconds(session_seconds) * 1_000_000)

    def question(now: int) -> Membership:
        target = shard.group_of_use(admin.queue_named(shard.core, queue), check_name(group, "group"), start, now)
        target.active_at = now
        roster = shard.core.rosters.of(target, now)
        seat = roster.seats.get(member)
        if seat is not None:
            shard.take_away(target, member, seat.owned | seat.revoking, RELEASE, now)
        shard.changing = True
        roster.join(member, session_us, shard.clock.monotonic())
        _changed(shard, target, now)
        return _membership(target, roster, member)

    return shard.look(question)


def heartbeat(
    shard: Shard, queue: str, group: str, member: str, generation: int, held: Sequence[str]
) -> tuple[Membership, Ticket]:
    """Stay a member. What is being revoked and not in `held` is released."""

    def question(now: int) -> Membership:
        target, roster = _roster(shard, queue, group, member)
        numbers = _numbers(target, held)
        shard.take_away(target, member, roster.released(member, generation, numbers), RELEASE, now)
        before = roster.generation
        shard.changing = True  # it is not refused any more: what it released was asked for above
        roster.heartbeat(member, generation, numbers, shard.clock.monotonic())
        target.active_at = now
        if roster.generation != before:
            _changed(shard, target, now)
        shard.changing = False
        return _membership(target, roster, member)

    return shard.look(question)


def leave(shard: Shard, queue: str, group: str, member: str, generation: int) -> Ticket:
    """Go; what the member holds is given back."""

    def question(now: int) -> None:
        target, roster = _roster(shard, queue, group, member)
        seat = roster.seat(member, generation)
        shard.take_away(target, member, seat.owned | seat.revoking, RELEASE, now)
        shard.changing = True
        roster.leave(member, generation, shard.clock.monotonic())
        _changed(shard, target, now)

    return shard.look(question)[1]


def leave_all(shard: Shard, owner: str) -> Ticket:
    """A principal is gone: its members leave all groups, and what they hold is given back."""

    def question(now: int) -> None:
        for group, roster in shard.core.rosters.groups():
            for member, seat in list(roster.seats.items()):
                if member.startswith(owner + OWNER_SEPARATOR):
                    shard.take_away(group, member, seat.owned | seat.revoking, RELEASE, now)
                    shard.changing = True
                    roster.leave(member, roster.generation, shard.clock.monotonic())
                    _changed(shard, group, now)

    return shard.look(question)[1]


def members(shard: Shard, queue: str, group: str) -> tuple[list[Member], Ticket]:
    """Who is in a group, in the order in which they joined."""

    def question(now: int) -> list[Member]:
        target = admin.group_named(admin.queue_named(shard.core, queue), group)
        roster, monotonic = target.roster, shard.clock.monotonic()
        if roster is None:
            return []
        return [
            Member(
                bare_name(member),
                roster.generation,
                _names(target, seat.owned | seat.revoking),
                to_datetime(now - (monotonic - seat.seen_at)),
            )
            for member, seat in roster.seats.items()
        ]

    return shard.look(question)


def _roster(shard: Shard, queue: str, group: str, member: str) -> tuple[Group, Roster]:
    """The roster that somebody claims to be on."""
    target = admin.group_named(admin.queue_named(shard.core, queue), group)
    if target.roster is None:
        raise MemberFenced(f"group {group!r} of queue {queue!r} has no member {bare_name(member)!r}")
    return target, target.roster


def _changed(shard: Shard, group: Group, now: int) -> None:
    """The end of a change of who owns what: leases that wait look again; the timekeeper may have to wake earlier."""
    rosters = shard.core.rosters
    rosters.look()
    shard.waiters.wake(group.queue.id, EVERYONE, group.id)
    shard.on_deadline(now + rosters.next_at - shard.clock.monotonic())
    shard.changing = False


def _membership(group: Group, roster: Roster, member: str) -> Membership:
    seat = roster.seats[member]
    return Membership(
        bare_name(member),
        roster.generation,
        _names(group, seat.owned),
        _names(group, seat.revoking),
        seat.session_us / 1_000_000 / limits.heartbeats_per_session,
    )


def _names(group: Group, numbers: Collection[int]) -> list[str]:
    return [group.queue.partitions[number].name for number in sorted(numbers)]


def _numbers(group: Group, names: Sequence[str]) -> set[int]:
    if isinstance(names, str):
        raise InvalidField(f"held: {names!r} is not a list of partitions")
    known = group.queue.by_name
    return {known[name].id for name in names if name in known}
