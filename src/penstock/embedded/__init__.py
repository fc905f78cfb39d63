"""The whole system in this process: a session on a shard of its own, with no server in between."""

from __future__ import annotations

from penstock.embedded.asynchronous import AsyncSession
from penstock.embedded.session import Session

__all__ = ["AsyncSession", "Session"]
