"""What a worker tells the broker of its runs, whatever the connection does; over a session that the test plays."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from penstock import operations as ops
from penstock.errors import InvalidField, LeaseLost, TooLarge, Unavailable
from penstock.model import Receipt
from penstock.model_tasks import RESULT_ERROR_START, Envelope, Finish
from penstock.worker import reports as module
from penstock.worker.event_loop import Spawner
from penstock.worker.reports import FinishReporter, ProgressReporter
from penstock.worker.runs import Lease, Run
from tests.support.broker_loop import on_uvloop, until
from tests.support.logs import capture_logs


class Played:
    """A session whose answers are given by the test, call by call."""

    def __init__(self) -> None:
        self.calls: list[list[Finish]] = []
        self.progress: list[bytes] = []
        self.answers: asyncio.Queue[Any] = asyncio.Queue()

    async def execute(self, operation):
        if isinstance(operation, ops.FinishTasks):
            self.calls.append(list(operation.finishes))
        else:
            self.progress.append(operation.progress)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return [None] * len(self.calls[-1]) if answer is None and isinstance(operation, ops.FinishTasks) else answer

    def sizes(self) -> list[int]:
        return [len(call) for call in self.calls]


def task_id(number: int) -> str:
    return f"0199c0de-5a00-7c1e-8000-{number:012}"


class ReportRig:
    """A `FinishReporter` and one lease of which everything is told."""

    def __init__(self) -> None:
        self.session = Played()
        self.spawner = Spawner()
        self.progress = ProgressReporter(self.session, self.spawner)  # type: ignore[arg-type]
        self.finishes = FinishReporter(self.session, self.spawner, random.Random(1), self.progress)  # type: ignore[arg-type]
        self.lease = Lease("mail", 7, 100)
        self._count = 0

    def add(self, count: int = 1, result: bytes = b"1") -> None:
        for _ in range(count):
            self.end(self.run(), result)

    def run(self) -> Run:
        self._count += 1
        receipt = Receipt("mail", "0", self._count, 1, 7)
        return Run(self.lease, receipt, Envelope(task_id=task_id(self._count), task_type="work"), None, 0)

    def end(self, run: Run, result: bytes = b"1") -> None:
        finish = Finish(receipt=run.receipt, task_id=run.envelope.task_id, outcome="completed", result=result)
        self.finishes.add(run, finish)

    async def all_sent(self) -> None:
        await until(lambda: not len(self.finishes))


@on_uvloop
async def test_a_finish_leaves_at_once_and_those_that_come_meanwhile_leave_together():
    rig = ReportRig()
    rig.add()
    await until(lambda: rig.session.sizes() == [1])
    rig.add(5)
    rig.add(3)
    rig.session.answers.put_nowait(None)
    await until(lambda: rig.session.sizes() == [1, 8])
    rig.session.answers.put_nowait(None)
    await rig.all_sent()

    assert rig.lease.unreported == 100 - 9


@on_uvloop
async def test_large_results_go_in_several_batches():
    rig = ReportRig()
    rig.add(5, result=b'"' + b"x" * (module.BATCH_BYTES_MAX // 2) + b'"')
    for _ in range(5):
        rig.session.answers.put_nowait(None)
    await rig.all_sent()

    assert rig.session.sizes() == [1] * 5


@on_uvloop
async def test_while_no_broker_answers_results_are_kept_and_reported_later_once(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS_MAX", 0.001)
    rig = ReportRig()
    rig.add(2)
    for answer in (Unavailable("gone"), Unavailable("still gone"), None):
        rig.session.answers.put_nowait(answer)
    with capture_logs() as lines:
        await rig.all_sent()

    assert rig.session.sizes() == [2, 2, 2]
    assert rig.lease.unreported == 98
    assert [line["event"] for line in lines] == ["the broker does not answer; results are kept until it does"] * 2


@on_uvloop
async def test_a_finish_that_is_refused_harms_no_other_and_is_not_reported_again():
    rig = ReportRig()
    rig.add(3)
    rig.session.answers.put_nowait([None, LeaseLost("over"), None])
    with capture_logs() as lines:
        await rig.all_sent()

    assert rig.session.sizes() == [3]
    assert rig.lease.unreported == 97
    assert [(line["event"], line["task_id"], line["attempt"]) for line in lines] == [
        ("refused: the lease has expired", task_id(2), 1)
    ]


@on_uvloop
async def test_a_result_that_the_broker_does_not_take_is_replaced_by_the_reason():
    rig = ReportRig()
    rig.add()
    rig.session.answers.put_nowait([TooLarge("result: 9 bytes are more than 8")])
    rig.session.answers.put_nowait(None)
    await rig.all_sent()

    (again,) = rig.session.calls[1]
    assert (again.outcome, again.error) == ("completed", "")
    assert again.result.startswith(RESULT_ERROR_START)
    assert b"9 bytes" in again.result
    assert rig.lease.unreported == 99


@on_uvloop
async def test_when_a_batch_is_refused_as_a_whole_each_is_reported_by_itself():
    rig = ReportRig()
    rig.add(3)
    for answer in (InvalidField("something"), None, [LeaseLost("over")], None):
        rig.session.answers.put_nowait(answer)
    await rig.all_sent()

    assert rig.session.sizes() == [3, 1, 1, 1]
    assert rig.lease.unreported == 97


@on_uvloop
async def test_what_a_run_said_last_is_reported_before_its_end_and_holds_up_no_other():
    rig = ReportRig()
    run = rig.run()
    for number in range(5):
        rig.progress.note(run, b"%d" % number)
        if not number:
            await until(lambda: rig.session.progress == [b"0"])
    rig.end(run)
    rig.progress.note(run, b"too late")
    assert len(rig.finishes) == 1
    rig.session.answers.put_nowait(None)
    await until(lambda: rig.session.progress == [b"0", b"4"])
    rig.add()
    await until(lambda: rig.session.sizes() == [1])
    for _ in range(3):
        rig.session.answers.put_nowait(None)
    await rig.all_sent()

    assert [[finish.task_id for finish in call] for call in rig.session.calls] == [[task_id(2)], [task_id(1)]]
    assert rig.session.progress == [b"0", b"4"]


@on_uvloop
async def test_a_run_ends_also_when_its_progress_cannot_be_reported():
    rig = ReportRig()
    for answer in (LeaseLost("over"), Unavailable("gone")):
        run = rig.run()
        rig.progress.note(run, b"1")
        rig.end(run)
        rig.session.answers.put_nowait(answer)
        rig.session.answers.put_nowait(None)
        await rig.all_sent()

    assert rig.session.sizes() == [1, 1]


@on_uvloop
async def test_the_end_of_a_run_may_reach_the_loop_before_its_progress():
    rig = ReportRig()
    run = rig.run()
    await asyncio.to_thread(rig.progress.note, run, b"1")
    assert run.progress == b"1"
    later = rig.run()
    later.progress = b"2"  # as a thread sets it before the loop hears of it
    rig.end(later)
    for _ in range(3):
        rig.session.answers.put_nowait(None)
    await rig.all_sent()

    assert sorted(rig.session.progress) == [b"1", b"2"]
    assert rig.session.sizes() == [1]
