"""Every route, in one table: Starlette's routes, OpenAPI and the page at /docs are made from it.

Most of them are derived from the table of operations: `GET /queues/{queue}/peek` is declared with the class `Peek`, and
executes it. The others are written out below: the hot ones, which the connection answers itself (`hot`), and those that
are more than one operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from msgspec import Meta

from penstock import operations as ops
from penstock.broker.health import Readiness
from penstock.server.http import actions, sign_in
from penstock.server.http.actions import HEALTH, RequestParts
from penstock.wire import json_models as models
from penstock.wire import json_tasks as tasks
from penstock.wire.json_operations import LETTER_SEARCH, SEEK_BODY, TASK_OPERATION, WORKFLOW_OPERATION, json_of
from penstock.wire.json_options import NewQueue, OptionsChange, QueueState
from penstock.wire.json_shapes import json_doc

API: Final = "/api/v1"
# What any route may answer with.
COMMON: Final = ("bad_request", "not_authorised", "too_large", "internal", "unavailable")
PUSHING: Final = (
    *("invalid_field", "queue_full", "rate_limited", "push_paused", "producer_fenced", "conflict", "disk_full"),
)
SETTLING: Final = ("bad_receipt", "lease_lost")
IN_QUEUE: Final = ("queue_not_found",)
IN_TASK: Final = ("task_not_found", "invalid_field")

# Sections of the documentation, in their order, and the words of paths that belong to them: what comes behind
# `/queues/{queue}/`, or the first.
SECTIONS: Final = {
    "queues": ("queues",),
    "messages": ("messages", "events", "peek", "delayed", "lease"),
    "deliveries": ("lease", "ack", "nack", "reject", "release", "snooze", "extend", "transactions", "producers"),
    "groups": ("groups",),
    "dead letters": ("dlq",),
    "tasks": ("tasks",),
    "operations": ("operations",),
    "workers": ("workers",),
    "schedules": ("schedules",),
    "access": ("keys", "users", "roles", "namespaces", "sessions", "me"),
    "broker": (),
}

Execute = Callable[[RequestParts], Awaitable[Any]]


class Nothing(models.Request):
    """No query."""


@dataclass(frozen=True, eq=False)
class Route:
    """One route. Without `execute` it is hot. Without a result it replies 204, unless `media` is not JSON."""

    method: str
    path: str
    name: str  # the operation id of OpenAPI: a verb and a noun
    summary: str
    execute: Execute | None = None
    body: Any = None
    query: Any = Nothing
    result: Any = None
    errors: tuple[str, ...] = ()
    status: int = 200
    example: Mapping[str, Any] = field(default_factory=dict)  # of the body, or of the query where there is none
    media: str = "application/json"
    is_body_optional: bool = False
    may_be_empty: bool = False  # it replies 204 to some requests
    description: str = ""

    @property
    def success(self) -> int:
        """The status of a response that is no error."""
        return 204 if self.result is None and self.media == "application/json" else self.status

    @property
    def section(self) -> str:
        """Where the documentation has it."""
        words = self.path.removeprefix(API).split("/")[1:]
        for word in (*words[2:3], *words[:1]) if words[0] == "queues" else words[:1]:
            for section, its_words in SECTIONS.items():
                if word in its_words:
                    return section
        return "broker"


def derived(operation: type[ops.Operation[Any]]) -> Route:
    """The route of an operation, from its declaration."""
    spec, json = operation.spec, json_of(operation)
    assert spec.method is not None

    async def execute(request: RequestParts) -> Any:
        arguments = request.query if json.body is None else request.body
        operation = json.read(request.path, arguments)
        return json.reply.write(operation, await request.execute(operation))

    return Route(
        *(spec.method, API + spec.path, spec.route, json_doc(spec.summary), execute),
        description=json_doc(spec.description),
        body=json.body,
        query=json.query or Nothing,
        result=json.reply.type,
        errors=spec.errors,
        status=spec.status,
        example=spec.example,
        is_body_optional=json.is_body_optional,
    )


def custom(operation: type[ops.Operation[Any]], execute: Execute, **shapes: Any) -> Route:
    """The route of an operation whose JSON is not that of its struct."""
    spec = operation.spec
    assert spec.method is not None
    about: dict[str, Any] = {"errors": spec.errors, "status": spec.status, "example": spec.example}
    about["description"] = json_doc(spec.description)
    return Route(spec.method, API + spec.path, spec.route, json_doc(spec.summary), execute, **about | shapes)


class CreateQuery(models.Request):
    """With `exist_ok`, it is not an error if a queue with the same name and options exists."""

    exist_ok: bool = False


class ProfileQuery(models.Request):
    """The duration of the profile."""

    seconds: Annotated[float, Meta(gt=0, le=60)] = 5.0


# Operations whose JSON is not that of their structs.
CUSTOM: Final = {
    ops.CreateQueue: custom(ops.CreateQueue, actions.create_queue, body=NewQueue, query=CreateQuery, result=QueueState),
    ops.UpdateQueue: custom(ops.UpdateQueue, actions.update_queue, body=OptionsChange, result=QueueState),
    ops.Queues: custom(ops.Queues, actions.list_queues, result=models.QueuesView),
    ops.GetOptions: custom(ops.GetOptions, actions.get_queue, result=QueueState),
    ops.Seek: custom(
        *(ops.Seek, actions.seek), body=SEEK_BODY, result=json_of(ops.PreviewSeek).reply.type, may_be_empty=True
    ),
    ops.ReplaceLetters: custom(ops.ReplaceLetters, actions.replace_letters, body=models.LetterReplacement),
    ops.SubmitTasks: custom(ops.SubmitTasks, actions.submit, body=tasks.submission, result=tasks.SUBMITTED_TASKS),
    ops.FinishTasks: custom(ops.FinishTasks, actions.finish, body=tasks.finished, result=tasks.FinishResults),
    ops.FindTask: custom(ops.FindTask, actions.task, query=tasks.WaitQuery, result=tasks.TASK.type),
}
OF_OPERATIONS: Final = tuple(
    CUSTOM.get(operation) or derived(operation) for operation in ops.TABLE.values() if operation.spec.method
)


# Hot ones: `hot` answers them.

_QUEUE: Final = "/api/v1/queues/{queue}"
_RECEIPTS: Final = ["orders:0:7:1:6f2a90c44d1be803"]
_LEASE: Final = "6f2a90c44d1be803"


def _settle(name: str, path: str, summary: str, body: Any, example: Mapping[str, Any]) -> Route:
    return Route(
        *("POST", path, name, summary, None, body), result=models.SettleResults, errors=SETTLING, example=example
    )


HOT: Final = (
    Route(
        *("POST", f"{_QUEUE}/messages", "push_messages", "Push messages to a queue", None, models.Push),
        result=models.PushResults,
        errors=PUSHING,
        status=201,
        example={"messages": [{"payload": {"order": 1}, "key": "ann"}, {"payload_base64": "AAEC"}]},
    ),
    Route(
        *("POST", f"{_QUEUE}/lease", "lease_messages", "Lease messages, waiting up to wait_ms for the first"),
        body=models.Lease,
        result=models.LeaseView,
        errors=(*IN_QUEUE, "invalid_field", "member_fenced"),
        is_body_optional=True,
        example={"max": 10, "wait_ms": 20000, "group": "default"},
    ),
    Route(
        *("POST", "/api/v1/lease", "lease_from_queues", "Lease messages of several queues, waiting up to wait_ms"),
        body=models.LeaseQueues,
        result=models.LeasesView,
        errors=(*IN_QUEUE, "group_not_found", "invalid_field", "member_fenced"),
        example={"queues": ["orders", "shop.*"], "max": 10, "wait_ms": 20000},
    ),
    _settle("ack_messages", "/api/v1/ack", "Acknowledge deliveries", models.Ack, {"receipts": _RECEIPTS}),
    _settle(
        *("nack_messages", "/api/v1/nack", "Retry deliveries later", models.Nack),
        {"receipts": _RECEIPTS, "error": "no answer", "delay_ms": 5000},
    ),
    _settle(
        *("reject_messages", "/api/v1/reject", "Move deliveries to the dead letters", models.Reject),
        {"receipts": _RECEIPTS, "reason": "not an order"},
    ),
    _settle(
        *("release_messages", "/api/v1/release", "Release deliveries without counting the attempt", models.Release),
        {"lease_id": _LEASE},
    ),
    _settle(
        *("snooze_messages", "/api/v1/snooze", "Deliver again later without counting the attempt", models.Snooze),
        {"receipts": _RECEIPTS, "delay_ms": 60000},
    ),
    _settle(
        *("extend_lease", "/api/v1/extend", "Extend a lease", models.Extend),
        {"lease_id": _LEASE, "lease_ms": 30000},
    ),
)

# More than one operation, or none of the table.

COMPOSED: Final = (
    Route(
        *("POST", "/api/v1/transactions", "commit_transaction", "Push and settle in one transaction"),
        *(actions.transact, models.Transaction),
        result=models.TransactionView,
        errors=(*PUSHING, *SETTLING),
        example={
            "operations": [
                {"type": "ack", "receipts": _RECEIPTS},
                {"type": "push", "queue": "invoices", "messages": [{"payload": {"order": 1}}]},
            ]
        },
    ),
    Route(
        *("POST", f"{_QUEUE}/dlq/search", "search_dead_letters", "Search dead letters with a filter in the body"),
        *(actions.search_dead_letters, LETTER_SEARCH.type),
        result=json_of(ops.DeadLetters).reply.type,
        errors=(*IN_QUEUE, "invalid_field"),
        example={"ids": ["orders.dlq/0/3"], "from_offset": 0},
        is_body_optional=True,
    ),
    *(
        Route(
            *("POST", f"/api/v1/tasks/{action}", f"{action}_tasks", summary, actions.begin(action)),
            body=TASK_OPERATION.type,
            result=json_of(ops.BeginOperation).reply.type,
            errors=ops.BeginOperation.spec.errors,
            status=202,
            example=example,
        )
        for action, summary, example in (
            ("retry", "Retry all matching tasks", {"status": ["dead"], "task_type": "send_email", "canary": 5}),
            ("cancel", "Cancel all matching tasks", {"queue": "mail", "dry_run": True}),
            (
                "purge",
                "Delete all matching tasks that are final, and cancel and delete those that wait",
                {"status": ["completed"], "until": "2030-01-31T12:00:00Z"},
            ),
        )
    ),
    *(
        Route(
            *("POST", f"/api/v1/workflows/{{workflow}}/{action}", f"{action}_workflow", summary),
            *(actions.begin_on_workflow(action), WORKFLOW_OPERATION.type),
            result=json_of(ops.BeginOperation).reply.type,
            errors=ops.BeginOperation.spec.errors,
            status=202,
            example=example,
            is_body_optional=True,
        )
        for action, summary, example in (
            ("cancel", "Cancel all tasks of a workflow that are not final", {"dry_run": True}),
            ("retry", "Retry all dead and cancelled tasks of a workflow", {"rate": 100}),
        )
    ),
    Route(
        *("GET", "/api/v1/tasks/{task_id}/result", "get_task_result", "Get the result of a task"),
        actions.result,
        query=tasks.WaitQuery,
        result=Any,
        errors=(*IN_TASK, "task_died", "task_cancelled", "result_lost", "task_unfinished"),
        example={"wait_ms": 5000},
    ),
    Route(
        *("GET", "/api/v1/schedules/{name}", "get_schedule", "Get a schedule", actions.schedule),
        result=tasks.SCHEDULE.type,
        errors=("schedule_not_found",),
    ),
    Route(
        *("POST", "/api/v1/sessions", "begin_session", "Sign in with a password or the code of a one-time link"),
        *(sign_in.begin_session, sign_in.Credentials),
        result=sign_in.SessionView,
        errors=("not_authenticated", "invalid_field", "rate_limited"),
        status=201,
        example={"user": "ann", "password": "correct horse battery"},
    ),
    Route(
        *("POST", "/api/v1/sessions/links", "create_link", "Create a one-time link that signs in as the caller"),
        sign_in.create_link,
        result=sign_in.LinkView,
        errors=("not_authenticated", "not_authorised"),
        status=201,
    ),
    Route(
        *("DELETE", "/api/v1/sessions/current", "delete_session", "Sign out", sign_in.end_session),
        errors=("not_authenticated",),
    ),
    Route(
        *("POST", "/api/v1/history/query", "query_history", "Query the history with SQL", actions.query_history),
        body=models.HistoryQuery,
        result=models.QueryResult,
        errors=("bad_query", "rate_limited"),
        example={"query": "select queue, count(*) as messages from messages group by queue", "limit": 100},
    ),
    Route(
        *(
            "GET",
            "/api/v1/history/state",
            "get_past_state",
            "Get depth, leases and lag at a past moment",
            actions.past_state,
        ),
        query=models.PastQuery,
        result=actions.PAST_STATE.type,
        errors=("bad_query", "invalid_field", "queue_not_found", "rate_limited"),
        example={"at": "2030-01-31T12:00:00Z", "queue": "orders"},
    ),
    Route(
        *("GET", "/api/v1/pipelines/{name}/runs/{run}/report", "get_pipeline_report"),
        *("Get the report of a run of a pipeline", actions.pipeline_report),
        errors=("run_not_found", "invalid_name"),
        media="text/html",
    ),
    Route(
        "GET",
        "/api/v1/stats",
        "get_stats",
        "Get the counters of all queues",
        actions.all_stats,
        result=models.StatsView,
    ),
    Route("GET", "/api/v1/health", "get_health", "Get the health of the broker", actions.health, result=HEALTH.type),
    Route("GET", "/health", "get_health_short", "Same as /api/v1/health", actions.health, result=HEALTH.type),
    Route("GET", "/livez", "get_liveness", "Check liveness", actions.livez, result=models.StatusView),
    Route("GET", "/readyz", "get_readiness", "Check readiness", actions.readyz, result=Readiness),
    Route("GET", "/metrics", "get_metrics", "Get metrics for Prometheus", actions.metrics, media="text/plain"),
)
PROFILES: Final = (
    Route(
        *("GET", "/debug/profile", "get_cpu_profile", "Profile the CPU use, as collapsed stacks"),
        actions.profile("cpu"),
        query=ProfileQuery,
        example={"seconds": 5},
        media="text/plain",
        errors=("invalid_field", "conflict"),
    ),
    Route(
        *("GET", "/debug/memory", "get_memory_profile", "Profile allocations by line of code"),
        actions.profile("memory"),
        query=ProfileQuery,
        example={"seconds": 5},
        media="text/plain",
        errors=("invalid_field", "conflict"),
    ),
    Route(
        *("GET", "/debug/threads", "get_threads", "Show the stack of each thread and each task of the event loop"),
        actions.profile("threads"),
        media="text/plain",
        errors=("invalid_field", "conflict"),
    ),
)

ROUTES: Final = (*HOT, *OF_OPERATIONS, *COMPOSED)
