"""What all connections of an HTTP server share: the broker, the settings, and what every response begins with."""

from __future__ import annotations

import asyncio
import http
import itertools
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

from penstock import limits
from penstock.access.sessions import TAB_HEADER, SessionCookie, cookie_for
from penstock.broker.access import NOBODY, Principal
from penstock.broker.broker import Broker
from penstock.broker.logins import bearer
from penstock.dashboard.files import Banner
from penstock.errors import PenstockError, PushPaused, QueueFull, RateLimited, Unavailable
from penstock.server.http.origins import Browsers, Proxies
from penstock.server.public_bind import is_loopback
from penstock.wire.errors import http_status
from penstock.wire.json_messages import error_body

if TYPE_CHECKING:
    from penstock.server.websocket.socket import Socket

JSON: Final = b"application/json"
EXPOSED: Final = b"x-request-id, retry-after"


_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}
# A page loads nothing and runs no script, unless it says otherwise, and none may be shown inside another.
_POLICY: Final = b"content-security-policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n"
_NO_SNIFFING: Final = b"x-content-type-options: nosniff\r\n"
_SECURITY: Final = _POLICY + _NO_SNIFFING
_TAB_HEADER: Final = TAB_HEADER.lower().encode()
_REQUEST_ID: Final = re.compile(rb"[!-~]{1,128}")


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How an HTTP server behaves towards its clients. `cors_origins` may hold `*`."""

    host: str = "127.0.0.1"
    port: int = 7711
    serves: Literal["all", "public", "admin"] = "all"  # what operators do may have a port of its own
    hosts: tuple[str, ...] = ()  # names that requests may have in `Host`, beside addresses and loopback names
    trusted_proxies: tuple[str, ...] = ()  # networks whose X-Forwarded-For counts
    cors_origins: tuple[str, ...] = ()
    prefix: str = ""  # the path under which a proxy shows this server
    scheme: str = "http"  # by which browsers reach it
    banner: Banner = Banner()  # what the dashboard says about this broker
    request_bytes_max: int = limits.frame_bytes_max
    connections_max: int = 10_000
    slow_request_seconds: float = 1.0
    profile: bool = False
    keep_alive_seconds: float = 50.0
    headers_seconds: float = 10.0  # until a request's headers are whole
    progress_seconds: float = (
        limits.progress_seconds
    )  # in which a body must be whole, or have grown by `progress_bytes`
    progress_bytes: int = limits.progress_bytes
    write_seconds: float = limits.stalled_seconds  # for a client that does not read
    paused_seconds: float = 30.0  # for a request that keeps others behind it waiting, once they are too many to keep
    lingering_seconds: float = 2.0  # for a client to take its last answer
    ping_seconds: float = 20.0  # between two pings of a WebSocket, and for its answer


class Connection(Protocol):
    """Of either kind: HTTP, or a WebSocket."""

    transport: asyncio.Transport

    def check(self, now: float) -> None:
        """Called with every tick: end it when its time is over."""

    def shutdown(self) -> None:
        """The server ends."""


ServeSocket = Callable[["Socket"], Awaitable[None]]


class Site:
    """The broker, the settings and the open connections of one HTTP server."""

    def __init__(self, broker: Broker, settings: HttpSettings) -> None:
        self.broker = broker
        self.settings = settings
        self.port = settings.port  # once it listens: the one that it has
        self._is_loopback = is_loopback(settings.host)
        self.is_draining = False
        self.app: Any = None  # the ASGI application
        self.serve_socket: ServeSocket | None = None
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.now = broker.loop.time()  # as of the last tick: near enough for patience
        self._date = b""
        self._prefix = secrets.token_hex(4).encode() + b"-"
        self._numbers = itertools.count(1)
        self.browsers = Browsers(settings.host, settings.hosts, settings.cors_origins, settings.scheme)
        self._origins = self.browsers.origins
        self.proxies = Proxies(settings.trusted_proxies)
        self.tick()

    def tick(self) -> None:
        """Time has passed."""
        self.now = self.broker.loop.time()
        self._date = b"date: " + formatdate(self.broker.clock.now() / 1e6, usegmt=True).encode() + b"\r\n"

    def principal(self, headers: Mapping[bytes, bytes], address: str) -> Principal:
        """Who asks, by the headers of a request: `NOBODY` when they do not say.

        Raises `NotAuthenticated`, or `RateLimited` after too many tries.
        """
        logins = self.broker.logins
        header = headers.get(b"authorization")
        if not logins.is_required:
            return logins.stranger
        if header is None:
            return self.by_cookie(headers, headers.get(_TAB_HEADER, b"").decode("latin-1"))
        return logins.by_token(bearer(header.decode("latin-1")), address, "http")

    def by_cookie(self, headers: Mapping[bytes, bytes], tab_secret: str) -> Principal:
        """Who is signed in; `NOBODY` without a cookie. Raises `NotAuthenticated` when it is of no session."""
        sign_in, sent = self.broker.logins.sign_in, headers.get(b"cookie")
        if sign_in is None or sent is None or not self.has_browsers or not self.browsers.is_own_page(headers):
            return NOBODY
        cookie = self.cookie()
        ids = cookie.read(sent.decode("latin-1"))
        if not ids:
            return NOBODY
        return sign_in.sessions.find(ids, tab_secret, is_secure=cookie.is_secure).principal

    @property
    def is_for_operators(self) -> bool:
        """Whether it is the port that was set apart for what operators do."""
        return self.settings.serves == "admin"

    @property
    def has_browsers(self) -> bool:
        """Whether browsers can sign in: over https, or on this machine."""
        return self.settings.scheme == "https" or self._is_loopback

    def cookie(self) -> SessionCookie:
        """The cookie of sessions; raises `NotAuthorised` where browsers cannot sign in."""
        return cookie_for(is_https=self.settings.scheme == "https", is_loopback=self._is_loopback, port=self.port)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on behalf of a request; it is cancelled when the server is closed."""
        task = self.broker.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def request_id(self, sent: bytes | None) -> bytes:
        """The client's own, when it can be repeated, or a new one."""
        if sent is not None and _REQUEST_ID.fullmatch(sent):
            return sent
        return b"%b%x" % (self._prefix, next(self._numbers))

    def cors(self, origin: bytes | None) -> bytes:
        """Headers that let a page read the response; none unless that is configured."""
        if origin is None or not self._origins:
            return b""
        if b"*" in self._origins:
            return b"access-control-allow-origin: *\r\naccess-control-expose-headers: %b\r\n" % EXPOSED
        if origin not in self._origins:
            return b"vary: origin\r\n"
        allowed = b"access-control-allow-origin: %b\r\n" % origin
        return allowed + b"access-control-expose-headers: %b\r\nvary: origin\r\n" % EXPOSED

    def head(self, status: int, lines: bytes, keep_alive: bool) -> bytes:
        """Everything before the body of a response; `lines` are headers."""
        end = b"\r\n" if keep_alive else b"connection: close\r\n\r\n"
        security = _NO_SNIFFING if b"content-security-policy:" in lines else _SECURITY
        return b"%b%b%b%b%b" % (_STATUS_LINES[status], lines, security, self._date, end)


def refusal(error: PenstockError) -> tuple[int, bytes, tuple[tuple[bytes, bytes], ...]]:
    """Status, body and headers of an error."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if isinstance(error, RateLimited | PushPaused | QueueFull | Unavailable):
        seconds = 0.0 if isinstance(error, QueueFull) else error.retry_after_seconds  # consumers decide when
        headers = ((b"retry-after", b"%d" % max(1, math.ceil(seconds))),)
    elif error.code == "not_authenticated":
        headers = ((b"www-authenticate", b"Bearer"),)
    return http_status(error.code), error_body(error), headers
