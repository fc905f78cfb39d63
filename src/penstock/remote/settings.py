"""How a client behaves: checked once, then trusted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock import limits
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidField
from penstock.model import check_name, check_seconds
from penstock.remote.urls import Address, addresses


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """See `penstock.connect` for what they mean. Durations are seconds."""

    addresses: tuple[Address, ...]
    token: str
    client: str
    producer: str  # empty: nobody can take over from this one
    linger_seconds: float | None  # None: every push goes out by itself
    batch_max: int
    timeout_seconds: float
    connect_seconds: float
    rate_limit_seconds: float  # how long to wait for a limit that says when it will have room
    backoff_seconds: float
    backoff_seconds_max: float
    clock: Clock
    rng: random.Random

    def backoff(self, tries: int) -> float:
        """How long to wait before trying again: any time up to a bound that doubles, so that clients spread out."""
        return self.rng.uniform(0, min(self.backoff_seconds_max, self.backoff_seconds * 2 ** min(tries, 32)))


def settings(
    urls: str | Sequence[str],
    *,
    token: str | None = None,
    client: str | None = None,
    producer: str | None = None,
    linger_ms: float | None = None,
    batch_max: int = 1_000,
    timeout: float = 30.0,
    connect_seconds: float = 5.0,
    rate_limit_seconds: float | None = None,
    backoff_seconds: float = 0.05,
    backoff_seconds_max: float = 2.0,
    clock: Clock | None = None,
    rng: random.Random | None = None,
) -> Settings:
    """Settings from the arguments of `connect`."""
    return Settings(
        addresses=addresses(urls),
        token=_token(token),
        client=_text(client, "client"),
        producer=check_name(producer, "producer") if producer is not None else "",
        linger_seconds=None if linger_ms is None else check_seconds(linger_ms, "linger_ms", 60_000) / 1000,
        batch_max=_count(batch_max),
        timeout_seconds=check_seconds(timeout, "timeout"),
        connect_seconds=check_seconds(connect_seconds, "connect_seconds"),
        rate_limit_seconds=check_seconds(
            timeout if rate_limit_seconds is None else rate_limit_seconds, "rate_limit_seconds"
        ),
        backoff_seconds=check_seconds(backoff_seconds, "backoff_seconds"),
        backoff_seconds_max=check_seconds(backoff_seconds_max, "backoff_seconds_max"),
        clock=clock or SystemClock(),
        rng=rng or random.SystemRandom(),
    )


def _text(value: Any, name: str) -> str:
    if value is not None and not isinstance(value, str):
        raise InvalidField(f"{name}: {value!r} is not text")
    return value or ""


def _token(value: Any) -> str:
    token = _text(value, "token")
    if not (token.isascii() and token.isprintable()):
        raise InvalidField("token: it has characters that no header of HTTP can hold", hint="printable ASCII will do")
    return token


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.batch_messages_max:
        raise InvalidField(f"batch_max: {value!r} is outside 1 to {limits.batch_messages_max}")
    return value
