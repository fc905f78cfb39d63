"""The table `What each operation needs` in docs/security.md says what the operations declare."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock import operations as ops
from penstock.broker.authorisation import LOOKED_UP
from penstock.operations.base import SOME_QUEUE
from tests.broker.test_broker import LISTS, example

PAGE = Path(__file__).parent.parent.parent / "docs" / "security.md"
ON = {"": "the broker", SOME_QUEUE: "any queue", "mail": "its queue", "mail.*": "its namespace"}
# Looked up by the broker's `Tasks`.
OF_TASKS = (ops.FindTask, ops.WaitTask, ops.CancelTask, ops.RetryTask, ops.WhyTask)
OF_WORKERS = (ops.QuietWorker, ops.ResumeWorker, ops.StopWorker)  # looked up by `Authorisation`


def documented() -> dict[str, tuple[str, str]]:
    section = PAGE.read_text(encoding="utf-8").split("## What each operation needs")[1].split("\n## ")[0]
    rows: dict[str, tuple[str, str]] = {}
    for names, action, on in re.findall(r"^\| (`.*?`) \| (.*?) \| (.*?) \|", section, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            assert name not in rows, f"{name} is there twice"
            rows[name] = action, on
    return rows


def declared(kind: type[ops.Operation[Any]]) -> tuple[str, str]:
    operation = example(kind)
    needs = list(operation.needs())
    actions = list(dict.fromkeys(str(action) for action, _ in needs)) or [str(kind.spec.action)]
    action = " and ".join(f"`{action}`" for action in actions)
    if needs:
        return action, ON[next(queue for _, queue in needs)]
    if kind in LISTS:
        return action, "what may be seen"
    assert kind in LOOKED_UP or kind in (*OF_TASKS, *OF_WORKERS), (
        f"{kind.__name__} touches no queue, and nothing is looked up"
    )
    return action, "the queue of what it names"


@pytest.mark.parametrize("name", ops.TABLE)
def test_every_operation_is_documented_with_what_it_needs(name):
    assert documented()[name] == declared(ops.TABLE[name])


def test_nothing_is_documented_that_is_not_there():
    hot = {"push", "lease", "settle", "extend", "transact", "stream", "listen"}
    assert documented().keys() == ops.TABLE.keys() | hot
