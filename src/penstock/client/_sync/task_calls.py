# Generated from penstock/client/_async/task_calls.py by `make generate`. Do not edit.
"""Calls about tasks that take several operations."""

from __future__ import annotations

from typing import Any

from penstock import operations as ops
from penstock import validation
from penstock.client.session import Session
from penstock.client.thread_runtime import sleep
from penstock.client.values import Deadline, bulk_options
from penstock.model_tasks import OperationView, TaskFilter, TaskView


def wait_task(session: Session, task_id: str, seconds: float) -> TaskView:
    """A task once it is final, or as it is after `seconds`. No single request waits longer than a broker allows."""
    deadline = Deadline(session.clock, seconds)
    while True:
        view = session.execute(ops.WaitTask(task_id, deadline.slice()))
        if view.is_final or deadline.is_over():
            return view


def new_operation(action: str, filter: TaskFilter, **options: Any) -> ops.BeginOperation:
    """An operation on all tasks that match. It has an id, so that the request may be sent again."""
    id, how = bulk_options(options)
    return ops.BeginOperation(action, filter, id, how)


def run_operation(session: Session, action: str, filter: TaskFilter) -> OperationView:
    """Purge, cancel or retry all tasks that match, and wait until it is done."""
    view = session.execute(new_operation(action, filter))
    pauses = validation.pauses()
    while not view.is_over:
        sleep(next(pauses))
        view = session.execute(ops.FindOperation(view.operation_id))
    return validation.succeeded(view)
