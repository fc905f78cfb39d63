"""What both shells know of httpx: its settings, and what its errors mean."""

from __future__ import annotations

from typing import Any, Final

import httpx

from penstock.remote.http_exchange import Failure, Send

# The broker closes a connection that has been idle for 75 s: ours are closed well before, so that none is in use then.
LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=30.0)
UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def arguments(headers: dict[str, str]) -> dict[str, Any]:
    """Arguments of a client. Nothing from the environment: a proxy between us and a broker must be asked for."""
    return {"headers": headers, "limits": LIMITS, "trust_env": False, "verify": False}


def parameters(step: Send) -> dict[str, Any]:
    """Arguments of one request."""
    return {
        "method": step.method,
        "url": f"{step.address}{step.path}",
        "content": step.body,
        "timeout": httpx.Timeout(step.seconds, connect=step.connect_seconds),
    }


def failure(error: httpx.TransportError) -> Failure:
    """What an error means."""
    why = str(error) or type(error).__name__
    return Failure(why, not isinstance(error, UNSENT), isinstance(error, httpx.TimeoutException))
