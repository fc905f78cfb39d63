"""An exception anywhere in a call (Ctrl-C, a time-out by a signal): what was confirmed stays, and no call hangs.

From the first change of the state to the last either all of it happens, or the shard stops as after a failed write. So
at every line of the package in turn: the exception is raised there, while another thread pushes; then the same handle
goes on, with success or `outcome_unknown`; then the directory is opened again, and holds what was confirmed. If the
shard did not stop, what it had in memory is what the directory holds. No line is exempt.
"""

from __future__ import annotations

import random
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from penstock import operations as ops
from penstock.batch import Batch, encode_one
from penstock.clock import ManualClock
from penstock.embedded.session import Session
from penstock.errors import Closed, OutcomeUnknown
from penstock.model import Message, MessageId, Outcome, Receipt
from penstock.model_tasks import Finish, TaskSubmission
from penstock.requests import LeaseRequest, PushOperation, SettleOperation, Settling
from tests.support.accounts import assert_accounts
from tests.support.dose import NIGHTLY
from tests.support.interrupts import CtrlC, Interruption, Late, Where
from tests.support.operations import run_operation
from tests.support.sinks import committed, staged
from tests.support.state_snapshot import portrait
from tests.support.task_rig import task

PATIENCE_SECONDS: Final = 5.0
ACK: Final = Settling(Outcome.ACKED)
RELEASE: Final = Settling(Outcome.RELEASED)
OVER: Final = (OutcomeUnknown, Closed)
# Where most changes begin and end: half of a sample is from there.
HEART: Final = (
    *("shard/engine.py", "shard/shard.py", "shard/transactions.py", "delivery/core.py"),
    "journal/",
)


class World:
    """An open directory with a little of everything, and what was confirmed of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.session = self._open()
        self.pushed: dict[MessageId, bytes] = {}
        self.acked: set[MessageId] = set()
        self.number = 0
        self.forgetful: set[str] = set()  # queues that keep nothing

    def _open(self) -> Session:
        return Session(self.path, clock=self.clock, rng=random.Random(1), background=False, journal_file_bytes=1 << 16)

    # what is done, and remembered once it is confirmed

    def payload(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def push(self, queue: str = "plain") -> None:
        payload = self.payload()
        id, ticket = self.session.push_one(queue, encode_one(payload))
        self.session.confirm(ticket)
        self._pushed(id, payload)

    def push_many(self, queue: str, *messages: Message) -> None:
        reply, ticket = self.session.push(queue, Batch.build(messages), None, None)
        self.session.confirm(ticket)
        for id, message in zip(reply.ids(), messages, strict=True):
            assert isinstance(message.payload, bytes)
            self._pushed(id, message.payload)

    def _pushed(self, id: MessageId, payload: bytes) -> None:
        assert self.pushed.setdefault(id, payload) == payload, f"{id} was given to two messages"

    def lease(self, queue: str, count: int = 10, consumer: str = "") -> tuple[int, list[Receipt]]:
        reply, ticket = self.session.lease(queue, "default", LeaseRequest(count_max=count, consumer=consumer))
        self.session.confirm(ticket)
        found = []
        for piece in self.session.loaded(reply.pieces):
            for index in range(len(piece.offsets)):
                id = MessageId(queue, piece.partition(index), piece.offsets[index])
                known = self.pushed.get(id)
                assert known is None or known == piece.payloads()[index], f"{id} has the payload of another"
                assert id not in self.acked, f"{id} was acknowledged and comes again"
                found.append(Receipt(*id, piece.attempt(index), reply.nonce))
        return reply.nonce, found

    def settle(self, receipts: list[Receipt], how: Settling) -> None:
        self.session.confirm(self.session.settle(receipts, how))
        if how is ACK:
            self.acked |= {MessageId(*receipt[:3]) for receipt in receipts}

    def settle_lease(self, lease: tuple[int, list[Receipt]]) -> None:
        self.session.confirm(self.session.settle_lease(lease[0], ACK))
        self.acked |= {MessageId(*receipt[:3]) for receipt in lease[1]}

    def transact(self, *operations: PushOperation | SettleOperation) -> None:
        pushed, ticket = self.session.transact(operations)
        self.session.confirm(ticket)
        pushes = [each for each in operations if isinstance(each, PushOperation)]
        for each, ids in zip(pushes, pushed, strict=True):
            for id, payload in zip(ids, each.batch.payloads(), strict=True):
                self._pushed(id, payload)
        self.acked |= {
            MessageId(*each.receipt[:3]) for each in operations if isinstance(each, SettleOperation) and each.how is ACK
        }

    def submit(self, *tasks: TaskSubmission) -> None:
        _, ticket = run_operation(self.session, ops.SubmitTasks(tasks))
        self.session.confirm(ticket)

    # afterwards

    def go_on(self) -> None:
        """More of everything on the same handle, and nothing left in anybody's hands."""
        for queue in ("plain", "spread", "keyed", "limited"):
            self.push_many(queue, Message(payload=self.payload(), key="k"), Message(payload=self.payload()))
            self.push("plain")
        for queue in ("plain", "keyed", "spread"):
            lease = self.lease(queue)
            if lease[1]:
                self.settle_lease(lease)
        self.submit(task(f"later-{self.number}", queue="jobs"))
        self.clock.advance(0.5)
        for nonce in list(self.session.shard.core.leases):
            self.session.confirm(self.session.settle_lease(nonce, RELEASE))
        assert_accounts(self.session.shard)

    def reopen(self, live: dict[str, Any] | None) -> None:
        """Open the directory anew and compare it with what was confirmed, and with what was in memory."""
        self.session = self._open()
        try:
            assert_accounts(self.session.shard)
            found = portrait(self.session)
            if live is not None:
                for name, queue in found.items():
                    for key, value in queue.items():
                        assert value == live[name][key], f"{name}, {key}: in memory it was {live[name][key]}"
                assert found.keys() == live.keys()
            kept = {entry[0]: entry[1] for queue in found.values() for log in queue["log"].values() for entry in log}
            for id, payload in self.pushed.items():
                assert kept.get(id) == payload, f"{id} was confirmed: {payload!r}; the directory holds {kept.get(id)!r}"
            for queue in ("plain", "spread", "keyed"):
                while self.lease(queue)[1]:  # refuses what was acknowledged
                    pass
        finally:
            self.session.close()


