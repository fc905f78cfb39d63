"""Membership of groups: who is in a group, who owns which partition, and the generation.

Nothing here reads a clock: `now` is monotonic time in µs unless it is said otherwise. A partition is in one of three
states, and an illegal move is a failed lookup in `MOVES`:

            assign           revoke
    free ───────────▶ owned ────────▶ revoking
     ▲                 │ ▲              │  │
     │      lose       │ └─────keep─────┘  │
     ├─────────────────┘                   │
     └──────────────release, lose──────────┘

Ownership is as even as possible, with the fewest moves. A partition that shall move is revoked first: its owner is
notified, and keeps it until a heartbeat that knows of the revocation no longer names it, until its session ends, or
until its time to release it is over. Only then does the heir own it: a partition never has two owners. Partitions that
do not move stay as they are throughout.

The generation rises with every change of who owns what. A member is refused when it is unknown, when its generation
is of before it joined (another process bears its name now), and, where it leases, when its own partitions have changed
since: it must learn of that first. Membership is volatile; a generation begins above any that the group had before a
restart, since the wall clock in µs runs faster than changes happen.

While a group has members its partitions are theirs: a member leases from those it owns, and a lease by anybody else is
refused. A group without members is open to all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from penstock import limits
from penstock.delivery.entries import FOREVER
from penstock.delivery.progress import Progress
from penstock.errors import MemberFenced
from penstock.model import bare_name

if TYPE_CHECKING:
    from penstock.delivery.group import Group
    from penstock.requests import LeaseRequest

REBALANCE_US: Final = round(limits.rebalance_seconds * 1_000_000)


def shares(
    owned: Mapping[str, int], inherited: Mapping[str, int], members: Sequence[str], partitions: int
) -> dict[str, int]:
    """How many partitions each member shall have; `members` are in the order in which they joined."""
    least, larger = divmod(partitions, len(members))
    ranked = sorted(members, key=lambda member: (-owned.get(member, 0), -inherited.get(member, 0)))
    return {member: least + (position < larger) for position, member in enumerate(ranked)}


def assign(owners: Sequence[str], heirs: Sequence[str], members: Sequence[str]) -> list[str]:
    """The member that each partition shall go to, or stay with: as even as possible, with the fewest moves.

    Shares differ by at most one. The members that own most keep the larger shares, and each member keeps as much of
    what it owns as its share allows. So a member that joins takes at most its own share away from others.

    `owners` and `heirs` say for each partition who has it and who was to have it; "" when nobody. When there is a
    choice, a partition stays on the way that it has begun.
    """
    if not members:
        return [""] * len(owners)
    inherited = Counter(heirs)
    room = shares(Counter(owners), inherited, members, len(owners))
    chosen = [""] * len(owners)
    # What stays: first what was not about to move anyway. Then what goes on as planned. Then whoever has room.
    settled = [number for number, owner in enumerate(owners) if owner == heirs[number]]
    moving = [number for number, owner in enumerate(owners) if owner != heirs[number]]
    for numbers, candidates in ((settled, owners), (moving, owners), (range(len(owners)), heirs)):
        for number in numbers:
            member = candidates[number]
            if not chosen[number] and room.get(member, 0) > 0:
                chosen[number] = member
                room[member] -= 1
    waiting = (member for member in members for _ in range(room[member]))
    return [member or next(waiting) for member in chosen]


class State(StrEnum):
    """The state of a partition."""

    FREE = "free"
    OWNED = "owned"
    REVOKING = "revoking"


MOVES: Final = {
    (State.FREE, "assign"): State.OWNED,
    (State.OWNED, "revoke"): State.REVOKING,
    (State.OWNED, "lose"): State.FREE,
    (State.REVOKING, "keep"): State.OWNED,
    (State.REVOKING, "release"): State.FREE,
    (State.REVOKING, "lose"): State.FREE,
}


class Slot(msgspec.Struct):
    """One partition. Owned, owner and heir are the same; revoking, they differ; free, there is no owner."""

    state: State = State.FREE
    owner: str = ""
    heir: str = ""
    revoked: int = 0  # the generation in which it was revoked
    deadline: int = 0  # when a revoked partition is taken away


class Seat(msgspec.Struct):
    """One member. It is kept by its name as its principal's own (`owned`)."""

    session_us: int
    deadline: int  # its session ends unless it is heard from before
    joined: int  # the generation in which it joined
    changed: int  # the generation in which its own partitions changed last
    owned: set[int] = set()
    revoking: set[int] = set()
    share: int = 0  # how many partitions it is the heir of

    @property
    def seen_at(self) -> int:
        """When it was last heard from."""
        return self.deadline - self.session_us


