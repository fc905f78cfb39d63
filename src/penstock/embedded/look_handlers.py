"""Handlers of questions: why something waits, which keys do, whether every message is accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock import operations as ops
from penstock.embedded.cluster import cluster_view
from penstock.embedded.handler_table import Reply, Who, handles
from penstock.model import DEFAULT_GROUP, MessageId, Reason
from penstock.model_backlog import ParentView, TaskWait
from penstock.model_tasks import TaskState, TaskView, id_text
from penstock.replies import PipelineRun
from penstock.shard import backlog, browse, traces

if TYPE_CHECKING:
    from penstock.embedded.session import Session

IN_LINE: Final = ("in_line",)  # reasons of a message that waits for a consumer
PARENTS_SHOWN: Final = 100


@handles(ops.Why)
def _why(session: Session, call: ops.Why, who: Who) -> Reply:
    return _reasons(session, call.id)


def _reasons(session: Session, id: MessageId) -> tuple[list[Reason], int]:
    reasons, ticket = browse.why_waiting(session.shard, id)
    if all(reason.code not in IN_LINE for reason in reasons):
        return reasons, ticket
    task_type = browse.task_type(session.shard, id)
    if not task_type or task_type in session.tasks.known_types():
        return reasons, ticket
    text = f"no running worker knows the task type {task_type!r}"
    return [
        reason._replace(code="no_worker", text=text)
        if reason.code in IN_LINE and reason.group == DEFAULT_GROUP
        else reason
        for reason in reasons
    ], ticket


@handles(ops.WhyQueue)
def _why_queue(session: Session, call: ops.WhyQueue, who: Who) -> Reply:
    rate, knows = session.recorder.sampler.settled_per_second, session.tasks.known_types().__contains__
    return backlog.why_queue(session.shard, call.queue, call.group, call.limit, rate, knows)


@handles(ops.WhyTask)
def _why_task(session: Session, call: ops.WhyTask, who: Who) -> Reply:
    view = session.tasks.task(call.task_id)
    reasons, parents, ticket = _of_task(session, view)
    found = TaskWait(
        task_id=view.task_id,
        state=view.state,
        queue=view.queue,
        message_id=view.message_id,
        reasons=reasons,
        parents=parents,
    )
    return found, ticket


def _of_task(session: Session, view: TaskView) -> tuple[list[Reason], list[ParentView], int]:
    if view.is_final:
        return [Reason(DEFAULT_GROUP, view.state, f"it is {view.state}", error=view.error)], [], 0
    if view.state is not TaskState.BLOCKED and view.message_id:
        reasons, ticket = _reasons(session, MessageId.parse(view.message_id))
        return [reason for reason in reasons if reason.group == DEFAULT_GROUP], [], ticket
    parents, ticket = session.shard.look(lambda now: _awaited(session, view.task_id))
    many = f"{len(parents):,} of its parents are" if len(parents) != 1 else "1 of its parents is"
    shown = session.tasks.task_index.views(parents[:PARENTS_SHOWN])
    views = [ParentView(task_id=task.task_id, task_type=task.task_type, state=task.state) for task in shown]
    return [Reason(DEFAULT_GROUP, "blocked", f"{many} not final")], views, ticket


def _awaited(session: Session, task_id: str) -> list[str]:
    """The parents that a blocked task waits for."""
    held = session.shard.core.tasks.held.get(bytes.fromhex(task_id.replace("-", "")))
    return [] if held is None else sorted(map(id_text, held.waits))


@handles(ops.MessageKeys)
def _message_keys(session: Session, call: ops.MessageKeys, who: Who) -> Reply:
    return backlog.keys(session.shard, call.queue, call.group, call.key, call.prefix, call.limit)


handles(ops.GetTrace)(
    lambda session, call, who: traces.trace(session.timelines, session.tasks, call.trace, call.limit, call.look_back)
)
handles(ops.Pipelines)(lambda session, call, who: (session.pipeline_runs.all(), 0))
handles(ops.GetPipelineRun)(lambda session, call, who: (session.pipeline_runs.run(call.name, call.run), 0))
handles(ops.GetPipelineReport)(lambda session, call, who: (session.pipeline_runs.report(call.name, call.run), 0))


@handles(ops.PutPipelineRun)
def _put_pipeline_run(session: Session, call: ops.PutPipelineRun, who: Who) -> Reply:
    session.shard.check_space()
    session.audit.record_first()
    run = PipelineRun(
        pipeline=call.name,
        run=call.run,
        state=call.state,
        started_at=call.started_at,
        ended_at=call.ended_at,
        rows=call.rows,
        error=call.error,
        queues=call.queues_read,
        summary=call.summary,
    )
    return session.pipeline_runs.put(run, call.report), 0


handles(ops.ListConnections)(lambda session, call, who: (session.connections.page(call.limit), 0))
handles(ops.Cluster)(lambda session, call, who: (cluster_view(session), 0))


@handles(ops.EndConnection)
def _end_connection(session: Session, call: ops.EndConnection, who: Who) -> Reply:
    session.audit.record_first()
    session.connections.end(call.connection_id)
    return None, 0


handles(ops.Account)(lambda session, call, who: backlog.account(session.shard, call.queue))