class Beside:
    """Another thread that pushes, a message for each line of the call that is interrupted, and waits for its commit."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.turn = threading.Semaphore(0)
        self.stopping = False
        self.confirmed: list[tuple[MessageId, bytes]] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        session = self.world.session
        number = 0
        try:
            while self.turn.acquire() and not self.stopping:
                number += 1
                payload = b"beside %d" % number
                id, ticket = session.push_one("plain", encode_one(payload))
                session.confirm(ticket)
                self.confirmed.append((id, payload))
        except OVER:
            pass
        except BaseException as error:  # noqa: BLE001 - the test tells of it
            self.error = error

    def stop(self) -> None:
        self.turn.release()  # one more: nobody may hang
        self.stopping = True
        self.turn.release()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive(), f"the other thread hangs:\n{stack_of(self.thread)}"
        if self.error is not None:
            raise self.error
        for id, payload in self.confirmed:
            self.world._pushed(id, payload)


def stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame))


def within_patience(what: str, work: Callable[[], object]) -> bool:
    """Run something that must end soon; whether it came through, rather than being told that it is over."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), f"{what} hangs:\n{stack_of(thread)}"
    if errors and not isinstance(errors[0], OVER):
        raise errors[0]
    return not errors


# the calls that are interrupted: each gets ready, and answers with what is then done

Prepare = Callable[[World], Callable[[], object]]


def fill(world: World) -> None:
    ps = world.session
    queues: dict[str, dict[str, Any]] = {
        "plain": {"max_attempts": 2, "backoff_base_seconds": 0.1},
        "spread": {"partitions": 3, "dedup_seconds": 60},
        "keyed": {"ordering": "key", "partitions": 2},
        "limited": {"push_per_second": 1000, "lease_per_second": 1000, "key_max_in_flight": 1, "ttl_seconds": 30},
        "short": {"max_length": 3, "overflow": "drop_oldest", "lease_seconds": 1},
    }
    for name, options in queues.items():
        ps.confirm(run_operation(ps, ops.CreateQueue(name, options)))
    for _ in range(3):
        world.push()
    world.push_many("spread", *(Message(payload=world.payload()) for _ in range(4)))
    world.push_many("keyed", *(Message(payload=world.payload(), key=f"k{n % 2}") for n in range(4)))


