"""One order of events: a decision alters nothing, whatever it says; `apply` alone does."""

from __future__ import annotations

import ast
import random
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import penstock
from penstock import operations as ops
from penstock.batch import Batch
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded import BlockingSession, Session
from penstock.errors import PenstockError
from penstock.model import Message, Outcome, Receipt
from penstock.requests import LeaseRequest, PushOperation, SettleOperation, Settling
from penstock.shard import tasks as shard_tasks
from tests.support import machine as machines
from tests.support.dose import dose
from tests.support.life import LIFE
from tests.support.machine import QueueMachine
from tests.support.operations import run_operation
from tests.support.purity import portrait_of, pure_decisions
from tests.support.tasking import Rig, task

PACKAGE: Final = Path(penstock.__file__).parent


class PureMachine(QueueMachine):
    """The same machine, with the state compared around every decision."""

    def open_session(self) -> Session:
        session = super().open_session()
        self._watch = pure_decisions(lambda: session.shard.core)
        self._watch.__enter__()
        return session

    def teardown(self) -> None:
        if hasattr(self, "_watch"):
            self._watch.__exit__(None, None, None)
        super().teardown()


@pytest.mark.parametrize("ordering", ["none", "key", "partition"])
def test_no_decision_of_any_history_alters_the_state(ordering, monkeypatch):
    monkeypatch.setattr(machines, "limit_steps", lambda session: None)  # to compare takes many
    machine = type("Pure", (PureMachine,), {"ordering": ordering})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=dose(12, 200), stateful_step_count=dose(20, 50), deadline=None)
    )


def test_no_decision_in_a_day_of_a_shard_alters_its_state(tmp_path):
    clock = ManualClock()
    session = Session(tmp_path, clock=clock, rng=random.Random(1), background=False, journal_file_bytes=1 << 16)
    with Penstock(BlockingSession(session)) as ps, pure_decisions(lambda: session.shard.core) as made:
        for step in LIFE:
            step(ps, clock)
    assert {"decide_push", "decide_settle", "decide_room", "decide_dead", "decide_timeouts"} <= made.keys()


def test_no_decision_about_tasks_alters_the_state():
    rig = Rig()
    with pure_decisions(lambda: rig.shard.core) as made:
        rig.submit(task("a"), task("b", "a"), task("c", "b", queue="other"), task("d", "a"))
        (run,) = rig.lease()
        rig.complete(run)
        shard_tasks.cancel(rig.shard, None, task("c").task_id)
        rig.tick(1)
        rig.lease()
    assert made["decide_child_release"] >= 2


def test_refused_pushes_take_no_tokens_move_no_counter_and_make_no_queue():
    session = Session(None, clock=ManualClock(), rng=random.Random(1), background=False)
    run_operation(session, ops.CreateQueue("limited", {"push_per_second": 2, "partitions": 3}, exist_ok=False))
    run_operation(session, ops.CreateQueue("full", {"max_length": 1}, exist_ok=False))
    session.push("full", Batch.build([Message(payload=b"x")]), None, None)
    reply, _ = session.lease("full", "default", LeaseRequest())
    before = portrait_of(session.shard.core)
    two, three = (Batch.build([Message(payload=b"x")] * count) for count in (1, 3))
    for push in (
        lambda: session.push("limited", three, None, None),
        lambda: session.push("full", two, None, None),
        lambda: session.transact([PushOperation("new", two, None), PushOperation("limited", three, None)]),
        lambda: session.transact([PushOperation("made", two, None), PushOperation("full", two, None)]),
        lambda: session.transact(
            [PushOperation("made", two, None), SettleOperation(_stale(reply.nonce), Settling(Outcome.ACKED))]
        ),
    ):
        with pytest.raises(PenstockError):
            push()
    assert portrait_of(session.shard.core) == before
    session.close()


def _stale(nonce: int) -> Receipt:
    return Receipt("full", "0", 7, 1, nonce)


def test_a_transaction_of_many_pushes_to_one_queue_is_decided_once():
    session = Session(None, clock=ManualClock(), rng=random.Random(1), background=False)
    run_operation(session, ops.CreateQueue("q", {"partitions": "named", "dedup_seconds": 60}, exist_ok=False))
    pushes = [
        PushOperation("q", Batch.build([Message(payload=b"%d" % n, dedup_key=f"k{n % 3}")]), f"p{n % 2}")
        for n in range(6)
    ]
    with pure_decisions(lambda: session.shard.core) as made:
        ids = session.transact(pushes)[0]
    assert made["decide_push"] == 1
    assert [str(id) for (id,) in ids] == ["q/p0/0", "q/p1/0", "q/p0/1", "q/p0/0", "q/p1/0", "q/p0/1"]
    assert session.transact(pushes)[0] == ids
    session.close()


# who takes the lock

HOLDS: Final = {  # those who look at nothing that a half-done change could have spoilt, or look for such a change
    "shard/engine.py:_time_jumped", "shard/engine.py:notice", "shard/engine.py:run", "shard/engine.py:with_columns",
    "shard/shard.py:lease", "shard/shard.py:push_one", "shard/checkpoints.py:fetch_delays",
    "embedded/session.py:close",
}  # fmt: skip


def test_whoever_takes_the_lock_of_a_shard_looks_first_whether_a_change_was_left_half_done():
    missing = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            missing += [
                f"{name}:{function.name}"
                for node in ast.walk(function)
                if isinstance(node, ast.With) and _is_shard_lock(name, node) and not _checks(node.body[0])
            ]
    assert set(missing) == HOLDS


def _is_shard_lock(name: str, node: ast.With) -> bool:
    text = ast.unparse(node.items[0].context_expr)
    owners = {"self.lock"} if name in {"shard/engine.py", "shard/shard.py"} else set()
    return text in owners | {"shard.lock", "self.shard.lock", "self._shard.lock"}


def _checks(statement: ast.stmt) -> bool:
    return ast.unparse(statement) in {"shard.check()", "self.shard.check()", "self._shard.check()", "self.check()"}
