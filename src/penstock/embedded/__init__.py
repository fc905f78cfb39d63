"""The whole system in this process: sessions on a shard of their own, with no server in between."""

from __future__ import annotations

from penstock.embedded.asynchronous import AsyncSession
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session

__all__ = ["AsyncSession", "BlockingSession", "Session"]
