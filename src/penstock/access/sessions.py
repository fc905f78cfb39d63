"""Sessions of browsers: who signed in, with which cookie, in which tab, until when.

A session id, a tab's secret and the code of a one-time link are 256 random bits each. Only their SHA-256 is kept, in
memory: a restart signs everybody out. A session ends after 12 hours, by signing out, with its principal, or when its
user has too many. It has a principal of its own, which is revoked then: that ends what was begun in it, such as a
WebSocket.

Over https the cookie alone proves a session: its name begins with `__Host-`, so no other site or port can set or read
it. Over plain http, which is for loopback only, every port of the machine receives the cookie and may set it. There a
session counts only together with the secret of the tab, which the page keeps in sessionStorage and sends as a header.
Tabs of one browser share the cookie, so a second tab that signs in as the same principal joins the session.

A one-time link carries its code in the fragment, which browsers do not send: the page exchanges it for a session. A
code counts once, for 10 minutes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.access.grants import Principal
from penstock.clock import Clock
from penstock.errors import NotAuthenticated, NotAuthorised
from penstock.operations.base import Action

SESSION_SECONDS: Final = 12 * 3600
CODE_SECONDS: Final = 600
SESSIONS_MAX: Final = 10_000
SESSIONS_PER_PRINCIPAL_MAX: Final = 50
TABS_MAX: Final = 50  # of one session
CODES_MAX: Final = 100
SECRET_BYTES: Final = 32
SECRET_LENGTH: Final = 43  # of their base64
COOKIES_MAX: Final = 8  # of the same name in one request
TAB_HEADER: Final = "X-Penstock-Tab"
SIGN_IN_AGAIN: Final = "sign in again, or open a new link from `penstock dashboard`"

RandomBytes = Callable[[int], bytes]
# What a browser may do where the dashboard is read-only, of what its user is granted.
READING: Final = frozenset({Action.MONITOR, Action.READ, Action.UNMASK})


class Session:
    """One browser that signed in."""

    __slots__ = ("expires_at", "id_digest", "is_secure", "principal", "tab_digests", "user")

    def __init__(
        self, user: Principal, id_digest: bytes, expires_at: int, *, is_secure: bool, is_read_only: bool = False
    ) -> None:
        self.user = user  # who signed in
        self.principal = user.derived("session", READING if is_read_only else None)
        self.id_digest = id_digest
        self.expires_at = expires_at  # µs
        self.is_secure = is_secure  # came over https
        self.tab_digests: list[bytes] = []  # none over https

    def __repr__(self) -> str:
        return f"Session({self.principal.name!r})"

    @property
    def is_over(self) -> bool:
        return self.principal.is_revoked

    def end(self) -> None:
        """Deny everything from now on, and end what was begun."""
        self.user.release(self.principal)

    def has_tab(self, tab_secret: str) -> bool:
        """Whether this is the secret of one of its tabs."""
        digest = digest_of(tab_secret)
        return any(hmac.compare_digest(digest, known) for known in self.tab_digests)


class SignedIn:
    """A session that was begun or joined, with the secrets that only the browser gets, once."""

    __slots__ = ("id", "session", "tab_secret")

    def __init__(self, session: Session, id: str, tab_secret: str) -> None:
        self.session = session
        self.id = id  # for the cookie
        self.tab_secret = tab_secret  # for sessionStorage; "" over https

    def __repr__(self) -> str:
        return f"SignedIn({self.session.principal.name!r})"


class Sessions:
    """All sessions and one-time links of a broker. Used on its event loop only."""

    def __init__(
        self, clock: Clock, random_bytes: RandomBytes = secrets.token_bytes, *, is_read_only: bool = False
    ) -> None:
        self._clock = clock
        self._is_read_only = is_read_only
        self._random_bytes = random_bytes
        self._sessions: dict[bytes, Session] = {}  # by the digest of the id, the oldest first
        self._codes: dict[bytes, tuple[Principal, int]] = {}  # by the digest of the code, the oldest first

    def __len__(self) -> int:
        return len(self._sessions)

    # Signing in.

    def begin(self, principal: Principal, *, is_secure: bool, cookies: Sequence[str] = ()) -> SignedIn:
        """Begin a session for who was authenticated; over http join the one that this browser has, if any."""
        now = self._clock.now()
        id, session = (None if is_secure else self._joinable(principal, cookies)) or self._new(principal, is_secure)
        session.expires_at = now + SESSION_SECONDS * 1_000_000
        tab_secret = "" if is_secure else self._secret()
        if tab_secret:
            session.tab_digests = [*session.tab_digests[1 - TABS_MAX :], digest_of(tab_secret)]
        return SignedIn(session, id, tab_secret)

    def new_code(self, principal: Principal) -> str:
        """The code of a one-time link that signs in as this principal."""
        self.tick()
        if len(self._codes) >= CODES_MAX:
            del self._codes[next(iter(self._codes))]
        code = self._secret()
        self._codes[digest_of(code)] = (principal, self._clock.now() + CODE_SECONDS * 1_000_000)
        return code

    def redeem(self, code: str) -> Principal:
        """Who the code of a one-time link stands for. It counts once; raises `NotAuthenticated` after that."""
        principal, expires_at = self._codes.pop(digest_of(code), (None, 0))
        if principal is None or principal.is_revoked or expires_at <= self._clock.now():
            raise NotAuthenticated(
                "the link has been used, or is older than 10 minutes",
                hint="create a new one with `penstock dashboard`",
            )
        return principal

    # Requests.

    def find(self, cookies: Sequence[str], tab_secret: str, *, is_secure: bool) -> Session:
        """The session of a request; raises `NotAuthenticated`.

        A browser may send several cookies of one name, since other ports can set them: the one that counts is chosen.
        """
        live = [session for _, session in self._live(cookies) if session.is_secure is is_secure]
        if not live:
            message = "the session has ended" if cookies else "nobody is signed in"
            raise NotAuthenticated(message, hint=SIGN_IN_AGAIN)
        for session in live:
            if is_secure or session.has_tab(tab_secret):
                return session
        raise NotAuthenticated("this tab is not signed in", hint=SIGN_IN_AGAIN)

    # The end.

    def end(self, session: Session) -> None:
        """End one session, and what was begun in it."""
        if self._sessions.pop(session.id_digest, None) is not None:
            session.end()

    def end_all(self, name: str) -> int:
        """End all sessions of the principal with this name, and its links; returns how many sessions."""
        self._codes = {digest: link for digest, link in self._codes.items() if link[0].name != name}
        sessions = self._of(name)
        for session in sessions:
            self.end(session)
        return len(sessions)

    def tick(self) -> None:
        """End what has expired."""
        now = self._clock.now()
        self._codes = {digest: link for digest, link in self._codes.items() if link[1] > now}
        for session in list(self._sessions.values()):
            if session.expires_at <= now or session.is_over:
                self.end(session)

    # Details.

    def _new(self, principal: Principal, is_secure: bool) -> tuple[str, Session]:
        self.tick()
        own = self._of(principal.name)
        if len(own) >= SESSIONS_PER_PRINCIPAL_MAX:
            self.end(own[0])
        elif len(self._sessions) >= SESSIONS_MAX:
            self.end(next(iter(self._sessions.values())))
        id = self._secret()
        session = Session(principal, digest_of(id), 0, is_secure=is_secure, is_read_only=self._is_read_only)
        self._sessions[session.id_digest] = session
        return id, session

    def _joinable(self, principal: Principal, cookies: Sequence[str]) -> tuple[str, Session] | None:
        for id, session in self._live(cookies):
            if session.user is principal and not session.is_secure:
                return id, session
        return None

    def _live(self, cookies: Sequence[str]) -> list[tuple[str, Session]]:
        now = self._clock.now()
        found = [(id, self._sessions.get(digest_of(id))) for id in cookies[:COOKIES_MAX] if len(id) == SECRET_LENGTH]
        return [
            (id, session)
            for id, session in found
            if session is not None and not session.is_over and session.expires_at > now
        ]

    def _of(self, name: str) -> list[Session]:
        return [session for session in self._sessions.values() if session.principal.name == name]

    def _secret(self) -> str:
        return base64.urlsafe_b64encode(self._random_bytes(SECRET_BYTES)).rstrip(b"=").decode()


def digest_of(text: str) -> bytes:
    """What is kept of a secret: 256 random bits need no slower hash."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def link_of(url: str, code: str) -> str:
    """A one-time link to the dashboard. The code is in the fragment, so no server or proxy logs it."""
    return f"{url}/ui/#code={code}"


