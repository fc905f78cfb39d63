"""Members of a group: partitions shared out, handed over, taken away; and what each may still do afterwards."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from penstock import Message
from penstock import operations as ops
from penstock.client._sync.delivery import Leased
from penstock.errors import GroupNotFound, InvalidField, InvalidName, LeaseLost, MemberFenced, QueueNotFound
from penstock.model import to_micros
from penstock.requests import LeaseRequest
from tests.behaviour.steps import refuse
from tests.support.operations import confirm, run_operation

GROUP = "workers"
SESSION = 10
FOUR = ["0", "1", "2", "3"]


class Worker:
    """A member that does by hand what `subscribe` does by itself."""

    def __init__(self, ps, name, queue="orders", seconds=SESSION):
        self.session, self.queue, self.name = ps._session, queue, name
        self.assignment: Any = None
        self.join(seconds)

    def join(self, seconds=SESSION):
        self.assignment, ticket = run_operation(
            self.session, ops.Join(self.queue, GROUP, self.name, seconds, "earliest")
        )
        confirm(self.session, ticket)

    def beat(self, *held):
        self.assignment, ticket = run_operation(
            self.session, ops.Heartbeat(self.queue, GROUP, self.name, self.assignment.generation, list(held))
        )
        confirm(self.session, ticket)
        return self.assignment.assigned

    def leave(self):
        confirm(
            self.session,
            run_operation(self.session, ops.Leave(self.queue, GROUP, self.name, self.assignment.generation)),
        )

    def lease(self, max=100, **options):
        request = LeaseRequest(
            max, consumer=self.name, member=self.name, generation=self.assignment.generation, **options
        )
        reply = self.session.lease(self.queue, GROUP, request, 0)
        return Leased(self.session, reply)


def places(leased):
    return {delivery.partition for delivery in leased}


@pytest.fixture
def queue(ps):
    """Two messages in each of four partitions."""
    queue = ps.create_queue("orders", partitions=4)
    queue.push_many([Message(payload=f"{n}{p}".encode(), partition=p) for n in "ab" for p in range(4)])
    return queue


def handed_over(*workers):
    """Everybody hears of everything and lets go of what it should."""
    for _ in range(2):
        for worker in workers:
            worker.beat()
    for worker in workers:
        worker.beat()


def test_one_member_gets_everything_and_a_second_one_half_of_it(ps, queue):
    one = Worker(ps, "one")
    assert (one.assignment.assigned, one.assignment.revoking) == (FOUR, [])
    two = Worker(ps, "two")
    assert (two.assignment.assigned, two.assignment.revoking) == ([], [])
    assert one.beat() == ["0", "1"]
    assert one.assignment.revoking == ["2", "3"]
    assert two.beat() == []
    assert one.beat("2") == ["0", "1"]
    assert two.beat() == ["3"]
    one.beat()
    assert two.beat() == ["2", "3"]
    assert one.assignment.heartbeat_seconds == pytest.approx(SESSION / 3)


def test_a_member_leases_from_its_own_partitions_only(ps, queue):
    one, two = Worker(ps, "one"), Worker(ps, "two")
    handed_over(one, two)

    assert places(one.lease()) == {"0", "1"}
    assert places(two.lease()) == {"2", "3"}
    assert not one.lease()
    refuse(MemberFenced, lambda: one.lease(partitions=(2,)), "'2'")


def test_a_partition_that_moves_goes_on_when_its_owner_has_let_go_and_the_others_never_pause(ps, queue):
    one = Worker(ps, "one")
    leased = one.lease(4)
    assert places(leased) == set(FOUR)
    two = Worker(ps, "two")
    one.beat(*FOUR)

    assert places(one.lease()) == {"0", "1"}, "what is being revoked is not leased any more"
    assert not two.lease()
    for delivery in leased:
        delivery.ack()
    one.beat()
    two.beat()
    assert sorted(two.lease().payloads()) == [b"b2", b"b3"]


def test_what_a_member_holds_of_a_partition_goes_with_it_and_its_receipt_is_stale(ps, queue):
    one = Worker(ps, "one")
    leased = one.lease()
    two = Worker(ps, "two")
    one.beat()
    one.beat()
    two.beat()

    taken = two.lease()
    assert sorted(taken.payloads()) == [b"a2", b"a3", b"b2", b"b3"]
    assert {delivery.attempt for delivery in taken} == {1}, "given back, not failed"
    for delivery in leased:
        if delivery.partition in ("2", "3"):
            with pytest.raises(LeaseLost):
                delivery.ack()
        else:
            delivery.ack()
    taken.ack()
    assert queue.stats().groups[GROUP].acked == 8


def test_a_silent_member_is_given_up_and_what_it_held_counts_as_an_attempt(ps, queue, clock, way):
    one, two = Worker(ps, "one"), Worker(ps, "two")
    handed_over(one, two)
    lost = two.lease()

    clock.advance(SESSION / 2)
    one.beat()
    clock.advance(SESSION / 2)
    way.let_time_happen()
    assert one.beat() == FOUR
    again = one.lease(partitions=(2, 3))
    assert {delivery.attempt for delivery in again} == {2}
    with pytest.raises(LeaseLost):
        lost.ack()
    refuse(MemberFenced, two.beat, "'two'")
    refuse(MemberFenced, two.lease)


def test_a_member_that_comes_back_joins_again(ps, queue, clock):
    one = Worker(ps, "one")
    clock.advance(SESSION)
    refuse(MemberFenced, one.beat)
    before = one.assignment.generation
    one.join()

    assert one.assignment.assigned == FOUR
    assert one.assignment.generation > before


def test_a_poisonous_message_kills_no_more_members_than_it_has_attempts(ps, clock, way):
    queue = ps.create_queue("orders", max_attempts=2)
    queue.push(b"poison")
    for name in ("one", "two"):
        assert len(Worker(ps, name).lease()) == 1
        clock.advance(SESSION)
    three = Worker(ps, "three")

    assert not three.lease()
    assert [letter.payload for letter in queue.dlq.list()] == [b"poison"]


def test_a_member_that_leaves_gives_everything_back_at_once(ps, queue):
    one, two = Worker(ps, "one"), Worker(ps, "two")
    handed_over(one, two)
    leased = two.lease()
    two.leave()

    assert one.beat() == FOUR
    again = one.lease(partitions=(2, 3))
    assert sorted(again.payloads()) == sorted(leased.payloads())
    assert {delivery.attempt for delivery in again} == {1}
    refuse(MemberFenced, two.leave)


def test_a_process_that_joins_under_the_name_of_another_takes_its_place(ps, queue):
    one, two = Worker(ps, "one"), Worker(ps, "two")
    handed_over(one, two)
    lost = two.lease()
    heir = Worker(ps, "two")

    assert heir.assignment.assigned == ["2", "3"]
    assert [delivery.attempt for delivery in heir.lease()] == [1] * 4  # what moves because of a rejoin is not counted
    refuse(MemberFenced, two.beat)
    refuse(MemberFenced, two.leave)
    with pytest.raises(LeaseLost):
        lost.ack()
    assert places(one.lease()) == {"0", "1"}


def test_an_owner_that_never_lets_go_is_not_waited_for(ps, queue, clock):
    one = Worker(ps, "one")
    two = Worker(ps, "two")
    for _ in range(12):
        clock.advance(5)
        one.beat("2", "3")
        two.beat()
    assert two.assignment.assigned == ["2", "3"]
    assert one.assignment.revoking == []


def test_a_lease_needs_to_know_what_it_owns(ps, queue):
    one = Worker(ps, "one")
    two = Worker(ps, "two")

    refuse(MemberFenced, one.lease, "changed")
    one.beat(*FOUR)
    assert places(one.lease()) == {"0", "1"}
    assert not two.lease()


def test_while_a_group_has_members_it_is_closed_to_others(ps, queue):
    plain = queue.lease(1, group=GROUP, start="earliest")
    one = Worker(ps, "one")

    refuse(MemberFenced, lambda: queue.lease(1, group=GROUP), GROUP)
    assert len(queue.lease(1)) == 1, "other groups are as they were"
    plain.ack()
    one.leave()
    assert len(queue.lease(100, group=GROUP)) == 7


def test_partitions_that_appear_are_shared_out_too(ps):
    queue = ps.create_queue("orders", partitions="named")
    one = Worker(ps, "one")
    two = Worker(ps, "two")
    assert one.assignment.assigned == two.assignment.assigned == []
    for name in ("berlin", "paris", "rome"):
        queue.push(b"x", partition=name)

    assert one.beat() == ["berlin", "rome"]
    assert two.beat() == ["paris"]
    assert places(two.lease()) == {"paris"}


def test_partitions_that_are_added_are_shared_out_too(ps, queue):
    one, two = Worker(ps, "one"), Worker(ps, "two")
    handed_over(one, two)
    ps.update_queue("orders", partitions=6)

    assert len(one.beat()) == len(two.beat()) == 3


def test_members_can_be_listed(ps, queue, clock):
    one, two = Worker(ps, "one"), Worker(ps, "two")
    handed_over(one, two)
    started = clock.now()
    clock.advance(2)
    two.beat()

    listed = queue.members(GROUP)
    assert [(each.member, each.partitions) for each in listed] == [("one", ["0", "1"]), ("two", ["2", "3"])]
    assert {each.generation for each in listed} == {two.assignment.generation}
    assert [to_micros(each.last_heartbeat_at, "at") for each in listed] == [started, started + 2_000_000]
    assert queue.members() == []
    refuse(GroupNotFound, lambda: queue.members("nobody"), "nobody")


def test_a_message_says_whose_it_is(ps, queue):
    def code(place):
        return {reason.group: reason.code for reason in queue.why(place)}[GROUP]

    one = Worker(ps, "one")
    assert code("orders/3/0") == "owned"
    two = Worker(ps, "two")
    assert (code("orders/0/0"), code("orders/3/0")) == ("owned", "rebalancing")
    handed_over(one, two)
    assert code("orders/3/0") == "owned"
    for worker in (one, two):
        worker.leave()
    assert code("orders/3/0") == "no_consumer"


@pytest.mark.parametrize("way", ["file", "sealed", "forgetful", "tcp"], indirect=True)
def test_after_a_restart_members_join_again_and_those_of_before_are_fenced(ps, queue, way, clock):
    one = Worker(ps, "one")
    one.lease(2).ack()
    clock.advance(1)
    again = way.restart()
    stale, one = one, Worker(again, "one")
    stale.session = one.session

    assert one.assignment.generation > stale.assignment.generation
    assert one.assignment.assigned == FOUR
    assert len(one.lease()) == 6
    refuse(MemberFenced, stale.beat)
    refuse(MemberFenced, stale.lease)


def test_a_group_with_members_is_in_use_although_nothing_comes(ps, clock, way):
    queue = ps.create_queue("orders", group_expiry_seconds=20)
    one = Worker(ps, "one")
    for _ in range(10):
        clock.advance(8)
        one.beat()
        way.let_time_happen()

    assert GROUP in queue.groups()


def test_a_deleted_group_or_queue_has_no_members(ps, queue):
    one = Worker(ps, "one")
    queue.delete_group(GROUP)
    refuse(GroupNotFound, one.beat, GROUP)
    refuse(GroupNotFound, one.leave, GROUP)
    refuse(GroupNotFound, lambda: run_operation(one.session, ops.Join("orders", GROUP, "one", SESSION)), GROUP)
    before = one.assignment.generation
    one.join()
    assert one.assignment.generation > before
    ps.delete_queue("orders")
    refuse(QueueNotFound, one.beat)
    ps.create_queue("orders", partitions=2)
    refuse(GroupNotFound, one.beat)


def test_wrong_names_and_times_are_refused(ps, queue):
    refuse(QueueNotFound, lambda: Worker(ps, "one", queue="nothing"), "nothing")
    refuse(InvalidName, lambda: Worker(ps, "no good"), "member")
    wrong: tuple[Any, ...] = (0, -1, 0.01, 10_000)
    for seconds in wrong:
        refuse(InvalidField, partial(Worker, ps, "one", seconds=seconds), "session_seconds")
    wrong = (0, "10", None, True)
    for seconds in wrong:
        refuse(InvalidField, partial(queue.subscribe, GROUP, session_seconds=seconds), "session_seconds")
    one = Worker(ps, "one")
    one.assignment, _ = run_operation(
        one.session, ops.Heartbeat("orders", GROUP, "one", one.assignment.generation, ["no such partition"])
    )
    refuse(InvalidField, lambda: queue.subscribe(GROUP, batch=0), "batch")
    refuse(InvalidName, lambda: queue.subscribe("no good"), "group")
    assert one.assignment.assigned == FOUR
