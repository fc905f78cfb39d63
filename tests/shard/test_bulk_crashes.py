"""Operations on dead letters and messages of the past: after a kill at any step each item is dealt with once."""

from __future__ import annotations

import shutil
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import operations as ops
from penstock.batch import Batch
from penstock.clock import ManualClock
from penstock.embedded.session import Session
from penstock.model import Outcome
from penstock.model_letters import REPLAYED_FROM
from penstock.model_tasks import OperationState
from penstock.requests import LeaseRequest, Settling
from penstock.shard.bulk import runner

COUNT = 11


class Killed(Exception):
    """The process ends here."""


def opened(path: Path) -> Session:
    return Session(path, durability="os", background=False, clock=ManualClock())


def filled(path: Path) -> Session:
    """A queue with dead letters."""
    session = opened(path)
    session.run(ops.CreateQueue("orders"))
    session.run(ops.CreateQueue("again"))
    session.push("orders", Batch.build([b'{"n": %d}' % n for n in range(COUNT)]), None, None)
    reply, _ = session.lease("orders", "default", LeaseRequest(COUNT))
    session.settle_lease(reply.nonce, Settling(Outcome.REJECTED, error="no"))
    return session


def stop_after(monkeypatch: pytest.MonkeyPatch, session: Session, frames: int) -> None:
    """Let some frames be written, then end the process before the next one."""
    left, change = [frames], session.shard.change

    def changed(*arguments: Any) -> int:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return change(*arguments)

    monkeypatch.setattr(session.shard, "change", changed)


KINDS: dict[str, ops.Operation[Any]] = {
    "redrive": ops.RedriveLetters("orders", operation_id="x"),
    "edit": ops.RedriveLetters("orders", edit=b'{"currency": "EUR"}', operation_id="x"),
    "discard": ops.DiscardLetters("orders", operation_id="x"),
    "replay": ops.ReplayMessages("orders", target="again", operation_id="x"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frames", range(9))
def test_each_item_is_dealt_with_once_wherever_the_process_dies(tmp_path, monkeypatch, kind, frames):
    monkeypatch.setattr(runner, "CHUNK", 3)
    session = filled(tmp_path / "data")
    with monkeypatch.context() as patched:
        stop_after(patched, session, frames)
        with suppress(Killed):
            session.run(KINDS[kind])
    session.shard.journal.sync()
    shutil.copytree(tmp_path / "data", tmp_path / "left", ignore=shutil.ignore_patterns("lock"))
    session.close()

    with closing(opened(tmp_path / "left")) as again:
        again.run(KINDS[kind])  # the same id is the same operation, also when it was never begun
        view, _ = again.run(ops.FindOperation("x"))
        letters, _ = again.run(ops.DeadLetters("orders"))
        stored, _ = again.run(ops.Read("again", limit=100))
        orders, _ = again.run(ops.Read("orders", limit=100))
        stats, _ = again.run(ops.Stats("orders"))

    assert (view.state, view.matched, view.done, view.failed) == (OperationState.DONE, COUNT, COUNT, 0)
    assert len(letters) == (COUNT if kind == "replay" else 0)
    assert [(copy.headers or {})[REPLAYED_FROM] for copy in stored] == (
        [f"orders/0/{n}" for n in range(COUNT)] if kind == "replay" else []
    )
    assert len(orders) == (2 * COUNT if kind == "edit" else COUNT)
    assert stats.groups["default"].ready == (COUNT if kind in ("redrive", "edit") else 0)