# Cookies.


class SessionCookie(msgspec.Struct, frozen=True):
    """The cookie of one listener."""

    name: str
    is_secure: bool

    def set(self, id: str) -> str:
        """The value of `Set-Cookie` that begins a session."""
        return self._header(id, SESSION_SECONDS)

    def clear(self) -> str:
        """The value of `Set-Cookie` that ends it."""
        return self._header("", 0)

    def read(self, header: str) -> list[str]:
        """The ids in a `Cookie` header: none, one, or several when other ports have set some."""
        pairs = (part.strip().partition("=") for part in header.split(";"))
        return [value.strip('"') for name, _, value in pairs if name == self.name and value][:COOKIES_MAX]

    def _header(self, value: str, seconds: int) -> str:
        secure = "; Secure" if self.is_secure else ""
        return f"{self.name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def cookie_for(*, is_https: bool, is_loopback: bool, port: int) -> SessionCookie:
    """The cookie of a listener: `is_loopback` is about the address that it is bound to.

    Raises `NotAuthorised` for plain http on a network: everybody on the way could take the session.
    """
    if is_https:
        return SessionCookie("__Host-penstock", is_secure=True)
    if not is_loopback:
        raise NotAuthorised(
            "browsers cannot sign in over plain http, except on the broker's own machine",
            hint="set tls_certificate and tls_key, or tls = 'proxy' behind a proxy that terminates TLS",
        )
    return SessionCookie(f"penstock_{port}", is_secure=False)
