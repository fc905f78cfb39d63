"""Where brokers are: `penstock://host:port` or `http://host:port`, one or several; with TLS `penstocks:` or `https:`.

A URL with TLS may name the files that it needs: `penstocks://host?tls_ca=/etc/penstock/ca.pem`. So whatever takes a URL
takes them too.

How a client behaves: checked once, then trusted.

From settings to a session. Sessions are loaded when first used.
"""

from __future__ import annotations

import logging
import os
import random
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from penstock import limits
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidField, PenstockError, RateLimited
from penstock.model import check_name, check_seconds
from penstock.remote.tls import TlsFiles

logger: Final = logging.getLogger("penstock.client")

_HOST_AND_PORT: Final = re.compile(r"[\w.-]+:\d+|\[[0-9A-Fa-f:.]+\]:\d+")
PORTS: Final = {"penstock": 7710, "http": 7711, "penstocks": 7710, "https": 7711}
TLS_SCHEMES: Final = frozenset({"penstocks", "https"})
# Where a token may be, when none is given.
IN_ENVIRONMENT: Final = "PENSTOCK_TOKEN"
FILE_IN_ENVIRONMENT: Final = "PENSTOCK_TOKEN_FILE"
# The options of `connect`, which a URL may have too, and the variables in place of them.
TLS_VARIABLES: Final = {
    "tls_ca": "PENSTOCK_TLS_CA",
    "tls_certificate": "PENSTOCK_TLS_CLIENT_CERTIFICATE",
    "tls_key": "PENSTOCK_TLS_CLIENT_KEY",
}
_HINT: Final = (
    "a URL looks like penstock://localhost:7710 or http://localhost:7711, with TLS penstocks:// or https://; "
    "separate several with commas"
)


class Address(NamedTuple):
    """One place to try."""

    scheme: str
    host: str
    port: int

    @property
    def is_tls(self) -> bool:
        return self.scheme in TLS_SCHEMES

    @property
    def is_http(self) -> bool:
        return self.scheme in {"http", "https"}

    @property
    def is_loopback(self) -> bool:
        """Whether a broker there would run on this machine."""
        return self.host in {"localhost", "::1"} or self.host.startswith("127.")

    def serve_command(self) -> str:
        """The command that starts a broker there."""
        flag = "--http-port" if self.is_http else "--tcp-port"
        return "penstock serve" if self.port == PORTS[self.scheme] else f"penstock serve {flag} {self.port}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class RetryLog:
    """Reports that nobody answers once for all connections of this process, until something changes."""

    def __init__(self) -> None:
        self._reported = ""

    def failed(self, failure: PenstockError, seconds: float) -> None:
        """The first try of a connection failed; more tries follow."""
        if self._reported != str(failure):
            self._reported = str(failure)
            logger.warning("%s; retrying for %.0f s", failure, seconds)

    def connected(self) -> None:
        """Report the next failure, whatever it is."""
        self._reported = ""


retry_log: Final = RetryLog()


def addresses(urls: str | Sequence[str]) -> tuple[Address, ...]:
    """All the places that are named, in order; they must speak the same protocol."""
    parsed = tuple(_address(text) for text in _texts(urls))
    if not parsed:
        raise InvalidField("url: not given", hint=_HINT)
    if len({address.scheme for address in parsed}) > 1:
        raise InvalidField(f"url: {urls!r} mixes protocols", hint=_HINT)
    return parsed


def _texts(urls: str | Sequence[str]) -> list[str]:
    if not isinstance(urls, Sequence):
        raise InvalidField(f"url: {urls!r} is not text", hint=_HINT)
    return urls.split(",") if isinstance(urls, str) else list(urls)


def tls_files(
    urls: str | Sequence[str], options: Mapping[str, object], environment: Mapping[str, str] = os.environ
) -> TlsFiles:
    """The files that TLS needs: those of the options, of the URLs, of the environment; the first that has one wins."""
    queries: dict[str, str] = {}
    for text in _texts(urls):
        queries |= parse_qsl(urlsplit(text).query)
    paths = {}
    for name, variable in TLS_VARIABLES.items():
        option = options[name]
        if option is not None and not isinstance(option, str | os.PathLike):
            raise InvalidField(f"{name}: {option!r} is not a path")
        paths[name.removeprefix("tls_")] = os.fspath(option or queries.get(name) or environment.get(variable, ""))
    if paths["key"] and not paths["certificate"]:
        raise InvalidField("tls_key: no effect without tls_certificate")
    return TlsFiles(**paths)


