"""Browsers that sign in and out: `POST /sessions`, `DELETE /sessions/current`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from penstock.access.sessions import CODE_SECONDS, TAB_HEADER, link_of
from penstock.access.sign_in import SignIn
from penstock.broker.access import Client, Principal
from penstock.errors import AccessError, BadRequest, InvalidField, RateLimited
from penstock.server.http.actions import RequestParts, WithHeaders
from penstock.wire import json_models as models

Secret = Annotated[str, Meta(max_length=1024)]


class Credentials(models.Request):
    """A user and password, or the code of a one-time link."""

    user: Annotated[str, Meta(max_length=128)] = ""
    password: Secret = ""
    code: Secret = ""

    def __repr__(self) -> str:
        return "Credentials()"


class SessionView(Struct, kw_only=True):
    """A new session. Over plain HTTP, `tab_secret` must be sent with every request."""

    name: str
    expires_at: models.Instant
    tab_secret: str
    tab_header: str = TAB_HEADER

    def __repr__(self) -> str:
        return f"SessionView({self.name!r})"


class LinkView(Struct, kw_only=True):
    """A one-time link to the dashboard, relative to the URL of this broker."""

    path: str
    expires_at: models.Instant | None

    def __repr__(self) -> str:
        return "LinkView()"


async def begin_session(request: RequestParts) -> Any:
    """POST /api/v1/sessions."""
    sign_in, cookie = _sign_in(request), request.site.cookie()
    principal = await _checked(sign_in, request)
    cookies = cookie.read(request.headers.get("cookie", ""))
    signed_in = sign_in.sessions.begin(principal, is_secure=cookie.is_secure, cookies=cookies)
    view = SessionView(
        name=principal.name,
        expires_at=datetime.fromtimestamp(signed_in.session.expires_at / 1e6, UTC),
        tab_secret=signed_in.tab_secret,
    )
    return WithHeaders(view, {"set-cookie": cookie.set(signed_in.id)})


async def _checked(sign_in: SignIn, request: RequestParts) -> Principal:
    logins, client = request.broker.logins, request.client
    credential = "link" if request.body.code else "password"
    try:
        principal = await _principal(sign_in, request)
    except (AccessError, RateLimited) as error:
        # A name that nobody has is not recorded: it may be a password, typed into the wrong field.
        claimed = request.body.user if sign_in.is_user(request.body.user) else ""
        logins.failed(client.address, client.protocol, credential, error, claimed)
        raise
    logins.succeeded(Client(principal, client.name, client.address, client.protocol), credential)
    return principal


async def _principal(sign_in: SignIn, request: RequestParts) -> Principal:
    body, address = request.body, request.client.address
    if bool(body.code) == bool(body.user):
        raise InvalidField("session: needs user and password, or code")
    if body.code:
        return sign_in.by_code(body.code, address)
    return await sign_in.by_password(body.user, body.password, address)


async def create_link(request: RequestParts) -> Any:
    """POST /api/v1/sessions/links."""
    sign_in = request.broker.logins.sign_in
    if sign_in is None:  # everybody is let in as they are
        return LinkView(path="/ui/", expires_at=None)
    request.site.cookie()  # refused where no browser can sign in
    expires_at = datetime.fromtimestamp(request.broker.clock.now() / 1e6 + CODE_SECONDS, UTC)
    code = sign_in.sessions.new_code(request.client.principal)
    return LinkView(path=link_of("", code), expires_at=expires_at)


async def end_session(request: RequestParts) -> Any:
    """DELETE /api/v1/sessions/current."""
    sign_in, cookie = _sign_in(request), request.site.cookie()
    cookies = cookie.read(request.headers.get("cookie", ""))
    tab_secret = request.headers.get(TAB_HEADER.lower(), "")
    sign_in.sessions.end(sign_in.sessions.find(cookies, tab_secret, is_secure=cookie.is_secure))
    return WithHeaders(None, {"set-cookie": cookie.clear()})


def _sign_in(request: RequestParts) -> SignIn:
    sign_in = request.broker.logins.sign_in
    if sign_in is None:
        raise BadRequest(
            "this broker has no access control, so there is nothing to sign in to",
            hint="use it without signing in: auth is off",
        )
    return sign_in
