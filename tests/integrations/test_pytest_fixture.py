"""The fixture `penstock_app`, used by a real pytest; and `app.testing()`, which it is made of."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock
from penstock.errors import TaskConflict, TaskUnfinished

app = penstock.App("penstock://nowhere.invalid:7710")
limited = app.queue("limited", max_attempts=2, backoff_base_seconds=10)


@app.task(queue=limited)
def flaky(n: int) -> int:
    if penstock.current_task().attempt == 1:
        raise OSError("not yet")
    return n


def test_without_a_setting_it_is_a_new_app(penstock_app):
    @penstock_app.task
    def add(a: int, b: int) -> int:
        return a + b

    job = add.enqueue(1, 2)
    assert penstock_app.run_pending() == 1
    assert job.result() == 3


@pytest.mark.parametrize("time", ["first", "again"])  # nothing is left of the first
def test_an_app_that_names_a_broker_is_tested_without_one(time):
    with app.testing() as local:
        job = flaky.enqueue(7)
        assert len(list(app.jobs())) == 1
        local.run_pending()
        with pytest.raises(TaskUnfinished):
            job.result(timeout=60)
        local.advance(11)
        assert local.run_pending() == 1
        assert job.result() == 7
        with pytest.raises(TaskConflict, match="already being tested"), app.testing():
            pass


SHOP = """
import penstock
app = penstock.App("penstock://nowhere.invalid:7710")

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""
TEST = """
from shop import add

def test_add(penstock_app):
    job = add.enqueue(1, 2)
    penstock_app.run_pending()
    assert job.result() == 3
"""


def test_the_setting_names_the_app(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\npenstock_app = shop:app\npythonpath = .")

    done = subprocess.run([sys.executable, "-m", "pytest"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout
