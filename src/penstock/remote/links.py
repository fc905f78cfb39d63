"""One-time links to the dashboard, asked for over HTTP with whatever lets this client in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.remote.connection import Connection, Shared
from penstock.remote.settings import settings

PATH: Final = "/api/v1/sessions/links"


class _Link(msgspec.Struct):
    path: str


def new_link(url: str, client: str, token: Callable[[], str] | None = None) -> str:
    """A link that signs in, once and within 10 minutes, as whoever this client is. `url` is that of HTTP."""
    shared = Shared(settings(url, client=client, token=token))
    connection = Connection(shared)
    try:
        connection.open(shared.micros(shared.settings.connect_seconds))
        link = msgspec.json.decode(connection.post(PATH, b"{}"), type=_Link)
    finally:
        connection.close()
    return f"{shared.settings.addresses[shared.place]}{link.path}"
