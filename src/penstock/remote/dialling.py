"""From settings to a session. Sessions are loaded when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock.remote.settings import Settings


def session(settings: Settings) -> Any:
    """A session for the blocking face, connected."""
    return import_module("penstock.remote.blocking").Session(settings)


def async_session(settings: Settings) -> Any:
    """A session for the asyncio face; it connects when it is started or first used."""
    return import_module("penstock.remote.asynchronous").AsyncSession(settings)
