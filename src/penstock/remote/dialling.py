"""From a URL to a session: the scheme says which."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from penstock.remote.settings import Settings

# scheme: where its sessions live. They are loaded when first used.
SESSIONS: Final = {
    "penstock": ("penstock.remote.blocking", "penstock.remote.asynchronous"),
    "http": ("penstock.remote.http_blocking", "penstock.remote.http_asynchronous"),
}


def session(settings: Settings) -> Any:
    """A session for the blocking face, connected."""
    return import_module(SESSIONS[settings.addresses[0].scheme][0]).Session(settings)


def async_session(settings: Settings) -> Any:
    """A session for the asyncio face; it connects when it is started or first used."""
    return import_module(SESSIONS[settings.addresses[0].scheme][1]).AsyncSession(settings)
