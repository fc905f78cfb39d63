"""docs/tasks.md is held to the code: every option, call and filter is described, and its examples run."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

import penstock
from penstock import operations as ops
from penstock.tasks.context import TaskContext
from penstock.tasks.job import Job
from penstock.tasks.job_search import NAMES
from penstock.tasks.local import LocalApp
from penstock.tasks.middleware import Middleware
from penstock.tasks.options import CALL_OPTIONS, DECLARED_OPTIONS
from tests.support.operations import run_operation
from tests.test_docs import python_blocks, text_of

PAGE = text_of("docs/tasks.md")
OF_APPS_FOR_WORKERS = {"await_task", "move", "open_async_session", "open_session", "wait_task"}
FOR_WORKERS = {
    "broken_off",
    "cancel",
    "envelope",
    "first_argument",
    "parent_bytes",
}  # that a run's context has, and tasks leave alone


def first_cells(heading: str, title: str) -> set[str]:
    """The names in the first column of a table of a section, which `title` heads."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    table = section.split(f"\n| {title} |", 1)[1].split("\n\n", 1)[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return {re.split(r"\W", name)[0] for cell in cells for name in re.findall(r"`(?:job\.)?([^`]+)`", cell)}


def public(kind: type) -> set[str]:
    """The members of a class, with those of its two faces."""
    faces = [base for base in kind.__bases__ if re.search(r"\._a?sync\.", base.__module__)]
    slots = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
    members = [name for each in (kind, *faces) for name in vars(each)]
    return {name for name in (*members, *slots) if not name.startswith("_")}


def test_every_option_of_a_declaration_is_described():
    assert first_cells("Declaring tasks", "option") == set(DECLARED_OPTIONS)


def test_every_option_of_a_call_is_described():
    assert first_cells("Enqueueing", "option") == set(CALL_OPTIONS)


def test_every_filter_is_described():
    assert first_cells("Jobs", "filter") == set(NAMES)


def test_every_method_of_a_job_is_described():
    twins = {f"a{name}" for name in public(Job)}
    assert first_cells("Jobs", "call") | {"view"} == public(Job) - twins


def test_every_hook_is_described():
    assert first_cells("Middleware", "hook") == public(Middleware)


def test_all_that_a_run_may_know_is_described():
    assert first_cells("How a run ends", "member") == public(TaskContext) - FOR_WORKERS


def test_every_member_of_an_app_is_described():
    names = {name for kind in (penstock.App, LocalApp) for name in public(kind)}
    twins = {f"a{name}" for name in names}
    assert {
        name for name in names - twins - OF_APPS_FOR_WORKERS if not re.search(rf"\b[Aa]pp\.{name}\b", PAGE)
    } == set()


def test_every_twin_does_what_its_name_says():
    wanted = {
        Job: {"info", "status", "progress", "result", "cancel", "retry"},
        penstock.Workflow: {"result", "status", "cancel"},
        penstock.App: {
            *("declare", "jobs", "workers", "wait_task", "close", "workflows", "workflow", "suggest"),
            *(
                "purge",
                "cancel_all",
                "retry_all",
                "begin",
                "operation",
                "operations",
                "continue_operation",
                "stop_operation",
            ),
            *("counts", "run_schedule", "ticks", "quiet_worker", "resume_worker", "stop_worker"),
            *("schedule", "schedules", "pause_schedule", "resume_schedule", "delete_schedule", "prune_schedules"),
        },
        LocalApp: {"run_pending", "wait_task"},
    }
    for kind, names in wanted.items():
        assert {name for name in public(kind) if f"a{name}" in public(kind)} == names


def test_the_examples_run(monkeypatch):
    """Somewhere a worker is running: here, whoever waits for a result is the one."""

    def work_and_look(app: LocalApp, task_id: str, seconds: float) -> object:
        app.run_pending()
        return run_operation(app.open_session(), ops.FindTask(task_id))[0]

    monkeypatch.setattr(LocalApp, "wait_task", work_and_look)
    names: dict[str, object] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in python_blocks("docs/tasks.md"):
            here = re.sub(r'App\("penstock://localhost:7710"(, )?', "App.in_memory(", block)
            here = re.sub(r"^(.*\.result\(timeout=5\))\s+# (\d+)$", r"assert \1 == \2", here, flags=re.MULTILINE)
            exec(compile(here, "docs/tasks.md", "exec"), names)
    with pytest.raises(penstock.PenstockError):
        names["send"].enqueue(1)  # type: ignore[attr-defined]
