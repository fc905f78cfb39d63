"""Every route, in one table: Starlette's routes, OpenAPI and the page at /docs are made from it.

A hot route is answered by the connection itself (`hot`); its line here describes it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from penstock.broker.health import Readiness
from penstock.model import Freed, QueueStats
from penstock.replies import ServerInfo
from penstock.server.http import actions, probes
from penstock.server.http.route import IN_GROUP, IN_QUEUE, MEMBER, PUSHING, SETTLING, Route
from penstock.server.http.task_routes import OF_OPERATIONS, OF_SCHEDULES, OF_TASKS, OF_WORKERS
from penstock.wire import json_models as models
from penstock.wire import json_views as views
from penstock.wire.json_options import NewQueue, OptionsChange, QueueView


class CreateQuery(models.Request):
    """`exist_ok`: a queue with the same options is fine."""

    exist_ok: bool = False


class ReadQuery(models.Request):
    """Where to read from, and how much."""

    partition: str = "0"
    offset: models.Offset | None = None
    timestamp: str | None = None
    limit: models.Limit = 100


class PeekQuery(models.Request):
    """How many messages."""

    limit: models.Limit = 1


class ListQuery(models.Request):
    """How many messages."""

    limit: models.Limit = 100


class LettersQuery(models.Request):
    """Which dead letters; every field that is set must match."""

    group: str | None = None
    reason: str | None = None
    error_contains: str | None = None
    key: str | None = None
    since: models.Instant | None = None
    until: models.Instant | None = None
    limit: models.Limit = 100
    from_offset: models.Offset = 0


class LeaveQuery(models.Request):
    """The last generation that the member was told of."""

    generation: models.Id63


class ProfileQuery(models.Request):
    """How long to look."""

    seconds: Annotated[float, Meta(gt=0, le=60)] = 5.0


_QUEUES: Final = "/api/v1/queues"
_QUEUE: Final = "/api/v1/queues/{queue}"
_MESSAGE: Final = f"{_QUEUE}/messages/{{partition}}/{{offset}}"
_GROUP: Final = f"{_QUEUE}/groups/{{group}}"
_MEMBER: Final = f"{_GROUP}/members/{{member}}"

OF_QUEUES: Final = (
    Route("GET", _QUEUES, "List the queues", actions.queues, result=views.QueuesView),
    Route(
        *("POST", _QUEUES, "Create a queue", actions.create_queue, NewQueue, CreateQuery, QueueView),
        errors=("invalid_name", "invalid_field", "queue_exists", "disk_full"),
        status=201,
    ),
    Route("GET", _QUEUE, "A queue and its options", actions.queue, result=QueueView, errors=IN_QUEUE),
    Route(
        *("PATCH", _QUEUE, "Change options of a queue", actions.update_queue, OptionsChange),
        result=QueueView,
        errors=(*IN_QUEUE, "invalid_field", "conflict"),
    ),
    Route("DELETE", _QUEUE, "Delete a queue, its messages and dead letters", actions.delete_queue, errors=IN_QUEUE),
    Route("GET", f"{_QUEUE}/stats", "Counters of a queue", actions.stats, result=QueueStats, errors=IN_QUEUE),
    Route("POST", f"{_QUEUE}/pause", "Hand nothing out; pushes go on", actions.pause, errors=IN_QUEUE),
    Route("POST", f"{_QUEUE}/resume", "Hand out again", actions.resume, errors=IN_QUEUE),
    Route("POST", f"{_QUEUE}/purge", "Drop everything unsettled, in every group", actions.purge, errors=IN_QUEUE),
)
OF_MESSAGES: Final = (
    Route(
        *("POST", f"{_QUEUE}/messages", "Push messages: all of them or none", None, models.Push),
        result=views.PushResults,
        errors=PUSHING,
        status=201,
    ),
    Route(
        *("GET", f"{_QUEUE}/messages", "Browse a partition from an offset or a time on", actions.read),
        query=ReadQuery,
        result=views.MessagesView,
        errors=(*IN_QUEUE, "invalid_field"),
    ),
    Route(
        *("GET", _MESSAGE, "One message", actions.message),
        result=views.MessageView,
        errors=(*IN_QUEUE, "message_not_found"),
    ),
    Route(
        *("DELETE", _MESSAGE, "Take a message back before anyone has it", actions.cancel),
        errors=(*IN_QUEUE, "message_not_found", "conflict"),
    ),
    Route(
        *("GET", f"{_MESSAGE}/why", "Why is this message not delivered?", actions.why),
        result=views.ReasonsView,
        errors=(*IN_QUEUE, "message_not_found"),
    ),
    Route(
        *("GET", f"{_QUEUE}/peek", "The next messages, without effect", actions.peek),
        query=PeekQuery,
        result=views.MessagesView,
        errors=IN_QUEUE,
    ),
    Route(
        *("GET", f"{_QUEUE}/delayed", "Messages that are not due yet, soonest first", actions.delayed),
        query=ListQuery,
        result=views.MessagesView,
        errors=IN_QUEUE,
    ),
    Route(
        *("POST", f"{_QUEUE}/lease", "Lease messages; waits up to wait_ms for the first", None, models.Lease),
        result=views.LeaseView,
        errors=(*IN_QUEUE, "invalid_field", "member_fenced"),
        is_body_optional=True,
    ),
)


def _settle(path: str, summary: str, body: Any) -> Route:
    return Route("POST", path, summary, None, body, result=views.SettleResults, errors=SETTLING)


OF_DELIVERIES: Final = (
    _settle("/api/v1/ack", "Done", models.Ack),
    _settle("/api/v1/nack", "Try again later", models.Nack),
    _settle("/api/v1/reject", "To the dead letters, now", models.Reject),
    _settle("/api/v1/release", "Give back; the attempt does not count", models.Release),
    _settle("/api/v1/snooze", "Deliver again later; the attempt does not count", models.Snooze),
    _settle("/api/v1/extend", "Hold a lease longer", models.Extend),
    Route(
        *("POST", "/api/v1/transactions", "Pushes and settles, all or nothing", actions.transact, models.Transaction),
        result=views.TransactionView,
        errors=(*PUSHING, *SETTLING),
    ),
    Route(
        *("POST", "/api/v1/producers", "The next epoch of a named producer", actions.init_producer, models.NewProducer),
        result=views.ProducerView,
        errors=("invalid_name", "disk_full"),
        status=201,
    ),
)
OF_GROUPS: Final = (
    Route(
        "GET", f"{_QUEUE}/groups", "Where each group stands", actions.groups, result=views.GroupsView, errors=IN_QUEUE
    ),
    Route(
        *("POST", f"{_QUEUE}/groups", "Create a group", actions.create_group, models.NewGroup),
        result=views.QueueName,
        errors=(*IN_QUEUE, "invalid_name", "group_exists"),
        status=201,
    ),
    Route("DELETE", _GROUP, "Forget a group", actions.delete_group, errors=(*IN_GROUP, "conflict")),
    Route("POST", f"{_GROUP}/seek", "Move a group", actions.seek, models.Seek, errors=(*IN_GROUP, "invalid_field")),
    Route("GET", f"{_GROUP}/members", "Who is in a group", actions.members, result=views.MembersView, errors=IN_GROUP),
    Route(
        *("POST", f"{_GROUP}/members", "Join a group", actions.join, models.NewMember),
        result=views.MembershipView,
        errors=MEMBER,
    ),
    Route(
        *("POST", f"{_MEMBER}/heartbeat", "Stay in a group", actions.heartbeat, models.MemberHeartbeat),
        result=views.MembershipView,
        errors=MEMBER,
    ),
    Route("DELETE", _MEMBER, "Leave a group", actions.leave, query=LeaveQuery, errors=MEMBER),
)
OF_DEAD_LETTERS: Final = (
    Route(
        *("GET", f"{_QUEUE}/dlq", "Dead letters that nobody has dealt with", actions.dead_letters),
        query=LettersQuery,
        result=views.MessagesView,
        errors=IN_QUEUE,
    ),
    Route(
        *("POST", f"{_QUEUE}/dlq/redrive", "Send dead letters back to where they died", actions.redrive),
        body=models.Redrive,
        result=views.RedriveView,
        errors=(*IN_QUEUE, "invalid_field", "conflict"),
        is_body_optional=True,
    ),
    Route(
        *("POST", f"{_QUEUE}/dlq/search", "Dead letters, by more than fits into a URL", actions.search_dead_letters),
        body=models.LetterSearch,
        result=views.MessagesView,
        errors=(*IN_QUEUE, "invalid_field"),
        is_body_optional=True,
    ),
    Route(
        *("POST", f"{_QUEUE}/dlq/replace", "Push edited messages in place of dead letters", actions.replace_letters),
        body=models.LetterReplacement,
        errors=(*IN_QUEUE, *PUSHING, "message_not_found"),
    ),
    Route("DELETE", f"{_QUEUE}/dlq", "Throw the dead letters away", actions.purge_dead_letters, errors=IN_QUEUE),
)
OF_BROKER: Final = (
    Route("GET", "/api/v1/info", "Who answers here", actions.info, result=ServerInfo),
    Route("POST", "/api/v1/seal", "Write everything so far to the history", actions.seal, result=views.SealView),
    Route("POST", "/api/v1/compact", "Apply retention now", actions.compact, result=Freed),
    Route("GET", "/api/v1/stats", "Counters of all queues", actions.all_stats, result=views.StatsView),
    Route("GET", "/api/v1/health", "How the broker is, in numbers", probes.health, result=probes.HealthView),
    Route("GET", "/livez", "Is the process worth keeping?", probes.livez, result=views.StatusView),
    Route("GET", "/readyz", "Does it take requests?", probes.readyz, result=Readiness),
    Route("GET", "/metrics", "Metrics for Prometheus", probes.metrics, media="text/plain"),
)
PROFILE: Final = Route(
    *("GET", "/debug/profile", "Which functions the broker is in, as collapsed stacks", probes.profile),
    query=ProfileQuery,
    media="text/plain",
    errors=("conflict",),
)

SECTIONS: Final = {
    "queues": OF_QUEUES,
    "messages": OF_MESSAGES,
    "deliveries": OF_DELIVERIES,
    "groups": OF_GROUPS,
    "dead letters": OF_DEAD_LETTERS,
    "tasks": OF_TASKS,
    "operations": OF_OPERATIONS,
    "workers": OF_WORKERS,
    "schedules": OF_SCHEDULES,
    "broker": OF_BROKER,
}
ROUTES: Final = tuple(route for routes in SECTIONS.values() for route in routes)
