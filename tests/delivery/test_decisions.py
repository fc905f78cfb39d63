"""One order of events: a decision alters nothing, whatever it says; `apply` alone does."""

from __future__ import annotations

import ast
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import penstock
from penstock import operations as ops
from penstock.batch import Batch
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.delivery.core import DeliveryState
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import PenstockError
from penstock.model import Message, Outcome, Receipt
from penstock.requests import LeaseRequest, PushOperation, SettleOperation, Settling
from penstock.shard.tasks import changes
from tests.support import machine as machines
from tests.support.dose import dose
from tests.support.life import LIFE
from tests.support.machine import QueueMachine
from tests.support.operations import run_operation
from tests.support.task_rig import Rig, task

# Deciding what has expired takes the due entries from the heap of expiries, which is an index: the engine counts it as
# part of the change that follows.
USES_AN_INDEX: Final = {"decide_expired"}
LEFT_OUT: Final = {"_appliers", "_observers", "columns"}  # functions; and columns of segments that were loaded
PLAIN: Final = (int, float, str, bytes, bool, type(None), type, range)


def portrait_of(thing: Any) -> Any:
    """All that an object consists of, as values that compare.

    It is walked object by object, so that nothing that is added later is left out. Batches are left out: they do not
    change, and remember what was read from them.
    """
    return _walk(thing, {})


def _walk(thing: Any, seen: dict[int, int]) -> Any:
    if isinstance(thing, PLAIN):
        return thing
    if isinstance(thing, Batch | memoryview | random.Random) or callable(thing):
        return id(thing)
    if id(thing) in seen:
        return ("again", seen[id(thing)])
    seen[id(thing)] = len(seen)
    if isinstance(thing, np.ndarray):
        return thing.tobytes()
    if isinstance(thing, bytearray):
        return bytes(thing)
    if isinstance(thing, dict):
        return [(_walk(key, seen), _walk(value, seen)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | deque):
        return [_walk(each, seen) for each in thing]
    if isinstance(thing, set | frozenset):
        return {repr(_walk(each, dict(seen))) for each in thing}
    return (type(thing).__name__, [(name, _walk(value, seen)) for name, value in _attributes(thing)])


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    names = list(getattr(thing, "__dict__", ()))
    names += getattr(type(thing), "__struct_fields__", ())
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    for name in dict.fromkeys(names):
        if name not in LEFT_OUT and not name.startswith("__") and hasattr(thing, name):
            yield name, getattr(thing, name)


@contextmanager
def pure_decisions(core: Callable[[], DeliveryState]) -> Iterator[dict[str, int]]:
    """Compare the state around every decision; yields how often each was made."""
    made: dict[str, int] = {}
    put_back: list[tuple[Any, str, Any]] = []
    wrapped: dict[Any, Any] = {}
    for module in [each for name, each in sys.modules.items() if name.startswith("penstock.") and each is not None]:
        for name, function in list(vars(module).items()):
            if name.startswith("decide_") and callable(function) and name not in USES_AN_INDEX:
                if function not in wrapped:
                    wrapped[function] = _watched(name, function, core, made)
                put_back.append((module, name, function))
                setattr(module, name, wrapped[function])
    try:
        yield made
    finally:
        for module, name, function in put_back:
            setattr(module, name, function)


def _watched(name: str, function: Any, core: Callable[[], DeliveryState], made: dict[str, int]) -> Any:
    @wraps(function)
    def decide(*arguments: Any, **options: Any) -> Any:
        before = portrait_of(core())
        made[name] = made.get(name, 0) + 1
        try:
            return function(*arguments, **options)
        finally:
            after = portrait_of(core())
            assert before == after, f"{name} has altered the state: {difference(before, after)}"

    return decide


def difference(before: Any, after: Any, path: str = "") -> str:
    """Where two portraits differ first."""
    if type(before) is type(after) and isinstance(before, list | tuple):
        if len(before) != len(after):
            return f"{path}: {len(before)} beside {len(after)}: {before!r:.200} {after!r:.200}"
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            if one != other:
                label = one[0] if isinstance(one, tuple) and one and isinstance(one[0], str) else index
                return difference(one, other, f"{path}/{label}")
    return f"{path}: {before!r:.200} became {after!r:.200}"


PACKAGE: Final = Path(penstock.__file__).parent


class PureMachine(QueueMachine):
    """The queue machine, with the state compared around every decision."""

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
        changes.cancel(rig.shard, None, task("c").task_id)
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
    "shard/engine.py:_without_columns",
    "shard/shard.py:lease", "shard/shard.py:push_one", "shard/delays.py:fetch_delays",
    "embedded/session.py:close", "embedded/session.py:unwatch",
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
