"""How many tasks are in each state, when a task changed last, and until when its worker has it."""

from __future__ import annotations

from penstock import operations as ops
from penstock.model import to_datetime
from penstock.model_tasks import TaskSubmission
from penstock.requests import LeaseRequest

IDS = [f"0190a1b2-c3d4-7e5f-8a9b-{number:012x}" for number in range(10)]


def submit(ps, *ids: str, **options) -> None:
    tasks = [TaskSubmission(task_id=id, task_type="send", queue="mail", **options) for id in ids]
    ps.session.execute(ops.SubmitTasks(tasks))


def test_tasks_are_counted_by_state_and_plain_messages_are_not(ps):
    submit(ps, *IDS[:4])
    submit(ps, IDS[4], delay_seconds=60)
    submit(ps, IDS[5], depends_on=(IDS[0],))
    ps.queue("mail").push(b"plain")
    ps.queue("other").push(b"plain")
    ps.session.lease("mail", "default", LeaseRequest(1), 0.0)
    ps.session.execute(ops.CancelTask(IDS[3]))

    (counts,) = ps.session.execute(ops.CountTasks())

    assert (counts.queue, counts.pending, counts.running, counts.scheduled) == ("mail", 2, 1, 1)
    assert (counts.blocked, counts.cancelled, counts.completed, counts.failed, counts.dead) == (1, 1, 0, 0, 0)


def test_a_task_says_when_it_changed_last_and_until_when_its_lease_lasts(ps, clock):
    began = clock.now()
    submit(ps, IDS[0])
    fresh = ps.session.execute(ops.FindTask(IDS[0]))
    clock.advance(seconds=5)
    lease = ps.session.lease("mail", "default", LeaseRequest(1, 20.0), 0.0)
    running = ps.session.execute(ops.FindTask(IDS[0]))
    clock.advance(seconds=3)
    ps.session.extend(lease.nonce, 40.0)
    extended = ps.session.execute(ops.FindTask(IDS[0]))

    assert (fresh.updated_at, fresh.lease_expires_at) == (to_datetime(began), None)
    assert running.updated_at == to_datetime(began + 5_000_000)
    assert running.lease_expires_at == to_datetime(began + 25_000_000)
    assert extended.lease_expires_at == to_datetime(began + 48_000_000)
