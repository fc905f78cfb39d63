"""Hashes of dedup keys and unique keys: whoever has the files of an encrypted queue cannot try keys on them.

Schedules that were there before their queue was encrypted, and filters of operations.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.delivery.dedup import HOT_MAX, digest
from penstock.envelopes import new_task_id
from penstock.model import Message
from penstock.model_tasks import ScheduleSpec, TaskSubmission
from tests.access.test_encryption import CANARY, inside, leaks, opened, seal

KEYS = [f"order-{number}" for number in range(3)]


def guessed(path: Path, keys: list[str]) -> list[str]:
    """Files in which the hash of a key is: what somebody finds who tries likely keys."""
    data = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return sorted({str(file.relative_to(path)) for file in data for key in keys if digest(key) in data[file]})


def cut_off(path: Path) -> Path:
    """The directory as a process leaves it that is killed now."""
    return Path(shutil.copytree(path, path.with_name(f"{path.name} cut off")))


def pushed(ps: Penstock, keys: list[str] = KEYS) -> list[str]:
    result = ps.queue("q").push_many([Message(payload=b"x", dedup_key=key) for key in keys])
    return [str(id) for id in result.ids]


def submit(ps: Penstock, key: str, **more: Any) -> str:
    session = inside(ps)
    id = new_task_id(session.clock.now())
    task = TaskSubmission(task_id=id, task_type="mail", queue="q", unique_key=key, **more)
    (found,) = session.run(ops.SubmitTasks([task]))[0]
    return str(found.task_id)


@pytest.mark.parametrize("end", ["checkpoint", "journal"])
def test_a_dedup_key_is_known_after_a_restart_and_a_rotation_and_cannot_be_guessed(tmp_path, end):
    with opened(tmp_path) as ps:
        ps.create_queue("q", encryption=True)
        first = pushed(ps)
        ring = inside(ps).key_ring
        assert ring is not None
        ring.rotate(1)
        if end == "checkpoint":
            inside(ps).checkpoint()
            assert list((tmp_path / "checkpoints").glob("dedup-*"))
        assert guessed(tmp_path, KEYS) == []
        assert pushed(ps) == first
        cut = cut_off(tmp_path)
    assert guessed(tmp_path, KEYS) == []
    for path in (cut, tmp_path, tmp_path):
        with opened(path) as ps:
            assert pushed(ps) == first


def test_the_same_search_finds_the_keys_of_a_plain_queue(tmp_path):
    with opened(tmp_path) as ps:
        ps.create_queue("q")
        pushed(ps)
        submit(ps, KEYS[0])
        inside(ps).checkpoint()
        found = guessed(tmp_path, KEYS)
    assert {name.partition("/")[2][:5] for name in found} >= {"dedup", "tasks"}


def test_many_dedup_keys_are_in_sealed_runs(tmp_path):
    keys = [f"key {number}" for number in range(HOT_MAX + 10)]
    with opened(tmp_path) as ps:
        ps.create_queue("q", encryption=True)
        first = pushed(ps, keys)
        for _ in range(2):
            inside(ps).checkpoint()
        assert guessed(tmp_path, keys[:20] + keys[-5:]) == []
    with opened(tmp_path) as ps:
        assert pushed(ps, keys) == first
        assert ps.queue("q").stats().messages == len(keys)


def test_the_window_is_sealed_when_encryption_is_switched_on(tmp_path):
    keys = [f"key {number}" for number in range(HOT_MAX + 10)]
    with opened(tmp_path) as ps:
        ps.create_queue("q")
        first = pushed(ps, keys)
        owner = submit(ps, "customer 7")
        inside(ps).checkpoint()
        assert guessed(tmp_path, [keys[0]])
        ps.update_queue("q", encryption=True)
        inside(ps).checkpoint()
        seal(ps)
        inside(ps).checkpoint()
        assert guessed(tmp_path / "checkpoints", [keys[0], "customer 7"]) == []
        assert pushed(ps, keys) == first
    with opened(tmp_path) as ps:
        assert pushed(ps, keys) == first
        assert submit(ps, "customer 7") == owner


@pytest.mark.parametrize("end", ["checkpoint", "journal"])
def test_a_unique_key_is_known_after_a_restart_and_cannot_be_guessed(tmp_path, end):
    with opened(tmp_path) as ps:
        ps.create_queue("q", encryption=True)
        parent = submit(ps, "parent")
        owners = [submit(ps, "customer 7"), submit(ps, "customer 8", depends_on=(parent,))]
        if end == "checkpoint":
            inside(ps).checkpoint()
        words = ["parent", "customer 7", "customer 8"]
        assert guessed(tmp_path, words) == []
        cut = cut_off(tmp_path)
    assert guessed(tmp_path, words) == []
    for path in (cut, tmp_path, tmp_path):
        with opened(path) as ps:
            assert [submit(ps, "customer 7"), submit(ps, "customer 8")] == owners


def test_erased_keys_leave_nothing_of_dedup_and_unique_keys(tmp_path):
    with opened(tmp_path) as ps:
        ps.create_queue("q", encryption=True)
        first, owner = pushed(ps), submit(ps, "customer 7")
        inside(ps).checkpoint()
        ring = inside(ps).key_ring
        assert ring is not None
        ring.erase(1)
    with opened(tmp_path) as ps:
        assert pushed(ps) != first
        assert submit(ps, "customer 7") != owner
        assert ps.queue("q").stats().messages == 2 * len(KEYS) + 2


def schedule(ps: Penstock) -> None:
    spec = ScheduleSpec(name="nightly", task_type="mail", queue="q", cron="0 3 * * *", key=CANARY)
    inside(ps).run(ops.SetSchedule(spec))


@pytest.mark.parametrize("exists", [False, True])
def test_a_schedule_from_before_is_encrypted_with_its_queue(tmp_path, exists):
    with opened(tmp_path) as ps:
        if exists:
            ps.create_queue("q")
        schedule(ps)
        inside(ps).checkpoint()
        assert leaks(tmp_path)
        before = inside(ps).run(ops.Schedules())[0]
        if exists:
            ps.update_queue("q", encryption=True)
        else:
            ps.create_queue("q", encryption=True)
        inside(ps).checkpoint()
        for _ in range(2):  # the file of the journal that held it goes
            ps.queue("other").push(b"x")
            seal(ps)
            inside(ps).checkpoint()
        assert leaks(tmp_path) == []
        cut = cut_off(tmp_path)
    for path in (cut, tmp_path):
        with opened(path) as ps:
            assert inside(ps).run(ops.Schedules())[0] == before


@pytest.mark.parametrize("end", ["checkpoint", "journal"])
def test_the_error_of_a_retry_is_known_after_a_restart_and_is_in_no_file(tmp_path, end):
    with opened(tmp_path) as ps:
        ps.create_queue("q", encryption=True)
        ps.queue("q").push(b"x")
        ps.queue("q").lease()[0].nack(delay=3_600, error=CANARY)
        if end == "checkpoint":
            inside(ps).checkpoint()
        cut = cut_off(tmp_path)
    assert leaks(cut) == leaks(tmp_path) == []
    for path in (cut, tmp_path):
        with opened(path) as ps:
            (row,) = ps.queue("q").delayed(include="retries")
            assert row.retry is not None
            assert row.retry.error == CANARY
