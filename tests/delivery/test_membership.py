"""Membership as a state machine: who owns what, sessions, revocation, generations. Time is a number here."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.delivery.membership import MOVES, REBALANCE_US, Roster, State, assign
from penstock.errors import MemberFenced

SESSION = 10_000_000
START = 1_000


def roster_of(partitions: int, *members: str) -> Roster:
    """Members that joined one after the other, with everything handed over."""
    roster = Roster(START, partitions)
    for member in members:
        roster.join(member, SESSION, 0)
        settle(roster)
    return roster


def settle(roster: Roster, now: int = 0) -> None:
    """Everybody hears of everything and lets go of what it should."""
    for _ in range(2):
        for member in list(roster.seats):
            roster.heartbeat(member, roster.generation, (), now)


def owners(roster: Roster) -> list[str]:
    return [slot.owner for slot in roster.slots]


def sizes(roster: Roster) -> list[int]:
    return sorted(len(seat.owned) for seat in roster.seats.values())


def test_the_first_member_owns_everything():
    assert owners(roster_of(3, "a")) == ["a", "a", "a"]


@pytest.mark.parametrize("partitions", [0, 1, 2, 5, 12])
@pytest.mark.parametrize("members", ["a", "ab", "abc", "abcde"])
def test_shares_are_as_even_as_can_be(partitions, members):
    roster = roster_of(partitions, *members)

    assert sum(sizes(roster)) == partitions
    assert max(sizes(roster)) - min(sizes(roster)) <= 1


def test_a_partition_that_moves_stays_with_its_owner_until_it_lets_go():
    roster = roster_of(4, "a")
    generation = roster.generation
    roster.join("b", SESSION, 0)

    assert owners(roster) == ["a"] * 4
    assert (roster.seats["a"].owned, roster.seats["a"].revoking) == ({0, 1}, {2, 3})
    assert roster.seats["b"].owned == set()

    roster.heartbeat("a", generation, (), 0)
    assert owners(roster) == ["a"] * 4, "that heartbeat left before the news came"
    roster.heartbeat("a", roster.generation, {2, 3}, 0)
    assert owners(roster) == ["a"] * 4
    roster.heartbeat("a", roster.generation, {3}, 0)
    assert owners(roster) == ["a", "a", "b", "a"]
    roster.heartbeat("a", roster.generation, (), 0)
    assert owners(roster) == ["a", "a", "b", "b"]


def test_members_that_do_not_take_part_in_a_change_are_not_disturbed_by_it():
    roster = roster_of(2, "a", "b")
    generation = roster.generation
    roster.join("c", SESSION, 0)

    assert roster.generation > generation
    assert roster.owned_by("a", generation) == {0}
    assert roster.owned_by("b", generation) == {1}


def test_a_member_that_was_notified_nothing_of_a_change_of_its_own_may_not_lease():
    roster = roster_of(4, "a")
    generation = roster.generation
    roster.join("b", SESSION, 0)

    with pytest.raises(MemberFenced, match="have changed since"):
        roster.owned_by("a", generation)
    assert roster.owned_by("a", roster.generation) == {0, 1}


def test_what_was_revoked_is_kept_when_the_heir_is_gone_again():
    roster = roster_of(4, "a")
    roster.join("b", SESSION, 0)
    roster.leave("b", roster.generation, 0)

    assert roster.seats["a"].owned == {0, 1, 2, 3}
    assert {slot.state for slot in roster.slots} == {State.OWNED}


def test_a_partition_that_is_on_its_way_can_get_another_heir():
    roster = roster_of(6, "a")
    roster.join("b", SESSION, 0)
    roster.join("c", SESSION, 0)
    settle(roster)

    assert sizes(roster) == [2, 2, 2]


def test_a_silent_member_loses_everything():
    roster = roster_of(4, "a", "b")
    roster.heartbeat("b", roster.generation, (), SESSION // 2)

    assert not roster.expire(SESSION - 1)
    assert roster.next_at() == SESSION
    assert [(member, sorted(lost)) for member, lost in roster.overdue(SESSION)] == [("a", [0, 1])]
    assert roster.expire(SESSION)
    assert owners(roster) == ["b"] * 4
    with pytest.raises(MemberFenced):
        roster.heartbeat("a", roster.generation, (), SESSION)


def test_a_member_that_does_not_let_go_in_time_is_not_waited_for():
    roster = roster_of(2, "a")
    roster.join("b", SESSION, 0)
    for now in range(0, REBALANCE_US, SESSION // 2):
        roster.heartbeat("a", roster.generation, {1}, now)
        roster.heartbeat("b", roster.generation, (), now)

    assert owners(roster) == ["a", "a"]
    assert list(roster.overdue(REBALANCE_US)) == [("a", {1})]
    assert roster.expire(REBALANCE_US)
    assert owners(roster) == ["a", "b"]
    assert "a" in roster.seats


def test_a_process_that_joins_under_a_known_name_takes_over_its_partitions_and_fences_the_other():
    roster = roster_of(4, "a", "b")
    before, owned = roster.generation, set(roster.seats["a"].owned)
    roster.join("a", SESSION, 0)

    assert roster.seats["a"].owned == owned
    for call in (roster.seat, roster.owned_by):
        with pytest.raises(MemberFenced):
            call("a", before)
    with pytest.raises(MemberFenced):
        roster.leave("a", before, 0)


def test_a_generation_that_never_was_is_refused():
    roster = roster_of(1, "a")

    with pytest.raises(MemberFenced):
        roster.heartbeat("a", roster.generation + 1, (), 0)


def test_new_partitions_go_to_whoever_has_least():
    roster = roster_of(3, "a", "b")
    for _ in range(5):
        roster.add_partition()

    assert sizes(roster) == [4, 4]


def test_partitions_that_appear_before_anybody_joins_are_shared_like_others():
    roster = Roster(START, 0)
    roster.add_partition()
    roster.join("a", SESSION, 0)

    assert owners(roster) == ["a"]


def test_every_state_can_be_left_and_reached():
    assert {state for state, _ in MOVES} == set(State) == set(MOVES.values())


@pytest.mark.parametrize("partitions", range(13))
@pytest.mark.parametrize("members", range(1, 6))
def test_a_join_moves_no_more_than_a_share(partitions, members):
    names = [f"m{number}" for number in range(members)]
    before = assign([""] * partitions, [""] * partitions, names)
    after = assign(before, before, [*names, "new"])
    moved = [number for number in range(partitions) if before[number] != after[number]]

    assert len(moved) <= -(-partitions // (members + 1))
    assert {after[number] for number in moved} <= {"new"}


class Memberships(RuleBasedStateMachine):
    """Members come, go, fall silent and hear of things late; each knows only what it was last told."""

    def __init__(self):
        super().__init__()
        self.roster = Roster(START, 3)
        self.now = 0
        self.known: dict[str, int] = {}  # the generation that each member was told last
        self.generation = START

    @rule(member=st.sampled_from("abcde"))
    def join(self, member):
        self.roster.join(member, SESSION, self.now)
        self.hear(member)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def leave(self, data):
        member = data.draw(st.sampled_from(sorted(self.known)))
        self.ask(member, lambda: self.roster.leave(member, self.known[member], self.now))
        self.known.pop(member, None)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def heartbeat(self, data):
        member = data.draw(st.sampled_from(sorted(self.known)))
        held = data.draw(st.sets(st.integers(0, len(self.roster.slots))))
        if self.ask(member, lambda: self.roster.heartbeat(member, self.known[member], held, self.now)):
            self.hear(member)

    @rule(seconds=st.floats(0, 70))
    def time_passes(self, seconds):
        self.now += round(seconds * 1_000_000)
        losing = {member: set(lost) for member, lost in self.roster.overdue(self.now)}
        before = {member: seat.owned | seat.revoking for member, seat in self.roster.seats.items()}
        self.roster.expire(self.now)
        for member, owned in before.items():
            seat = self.roster.seats.get(member)
            left = seat.owned | seat.revoking if seat is not None else set()
            assert owned - left <= losing.get(member, set()), "nothing is taken that was not announced"

    @rule()
    def a_partition_appears(self):
        self.roster.add_partition()

    def ask(self, member, call):
        try:
            call()
        except MemberFenced:
            assert member not in self.roster.seats or self.known[member] < self.roster.seats[member].joined
            return False
        return True

    def hear(self, member):
        self.known[member] = self.roster.generation

    @invariant()
    def no_partition_has_two_owners(self):
        held = Counter(number for seat in self.roster.seats.values() for number in seat.owned | seat.revoking)
        assert all(count == 1 for count in held.values())
        for member, seat in self.roster.seats.items():
            assert not seat.owned & seat.revoking
            assert all(self.roster.slots[number].owner == member for number in seat.owned | seat.revoking)

    @invariant()
    def states_say_what_owners_and_heirs_say(self):
        for slot in self.roster.slots:
            expected = State.FREE if not slot.owner else State.OWNED if slot.owner == slot.heir else State.REVOKING
            assert slot.state is expected

    @invariant()
    def generations_only_rise(self):
        assert self.roster.generation >= self.generation
        self.generation = self.roster.generation

    @invariant()
    def everything_has_an_heir_and_shares_are_even(self):
        heirs = Counter(slot.heir for slot in self.roster.slots)
        shares = [heirs[member] for member in self.roster.seats]
        if shares:
            assert sum(shares) == len(self.roster.slots)
            assert max(shares) - min(shares) <= 1
            assert [seat.share for seat in self.roster.seats.values()] == shares
        else:
            assert set(heirs) <= {""}

    def teardown(self):
        """When nothing happens any more, everything arrives."""
        settle(self.roster, self.now)
        if self.roster.seats:
            assert all(slot.state is State.OWNED for slot in self.roster.slots)


Memberships.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMemberships = Memberships.TestCase
