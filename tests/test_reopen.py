"""Every kind of state survives a stop, clean or not, wherever the last checkpoint was taken and whatever was sealed."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.delivery import snapshot
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import LeaseLost, StorageError
from penstock.model import Outcome
from penstock.requests import Settling
from tests.support.accounts import assert_accounts
from tests.support.dose import dose
from tests.support.forgetful import SHORT, ForgetfulDisk, PowerCut
from tests.support.life import LIFE, TICK
from tests.support.lock_turns import take_turns
from tests.support.operations import run_operation
from tests.support.state_snapshot import drained, portrait

STOPS = ["clean", "kill", "power"]


class System:
    """A shard on a forgetful disk that can be stopped in several ways."""

    def __init__(self, seed: int = 1) -> None:
        self.clock = ManualClock()
        self.disk = ForgetfulDisk(seed)
        self.opened = 0
        self.open()

    def open(self) -> None:
        self.opened += 1
        rng = random.Random(self.opened)
        self.session = Session(
            None, clock=self.clock, rng=rng, disk=self.disk, background=False, journal_file_bytes=1 << 18
        )
        self.turns = take_turns(self.session)
        self.ps = Penstock(BlockingSession(self.session))

    def reopen(self, how: str) -> None:
        if how == "clean":
            self.session.close()
        self.disk = self.disk.crash() if how == "power" else self.disk.kill()
        self.open()
        self.pass_time()
        assert_accounts(self.session.shard)

    def pass_time(self) -> None:
        """What is due at once becomes ready with the next tick of the timers."""
        self.clock.advance(TICK)
        self.ps.queues()

    def live(self, steps: int | None = None, first: int = 0) -> None:
        for step in LIFE[first:steps]:
            step(self.ps, self.clock)


@pytest.fixture
def system():
    return System()


def seal_and_compact(session: Session) -> None:
    run_operation(session, ops.Seal())
    run_operation(session, ops.Compact())


UPKEEP: dict[str, Callable[[Session], object]] = {
    "nothing": lambda session: None,
    "checkpoint": lambda session: session.checkpoint(),
    "seal": lambda session: run_operation(session, ops.Seal()),
    "compact": seal_and_compact,
}


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("upkeep", UPKEEP)
def test_everything_survives_wherever_the_checkpoint_was_taken(how, upkeep):
    for position in range(len(LIFE) + 1) if upkeep != "nothing" else [0]:
        system = System(position)
        system.live(position)
        UPKEEP[upkeep](system.session)
        system.live(None, position)
        system.pass_time()
        before = portrait(system.session)

        system.reopen(how)

        assert portrait(system.session) == before, f"{upkeep} before step {position}"


@pytest.mark.parametrize("how", STOPS)
def test_everything_survives_with_housework_after_every_step(how):
    system = System()
    for step in LIFE:
        step(system.ps, system.clock)
        system.session.checkpoint()
        run_operation(system.session, ops.Seal())
        system.session.checkpoint()
    system.pass_time()
    before = portrait(system.session)

    system.reopen(how)

    assert portrait(system.session) == before


@pytest.mark.parametrize("how", STOPS)
def test_everything_survives_a_stop_after_every_step(how):
    system = System()
    for step in LIFE:
        step(system.ps, system.clock)
        system.pass_time()
        before = portrait(system.session)
        system.reopen(how)
        assert portrait(system.session) == before, step.__name__


@pytest.mark.parametrize("release", range(dose(4, 12)))
def test_a_checkpoint_may_be_taken_while_everything_changes(monkeypatch, release):
    """Steps happen between the slices of the checkpoint, after which the process dies."""
    monkeypatch.setattr(snapshot, "SLICE", 1)
    for position in range(1, len(LIFE)):
        system = System()
        system.live(position)
        released = iter(range(1000))

        def turn(system=system, position=position, released=released) -> None:
            if next(released) == release:
                system.live(position + 1, position)

        system.turns.on_release = turn
        system.session.checkpoint()
        system.turns.on_release = None
        if next(released) <= release:
            system.live(position + 1, position)
        system.live(None, position + 1)
        system.pass_time()
        before = portrait(system.session)

        system.reopen("kill")

        assert portrait(system.session) == before, f"step {position} came at release {release}"


def test_opening_twice_in_a_row_changes_nothing(system):
    system.live()
    system.reopen("kill")
    first = portrait(system.session)

    system.reopen("kill")
    second = portrait(system.session)
    system.reopen("clean")

    assert first == second == portrait(system.session)


@pytest.mark.parametrize("how", STOPS)
@pytest.mark.parametrize("sealed", [False, True])
def test_what_can_be_had_after_a_restart_is_what_could_be_had_before(how, sealed):
    runs = []
    for restarts in (False, True):
        system = System()
        system.live()
        if sealed:
            run_operation(system.session, ops.Seal())
        system.pass_time()
        if restarts:
            system.reopen(how)
        runs.append({name: sorted(drained(system.ps, name)) for name in system.ps.queues() if name != "line"})

    assert runs[0] == runs[1]


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_leases_open_at_a_stop_come_back_as_interrupted_with_the_attempt_counted(system, how):
    queue = system.ps.create_queue("mail", max_attempts=2)
    queue.push_many([b"tried before", b"fresh"])
    queue.lease(max=1).nack(delay=0)
    system.pass_time()
    leased = queue.lease(max=2)
    receipts = [delivery.proof for delivery in leased]

    system.reopen(how)

    queue = system.ps.queue("mail")
    assert [(d.payload, d.attempt) for d in queue.lease(max=5)] == [(b"fresh", 2)]
    (letter,) = queue.dlq.list()
    assert (letter.payload, letter.headers["penstock-error"]) == (b"tried before", "the process stopped")
    with pytest.raises(LeaseLost):
        system.session.settle(receipts[:1], Settling(Outcome.ACKED))


def test_key_order_is_kept_over_a_restart(system):
    queue = system.ps.create_queue("orders", ordering="key")
    for number in range(3):
        queue.push(b"%d" % number, key="k")
    queue.lease(max=3)[0].nack(delay=5)

    system.reopen("kill")

    queue = system.ps.queue("orders")
    assert not queue.lease(max=3)
    system.clock.advance(5 + TICK)
    assert queue.lease(max=3).payloads() == [b"0"]


def test_consumers_read_on_while_their_messages_are_sealed_and_moved(system):
    queue = system.ps.create_queue("mail", retention_messages=0)
    queue.push_many([b"%d" % number for number in range(10)])
    early = queue.lease(max=3)
    run_operation(system.session, ops.Seal())
    sealed = queue.lease(max=3)
    queue.lease(max=2).ack()
    early.ack()
    run_operation(system.session, ops.Compact())
    rest = queue.lease(max=5)

    assert early.payloads() + sealed.payloads() == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert rest.payloads() == [b"8", b"9"]


# failures of the disk

FIRST = {errno.EIO: 1, errno.ENOSPC: 2, SHORT: 3, "cut": 4}


def work(system: System, confirmed: dict[str, list[bytes]]) -> None:
    """A little of everything that writes; notes what it was told."""
    queue = system.ps.queue("mail")
    for number in range(3):
        queue.push(b"first %d" % number)
        confirmed["pushed"].append(b"first %d" % number)
    leased = queue.lease(max=2)
    leased[0].ack()
    confirmed["acked"].append(leased[0].payload)
    run_operation(system.session, ops.Seal())
    queue.push_many([b"second %d" % number for number in range(3)])
    confirmed["pushed"] += [b"second %d" % number for number in range(3)]
    leased[1].reject()
    confirmed["dead"].append(leased[1].payload)
    system.session.checkpoint()
    queue.push(b"last")
    confirmed["pushed"].append(b"last")
    run_operation(system.session, ops.Seal())
    system.session.close()


@pytest.mark.parametrize("then", ["kill", "power"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, SHORT, "cut"])
def test_whichever_operation_of_the_disk_fails_nothing_confirmed_is_lost(error, then):
    step = dose(6, 1)  # CI leaves five of six out, others with each error
    operation = FIRST[error] - step
    fired = True
    while fired:
        operation += step
        system = System(operation)
        confirmed: dict[str, list[bytes]] = {"pushed": [], "acked": [], "dead": []}
        if error == "cut":
            system.disk.crash_at(operation)
        else:
            system.disk.fail_at(operation, error)
        with suppress(StorageError, PowerCut):
            work(system, confirmed)
        fired = system.disk.fired
        system.reopen(then)
        check_confirmed(system, confirmed, f"operation {operation}")
        run_operation(system.session, ops.Seal())
        system.reopen("power")
        check_confirmed(system, confirmed, f"operation {operation}, sealed")
    assert operation > 30


def check_confirmed(system: System, confirmed: dict[str, list[bytes]], when: str) -> None:
    if "mail" not in system.ps.queues():
        assert not confirmed["pushed"], when
        return
    queue = system.ps.queue("mail")
    kept = [message.payload for message in queue.read(limit=100)]
    assert kept[: len(confirmed["pushed"])] == confirmed["pushed"], when
    assert len(set(kept)) == len(kept), when
    waiting = {message.payload for message in queue.peek(limit=100)}
    assert not waiting & set(confirmed["acked"] + confirmed["dead"]), when
    letters = [letter.payload for letter in queue.dlq.list()]
    assert set(confirmed["dead"]) <= set(letters), when
    assert len(letters) <= 1, when