def push(world: World) -> Callable[[], object]:
    return world.push


def push_to_a_new_queue(world: World) -> Callable[[], object]:
    return lambda: world.push("new")


def push_many(world: World) -> Callable[[], object]:
    messages = [
        Message(payload=world.payload(), key="a", dedup_key="d1"),
        Message(payload=world.payload(), delay=0.2),
        Message(payload=world.payload(), priority="high", ttl=20),
    ]
    return lambda: world.push_many("spread", *messages)


def push_over_the_length(world: World) -> Callable[[], object]:
    def work() -> None:
        batch = Batch.build([Message(payload=b"%d" % number) for number in range(5)])
        world.session.confirm(world.session.push("short", batch, None, None)[1])

    return work


def push_with_limits(world: World) -> Callable[[], object]:
    return lambda: world.push_many("limited", Message(payload=world.payload(), key="a"))


def lease(world: World) -> Callable[[], object]:
    return lambda: (world.lease("plain", 2), world.lease("spread", 3))


def lease_by_key(world: World) -> Callable[[], object]:
    world.push_many("limited", *(Message(payload=world.payload(), key=key) for key in "aabb"))
    return lambda: (world.lease("keyed"), world.lease("limited"))


def lease_for_a_new_group(world: World) -> Callable[[], object]:
    world.session.confirm(run_operation(world.session, ops.CreateGroup("plain", "audit", "earliest")))

    def work() -> None:
        _, ticket = world.session.lease("plain", "audit", LeaseRequest(count_max=2, auto_ack=True))
        world.session.confirm(ticket)

    return work


def settle(world: World) -> Callable[[], object]:
    whole, (_, parts), (_, more) = world.lease("plain", 1), world.lease("spread"), world.lease("keyed")

    def work() -> None:
        world.settle_lease(whole)
        world.settle(parts[:2], ACK)
        world.settle(more[:1], Settling(Outcome.RETRIED, error="again"))
        world.settle(parts[2:], Settling(Outcome.REJECTED, error="never"))

    return work


def extend(world: World) -> Callable[[], object]:
    nonce, _ = world.lease("plain")
    return lambda: world.session.extend(nonce, 20)


def transaction(world: World) -> Callable[[], object]:
    _, receipts = world.lease("plain")
    operations: list[PushOperation | SettleOperation] = [
        PushOperation("spread", Batch.build([Message(payload=world.payload(), dedup_key="t")]), None),
        SettleOperation(receipts[0], ACK),
        PushOperation("made", Batch.build([Message(payload=world.payload())]), None),
        SettleOperation(receipts[1], Settling(Outcome.REJECTED, error="no")),
        PushOperation("spread", Batch.build([Message(payload=world.payload(), key="b")]), None),
    ]
    return lambda: world.transact(*operations)


def task_submission(world: World) -> Callable[[], object]:
    return lambda: world.submit(task("a", queue="jobs", unique_key="u"), task("b", "a", queue="jobs"), task("c", "b"))


def task_finish(world: World) -> Callable[[], object]:
    world.submit(task("a", queue="jobs"), task("b", "a", queue="jobs"), task("c", "a", queue="more"))
    (receipt,) = world.lease("jobs", consumer="w")[1]

    def work() -> None:
        finish = Finish(receipt=receipt, task_id=task("a").task_id, outcome="completed", result=b"1")
        answers, ticket = run_operation(world.session, ops.FinishTasks([finish]))
        world.session.confirm(ticket)
        assert answers == [None]
        world.acked.add(MessageId(*receipt[:3]))

    return work


def time_passes(world: World) -> Callable[[], object]:
    """Leases that run out, delays and backoffs that end, messages that expire: what the next call finds due."""
    world.push_many("spread", Message(payload=world.payload(), delay=0.3))
    world.push_many("short", Message(payload=b"1"), Message(payload=b"2", ttl=0.4))
    world.lease("short", 1)
    _, receipts = world.lease("plain", 1)
    world.settle(receipts, Settling(Outcome.RETRIED))
    world.clock.advance(2)
    return lambda: run_operation(world.session, ops.Queues())