class Roster:
    """The members of a group and the partitions of its queue, which are numbered from 0."""

    def __init__(self, generation: int, partitions: int) -> None:
        self.generation = generation
        self.slots = [Slot() for _ in range(partitions)]
        self.seats: dict[str, Seat] = {}  # in the order in which they joined

    # what members do

    def join(self, member: str, session_us: int, now: int) -> None:
        """A new member; or a new process under a known name, which takes over what that name owned."""
        known = self.seats.get(member)
        self.generation += 1
        if known is not None:
            for number in list(known.revoking):
                self._free(number, "release")
        owned = known.owned if known is not None else set()
        self.seats[member] = Seat(session_us, now + session_us, self.generation, self.generation, owned)
        self._rebalance(now)

    def heartbeat(self, member: str, generation: int, held: Collection[int], now: int) -> None:
        """The member is alive. What was revoked, as it knows, and is not in `held` any more goes to its heir."""
        seat = self.seat(member, generation)
        seat.deadline = now + seat.session_us
        released = self.released(member, generation, held)
        self.generation += bool(released)
        for number in released:
            self._free(number, "release")
            self._assign(number)

    def released(self, member: str, generation: int, held: Collection[int]) -> list[int]:
        """The partitions that a heartbeat releases; one that was sent before the revocation arrived releases none."""
        revoking = sorted(self.seat(member, generation).revoking)
        return [number for number in revoking if number not in held and self.slots[number].revoked <= generation]

    def leave(self, member: str, generation: int, now: int) -> None:
        """The member goes; what it owned is shared among the others."""
        self.seat(member, generation)
        self._remove([member], now)

    # what time does

    def add_partition(self) -> None:
        """The queue has one partition more; it goes to whoever has least."""
        self.slots.append(Slot())
        if self.seats:
            self.generation += 1
            heir = min(self.seats, key=lambda member: self.seats[member].share)
            self.seats[heir].share += 1
            self.slots[-1].heir = heir
            self._assign(len(self.slots) - 1)

    def overdue(self, now: int) -> Iterator[tuple[str, set[int]]]:
        """Whom `expire` will take partitions from, and which: their deliveries have to be ended first."""
        for member, seat in self.seats.items():
            if seat.deadline <= now:
                yield member, seat.owned | seat.revoking
            elif late := {number for number in seat.revoking if self.slots[number].deadline <= now}:
                yield member, late

    def expire(self, now: int) -> bool:
        """Remove members that were silent for too long; move partitions that were not released in time."""
        silent = [member for member, seat in self.seats.items() if seat.deadline <= now]
        late = [number for number in self._revoking() if self.slots[number].deadline <= now]
        if not silent and not late:
            return False
        self._remove(silent, now)
        for number in late:
            if self.slots[number].state is State.REVOKING:
                self._free(number, "release")
                self._assign(number)
        return True

    def next_at(self) -> int | None:
        """When `expire` may next have something to do."""
        instants = [seat.deadline for seat in self.seats.values()]
        instants += [self.slots[number].deadline for number in self._revoking()]
        return min(instants, default=None)

    # questions

    def seat(self, member: str, generation: int) -> Seat:
        """A member that is still one, in its present life."""
        seat = self.seats.get(member)
        if seat is None:
            raise MemberFenced(f"the group has no member {bare_name(member)!r}: its session ended, or it never joined")
        if not seat.joined <= generation <= self.generation:
            raise MemberFenced(
                f"generation {generation} is not valid for member {bare_name(member)!r}, which joined in {seat.joined}",
                hint="another process has joined under this name: join under another name",
            )
        return seat

    def owned_by(self, member: str, generation: int) -> Collection[int]:
        """The partitions that a member may lease from; it must know of the last change of them."""
        seat = self.seat(member, generation)
        if generation < seat.changed:
            raise MemberFenced(
                f"the partitions of member {bare_name(member)!r} have changed since generation {generation}",
                hint="send a heartbeat, which returns the partitions, then lease again",
            )
        return seat.owned

    # changes

    def _remove(self, members: Collection[str], now: int) -> None:
        self.generation += 1
        for member in members:
            seat = self.seats[member]
            for number in sorted(seat.owned | seat.revoking):
                self._free(number, "lose")
            del self.seats[member]
        if members:
            self._rebalance(now)

    def _rebalance(self, now: int) -> None:
        """Give every partition the heir that it should have, and move what can be moved at once."""
        owners = [slot.owner for slot in self.slots]
        heirs = assign(owners, [slot.heir for slot in self.slots], list(self.seats))
        inherited = Counter(heirs)
        for member, seat in self.seats.items():
            seat.share = inherited[member]
        for number, (slot, heir) in enumerate(zip(self.slots, heirs, strict=True)):
            slot.heir = heir
            if slot.state is State.FREE:
                self._assign(number)
            elif slot.state is State.OWNED and heir != slot.owner:
                self._revoke(number, now)
            elif slot.state is State.REVOKING and heir == slot.owner:
                self._keep(number)

    def _assign(self, number: int) -> None:
        slot = self.slots[number]
        if slot.heir in self.seats:
            self._move(slot, "assign")
            slot.owner = slot.heir
            self._touch(slot.owner).owned.add(number)

    def _revoke(self, number: int, now: int) -> None:
        slot = self.slots[number]
        self._move(slot, "revoke")
        slot.revoked, slot.deadline = self.generation, now + REBALANCE_US
        seat = self._touch(slot.owner)
        seat.owned.discard(number)
        seat.revoking.add(number)

    def _keep(self, number: int) -> None:
        slot = self.slots[number]
        self._move(slot, "keep")
        seat = self._touch(slot.owner)
        seat.revoking.discard(number)
        seat.owned.add(number)

    def _free(self, number: int, event: str) -> None:
        slot = self.slots[number]
        self._move(slot, event)
        seat = self._touch(slot.owner)
        seat.owned.discard(number)
        seat.revoking.discard(number)
        slot.owner = ""

    def _move(self, slot: Slot, event: str) -> None:
        slot.state = MOVES[slot.state, event]

    def _touch(self, member: str) -> Seat:
        seat = self.seats[member]
        seat.changed = self.generation
        return seat

    def _revoking(self) -> list[int]:
        return [number for seat in self.seats.values() for number in seat.revoking]


