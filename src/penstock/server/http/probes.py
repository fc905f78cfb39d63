"""Routes about the broker itself: is it alive, is it ready, what has it counted, where does it spend its time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from penstock.broker import Action
from penstock.broker import health as conditions
from penstock.errors import Unavailable
from penstock.server.http.actions import Asked
from penstock.telemetry.profile import profile as take_profile
from penstock.wire.json_views import StatusView

# As every protocol has it, with its duration in milliseconds as JSON has them.
HealthView: Any = msgspec.defstruct(
    "HealthView",
    [
        ("uptime_ms", float) if field.name == "uptime_seconds" else (field.name, field.type)
        for field in msgspec.structs.fields(conditions.Health)
    ],
)
HealthView.__doc__ = conditions.Health.__doc__


class Text(msgspec.Struct, frozen=True):
    """A response that is not JSON."""

    content: bytes
    media: str


class Unwell(Exception):
    """A view to be sent with 503."""

    def __init__(self, view: Any) -> None:
        super().__init__("unwell")
        self.view = view


async def livez(asked: Asked) -> StatusView:
    """GET /livez."""
    if not conditions.livez(asked.broker):
        raise Unwell(StatusView("failed"))
    return StatusView("ok")


async def readyz(asked: Asked) -> conditions.Readiness:
    """GET /readyz."""
    ready = conditions.readyz(asked.broker)
    if not ready.is_ready:
        raise Unwell(ready)
    return ready


async def health(asked: Asked) -> Any:
    """GET /api/v1/health."""
    asked.broker.authorise(asked.client.principal, Action.MONITOR, "")
    fields = msgspec.structs.asdict(await asyncio.to_thread(conditions.health, asked.broker))
    return HealthView(uptime_ms=fields.pop("uptime_seconds") * 1000, **fields)


async def metrics(asked: Asked) -> Text:
    """GET /metrics."""
    asked.broker.authorise(asked.client.principal, Action.MONITOR, "")
    if asked.metrics is None:
        raise Unavailable("this server keeps no metrics")
    return Text(*await asyncio.to_thread(asked.metrics.render))


async def profile(asked: Asked) -> Text:
    """GET /debug/profile."""
    asked.broker.authorise(asked.client.principal, Action.MANAGE, "")
    text = await asyncio.to_thread(take_profile, asked.query.seconds)
    return Text(text.encode(), "text/plain; charset=utf-8")