def membership(world: World) -> Callable[[], object]:
    world.session.confirm(run_operation(world.session, ops.CreateGroup("keyed", "team", "earliest")))
    joined, _ = run_operation(world.session, ops.Join("keyed", "team", "one", 10))
    request = LeaseRequest(count_max=2, member="one", generation=joined.generation)
    world.session.confirm(world.session.lease("keyed", "team", request)[1])

    def work() -> None:
        two, _ = run_operation(world.session, ops.Join("keyed", "team", "two", 10))
        run_operation(world.session, ops.Heartbeat("keyed", "team", "two", two.generation, []))
        run_operation(world.session, ops.Leave("keyed", "team", "two", two.generation))
        run_operation(world.session, ops.Leave("keyed", "team", "one", joined.generation))

    return work


def sink(world: World) -> Callable[[], object]:
    names = staged(world.session, [b"s1", b"s2"], [b"s3"], queue="spread", at=world.clock.now())
    return lambda: committed(world.session, 1, names, queue="spread")


def seal(world: World) -> Callable[[], object]:
    def work() -> None:
        world.session.shard.journal.rotate()
        run_operation(world.session, ops.Seal())

    return work


def checkpoint(world: World) -> Callable[[], object]:
    world.submit(task("a", queue="jobs"), task("b", "a", queue="jobs"))
    keeper = world.session.keeper
    assert keeper is not None
    keeper.checkpoint()
    world.push()
    return keeper.checkpoint


def retention(world: World) -> Callable[[], object]:
    seal(world)()
    lease = world.lease("plain")
    if lease[1]:
        world.session.confirm(world.session.settle_lease(lease[0], ACK))
    world.session.confirm(run_operation(world.session, ops.UpdateQueue("plain", {"retention_messages": 0})))
    world.forgetful.add("plain")
    return lambda: run_operation(world.session, ops.Compact())


CALLS: Final[dict[str, Prepare]] = {
    each.__name__: each
    for each in (
        push, push_to_a_new_queue, push_many, push_over_the_length, push_with_limits, lease, lease_by_key,
        lease_for_a_new_group, settle, extend, transaction, task_submission, task_finish, time_passes, membership, sink,
        seal, checkpoint, retention,
    )
}  # fmt: skip


def interrupted(name: str, path: Path, at: int, error: type[BaseException] = CtrlC) -> list[Where]:
    """One call, interrupted at a line, and all that comes after it. Returns the lines that it ran through."""
    world = World(path)
    fill(world)
    work = CALLS[name](world)
    beside = Beside(world)
    interruption = Interruption(at, error, beside.turn.release)
    with interruption.watching():
        work()
    beside.stop()
    world.pushed = {id: payload for id, payload in world.pushed.items() if id.queue not in world.forgetful}
    goes_on = within_patience("a later call", world.go_on)
    live = portrait(world.session) if goes_on else None
    within_patience("closing", world.session.close)
    world.reopen(live)
    return interruption.lines


def places_of(name: str, lines: list[Where]) -> list[int]:
    """The first time that each line is run, and the last."""
    firsts = {where: place for place, where in reversed(list(enumerate(lines)))}
    lasts = {where: place for place, where in enumerate(lines)}
    return sorted({*firsts.values(), *lasts.values()})


@pytest.mark.parametrize("name", CALLS)
def test_an_exception_at_any_line_of_a_call_loses_nothing_and_nobody_hangs(name, tmp_path):
    lines = interrupted(name, tmp_path / "whole", -1)
    places = places_of(name, lines)
    rng = random.Random(name)
    if not NIGHTLY:
        heart = [place for place in places if lines[place][0].startswith(HEART)]
        sample = {*rng.sample(places, min(len(places), 7)), *rng.sample(heart, min(len(heart), 9))}
        places = sorted(sample)
    for place in places:
        where = f"{lines[place][0]}:{lines[place][1]}"
        try:
            interrupted(name, tmp_path / str(place), place, rng.choice([CtrlC, Late]))
        except BaseException as error:
            raise AssertionError(f"{name}, interrupted at {where} (line {place} of {len(lines)}): {error}") from error