class Rosters:
    """The rosters of all groups; `next_at` is on the monotonic clock, and may be too early, never too late."""

    def __init__(self) -> None:
        self._groups: dict[Group, Roster] = {}
        self._generation = 0  # the highest of any roster whose last member left
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
    """The progress of the partitions that a member owns."""

    def __init__(self, group: Group, numbers: Collection[int]) -> None:
        self._group = group
        self._numbers = numbers

    def __contains__(self, progress: object) -> bool:
        return isinstance(progress, Progress) and progress.partition.id in self._numbers

    def __iter__(self) -> Iterator[Progress]:
        return (self._group.progress[number] for number in self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def check_owned(group: Group, member: str, generation: int, partitions: Sequence[str]) -> None:
    """Refuse unless a member owns all of these partitions now."""
    known = group.roster
    if known is None:
        raise MemberFenced(f"group {group.name!r} of queue {group.queue.name!r} has no member {bare_name(member)!r}")
    owned = known.owned_by(member, generation)
    for name in partitions:
        partition = group.queue.by_name.get(name)
        if partition is None or partition.id not in owned:
            raise MemberFenced(f"member {bare_name(member)!r} does not own partition {name!r}")


def within_membership(
    group: Group, request: LeaseRequest, chosen: Collection[Progress] | None
) -> Collection[Progress] | None:
    """The partitions that a lease may take from: the chosen ones, as far as membership allows."""
    roster = group.roster
    if not request.member:
        if roster is not None and roster.seats:
            raise MemberFenced(
                f"group {group.name!r} of queue {group.queue.name!r} has members, and only they may lease from it",
                hint="join the group, or lease for a group of your own",
            )
        return chosen
    if roster is None:
        name = bare_name(request.member)
        raise MemberFenced(f"group {group.name!r} of queue {group.queue.name!r} has no member {name!r}")
    owned = Owned(group, roster.owned_by(request.member, request.generation))
    if chosen is None:
        return owned
    foreign = [progress.partition.name for progress in chosen if progress not in owned]
    if foreign:
        raise MemberFenced(f"member {bare_name(request.member)!r} does not own partition {foreign[0]!r}")
    return chosen