def spelt_out(url: str) -> str:
    """An address with its scheme, unless it is a directory: `host:port` means a broker, `./host:port` does not."""
    return f"penstock://{url}" if _HOST_AND_PORT.fullmatch(url) else url


def _address(text: object) -> Address:
    if not isinstance(text, str):
        raise InvalidField(f"url: {text!r} is not text", hint=_HINT)
    url = spelt_out(text.strip())
    if "://" not in url:
        hint = f"penstock.open({text!r}) opens a directory; {_HINT}" if text else _HINT
        raise InvalidField(f"url: {text!r} is not the URL of a broker", hint=hint)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidField(f"url: {_without_password(url)!r} is not a URL", hint=_HINT) from None
    extra = parts.path.strip("/") or parts.fragment or parts.username or parts.password or not _is_query(parts)
    if parts.scheme not in PORTS or not parts.hostname or extra or port == 0:
        raise InvalidField(f"url: {_without_password(url)!r} is not the URL of a broker", hint=_HINT)
    return Address(parts.scheme, parts.hostname, port or PORTS[parts.scheme])


def _is_query(parts: SplitResult) -> bool:
    """Whether the query of a URL is empty, or names files for TLS."""
    try:
        names = [name for name, _ in parse_qsl(parts.query, strict_parsing=bool(parts.query))]
    except ValueError:
        return False
    return not names or (parts.scheme in TLS_SCHEMES and set(names) <= TLS_VARIABLES.keys())


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if "@" in rest else url


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """See `penstock.connect` for what they mean. Durations are seconds."""

    addresses: tuple[Address, ...]
    tls: TlsFiles
    token: str | Callable[[], str] | None
    client: str
    producer: str  # empty: nobody can take over from this one
    linger_seconds: float | None  # None: no push waits for others
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

    def patience(self, error: PenstockError) -> float:
        """How long to wait out a refusal that says when to try again."""
        seconds = self.rate_limit_seconds if isinstance(error, RateLimited) else self.timeout_seconds
        return min(seconds, self.timeout_seconds)


def settings(
    urls: str | Sequence[str],
    *,
    token: str | Callable[[], str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_certificate: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
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
    parsed = addresses(urls)
    options = {"tls_ca": tls_ca, "tls_certificate": tls_certificate, "tls_key": tls_key}
    if not parsed[0].is_tls and any(options.values()):
        raise InvalidField("tls_ca, tls_certificate, tls_key: this URL does not use TLS", hint=_HINT)
    return Settings(
        addresses=parsed,
        tls=tls_files(urls, options) if parsed[0].is_tls else TlsFiles(),
        token=token if callable(token) else checked_token(token),
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
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise InvalidField(f"{name}: {value!r} is not valid text") from None
    return value or ""


def checked_token(value: Any, source: str = "token") -> str:
    """A token as it may be sent; raises `InvalidField`, without the token."""
    if value is not None and not isinstance(value, str):
        raise InvalidField(f"{source}: it is {type(value).__name__}, not text")
    token = value or ""
    if not (token.isascii() and token.isprintable()):
        hint = "use printable ASCII"
        raise InvalidField(f"{source}: it has characters that are not allowed in HTTP headers", hint=hint)
    return token


def has_token_in_environment() -> bool:
    """Whether the environment has a token, or names a file with one."""
    return bool(os.environ.get(IN_ENVIRONMENT) or os.environ.get(FILE_IN_ENVIRONMENT))


def token_of_file(path: str, name: str) -> str:
    """The token in a file, which `name` has named. Raises `InvalidField` when others may read it."""
    try:
        mode = os.stat(path).st_mode
        if os.name == "posix" and stat.S_ISREG(mode) and mode & stat.S_IRWXO:
            raise InvalidField(f"{name}: other users can read {path!r}", hint=f"chmod 600 {path}")
        return checked_token(Path(path).read_text(encoding="utf-8").strip(), name)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidField(f"{name}: {path!r} cannot be read: {error}") from None


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.batch_messages_max:
        raise InvalidField(f"batch_max: {value!r} is not a whole number from 1 to {limits.batch_messages_max:,}")
    return value


def session(settings: Settings) -> Any:
    """A session for the blocking face, connected."""
    return import_module("penstock.remote.blocking").Session(settings)


def async_session(settings: Settings) -> Any:
    """A session for the asyncio face; it connects when it is started or first used."""
    return import_module("penstock.remote.asynchronous").AsyncSession(settings)
