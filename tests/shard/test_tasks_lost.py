"""Attempts at tasks that were lost with their worker: counted apart, so that bystanders of a poison task live on."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from penstock import Message, limits
from penstock import operations as ops
from penstock.batch import Batch
from penstock.delivery.entries import AttemptsLost
from penstock.embedded.session import Session
from penstock.requests import LeaseRequest
from penstock.shard.shard import Shard
from penstock.shard.tasks import finish
from tests.support.accounts import assert_accounts
from tests.support.operations import run_operation
from tests.support.task_rig import Rig, task

LEASE = limits.lease_seconds_default + 1
BACKOFF = 120


@pytest.fixture
def rig() -> Rig:
    return Rig()


def lose(rig: Rig, how: str) -> None:
    """The worker of whatever is leased is gone."""
    if how == "silence":
        rig.tick(LEASE)
    else:
        rig.shard.confirm(finish.expire_consumer(rig.shard, "w"))
    rig.tick(BACKOFF)


def dead(shard: Shard) -> int:
    return shard.core.by_name["q"].groups[0].progress[0].dead


@pytest.mark.parametrize("how", ["silence", "given up"])
def test_a_task_survives_its_workers_up_to_a_limit_of_its_own(rig, how):
    rig.submit(task("bystander", max_attempts=1))
    for attempt in range(1, limits.task_attempts_lost_max):
        (run,) = rig.lease()
        assert run.receipt.attempt == attempt
        lose(rig, how)
        assert dead(rig.shard) == 0

    assert len(rig.lease()) == 1
    lose(rig, how)

    assert (rig.lease(), dead(rig.shard)) == ([], 1)
    assert_accounts(rig.shard)


def test_what_was_lost_is_not_counted_with_what_failed(rig):
    rig.submit(task("t", max_attempts=2))
    seen = []
    for ends in ("lost", "failed", "lost", "failed"):
        (run,) = rig.lease()
        seen.append((run.receipt.attempt, dead(rig.shard)))
        if ends == "lost":
            lose(rig, "silence")
        else:
            assert rig.finish(run.finish("failed", error="no")) == [None]
            rig.tick(BACKOFF)

    assert seen == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert dead(rig.shard) == 1
    assert sum(isinstance(each, AttemptsLost) for frame in rig.frames() for each in frame) == 2


def test_a_plain_message_counts_as_ever_even_beside_tasks(rig):
    rig.submit(task("t", max_attempts=1))
    rig.shard.push("q", Batch.build([Message(payload=b"{}", max_attempts=1)]))
    reply, _ = rig.shard.lease("q", "default", LeaseRequest(count_max=2, consumer="w"))
    assert reply.count == 2

    rig.tick(LEASE)
    rig.tick(BACKOFF)

    assert dead(rig.shard) == 1
    assert [run.task_type for run in rig.lease()] == ["t"]


@pytest.mark.parametrize("keeps", ["journal", "checkpoint", "segment"])
def test_a_task_survives_restarts_of_the_broker_and_they_are_counted(tmp_path: Path, keeps):
    path, lost = tmp_path / "0", 0
    while True:
        with closing(Session(path)) as session:
            rig = Rig(session.shard)
            if not lost:
                rig.submit(task("t", max_attempts=1))
            if dead(session.shard):
                break
            if keeps == "segment":
                run_operation(session, ops.Seal())
            assert len(rig.lease()) == 1
            if keeps != "journal":
                session.checkpoint()
            lost += 1
            path = tmp_path / str(lost)
            shutil.copytree(tmp_path / str(lost - 1), path, ignore=shutil.ignore_patterns("*.tmp"))  # as after a kill

    assert lost == limits.task_attempts_lost_max
