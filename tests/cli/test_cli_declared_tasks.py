"""`penstock enqueue module:app.task`: the call has what the code declares."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import penstock
from penstock import operations as ops

SHOP = """
from datetime import date
import penstock

app = penstock.App()
signed = penstock.App(sign=b"k" * 32)
app.queue("mail", lease_seconds=99)

@app.task(queue="mail", max_attempts=7, timeout=9, priority="high", key="to", ttl=3600)
def send(to: str, day: date | None = None) -> str:
    return to

@app.task(name="shop.add")
def add(left: int, right: int) -> int:
    return left + right

@app.task(unique=True)
def once(number: int) -> None: ...

@app.task
def store(data: bytes, name: str = "") -> None: ...

@signed.task
def secret() -> None: ...
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shop_of_tests.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "data"
    sys.modules.pop("shop_of_tests", None)


def stored(data: Path, id: str):
    with penstock.open(data) as ps:
        return ps.session.execute(ops.FindTask(id.strip()))


def test_a_task_has_what_its_code_declares(shop, run):
    done = run("enqueue", "shop_of_tests:app.send", "ann", "2030-01-31", "-u", shop)
    view = stored(shop, done.out)

    assert (view.task_type, view.queue, view.max_attempts, view.timeout_seconds) == ("send", "mail", 7, 9.0)
    assert (view.priority, view.key, view.args) == (192, "ann", b'["ann","2030-01-31"]')
    with penstock.open(shop) as ps:
        assert ps.queue("mail").options().lease_seconds == 99


def test_flags_count_more_than_declarations(shop, run):
    words = ("--queue", "other", "--max-attempts", "2", "--priority", "low", "--timeout", "5m", "--key", "bob")
    view = stored(shop, run("enqueue", "shop_of_tests:app.send", "ann", *words, "-u", shop).out)

    assert (view.queue, view.max_attempts, view.priority, view.timeout_seconds) == ("other", 2, 64, 300.0)
    assert view.key == "bob"


def test_a_name_may_have_dots_and_a_task_may_be_unique_signed_or_take_bytes(shop, run):
    (shop.parent / "picture").write_bytes(bytes(range(256)))

    assert stored(shop, run("enqueue", "shop_of_tests:app.shop.add", "1", "2", "-u", shop).out).task_type == "shop.add"
    first = run("enqueue", "shop_of_tests:app.once", "1", "-u", shop).out.strip()
    assert run("enqueue", "shop_of_tests:app.once", "1", "-u", shop).out.startswith(f"{first} (already submitted")
    assert run("enqueue", "shop_of_tests:signed.secret", "-u", shop).code == 0
    file = ("--file", shop.parent / "picture", "-a", "name=x")
    assert run("enqueue", "shop_of_tests:app.store", *file, "-u", shop).code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("shop_of_tests:app.sned", "ann"), "has no task 'sned'\nhint:  did you mean 'send'?"),
        (("shop_of_tests:app", "ann"), "does not name a task"),
        (("shop_of_tests.py:app.send", "ann"), "did you mean 'shop_of_tests:app'?"),
        (("shop_of_tests:ap.send", "ann"), "did you mean 'shop_of_tests:app'?"),
        (("shop_of_tests:app.shop.add", "one", "2"), "left"),
        (("shop_of_tests:app.shop.add", "1"), "right"),
        (("shop_of_tests:app.send", "-a", "too=ann"), "too"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_stored(shop, run, words, message):
    penstock.open(shop).close()
    refused = run("enqueue", *words, "-u", shop)

    assert refused.code == 1
    assert message in refused.err
    assert run("tasks", "list", "-u", shop)[:2] == (0, "")


def test_a_type_that_no_worker_runs_is_reported(ps, run):
    done = run("enqueue", "sned", "ann")

    assert done.code == 0
    assert "no running worker handles tasks of type 'sned'" in done.err
    assert run("enqueue", "sned", "--json").err == ""
