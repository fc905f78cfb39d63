"""`penstock workflows`: tasks that depend on each other, as a whole."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli import human, output
from penstock.cli.bulk import BulkFlags, run_bulk
from penstock.cli.options import AsJson, Yes, command
from penstock.cli.target import Broker
from penstock.model_tasks import TaskFilter, TaskState, WorkflowView
from penstock.units import plural

app = typer.Typer(help="Workflows: list, show, cancel, retry.", no_args_is_help=True)

WorkflowId = Annotated[str, typer.Argument(metavar="ID", help="The id, from 'penstock workflows list'.")]


@command(app, "list")
def list_(
    broker: Broker,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List workflows, newest first."""
    from penstock import limits
    from penstock import operations as ops

    found: list[WorkflowView] = []
    cursor = None
    with broker.opened() as ps:
        while len(found) < limit:
            part = min(limit - len(found), limits.workflow_page_max)
            page = ps.session.execute(ops.ListWorkflows(part, cursor))
            found += page.workflows
            cursor = page.cursor
            if cursor is None:
                break
    headings = ("workflow", "status", "submitted", "tasks", "completed", "dead")
    nothing = ("no workflows", "'chain', 'group' and 'graph' of penstock.tasks create one")
    output.write_list(found, headings, _row, as_json=as_json, nothing=nothing, text_columns=3)


def _row(view: WorkflowView) -> tuple[Any, ...]:
    about = (view.workflow, view.status, human.age(view.submitted_at))
    return *about, view.tasks_total, view.counts["completed"], view.counts["dead"]


@command(app)
def show(broker: Broker, workflow: WorkflowId, as_json: AsJson = False) -> None:
    """Show the tasks of a workflow; a star marks the critical path."""
    from penstock import operations as ops
    from penstock.wire.json_operations import json_of

    with broker.opened() as ps:
        view = ps.session.execute(ops.FindWorkflow(workflow))
    if as_json:
        output.write_json(json_of(ops.FindWorkflow).reply.write(None, view))
        return
    path = {*(view.critical_path or ())}
    rows = [
        ("*" if task.task_id in path else "", task.task_id, task.task_type, task.state, task.queue)
        for task in view.tasks or ()
    ]
    output.write(output.table(("", "task", "type", "state", "queue"), rows, text_columns=5))
    more = ", of which the oldest are shown" if view.is_cut else ""
    output.write(f"{view.status}: {plural(view.tasks_total, 'task')}{more}")


@command(app)
def cancel(broker: Broker, workflow: WorkflowId, bulk: BulkFlags, yes: Yes = False, as_json: AsJson = False) -> None:
    """Cancel all unfinished tasks of a workflow."""
    question = f"Cancel all tasks of {workflow} that are not final?"
    _all(broker, "cancel", TaskFilter(workflow=workflow), bulk, question, yes=yes, as_json=as_json)


@command(app)
def retry(broker: Broker, workflow: WorkflowId, bulk: BulkFlags, yes: Yes = False, as_json: AsJson = False) -> None:
    """Retry all dead and cancelled tasks of a workflow."""
    filter = TaskFilter(workflow=workflow, states=(TaskState.DEAD, TaskState.CANCELLED))
    question = f"Run all dead and cancelled tasks of {workflow} again?"
    _all(broker, "retry", filter, bulk, question, yes=yes, as_json=as_json)


def _all(
    broker: Broker, action: str, filter: TaskFilter, bulk: BulkFlags, question: str, *, yes: bool, as_json: bool
) -> None:
    from penstock.client._sync.task_calls import new_operation

    with broker.opened() as ps:
        if not bulk.dry_run:
            output.confirm(question, yes=yes)
        operation = new_operation(action, filter, **bulk.options())
        run_bulk(ps, operation, f"no such tasks in {filter.workflow}", as_json=as_json)
