"""Workers as the system sees them: heartbeats, death, goodbye (F7)."""

from __future__ import annotations

import pytest

from penstock import limits
from penstock import operations as ops
from penstock.errors import InvalidField, InvalidName, LeaseLost, StateError, WorkerNotFound
from penstock.model_tasks import WorkerInfo, WorkerNews
from tests.behaviour.steps import refuse
from tests.behaviour.task_steps import Office, waiting
from tests.support.operations import confirm, run_operation


class Staff(Office):
    """An office that sees its workers."""

    def heartbeat(self, worker_id: str, **reported) -> WorkerNews:
        news: WorkerNews = self.confirmed(
            run_operation(self.session, ops.HeartbeatWorker(WorkerInfo(worker_id=worker_id, **reported)))
        )
        return news

    def workers(self) -> dict[str, str]:
        return {view.info.worker_id: view.state for view in self.confirmed(run_operation(self.session, ops.Workers()))}


@pytest.fixture
def staff(ps):
    return Staff(ps)


def test_workers_are_shown_as_they_tell_of_themselves(staff, clock):
    staff.heartbeat("w1", host="box", pid=7, queues=("mail",), concurrency=4)
    clock.advance(10)
    staff.heartbeat("w1", host="box", pid=7, queues=("mail",), concurrency=4, running=2)
    staff.heartbeat("w2", is_stopping=True)

    first, second = staff.confirmed(run_operation(staff.session, ops.Workers()))

    assert (first.info.host, first.info.queues, first.info.running, first.state) == ("box", ("mail",), 2, "alive")
    assert (first.last_heartbeat_at - first.first_seen_at).total_seconds() == 10
    assert (second.info.worker_id, second.state) == ("w2", "stopping")


def test_the_work_of_a_dead_worker_starts_again_and_the_attempt_counts(staff, clock, way):
    staff.ps.create_queue("mail", lease_seconds=3600, max_attempts=3)
    task_id = staff.enqueue()
    staff.heartbeat("w1")
    staff.heartbeat("w2")
    late = staff.lease_one(worker="w1")

    clock.advance(limits.worker_dead_seconds - 1)
    staff.heartbeat("w2")
    way.let_time_happen()
    assert staff.state(task_id) == "running"
    clock.advance(1)
    way.let_time_happen()

    assert staff.workers() == {"w1": "dead", "w2": "alive"}
    assert staff.state(task_id) == "failed"
    staff.retry(task_id)
    with pytest.raises(LeaseLost):
        late.finish(result="late")
    assert staff.work(worker="w2") == [task_id]
    assert [run.worker for run in staff.task(task_id).runs] == ["w1", "w2"]
    clock.advance(limits.worker_shown_seconds)
    assert "w1" not in staff.workers()


def test_a_worker_that_is_heard_of_again_is_alive(staff, clock, way):
    staff.heartbeat("w1")
    clock.advance(limits.worker_dead_seconds)
    way.let_time_happen()
    assert staff.workers() == {"w1": "dead"}

    staff.heartbeat("w1")

    assert staff.workers() == {"w1": "alive"}


def test_a_worker_that_says_goodbye_gives_back_what_it_holds(staff):
    task_id = staff.enqueue()
    staff.heartbeat("w1")
    late = staff.lease_one(worker="w1")

    confirm(staff.session, run_operation(staff.session, ops.ForgetWorker("w1")))

    assert staff.workers() == {}
    with pytest.raises(LeaseLost):
        late.finish()
    again = staff.lease_one(worker="w2")
    assert (again.task_id, again.delivery.attempt) == (task_id, 1)


