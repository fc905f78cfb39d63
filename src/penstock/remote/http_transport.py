"""What both shells know of httpx: its settings, and what its errors mean."""

from __future__ import annotations

from typing import Any, Final

import httpx

from penstock.remote.http_exchange import Failure, Send

# The broker closes a connection that has been idle for 75 s: ours are closed well before, so that none is in use then.
LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=30.0)
UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


# Nothing from the environment: a proxy between us and a broker must be asked for.
ARGUMENTS: Final[dict[str, Any]] = {"limits": LIMITS, "trust_env": False, "verify": False}


def http_request(step: Send, headers: dict[str, str], **extensions: Any) -> httpx.Request:
    """A request for a transport of httpx: its client would add cookies, redirects and their cost."""
    seconds = step.seconds
    timeout = {"connect": step.connect_seconds, "read": seconds, "write": seconds, "pool": seconds}
    return httpx.Request(
        step.method,
        f"{step.address}{step.path}",
        headers=headers,
        content=step.body,
        extensions={"timeout": timeout, **extensions},
    )


def failure(error: httpx.TransportError) -> Failure:
    """What an error means."""
    why = str(error) or type(error).__name__
    if isinstance(error, httpx.RemoteProtocolError) and "illegal" in why:
        why += ": what answers there is not HTTP; the URL of a TCP port begins with penstock://"
    return Failure(why, not isinstance(error, UNSENT), isinstance(error, httpx.TimeoutException))
