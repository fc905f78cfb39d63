"""What a route is: the shape of every line of the tables of routes."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from penstock.server.http import actions
from penstock.server.http.operation_ids import OPERATION_IDS
from penstock.wire import json_models as models

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

# What any route may answer with.
COMMON: Final = ("bad_request", "not_authorised", "too_large", "internal", "unavailable")
PUSHING: Final = ("invalid_field", "queue_full", "rate_limited", "producer_fenced", "conflict", "disk_full")
SETTLING: Final = ("bad_receipt", "lease_lost")
IN_QUEUE: Final = ("queue_not_found",)
IN_GROUP: Final = ("queue_not_found", "group_not_found")
MEMBER: Final = (*IN_GROUP, "member_fenced")


class Nothing(models.Request):
    """No query."""


class Route(NamedTuple):
    """One operation. Without an action it is hot; without a result it answers 204, unless `media` is not JSON."""

    method: Method
    path: str
    summary: str
    action: actions.Action | None = None
    body: Any = None
    query: Any = Nothing
    result: Any = None
    errors: tuple[str, ...] = ()
    status: int = 200
    media: str = "application/json"
    is_body_optional: bool = False

    @property
    def name(self) -> str:
        """Unique: `push_messages`."""
        return OPERATION_IDS[f"{self.method} {self.path.removeprefix('/api/v1')}"]

    @property
    def success(self) -> int:
        return 204 if self.result is None and self.media == "application/json" else self.status