def test_news_is_for_the_worker_that_runs_the_task(staff, way):
    first, second = staff.push(staff.new(), staff.new())
    one, two = staff.lease_one(worker="w1"), staff.lease_one(worker="w2")
    waits = waiting(way, lambda: staff.confirmed(run_operation(staff.session, ops.AwaitNews("w2", 60))))

    staff.cancel(one.task_id)
    assert staff.confirmed(run_operation(staff.session, ops.AwaitNews("w1", 0))) == WorkerNews((one.task_id,))
    assert not waits.done()
    staff.cancel(two.task_id)

    assert waits.result(30) == WorkerNews((two.task_id,))
    assert {one.task_id, two.task_id} == {first, second}
    assert staff.heartbeat("w1") == WorkerNews((one.task_id,))


def test_a_worker_without_a_name_is_refused(staff):
    refuse(InvalidName, lambda: staff.heartbeat("no spaces"), "worker_id")
    refuse(InvalidName, lambda: run_operation(staff.session, ops.AwaitNews("", 0)), "worker_id")
    refuse(
        InvalidName, lambda: confirm(staff.session, run_operation(staff.session, ops.ForgetWorker("a/b"))), "worker_id"
    )


# what operators want of a worker


def request(staff, operation):
    return staff.confirmed(run_operation(staff.session, operation))


def test_a_worker_is_notified_that_it_shall_be_quiet_and_shows_it(staff, clock, way):
    staff.heartbeat("w1", pid=7, queues=("mail",))
    waits = waiting(way, lambda: staff.confirmed(run_operation(staff.session, ops.AwaitNews("w1", 60))))

    view = request(staff, ops.QuietWorker("w1"))

    assert (view.state, view.requested, view.info.worker_id) == ("alive", "quiet", "w1")
    assert view.requested_at.timestamp() == pytest.approx(clock.now() / 1e6, abs=1e-3)
    assert waits.result(60).requested == "quiet"
    assert staff.heartbeat("w1", pid=7, is_quiet=True).requested == "quiet"
    assert staff.workers() == {"w1": "quiet"}

    view = request(staff, ops.ResumeWorker("w1"))

    assert (view.requested, view.requested_at) == ("", None)
    assert staff.heartbeat("w1", pid=7, is_quiet=True).requested == ""
    assert staff.heartbeat("w1", pid=7).requested == ""
    assert staff.workers() == {"w1": "alive"}


def test_what_is_wanted_of_a_worker_waits_for_it_if_nobody_listens(staff):
    staff.heartbeat("w1")
    request(staff, ops.StopWorker("w1", grace_seconds=5))

    news = staff.confirmed(run_operation(staff.session, ops.AwaitNews("w1", 60)))

    assert (news.requested, news.grace_seconds) == ("stop", 5)
    assert staff.heartbeat("w1").requested == "stop"
    refuse(StateError, lambda: request(staff, ops.QuietWorker("w1")), "stopping")
    refuse(StateError, lambda: request(staff, ops.ResumeWorker("w1")), "stopping")


def test_another_process_of_the_same_id_is_not_meant(staff):
    staff.heartbeat("w1", host="a", pid=1)
    request(staff, ops.StopWorker("w1"))

    assert staff.heartbeat("w1", host="a", pid=2).requested == ""


def test_a_broker_that_does_not_know_a_quiet_worker_leaves_it_so(staff):
    assert staff.heartbeat("w1", is_quiet=True).requested == "quiet"

    assert request(staff, ops.ResumeWorker("w1")).requested == ""
    assert staff.heartbeat("w1", is_quiet=True).requested == ""


def test_workers_that_are_not_there_or_dead_do_nothing(staff, clock, way):
    refuse(WorkerNotFound, lambda: request(staff, ops.QuietWorker("nobody")), "nobody")
    refuse(WorkerNotFound, lambda: request(staff, ops.StopWorker("nobody", "ann")), "nobody")
    refuse(InvalidName, lambda: request(staff, ops.QuietWorker("no such name")))
    refuse(InvalidField, lambda: request(staff, ops.StopWorker("w1", grace_seconds=-1)), "grace_seconds")
    staff.heartbeat("w1")
    clock.advance(limits.worker_dead_seconds)
    way.let_time_happen()

    refuse(StateError, lambda: request(staff, ops.QuietWorker("w1")), "dead")
